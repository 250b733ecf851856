"""Which pairs may see each other, all together: pattern, causality and window (numpy)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernels import positions
from kernels.arrays import Array
from kernels.patterns import pattern_mask
from kernels.spec.model import Attention, InputSpec, RunSpec

Sides = tuple[int | None, int | None]


def visible(spec: RunSpec, q_lens: Array | None = None, kv_lens: Array | None = None) -> Array:
    """True where a query may see a key: bool [b or 1, 1, q_len, kv_len].

    ``q_lens`` and ``kv_lens`` [b], where the batch is ragged, only place the queries. An ``attn_mask`` is an
    input, and is not looked at.
    """
    queries, keys = positions.query_positions(spec, q_lens, kv_lens), positions.key_positions(spec)
    queries, keys = queries[:, None, :, None], keys[:, None, None, :]
    seen = np.ones(np.broadcast_shapes(queries.shape, keys.shape), dtype=np.bool_)
    left, right = spec.attention.sides
    if left is not None:
        seen &= keys >= queries - left
    if right is not None:
        seen &= keys <= queries + right
    pattern = pattern_mask(spec, q_lens, kv_lens)
    return seen if pattern is None else seen & pattern


def mask_of(
    pattern: Mapping[str, Any] | None,
    length: int,
    *,
    is_causal: bool = False,
    window: Sides = (None, None),
    rows: range | None = None,
) -> Array:
    """Self-attention over ``length`` tokens: bool [length, length], which must be one for all batch rows; or
    the ``rows`` of it that are wanted, consecutive ones."""
    rows = range(length) if rows is None else rows
    queries, keys = (InputSpec((1, 1, n, 1), "float32", "seed") for n in (len(rows), length))
    attention = Attention(pattern=pattern, is_causal=is_causal, window=window, q_positions=rows.start)
    mask = visible(RunSpec("reference", {"q": queries, "k": keys, "v": keys}, attention=attention))
    return np.asarray(mask[0, 0])
