"""Softmax and sum over scores of any kind, beside what scaled-dot attention makes of the same inputs.

α_ij = exp(s_ij) / Σ_l exp(s_il)   over the keys that query i may see,       c_i = Σ_j α_ij v_j
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.arrays import Array
from kernels.numerics import errors
from kernels.scoring.costs import Cost, Sizes, cost
from kernels.scoring.functions import Parameters, for_query_heads, score


@dataclass(frozen=True)
class Scored:
    """Attention by some score. b batch, h query heads, n queries, m keys, e width of a value."""

    scores: Array  # [b, h, n, m], before anything is forbidden
    weights: Array  # [b, h, n, m]
    out: Array  # [b, h, n, e]
    cost: Cost  # of the scores


@dataclass(frozen=True)
class Compared:
    """One score beside scaled dot products, and how far the output and the weights are from theirs."""

    found: Scored
    exact: Scored
    out: Mapping[str, Any]  # as ``kernels.numerics.errors`` has it
    weights: Mapping[str, Any]


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


def attend(
    name: str,
    q: Array,
    k: Array,
    v: Array,
    parameters: Parameters,
    *,
    allowed: Array | bool = True,
    beta: float = 1.0,
) -> Scored:
    """Attention by the score ``name`` of ``functions.SCORES``: q [b, h, n, d_q], k [b, h_kv, m, d_k] and
    v [b, h_kv, m, e] in float64; ``allowed`` broadcasts to [b, h, n, m]."""
    scores = score(name, q, k, parameters, beta=beta)
    weights = softmax(scores, allowed)
    hidden = parameters["v_a"].shape[-1] if "v_a" in parameters else 0
    batch, heads, n, m = scores.shape
    sizes = Sizes(batch, heads, n, m, q.shape[3], k.shape[3], hidden)
    return Scored(scores, weights, summed(weights, v), cost(name, sizes))


def compare(
    name: str,
    q: Array,
    k: Array,
    v: Array,
    parameters: Parameters,
    *,
    allowed: Array | bool = True,
    beta: float = 1.0,
) -> Compared:
    """``attend``, and scaled-dot attention on the same inputs (which wants q and k of one width)."""
    found = attend(name, q, k, v, parameters, allowed=allowed, beta=beta)
    exact = attend("scaled_dot", q, k, v, {}, allowed=allowed)
    return Compared(found, exact, errors(found.out, exact.out), errors(found.weights, exact.weights))
