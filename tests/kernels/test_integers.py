"""Whole numbers are divided and rounded exactly, where floats would not do."""

from fractions import Fraction
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from kernels.integers import ceil_div, next_power_of_two


@given(st.integers(-(2**70), 2**70), st.integers(1, 2**70))
def test_division_rounds_up_whatever_the_size(a: int, b: int) -> None:
    assert ceil_div(a, b) == ceil(Fraction(a, b))


@given(st.integers(1, 2**70))
def test_the_next_power_of_two_is_the_smallest_that_is_no_smaller(n: int) -> None:
    power = next_power_of_two(n)
    assert power & (power - 1) == 0
    assert power // 2 < n <= power


def test_there_is_no_power_below_one() -> None:
    assert next_power_of_two(0) == 1
