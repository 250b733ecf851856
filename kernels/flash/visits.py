"""How many tiles the flash kernels visit: what ``logits.key_bounds`` and ``query_bounds`` decide in a kernel,
for all programs of a head at once. Arithmetic only: no torch, no triton."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels.arrays import Array
from kernels.positions import query_offset
from kernels.spec.model import RunSpec


class Visits(NamedTuple):
    """Of one head of one batch row; ``loads`` and ``pairs`` without what pads the last tiles."""

    tiles: int  # of queries with keys
    loads: int  # rows that stream past programs: keys past queries, or queries past keys
    pairs: int  # of query and key


def visits(spec: RunSpec, block_m: int, block_n: int, *, group: int = 1) -> Visits:
    """Where tiles of keys stream past tiles of ``block_m`` rows; ``group``: rows of one query, one by one.

    Never too few. Masks, patterns, lists of positions and the lengths of a ragged batch are data: as many as
    there might be.
    """
    left, right, offset = _window(spec, max(block_m, block_n))
    starts, ends = _tiles(spec.q_len * group, block_m)
    first, last = starts // group + offset, (ends - 1) // group + offset
    return _visits(first, last, (left, right), ends - starts, length=spec.kv_len, block=block_n)


def visits_of_keys(spec: RunSpec, block_m: int, block_n: int) -> Visits:
    """Where tiles of queries stream past tiles of keys, as for the gradients of these."""
    left, right, offset = _window(spec, max(block_m, block_n))
    starts, ends = _tiles(spec.kv_len, block_n)
    first, last = starts - offset, ends - 1 - offset
    return _visits(first, last, (right, left), ends - starts, length=spec.q_len, block=block_m)


def _tiles(length: int, block: int) -> tuple[Array, Array]:
    """Where each tile starts, and where it ends."""
    starts = np.arange(0, length, block)
    return starts, np.minimum(starts + block, length)


def _window(spec: RunSpec, slack: int) -> tuple[int | None, int | None, int]:
    """(left, right, offset): query i sees the keys from i + offset − left to i + offset + right."""
    (left, right), offset = spec.attention.sides, query_offset(spec)
    if offset is None:
        return None, None, 0
    attention = spec.attention
    from_the_end = attention.q_positions is None and attention.causal_alignment == "bottom_right"
    if from_the_end and not {"q_lens", "kv_lens"}.isdisjoint(spec.inputs):
        # Tiles are counted from the beginning, and queries then stand where a length says.
        left, right = (None if side is None else side + slack for side in (left, right))
    return left, right, offset


def _visits(
    first: Array, last: Array, sides: tuple[int | None, int | None], rows: Array, *, length: int, block: int
) -> Visits:
    """Of programs of so many ``rows`` that see, of ``length`` others in tiles, those from so far below their
    first to so far above their last."""
    below, above = sides
    begin, end = np.zeros_like(first), np.full_like(last, length)
    if below is not None:
        begin = np.clip(first - below, 0, length)
    if above is not None:
        end = np.clip(last + above + 1, 0, length)
    begin, end = begin // block, np.where(begin < end, -(-end // block), begin // block)
    loads = np.minimum(end * block, length) - np.minimum(begin * block, length)
    return Visits(int((end - begin).sum()), int(loads.sum()), int((loads * rows).sum()))
