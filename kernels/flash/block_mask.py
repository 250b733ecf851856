"""Which tiles hold a pair of query and key that may see each other, where that takes a look at the data: at
masks, at biases of −∞, at lists of positions. In numpy; kernels leave the other tiles out."""

from __future__ import annotations

from functools import reduce

import numpy as np

from kernels.arrays import Array
from kernels.operands import Operands
from kernels.tuning import Tiles


def block_mask(given: Operands, tiles: Tiles, *, listed: bool, group: int = 1) -> Array | None:
    """int8 that broadcasts to [b, h / group, n tiles, m tiles], 0: nothing is visible; None where the
    arithmetic of ``logits.key_bounds`` says it all.

    ``listed``: positions do not count by one. ``group``: how many consecutive heads a tile of queries holds.
    """
    found = []
    if given.mask is not None:
        found.append(_any_in_tiles(given.mask, given, tiles))
    if given.bias is not None and bool(np.isneginf(given.bias).any()):
        found.append(_any_in_tiles(~np.isneginf(given.bias), given, tiles))
    if listed and (given.left is not None or given.right is not None):
        found.append(_within_window(given, tiles))
    if not found:
        return None
    together = reduce(np.logical_and, found)
    if together.shape[1] > 1:
        together = np.logical_or.reduceat(together, np.arange(0, together.shape[1], group), 1)
    return together.astype(np.int8)


def _any_in_tiles(mask: Array, given: Operands, tiles: Tiles) -> Array:
    """[b, h, n, m] booleans (or what broadcasts to it) → [b, h, n tiles, m tiles]: any in the tile?"""
    for axis, length, block in ((2, given.q.shape[2], tiles[0]), (3, given.k.shape[2], tiles[1])):
        starts = np.arange(0, length, block)
        if mask.shape[axis] == 1 or not length:
            mask = np.repeat(mask[:, :, :1] if axis == 2 else mask[..., :1], len(starts), axis)
        else:
            mask = np.logical_or.reduceat(mask, starts, axis)
    return mask


def _within_window(given: Operands, tiles: Tiles) -> Array:
    """[b or 1, 1, n tiles, m tiles]: may a query position of the tile see a key position of the tile?"""
    q_low, q_high = _extremes(given.q_positions, tiles[0])
    kv_low, kv_high = _extremes(given.kv_positions, tiles[1])
    rows = np.broadcast_shapes(q_low.shape[:1], kv_low.shape[:1])
    seen = np.ones((*rows, q_low.shape[1], kv_low.shape[1]), np.bool_)
    if given.right is not None:
        seen &= kv_low[:, None, :] <= q_high[:, :, None] + given.right
    if given.left is not None:
        seen &= kv_high[:, None, :] >= q_low[:, :, None] - given.left
    return seen[:, None]


def _extremes(positions: Array, block: int) -> tuple[Array, Array]:
    """The smallest and the largest position of each tile: [b or 1, tiles] each."""
    starts = np.arange(0, positions.shape[1], block)
    if not len(starts):
        return positions[:, :0], positions[:, :0]
    return np.minimum.reduceat(positions, starts, 1), np.maximum.reduceat(positions, starts, 1)
