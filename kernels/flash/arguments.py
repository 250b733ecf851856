"""From operands to what the kernels take: pointers, strides and flags, in the named tuples that they read.

A ``Place`` decides what a pointer is: a tensor on a device for a launch, or a stand-in of the same dtype for
a compilation. Everything that a kernel is specialised on is thereby the same in both.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import triton.language as tl

from kernels.arrays import Array
from kernels.engines import Place
from kernels.flash.block_mask import block_mask
from kernels.flash.codes import Codes
from kernels.flash.logits import Terms
from kernels.flash.memory import Matrix, Rows, Vector
from kernels.flash.schedule import offsets
from kernels.flash.tiles import padded_dim
from kernels.operands import Operands, group_of
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
        """See ``operands.group_of``."""
        return group_of(self.q[1], self.k[1])


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


def shared_arguments(shapes: Shapes, logit_terms: Terms, tiles: Tiles) -> dict[str, Any]:
    """What a kernel that works on tiles is launched with beside its arrays; ``tiles``: (block_m, block_n), or
    a Tiling, which also says warps and stages."""
    _, heads, n, d = shapes.q
    options = tiles._asdict() if isinstance(tiles, Tiling) else {}
    return {
        "T": logit_terms,
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
        block_mask=_block_mask(given, tiles, place, listed=listed, group=group),
        p_sinks=None if given.sinks is None else place(given.sinks.astype(np.float32)),
        p_q_lens=None if given.q_lens is None else place(given.q_lens.astype(np.int32)),
        p_kv_lens=None if given.kv_lens is None else place(given.kv_lens.astype(np.int32)),
    )


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


def retiled(logit_terms: Terms, given: Operands, tiles: Tiles, place: Place) -> Terms:
    """``terms(given, tiles, place)`` from those for other tiles, with which it shares all else."""
    listed = logit_terms.q_positions is not None
    return logit_terms._replace(block_mask=_block_mask(given, tiles, place, listed=listed))


def _block_mask(
    given: Operands, tiles: Tiles, place: Place, *, listed: bool, group: int = 1
) -> Matrix | None:
    found = block_mask(given, tiles, listed=listed, group=group)
    return None if found is None else matrix(found, place)
