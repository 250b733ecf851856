"""What a run of linear attention is told beside its outputs: ranks of weights, errors against features, and
what it keeps of the past, beside softmax attention on the same tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from kernels.arrays import Array
from kernels.linear.comparison import Exact, ranks
from kernels.linear.favor import error_spread
from kernels.linear.inputs import Recurrence
from kernels.linear.recurrence import weights


def mean_ranks(
    rows: Iterable[tuple[Exact, Recurrence]], checkpoint: Callable[[], None]
) -> dict[str, float] | None:
    """Ranks and effective ranks (``kernels.linear.comparison``) of the matrices that make outputs of values,
    means of all heads, beside those of softmax attention. ``rows`` are some heads at a time, since each takes
    matrices of all pairs. None where there are none, or a state has grown beyond float64."""
    found: list[tuple[Array, ...]] = []
    for exact, linear in rows:
        checkpoint()
        with np.errstate(over="ignore", invalid="ignore"):
            matrices = (weights(linear), exact.results()[1])
        if not all(np.isfinite(matrix).all() for matrix in matrices):
            return None
        found.append(tuple(np.ravel(each) for matrix in matrices for each in ranks(matrix)))
    if not found:
        return None
    names = ("rank", "effective_rank", "softmax_rank", "softmax_effective_rank")
    means = (float(np.concatenate(each).mean()) for each in zip(*found, strict=True))
    return dict(zip(names, means, strict=True))


def error_by_features(
    exact: Exact, counts: tuple[int, ...], trials: int, *, orthogonal: bool, checkpoint: Callable[[], None]
) -> list[dict[str, Any]]:
    """For each number of features the relative errors of ``trials`` draws of them: their median, and an
    interval that holds the median of all draws with ``confidence``."""
    found = []
    for count in counts:
        checkpoint()
        spread = error_spread(exact, count=count, seeds=range(trials), orthogonal=orthogonal)
        found.append(
            {
                "features": count,
                "median": spread.median,
                "low": spread.low,
                "high": spread.high,
                "confidence": spread.confidence,
            }
        )
    return found


def feature_counts(most: int) -> tuple[int, ...]:
    """Every fourth power of two up to ``most``, which is the last: 4, 16, 64, 256 for 256."""
    smaller: list[int] = []
    count = most
    while count >= 1 and len(smaller) < 4:
        smaller.append(count)
        count //= 4
    return tuple(reversed(smaller))
