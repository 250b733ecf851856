"""Which tiles of keys the forward kernel takes into account for which tile of queries, and with which loop:
what ``logits.key_bounds`` and ``logits.wanted`` decide in the kernel, of all programs at once. In numpy: no
torch, no triton.

``visits.py`` counts the same from a spec alone, for what is priced; here it is asked of single tiles, with
the masks, patterns, positions and lengths that decide it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kernels.arrays import Array
from kernels.flash.block_mask import block_mask
from kernels.operands import Operands, operands
from kernels.spec.model import RunSpec
from kernels.tuning import Tiles

SKIPPED, MASKED, FULL = 0, 1, 2
DECIDING = ("attn_mask", "q_lens", "kv_lens")  # the inputs whose numbers say who sees whom


def schedule(given: Operands, tiles: Tiles) -> Array:
    """uint8 [b, h, ⌈n / block_m⌉, ⌈m / block_n⌉], of the tile of queries and the tile of keys:

    * SKIPPED: no query of the one may see a key of the other, and its keys are never loaded;
    * MASKED: it is computed, and each pair looked at, because some may be forbidden (or beyond the last key);
    * FULL: it is computed without a look, because every query is known to see every key.

    A program has one tile of queries and visits its tiles of keys from left to right; programs run in the
    order of the first three axes. A kernel that has a mask or a left edge looks at every tile that it visits.
    """
    (batch, heads, n, _), m, (block_m, block_n) = given.q.shape, given.k.shape[2], tiles[:2]
    positioned = given.left is not None or given.right is not None or given.slopes is not None
    offset = offsets(given) if positioned else np.zeros(1, np.int64)
    bounds = _key_bounds(given, offset, (block_m, block_n))
    starts = np.arange(0, m, block_n)
    begin, full, end = (np.asarray(x)[..., None] for x in bounds)  # [b or 1, query tiles, 1]
    found = block_mask(given, (block_m, block_n), listed=offset is None)
    is_listed = offset is None and given.right is not None
    looks_everywhere = given.left is not None or given.mask is not None or found is not None or is_listed
    is_full = (starts < full) & (not looks_everywhere)
    kinds = np.where((begin <= starts) & (starts < end), np.where(is_full, FULL, MASKED), SKIPPED)[:, None]
    if found is not None:
        kinds = np.where(found != 0, kinds, SKIPPED)
    shape = (batch, heads, -(-n // block_m), len(starts))
    return np.broadcast_to(kinds, shape).astype(np.uint8)


def schedule_of(spec: RunSpec, arrays: Mapping[str, Array], tiles: Tiles) -> Array:
    """``schedule`` of a spec; its ``arrays`` as for ``deciding``."""
    return schedule(deciding(spec, arrays), tiles)


def deciding(spec: RunSpec, arrays: Mapping[str, Array]) -> Operands:
    """The operands of a spec as far as they say who sees whom. Of its inputs only those that are DECIDING
    need be among the ``arrays`` (canonical): the numbers in q, k and v say nothing about it, and take no
    memory here."""
    nothing = {
        name: np.broadcast_to(np.float32(0), spec.canonical_shape(name))
        for name in spec.inputs
        if name not in DECIDING
    }
    unturned = replace(spec, attention=replace(spec.attention, rope=None))
    known = {name: arrays[name] for name in DECIDING if name in spec.inputs}
    return operands(unturned, nothing | known, dtype=np.float32)


def offsets(given: Operands) -> Array | None:
    """[batch or 1] position of query 0 minus that of key 0; None where positions do not count by one."""
    q, kv = given.q_positions, given.kv_positions
    if bool((np.diff(q) != 1).any()) or bool((np.diff(kv) != 1).any()):
        return None
    if not q.shape[1] or not kv.shape[1]:
        return np.zeros(1, np.int64)
    return np.asarray(q[:, 0] - kv[:, 0])


class _Bounds(NamedTuple):
    """Keys from begin to full need no mask, those up to end one: [b or 1, query tiles] each."""

    begin: Array
    full: Array
    end: Array


def _key_bounds(given: Operands, offset: Array | None, tiles: Tiles) -> _Bounds:
    """``logits.key_bounds`` of every tile of queries."""
    block_m, block_n = tiles[:2]
    n_queries, n_keys = _lengths(given.q_lens, given.q.shape[2]), _lengths(given.kv_lens, given.k.shape[2])
    first = np.arange(0, given.q.shape[2], block_m)[None, :]
    last = np.minimum(first + block_m, n_queries) - 1
    end = np.where(first <= last, n_keys, 0)
    begin, full = np.zeros_like(end), end // block_n * block_n
    if offset is not None and given.right is not None:
        sees = offset[:, None] + given.right + 1
        end = np.clip(last + sees, 0, end)
        full = np.clip(first + sees, 0, end) // block_n * block_n
    if offset is not None and given.left is not None:
        begin = np.clip(first + offset[:, None] - given.left, 0, n_keys)
        end = np.where(begin < end, end, 0)
        begin = begin // block_n * block_n
    return _Bounds(begin, full, end)


def _lengths(given: Array | None, length: int) -> Array:
    """[b or 1, 1]."""
    return np.array([[length]]) if given is None else np.asarray(given, np.int64)[:, None]
