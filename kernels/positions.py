"""Where queries and keys stand, and what ALiBi adds: the conventions of the contract, in one place (numpy).

Positions decide causal masking, windows, ALiBi and RoPE alike. Keys stand at 0 … kv_len−1 unless
``kv_positions`` says otherwise; queries end at the last key (``bottom_right``) or begin at the first
(``top_left``) unless ``q_positions`` does. In a ragged batch the last query and the last key are those within
``q_lens`` and ``kv_lens``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kernels.arrays import Array
from kernels.registry import is_causal
from kernels.spec.model import Positions, RunSpec


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
    return resolve(spec.attention.kv_positions, spec.kv_len)


def query_positions(spec: RunSpec, q_lens: Array | None = None, kv_lens: Array | None = None) -> Array:
    """[batch or 1, q_len] int64, for the lengths of a ragged batch where there are any."""
    attention = spec.attention
    if attention.q_positions is not None:
        return resolve(attention.q_positions, spec.q_len)
    if attention.causal_alignment == "top_left":
        first = _key_position(spec, np.zeros(1, dtype=np.int64))
    else:
        last = np.array([spec.kv_len]) if kv_lens is None else kv_lens
        first = _key_position(spec, last - 1) - (np.array([spec.q_len]) if q_lens is None else q_lens) + 1
    return np.asarray(first[:, None] + np.arange(spec.q_len))


def _key_position(spec: RunSpec, index: Array) -> Array:
    """[batch or 1]: where the key number ``index[b]`` of each row stands; before the first one it stands one
    step back."""
    given = spec.attention.kv_positions
    if not isinstance(given, tuple):
        return index + (given or 0)
    if spec.kv_len == 0:
        return index
    keys = resolve(given, spec.kv_len)
    row, index = np.broadcast_arrays(np.arange(len(keys)), index)  # of no rows, where the batch has none
    return np.asarray(keys[row, np.maximum(index, 0)] + np.minimum(index, 0))


def resolve(given: Positions, length: int) -> Array:
    """Positions as the contract writes them, as [batch or 1, length] int64."""
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

    Closed form where positions count by one; ``attn_mask`` is not looked at (its data may not exist yet), nor
    are patterns and the lengths of a ragged batch, so that there it is an upper bound.
    """
    attention, rows = replace(spec.attention, is_causal=is_causal(spec)), spec.batch * spec.num_heads
    left, right = attention.sides
    if rows * spec.q_len * spec.kv_len == 0:
        return 0
    if left is None and right is None:
        return rows * spec.q_len * spec.kv_len
    offset = query_offset(spec)
    if offset is not None:
        upper = _sum_clamped(offset + (right or 0) + 1, spec.q_len, spec.kv_len)
        upper = spec.q_len * spec.kv_len if right is None else upper
        lower = 0 if left is None else _sum_clamped(offset - left, spec.q_len, spec.kv_len)
        return rows * (upper - lower)
    if attention.q_positions is None and not {"q_lens", "kv_lens"}.isdisjoint(spec.inputs):
        return rows * spec.q_len * spec.kv_len  # queries end at a key that is data
    lists = max(_lists(attention.q_positions), _lists(attention.kv_positions))
    return rows * sum(_listed_pairs(spec, row, left, right) for row in range(lists)) // lists


@dataclass(frozen=True)
class _Ramp:
    """Positions that count upwards by one, never written out: a request names their number in a few bytes."""

    start: int
    length: int


def _lists(given: Positions) -> int:
    """How many lists of positions there are: 1 for one integer, or one list for all batch rows."""
    return len(given) if isinstance(given, tuple) and given and isinstance(given[0], tuple) else 1


def _axis(given: Positions, row: int, length: int) -> Array | _Ramp:
    """The positions of one batch row."""
    if given is None or isinstance(given, int):
        return _Ramp(given or 0, length)
    return _list(given, row)


def _list(given: Positions, row: int) -> Array:
    """The listed positions of one batch row."""
    if not isinstance(given, tuple) or not given or not isinstance(given[0], tuple):
        return np.array(given, dtype=np.int64)  # one list for all rows
    return np.array(given[row % len(given)], dtype=np.int64)


def _listed_pairs(spec: RunSpec, row: int, left: int | None, right: int | None) -> int:
    """``visible_pairs`` of one head of one batch row where q_positions or kv_positions is a list.

    One pass over a list, counting on the other side: query q sees the keys from q − left to q + right, and
    key k is seen by the queries from k − right to k + left.
    """
    attention = spec.attention
    given = attention.q_positions
    if isinstance(given, tuple):
        return _count(_list(given, row), _axis(attention.kv_positions, row, spec.kv_len), left, right)
    keys = _list(attention.kv_positions, row)
    if given is None:
        top_left = attention.causal_alignment == "top_left"
        given = int(keys[0]) if top_left else int(keys[-1]) - spec.q_len + 1
    return _count(keys, _Ramp(given, spec.q_len), right, left)


def _count(listed: Array, others: Array | _Ramp, below: int | None, above: int | None) -> int:
    """Pairs of a listed position p and another from p − below to p + above; None: without that bound."""
    length = others.length if isinstance(others, _Ramp) else len(others)
    upto = length * len(listed) if above is None else _count_upto(others, listed + above)
    return upto - (0 if below is None else _count_upto(others, listed - (below + 1)))


def _count_upto(positions: Array | _Ramp, limits: Array) -> int:
    """How many of ``positions`` are at most each of ``limits``, summed."""
    if isinstance(positions, _Ramp):
        return int(np.clip(limits - (positions.start - 1), 0, positions.length).sum())
    return int(np.searchsorted(np.sort(positions), limits, side="right").sum())


def _sum_clamped(start: int, count: int, limit: int) -> int:
    """Σ of clamp(start + i, 0, limit) for i = 0 … count−1."""
    zeros = min(max(-start, 0), count)
    rising = min(max(limit - max(start, 0), 0), count - zeros)
    first = start + zeros
    total = rising * first + rising * (rising - 1) // 2 if rising else 0
    return total + (count - zeros - rising) * limit
