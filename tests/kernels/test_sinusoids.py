"""Positions as sines and cosines, against the formula of the paper written out."""

import math

import numpy as np
import pytest

from kernels.sinusoids import sinusoids


@pytest.mark.parametrize("base", [10_000.0, 3.0])
def test_numbers_are_those_of_the_paper(base: float) -> None:
    found = sinusoids(np.array([0, 1, 7, 500]), 6, base)
    for row, position in zip(found, (0, 1, 7, 500), strict=True):
        for i in range(3):
            angle = position / base ** (2 * i / 6)
            assert row[2 * i] == pytest.approx(math.sin(angle), abs=1e-12)
            assert row[2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-12)


def test_products_depend_on_the_distance_alone() -> None:
    here, there = sinusoids(np.arange(20), 32), sinusoids(np.arange(20) + 12_345, 32)
    np.testing.assert_allclose(here @ here.T, there @ there.T, atol=1e-10)
    np.testing.assert_allclose(np.diag(here @ here.T), 16)
