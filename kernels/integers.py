"""Arithmetic of whole numbers that Python has no name for."""


def ceil_div(a: int, b: int) -> int:
    """⌈a / b⌉, exact for integers of any size; b > 0."""
    return -(-a // b)


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()
