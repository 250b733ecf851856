"""Attention one operation after another and in tiles, rounded as a machine rounds, every sum in one
stated order: so that how often the two agree to the last bit can be shown, and is the same everywhere.

Both keep sums in float32 and round to a dtype what they store: one after another that is scores, weights and
outputs, in tiles the weights as a factor of their product with the values, and outputs. A library adds in an
order of its own, so that its share of equal bits is another. In numpy: no torch, no triton.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.arrays import Array, round_to_dtype

DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Agreement:
    """How two results of one computation differ, and how far each is from it in float64."""

    difference: Array  # [n, e], the second less the first
    equal: float  # share of the numbers that have the same bits
    first_error: float  # the largest
    second_error: float

    @property
    def largest(self) -> float:
        return float(np.abs(self.difference).max(initial=0.0))


def one_by_one(q: Array, k: Array, v: Array, dtype: str) -> Array:
    """[n, e]: scores, softmax and the average of values, each stored before the next begins."""
    q, k, v = (_rounded(x, dtype) for x in (q, k, v))
    s = _rounded(_scores(q, k), dtype)
    weights = _exp(s - s.max(axis=1, keepdims=True))
    total = np.zeros(len(s), np.float32)
    for j in range(s.shape[1]):
        total = total + weights[:, j]
    nothing = np.zeros((len(q), v.shape[1]), np.float32)
    return _rounded(_summed(_rounded(weights / total[:, None], dtype), v, nothing), dtype)


def in_tiles(q: Array, k: Array, v: Array, block: int, dtype: str) -> Array:
    """[n, e]: the online softmax over tiles of ``block`` keys, with one division at the end."""
    q, k, v = (_rounded(x, dtype) for x in (q, k, v))
    m = np.full(len(q), -np.inf, np.float32)
    total, out = np.zeros(len(q), np.float32), np.zeros((len(q), v.shape[1]), np.float32)
    for first in range(0, len(k), block):
        s = _scores(q, k[first : first + block])
        raised = np.maximum(m, s.max(axis=1))
        by, weights = _exp(m - raised), _exp(s - raised[:, None])
        total, out, m = total * by, out * by[:, None], raised
        for j in range(s.shape[1]):
            total = total + weights[:, j]
        out = _summed(_rounded(weights, dtype), v[first : first + block], out)
    return _rounded(out / total[:, None], dtype)


def exactly(q: Array, k: Array, v: Array, dtype: str) -> Array:
    """[n, e] float64, from the inputs as the dtype has them."""
    q, k, v = (_rounded(x, dtype) for x in (q, k, v))
    s = q.astype(np.float64) @ k.T.astype(np.float64) / np.sqrt(q.shape[1])
    weights = np.exp(s - s.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True) @ v.astype(np.float64))


def agreement(first: Array, second: Array, exact: Array) -> Agreement:
    one, other = first.astype(np.float64), second.astype(np.float64)
    errors = [float(np.abs(x - exact).max(initial=0.0)) for x in (one, other)]
    return Agreement(other - one, float(np.mean(one == other)), *errors)


def _rounded(array: Array, dtype: str) -> Array:
    """As the dtype has it, in float32."""
    return round_to_dtype(array, dtype).astype(np.float32)


def _scores(q: Array, k: Array) -> Array:
    """[n, m] float32, summed from the first coordinate to the last, then scaled."""
    s = np.zeros((len(q), len(k)), np.float32)
    for at in range(q.shape[1]):
        s = s + q[:, at, None] * k[None, :, at]
    return s * np.float32(q.shape[1] ** -0.5)


def _summed(weights: Array, v: Array, out: Array) -> Array:
    """[n, e]: values by their weights, from the first key to the last, on top of ``out``."""
    for j in range(len(v)):
        out = out + weights[:, j, None] * v[j]
    return out


def _exp(x: Array) -> Array:
    """Rounded once to float32, the same on every machine."""
    return np.exp(x.astype(np.float64)).astype(np.float32)
