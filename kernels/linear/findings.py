"""What a run of an engine with a state is told beside its outputs: what it keeps of the past, ranks of its
weights, errors against features; beside softmax attention on the same tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from kernels.arrays import Array
from kernels.counts import ITEM_BYTES
from kernels.linear.comparison import Exact, ranks
from kernels.linear.favor import error_spread
from kernels.linear.inputs import Recurrence
from kernels.linear.recurrence import weights
from kernels.recurrent import is_normalised
from kernels.registry import option
from kernels.spec.model import RunSpec

STATE_BYTES = 4  # of a number, in float32


def memory_of_the_past(spec: RunSpec) -> dict[str, int]:
    """Bytes of the states, and of the keys and values that attention would keep of as many tokens; and the
    shortest text of which that would be more.

    States are float32. Keys are b and values x of a scan; of a performer, a state has a row for each feature.
    """
    width = int(option(spec, "num_features")) if spec.engine == "performer" else spec.head_dim
    heads = spec.num_heads if spec.engine == "scan" else spec.num_kv_heads  # of states, and of values
    normaliser = spec.engine == "performer" or (spec.engine == "linear" and is_normalised(spec))
    state = STATE_BYTES * spec.batch * heads * width * (spec.v_head_dim + normaliser)
    token = spec.num_kv_heads * spec.head_dim + heads * spec.v_head_dim
    token *= spec.batch * ITEM_BYTES[spec.dtype]
    return {
        "state_bytes": state,
        "cache_bytes": token * spec.kv_len,
        "break_even_tokens": state // token + 1 if token else 0,
    }


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
