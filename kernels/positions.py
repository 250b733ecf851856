"""Where queries and keys stand, and what ALiBi adds: the conventions of the contract, in one place (numpy).

Positions decide causal masking and windows alike. Keys stand at 0 … kv_len−1 unless ``kv_positions`` says
otherwise; queries end at the last key (``bottom_right``) or begin at the first (``top_left``) unless
``q_positions`` does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.spec.model import Positions, RunSpec

Array = np.ndarray[Any, np.dtype[Any]]


def query_offset(spec: RunSpec) -> int | None:
    """Position of query 0 minus position of key 0 where both count upwards by one, else None."""
    attention = spec.attention
    q, kv = attention.q_positions, attention.kv_positions
    if isinstance(q, tuple) or isinstance(kv, tuple):
        return None
    if q is not None:
        return q - (kv or 0)
    return spec.kv_len - spec.q_len if attention.causal_alignment == "bottom_right" else 0


def key_positions(spec: RunSpec) -> Array:
    """[batch or 1, kv_len] int64."""
    return _resolve(spec.attention.kv_positions, spec.kv_len)


def query_positions(spec: RunSpec) -> Array:
    """[batch or 1, q_len] int64."""
    attention = spec.attention
    if attention.q_positions is not None:
        return _resolve(attention.q_positions, spec.q_len)
    keys = key_positions(spec)
    if attention.causal_alignment == "top_left":
        first = keys[:, :1] if spec.kv_len else np.zeros((1, 1), dtype=np.int64)
    elif spec.kv_len:
        first = keys[:, -1:] - (spec.q_len - 1)
    else:
        first = np.full((1, 1), -spec.q_len, dtype=np.int64)
    return first + np.arange(spec.q_len)


def _resolve(given: Positions, length: int) -> Array:
    if given is None or isinstance(given, int):
        return (np.arange(length, dtype=np.int64) + (given or 0))[None, :]
    return np.array(given, dtype=np.int64).reshape(-1, length) if length else np.zeros((1, 0), dtype=np.int64)


def alibi_slopes(spec: RunSpec) -> Array | None:
    """[batch or 1, heads] float32 slopes, or None without ALiBi."""
    given = spec.attention.alibi_slopes
    if given is None:
        return None
    if isinstance(given, str):
        return np.array([automatic_slopes(spec.num_heads)], dtype=np.float32)
    return (
        np.array(given, dtype=np.float32).reshape(-1, spec.num_heads) if spec.num_heads else np.zeros((1, 0))
    )


def automatic_slopes(heads: int) -> list[float]:
    """The ALiBi authors' rule: 2^(−8h/H) for h = 1 … H when H is a power of two.

    For other counts, the slopes of the power of two below, then every second slope of the power of two above
    (Press et al. 2022, ``get_slopes`` in their code).
    """
    if heads == 0:
        return []
    below = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * h / below) for h in range(1, below + 1)]
    extra = [2.0 ** (-8.0 * h / (2 * below)) for h in range(1, 2 * (heads - below) + 1, 2)]
    return slopes + extra


def visible_pairs(spec: RunSpec) -> int:
    """Pairs (query, key) that causal masking and the window let through, over all batch rows and heads.

    Closed form where positions count by one; ``attn_mask`` is not looked at (its data may not exist yet).
    """
    attention, rows = spec.attention, spec.batch * spec.num_heads
    left, right = attention.window
    if attention.is_causal:
        right = 0 if right is None else min(right, 0)
    if left is None and right is None:
        return rows * spec.q_len * spec.kv_len
    offset = query_offset(spec)
    if offset is not None:
        upper = _sum_clamped(offset + (right or 0) + 1, spec.q_len, spec.kv_len)
        upper = spec.q_len * spec.kv_len if right is None else upper
        lower = 0 if left is None else _sum_clamped(offset - left, spec.q_len, spec.kv_len)
        return rows * (upper - lower)
    queries, keys = query_positions(spec), np.sort(key_positions(spec), axis=1)
    batch = max(len(queries), len(keys))
    pairs = 0
    for row in range(batch):
        q, k = queries[row % len(queries)], keys[row % len(keys)]
        upto = len(k) if right is None else np.searchsorted(k, q + right, side="right")
        start = 0 if left is None else np.searchsorted(k, q - left, side="left")
        pairs += int(np.sum(np.broadcast_to(upto - start, q.shape)))
    return pairs * rows // batch


def _sum_clamped(start: int, count: int, limit: int) -> int:
    """Σ of clamp(start + i, 0, limit) for i = 0 … count−1."""
    zeros = min(max(-start, 0), count)
    rising = min(max(limit - max(start, 0), 0), count - zeros)
    first = start + zeros
    total = rising * first + rising * (rising - 1) // 2 if rising else 0
    return total + (count - zeros - rising) * limit
