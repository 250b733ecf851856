"""The backward pass of one query, spelt out: the weights rebuilt from the scores and the one number that the
forward pass kept, and the slopes that follow. In numpy: no torch, no triton. The kernels that do this for
tiles are in ``backward.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.arrays import Array

# What is done otherwise than it should be:
MISTAKES = (
    "sum",  # the largest score was kept, and not the log-sum-exp: weights lack their denominator
    "delta",  # D is left out, as if the weights of a row were independent
)


@dataclass(frozen=True)
class Rebuilt:
    """Of scores s [m] and values v [m, e], for dO [e]."""

    kept: float  # what the forward pass handed on beside the output
    out: Array  # [e]
    p: Array  # [m]
    dp: Array  # [m]
    delta: float
    ds: Array  # [m]
    dv: Array  # [m, e]


def rebuild(s: Array, v: Array, dout: Array, mistake: str | None = None) -> Rebuilt:
    """ValueError for an unknown ``mistake``."""
    if mistake not in (None, *MISTAKES):
        raise ValueError(f"mistake must be one of {', '.join(MISTAKES)}, not {mistake!r}")
    m = float(s.max())
    lse = m + float(np.log(np.exp(s - m).sum()))
    out = np.exp(s - lse) @ v
    kept = m if mistake == "sum" else lse
    p = np.exp(s - kept)
    dp = v @ dout
    delta = 0.0 if mistake == "delta" else float(dout @ out)
    return Rebuilt(kept, out, p, dp, delta, p * (dp - delta), p[:, None] * dout)


def nudged(s: Array, v: Array, dout: Array, step: float = 1e-4) -> Array:
    """[m]: by how much dO·O changes for each bit by which a score is changed, tried out."""
    found = []
    for j in range(len(s)):
        ends = []
        for sign in (1, -1):
            moved = s.copy()
            moved[j] += sign * step
            weights = np.exp(moved - moved.max())
            ends.append(float(weights / weights.sum() @ v @ dout))
        found.append((ends[0] - ends[1]) / (2 * step))
    return np.array(found)
