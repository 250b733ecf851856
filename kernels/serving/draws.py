"""Random numbers that anyone can reproduce from a seed, in any release of Python.

Of Python's generator (the Mersenne Twister MT19937) only ``random.Random(seed).random()`` is used, the one
method whose sequence Python promises to keep: u in [0, 1) with 53 bits. Every value below is made of one u.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from random import Random


class Draws:
    """A stream of random values; the same seed and the same calls give the same values."""

    def __init__(self, seed: int) -> None:
        self.uniform = Random(seed).random  # noqa: S311 (reproducible, which is the point)

    def integer(self, low: int, high: int) -> int:
        """Uniform over low, …, high: low + ⌊u·(high − low + 1)⌋."""
        return low + int(self.uniform() * (high - low + 1))

    def exponential(self, rate: float) -> float:
        """Time until the next event of a Poisson process: −ln(1 − u) / rate."""
        return -math.log1p(-self.uniform()) / rate

    def index(self, cumulative: Sequence[float]) -> int:
        """The first index whose cumulative weight exceeds u · total: drawn in proportion to its weight."""
        total = cumulative[-1]
        return bisect_right(cumulative, self.uniform() * total, hi=bisect_left(cumulative, total))


def cumulated(weights: Iterable[float]) -> list[float]:
    """What :meth:`Draws.index` draws from: each weight with all before it."""
    return list(accumulate(weights))
