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
from kernels.flash.visits import Visits


class Tiles(NamedTuple):
    """Of one head: how many tiles there are, hold a visible pair, and hold no other."""

    all: int
    visited: int
    full: int


def occupied(mask: Array, block_m: int, block_n: int) -> Array:
    """Which tiles of a mask [n, m] hold a visible pair: bool [⌈n/block_m⌉, ⌈m/block_n⌉]."""
    by_rows = _any(mask, block_m, axis=0)
    return _any(by_rows, block_n, axis=1)


def _any(mask: Array, block: int, axis: int) -> Array:
    starts = np.arange(0, mask.shape[axis], block)
    if mask.shape[axis] == 0:
        return mask
    return np.asarray(np.logical_or.reduceat(mask, starts, axis))


def count_tiles(mask: Array, block_m: int, block_n: int) -> Tiles:
    """What a mask [n, m] amounts to in tiles."""
    visited, partly = occupied(mask, block_m, block_n), occupied(~mask, block_m, block_n)
    return Tiles(visited.size, int(np.count_nonzero(visited)), int(np.count_nonzero(~partly)))


def mask_visits(mask: Array, block_m: int, block_n: int) -> Visits:
    """What ``kernels.flash.visits.visits`` bounds from above, exactly: here the mask [n, m] is known."""
    n, m = mask.shape
    rows = np.minimum(block_m, n - np.arange(0, n, block_m))
    columns = np.minimum(block_n, m - np.arange(0, m, block_n))
    seen = occupied(mask, block_m, block_n).reshape(len(rows), len(columns)).astype(np.int64)
    return Visits(int(seen.sum()), int((seen @ columns).sum()), int(rows @ seen @ columns))


def bytes_read(
    mask: Array, block_m: int, block_n: int, *, head_dim: int, v_head_dim: int, item_bytes: int
) -> int:
    """What the forward kernel of ``kernels/flash`` reads for one head, whose ``mask`` is a pattern: its
    queries once; of each tile that holds a visible pair the keys, the values and a byte of the mask for each
    pair; and for each tile a byte that says whether it does.

    With causality or a window beside the pattern this is a lower bound: the kernel asks each of them for
    itself, and loads a tile that neither forbids, even where together they do.
    """
    visited = mask_visits(mask, block_m, block_n)
    queries = len(mask) * head_dim * item_bytes
    streamed = visited.loads * (head_dim + v_head_dim) * item_bytes
    tiles = count_tiles(mask, block_m, block_n).all
    return queries + streamed + visited.pairs + tiles
