"""FAVOR+: random features whose products are the exponentials of softmax attention, on average.

For w drawn from the normal distribution N(0, I),

    exp(q·k) = E[φ_w(q) φ_w(k)],      φ_w(x) = exp(w·x − ‖x‖²/2),

so m draws make features φ(x) = [φ_w1(x), …, φ_wm(x)] / √m, positive, and softmax attention without a matrix
of n × n: a normalised linear recurrence on φ(q), φ(k) (``recurrence.py``). The scale of the logits is shared
out, √scale to either side.

Draws that are orthogonal to each other, within blocks of d, repel, and lower the variance; each has the
length that a normal draw would have. Of a single product the variance is

    (exp(‖q + k‖²) − 1) · exp(2 q·k) / m         (less, with orthogonal draws):

it grows as the exponential of the size of what is attended with, and only 1/m fights it. That is why inputs
of unit variance are hopeless and those of a quarter are not.

*The draws*, so that anyone can make them again: block i takes standard normal numbers G [d, d] from
``kernels.arrays.generate`` (elements i·d² to (i + 1)·d² − 1 of the array ``favor/directions``); its rows are
orthonormalised in their order by Gram and Schmidt, which has one answer; row j of all is then given the
length of row j of an independent normal array ``favor/lengths`` [m, d].

Choromanski et al. 2021, *Rethinking Attention with Performers*, ICLR (there Lemmas 1 and 2). Here
nothing is added to the features for stability, and what is divided out cancels exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernels.arrays import Array, generate
from kernels.integers import ceil_div
from kernels.linear.comparison import Exact, relative_error
from kernels.linear.inputs import Recurrence
from kernels.linear.recurrence import parallel


def directions(seed: int, count: int, d: int, *, orthogonal: bool = True) -> Array:
    """w_1 … w_count: [count, d] float64, orthogonal in blocks of d; or the normal numbers of which orthogonal
    ones are made."""
    blocks = ceil_div(count, d)
    normal = generate("favor/directions", seed, (blocks, d, d), "normal", "float64")
    if not orthogonal:
        return np.asarray(normal.reshape(blocks * d, d)[:count])
    # QR with a positive diagonal is Gram and Schmidt, of columns.
    q, r = np.linalg.qr(normal.mT)
    rows = (q * np.sign(np.einsum("bii->bi", r))[:, None]).mT.reshape(blocks * d, d)[:count]
    lengths = np.linalg.norm(generate("favor/lengths", seed, (count, d), "normal", "float64"), axis=1)
    return np.asarray(rows * lengths[:, None])


def positive_features(x: Array, w: Array, *, shared: bool) -> Array:
    """φ(x) [.., n, m] of x [.., n, d], times a factor that keeps the largest at 1/√m: one for each row, which
    a query's normaliser cancels, or (``shared``) one for all rows of a head, as keys need."""
    exponents = x @ w.T - np.square(x).sum(-1, keepdims=True) / 2
    largest = exponents.max((-2, -1) if shared else -1, keepdims=True, initial=-np.inf)
    return np.asarray(np.exp(exponents - np.where(np.isneginf(largest), 0.0, largest)) / math.sqrt(len(w)))


def performer(exact: Exact, *, count: int, seed: int, orthogonal: bool = True) -> Recurrence:
    """The linear recurrence that stands for ``exact``, with ``count`` features. Raises ValueError for
    none."""
    if count < 1:
        raise ValueError(f"count, the number of features, must be at least 1, not {count}")
    w = directions(seed, count, exact.q.shape[3], orthogonal=orthogonal)
    share = math.sqrt(abs(exact.scale))
    q = positive_features(math.copysign(share, exact.scale) * exact.q, w, shared=False)
    k = positive_features(share * exact.k, w, shared=True)
    return Recurrence(q, k, exact.v, normalised=True, causal=exact.causal)


@dataclass(frozen=True)
class Spread:
    """Relative errors of as many seeds, and an interval that holds the median of all seeds with at least
    ``confidence``."""

    count: int
    errors: tuple[float, ...]  # ascending
    median: float
    low: float
    high: float
    confidence: float


def error_spread(
    exact: Exact, *, count: int, seeds: Sequence[int], orthogonal: bool = True, at_least: float = 0.95
) -> Spread:
    """How far ``count`` features are from ``exact``: ‖out − exact‖ / ‖exact‖ for each seed.

    The interval runs between two order statistics. Seeds fall on either side of the median as a coin does, so
    its confidence is a binomial sum, whatever the distribution of errors: and that has a heavy tail. Raises
    ValueError for fewer seeds than ``at_least`` takes (6 for 0.95).
    """
    outside = order_statistic(len(seeds), at_least)
    wanted = exact.out()
    drawn = (performer(exact, count=count, seed=seed, orthogonal=orthogonal) for seed in seeds)
    errors = sorted(relative_error(parallel(recurrence).out, wanted) for recurrence in drawn)
    low, high = errors[outside - 1], errors[-outside]
    return Spread(count, tuple(errors), float(np.median(errors)), low, high, coverage(len(errors), outside))


def order_statistic(n: int, at_least: float) -> int:
    """The largest r for which the r-th smallest and the r-th largest of n hold the median between them with
    at least that probability."""
    fitting = [r for r in range(1, n // 2 + 1) if coverage(n, r) >= at_least]
    if not fitting:
        raise ValueError(f"{n} seeds cannot give an interval with confidence {at_least}; send more of them")
    return fitting[-1]


def coverage(n: int, r: int) -> float:
    """P(r-th smallest < median < r-th largest) of n draws: 1 − 2 P(Binomial(n, ½) < r)."""
    return 1.0 - 2.0 * sum(math.comb(n, i) for i in range(r)) / 2.0**n
