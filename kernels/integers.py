"""Arithmetic of whole numbers that Python has no name for."""


def ceil_div(a: int, b: int) -> int:
    """⌈a / b⌉, exact for integers of any size; b > 0."""
    return -(-a // b)
