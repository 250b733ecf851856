"""Softmax and sum over scores of any kind, in float64.

α_ij = exp(s_ij) / Σ_l exp(s_il)   over the keys that query i may see,       c_i = Σ_j α_ij v_j
"""

from __future__ import annotations

import numpy as np

from kernels.arrays import Array
from kernels.scoring.functions import for_query_heads


def softmax(scores: Array, allowed: Array | bool = True) -> Array:
    """Weights along the last axis, over what is ``allowed``; 0 in a row where nothing is.

    The largest score is taken out of the exponentials, so that none overflows.
    """
    masked = np.where(allowed, scores, -np.inf)
    largest = np.max(masked, axis=-1, keepdims=True, initial=-np.inf)
    exponentials = np.exp(masked - np.where(np.isneginf(largest), 0.0, largest))
    total = exponentials.sum(axis=-1, keepdims=True)
    return np.asarray(exponentials / np.where(total == 0.0, 1.0, total))


def summed(weights: Array, v: Array) -> Array:
    """Σ_j α_ij v_j: weights [b, h, n, m] and v [b, h_kv, m, e] → [b, h, n, e]."""
    return np.asarray(weights @ for_query_heads(v, weights.shape[1]))
