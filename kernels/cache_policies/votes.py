"""Which tokens of a prompt stay, by the votes of its end.

The queries of the last ``window`` tokens of a prompt stand for those that are to come: the tokens before them
that have most of their weights stay, each head its own, and so does the window (Li et al. 2024, *SnapKV*,
NeurIPS, arXiv 2404.14469). Votes are averaged over ``pool`` neighbours first, so that what stands around a
token that is looked at may stay with it. This is done once, when the prompt has been read; what is written
after it is added, and nothing more is evicted.
"""

from __future__ import annotations

import math

import numpy as np

from kernels.arrays import Array
from kernels.scoring.attention import softmax


def votes(q: Array, k: Array, window: int, pool: int = 1) -> Array:
    """q, k [b, h, n, d] of a prompt → [b, h, n − window]: the weights that the last ``window`` queries give
    each token before them, in sum, averaged over ``pool`` (odd) neighbours, of which those that are not there
    count as 0."""
    n, d = q.shape[2:]
    if not 1 <= window < n:
        raise ValueError(f"window must be 1 to {n - 1}, not {window}: tokens before it are voted for")
    if pool < 1 or pool % 2 == 0:
        raise ValueError(f"pool must be odd, not {pool}: as many neighbours before as after")
    scores = q[:, :, n - window :] @ np.swapaxes(k, 2, 3) / math.sqrt(d)
    allowed = np.arange(n) <= np.arange(n - window, n)[:, None]
    sums = softmax(scores, allowed)[..., : n - window].sum(axis=2)
    padded = np.pad(sums, ((0, 0), (0, 0), (pool // 2, pool // 2)))
    return np.asarray(np.lib.stride_tricks.sliding_window_view(padded, pool, axis=2).mean(axis=3))


def elected(q: Array, k: Array, window: int, budget: int, pool: int = 1) -> Array:
    """The places that stay, ascending: [b, h, budget], or [b, h, n] where the prompt is no longer than that.
    Of equal votes the newer stays."""
    batch, heads, n = q.shape[:3]
    if budget < window:
        raise ValueError(f"budget must be at least the window of {window}, not {budget}: the window stays")
    if n <= budget:
        return np.broadcast_to(np.arange(n), (batch, heads, n))
    order = np.argsort(votes(q, k, window, pool), axis=2, kind="stable")
    chosen = np.sort(order[:, :, n - budget :], axis=2)
    newest = np.broadcast_to(np.arange(n - window, n), (batch, heads, window))
    return np.concatenate([chosen, newest], axis=2)
