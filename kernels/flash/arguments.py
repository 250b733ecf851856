"""From operands to what the kernels take: pointers, strides and flags, in the named tuples that they read.

A ``Place`` decides what a pointer is: a tensor on a device for a launch, or a stand-in of the same dtype for
a compilation. Everything that a kernel is specialised on is thereby the same in both.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import triton.language as tl

from kernels.engines import Array, Place
from kernels.flash.codes import Codes
from kernels.flash.logits import Terms
from kernels.flash.memory import Matrix, Rows, Vector
from kernels.flash.tiles import padded_dim
from kernels.operands import Operands
from kernels.quantise import Quantised, QuantisedCache
from kernels.tuning import Tiles, Tiling

POSITION_LIMIT = np.iinfo(np.int32).max // 4
Shape = tuple[int, ...]


class Shapes(NamedTuple):
    """Of q [b, h, n, d], k [b, h_kv, m, d] and v [b, h_kv, m, e], however k and v lie in memory."""

    q: Shape
    k: Shape
    v: Shape

    @classmethod
    def of(cls, given: Operands) -> Shapes:
        """Those of the operands."""
        return cls(given.q.shape, given.k.shape, given.v.shape)

    @property
    def group(self) -> int:
        """Consecutive query heads that share a key head."""
        return self.q[1] // self.k[1] if self.k[1] else 1


def rows(pointer: Any, shape: Shape) -> Rows:
    """A contiguous [batch, heads, len, dim] array."""
    batch, head, row, _ = strides(shape)
    return Rows(pointer, batch, head, row)


def cache_rows(given: Operands, cache: QuantisedCache | None, place: Place, dtype: str) -> tuple[Rows, Rows]:
    """Keys and values as the kernels take them: numbers of ``dtype``, or codes with their scales."""
    if cache is None:
        return rows(place(given.k, dtype), given.k.shape), rows(place(given.v, dtype), given.v.shape)
    return _coded_rows(cache.k, place), _coded_rows(cache.v, place)


def _coded_rows(x: Quantised, place: Place) -> Rows:
    scales = None if x.scale.ndim == 0 else rows(place(x.scale), (*x.scale.shape, 1))
    return coded(rows(place(x.codes), x.codes.shape), x, scales)


def coded(codes: Rows, quantised: Quantised, scales: Rows | None) -> Rows:
    """Codes, to be read as ``quantised`` says; each token with its own of ``scales`` [b, h, m, 1], if it has
    one."""
    scale = float(quantised.scale) if scales is None else None
    return codes._replace(codes=Codes(tl.constexpr(quantised.kv_dtype), scale, scales))


def strides(shape: Shape) -> tuple[int, ...]:
    """In elements, of a contiguous array; 0 along axes of length 1, which thereby broadcast."""
    steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return tuple(0 if size == 1 else step for size, step in zip(shape, steps, strict=True))


def shared_arguments(shapes: Shapes, bound: Terms, tiles: Tiles) -> dict[str, Any]:
    """What a kernel that works on tiles is launched with beside its arrays; ``tiles``: (block_m, block_n), or
    a Tiling, which also says warps and stages."""
    _, heads, n, d = shapes.q
    options = tiles._asdict() if isinstance(tiles, Tiling) else {}
    return {
        "T": bound,
        "num_heads": heads,
        "group": shapes.group,
        "q_len": n,
        "kv_len": shapes.k[2],
        "D": d,
        "BLOCK_D": padded_dim(d),
        "BLOCK_M": tiles[0],
        "BLOCK_N": tiles[1],
        **{name: options[name] for name in ("num_warps", "num_stages") if name in options},
    }


def terms(given: Operands, tiles: Tiles, place: Place, *, group: int = 1) -> Terms:
    """What the kernels must know of masks, positions and biases; ``tiles`` is (block_m, block_n), and
    ``group`` how many consecutive heads a tile of queries holds."""
    positioned = given.left is not None or given.right is not None or given.slopes is not None
    offset = offsets(given) if positioned else None
    listed = positioned and offset is None
    q_positions, kv_positions = narrow(given.q_positions, given.kv_positions)
    if offset is not None:
        (offset,) = narrow(np.resize(offset, given.q.shape[0]))
    in_32_bits = (q_positions if offset is None else offset).dtype == np.int32
    return Terms(
        scale=given.scale,
        p_offset=None if offset is None else place(offset),
        softcap=given.softcap or None,
        left=_window_side(given.left, in_32_bits=in_32_bits),
        right=_window_side(given.right, in_32_bits=in_32_bits),
        slopes=None if given.slopes is None else vector(given.slopes.astype(np.float32), place),
        bias=None if given.bias is None else matrix(given.bias.astype(np.float32), place),
        mask=None if given.mask is None else matrix(given.mask.astype(np.int8), place),
        q_positions=vector(q_positions, place) if listed else None,
        kv_positions=vector(kv_positions, place) if listed else None,
        visits=_visits(given, tiles, place, listed=listed, group=group),
        p_sinks=None if given.sinks is None else place(given.sinks.astype(np.float32)),
        p_q_lens=None if given.q_lens is None else place(given.q_lens.astype(np.int32)),
        p_kv_lens=None if given.kv_lens is None else place(given.kv_lens.astype(np.int32)),
    )


def offsets(given: Operands) -> Array | None:
    """[batch or 1] position of query 0 minus that of key 0; None where positions do not count by one."""
    q, kv = given.q_positions, given.kv_positions
    if bool((np.diff(q) != 1).any()) or bool((np.diff(kv) != 1).any()):
        return None
    if not q.shape[1] or not kv.shape[1]:
        return np.zeros(1, np.int64)
    return np.asarray(q[:, 0] - kv[:, 0])


def narrow(*positions: Array) -> list[Array]:
    """As int32 where all values, and the distances between any two, leave room for a window; else int64."""
    fits = all(given.size == 0 or int(np.abs(given).max()) < POSITION_LIMIT for given in positions)
    return [given.astype(np.int32 if fits else np.int64) for given in positions]


def _window_side(side: int | None, *, in_32_bits: bool) -> int | None:
    """No distance between positions of 32 bits is larger than this; but position + side could overflow."""
    return side if side is None or not in_32_bits else min(side, 2 * POSITION_LIMIT)


def vector(array: Array, place: Place) -> Vector:
    """[batch or 1, len]."""
    return Vector(place(array), array.shape[1] if array.shape[0] > 1 else 0)


def matrix(array: Array, place: Place) -> Matrix:
    """An array of rank 4 that broadcasts to [batch, heads, q_len, kv_len]."""
    return Matrix(place(array), *strides(array.shape))


def retiled(bound: Terms, given: Operands, tiles: Tiles, place: Place) -> Terms:
    """``terms(given, tiles, place)`` from those for other tiles, with which it shares all else."""
    return bound._replace(visits=_visits(given, tiles, place, listed=bound.q_positions is not None))


def _visits(given: Operands, tiles: Tiles, place: Place, *, listed: bool, group: int = 1) -> Matrix | None:
    """Which tiles hold a visible pair, where that takes more than the arithmetic of ``key_bounds``."""
    found = []
    if given.mask is not None:
        found.append(any_in_tiles(given.mask, given, tiles))
    if given.bias is not None and bool(np.isneginf(given.bias).any()):
        found.append(any_in_tiles(~np.isneginf(given.bias), given, tiles))
    if listed and (given.left is not None or given.right is not None):
        found.append(_within_window(given, tiles))
    if not found:
        return None
    together = found[0]
    for one in found[1:]:
        together = together & one
    if together.shape[1] > 1:
        together = np.logical_or.reduceat(together, np.arange(0, together.shape[1], group), 1)
    return matrix(together.astype(np.int8), place)


def any_in_tiles(mask: Array, given: Operands, tiles: Tiles) -> Array:
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
    seen = np.ones((max(len(q_low), len(kv_low)), q_low.shape[1], kv_low.shape[1]), np.bool_)
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
