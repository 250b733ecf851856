"""Pearson's chi-square test: do counts look drawn from a distribution?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_EXPECTED = 5.0  # below it a cell is not nearly normal; such cells are taken together


@dataclass(frozen=True)
class Fit:
    """``p_value``: how often a sample that *is* drawn from the distribution is at least as far from it. None
    when a single cell is left, which says nothing."""

    statistic: float
    degrees: int
    p_value: float | None


def chi_square(counts: Sequence[int], probabilities: Sequence[float]) -> Fit:
    """Compare counts with the probabilities of the same cells. A count where the probability is 0 is
    impossible: the statistic is infinite."""
    total = sum(counts)
    pairs = sorted(zip(probabilities, counts, strict=True))
    if any(count and not probability for probability, count in pairs):
        return Fit(math.inf, len(counts) - 1, 0.0)
    cells, together, expected = [], 0, 0.0
    for probability, count in pairs:  # the rarest first: as many together as it takes
        together, expected = together + count, expected + probability * total
        if expected >= LEAST_EXPECTED:
            cells.append((together, expected))
            together, expected = 0, 0.0
    degrees = len(cells) - 1
    if degrees < 1:
        return Fit(0.0, 0, None)
    statistic = math.fsum((count - expected) ** 2 / expected for count, expected in cells)
    return Fit(statistic, degrees, upper_tail(statistic, degrees))


def upper_tail(x: float, degrees: int) -> float:
    """P(X ≥ x) of the chi-square distribution, by the finite sums that whole degrees of freedom allow."""
    if x <= 0:
        return 1.0
    half = x / 2
    odd = degrees % 2
    first = math.erfc(math.sqrt(half)) if odd else 0.0
    powers = (term + odd / 2 for term in range(degrees // 2))
    terms = (math.exp(a * math.log(half) - half - math.lgamma(a + 1)) for a in powers)
    return min(1.0, first + math.fsum(terms))
