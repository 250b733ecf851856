"""The chi-square test against tables, against torch's incomplete gamma function, and on samples."""

import math

import pytest
import torch

from kernels.serving.draws import Draws, cumulated
from kernels.serving.goodness import chi_square, upper_tail


@pytest.mark.parametrize(
    ("x", "degrees", "tail"),
    [(3.841, 1, 0.05), (5.991, 2, 0.05), (11.345, 3, 0.01), (18.307, 10, 0.05), (124.342, 100, 0.05)],
)
def test_the_critical_values_of_every_textbook(x, degrees, tail):
    assert upper_tail(x, degrees) == pytest.approx(tail, rel=1e-3)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 30, 127])
@pytest.mark.parametrize("x", [0.0, 1e-6, 0.5, 3.0, 40.0, 200.0])
def test_the_tail_is_the_incomplete_gamma_function(x, degrees):
    half = torch.tensor([degrees / 2, x / 2], dtype=torch.float64)
    assert upper_tail(x, degrees) == pytest.approx(
        torch.special.gammaincc(*half).item(), rel=1e-9, abs=1e-300
    )


def test_by_hand():
    fit = chi_square([30, 50, 20], [0.25, 0.5, 0.25])
    assert fit.statistic == pytest.approx(25 / 25 + 0 + 25 / 25)
    assert fit.degrees == 2
    assert fit.p_value == pytest.approx(math.exp(-1))


def test_what_cannot_happen_and_what_hardly_does():
    assert chi_square([5, 5], [1.0, 0.0]).p_value == 0
    assert chi_square([100, 0, 0], [0.98, 0.01, 0.01]).degrees == 0  # both rare ones together: 2 < 5
    assert chi_square([10], [1.0]).p_value is None


def test_it_tells_a_fair_die_from_a_loaded_one():
    draws = Draws(1)
    fair = [draws.index(cumulated([1] * 6)) for _ in range(6000)]
    loaded = [draws.index(cumulated([1] * 5 + [1.3])) for _ in range(6000)]
    assert chi_square([fair.count(side) for side in range(6)], [1 / 6] * 6).p_value > 0.01
    assert chi_square([loaded.count(side) for side in range(6)], [1 / 6] * 6).p_value < 1e-4
