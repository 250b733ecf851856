"""Tiles of a mask: a kernel that works tile by tile need not load one in which no query sees any key.

A mask of density δ saves 1 − δ of the work only where what it forbids comes in tiles. A window does; a
pattern with gaps narrower than a tile is as dear as one without gaps, and random pairs make of a sparse mask
a full one: with p of the pairs, independently, a tile of BM × BN is empty with probability (1 − p)^(BM·BN).
That is why BigBird draws blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels.arrays import Array
from kernels.integers import ceil_div


class KernelBytes(NamedTuple):
    """Of one head: tiles that the kernel visits, and bytes that it reads."""

    visited: int
    bytes: int


class Tiles(NamedTuple):
    """Of one head: how many tiles there are, hold a visible pair, and hold no other."""

    all: int
    visited: int
    full: int


def pairs_by_tile(mask: Array, block_m: int, block_n: int) -> Array:
    """How many visible pairs the tiles of a mask [n, m] hold: int64 [⌈n/block_m⌉, ⌈m/block_n⌉]."""
    (n, m), marks = mask.shape, mask.view(np.uint8)
    if not mask.size:
        return np.zeros((ceil_div(n, block_m), ceil_div(m, block_n)), dtype=np.int64)
    # Rows one tile after another: ten times as fast as np.add.reduceat along this axis.
    rows = [np.add.reduce(marks[i : i + block_m], axis=0, dtype=np.uint32) for i in range(0, n, block_m)]
    return np.asarray(np.add.reduceat(rows, np.arange(0, m, block_n), axis=1, dtype=np.int64))


def count_tiles(mask: Array, block_m: int, block_n: int) -> Tiles:
    """What a mask [n, m] amounts to in tiles."""
    pairs, whole = pairs_by_tile(mask, block_m, block_n), _sizes(mask.shape, block_m, block_n)
    return Tiles(pairs.size, int(np.count_nonzero(pairs)), int(np.count_nonzero(pairs == whole)))


def kernel_bytes(
    shape: tuple[int, ...],
    block_m: int,
    block_n: int,
    *,
    head_dim: int,
    v_head_dim: int,
    item_bytes: int,
    sides: Array | None = None,
    pattern: Array | None = None,
) -> KernelBytes:
    """What the forward kernel of ``kernels/flash`` reads for one head of n queries and m keys (``shape``).
    ``sides`` [n, m] is what causality and a window let through, ``pattern`` [n, m] what a pattern does; None
    where there is none.

    Its queries once. Of each tile that it visits, keys and values. With a pattern, a byte of the mask for
    each pair that ``sides`` let through, and for every tile that these touch a byte that says whether the
    pattern does too. With sides, 4 bytes for each tile of queries that say where it stands. The kernel asks
    pattern and sides each by itself: it visits a tile that neither forbids, even where together they do.
    """
    whole = _sizes(shape, block_m, block_n)
    within = whole if sides is None else pairs_by_tile(sides, block_m, block_n)
    visited, beside = within > 0, 0 if sides is None else 4 * len(within)
    if pattern is not None:
        visited &= pairs_by_tile(pattern, block_m, block_n) > 0
        beside += int(within[visited].sum() + np.count_nonzero(within))
    columns = _lengths(shape[1], block_n)
    loads = int((visited.astype(np.int64) @ columns).sum())
    read = (shape[0] * head_dim + loads * (head_dim + v_head_dim)) * item_bytes + beside
    return KernelBytes(int(np.count_nonzero(visited)), read)


def full_bytes(length: int, block_m: int, *, head_dim: int, v_head_dim: int, item_bytes: int) -> int:
    """The same where everyone of ``length`` tokens sees everyone: each tile of queries reads all keys."""
    loads = ceil_div(length, block_m) * length
    return (length * head_dim + loads * (head_dim + v_head_dim)) * item_bytes


def _sizes(shape: tuple[int, ...], block_m: int, block_n: int) -> Array:
    """Pairs of each tile, visible or not."""
    return np.asarray(_lengths(shape[0], block_m)[:, None] * _lengths(shape[1], block_n))


def _lengths(length: int, block: int) -> Array:
    """Of each tile along an axis; the last may be shorter."""
    return np.asarray(np.minimum(block, length - np.arange(0, length, block)))
