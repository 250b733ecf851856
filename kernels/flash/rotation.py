"""Launch the rotary embedding kernel in the place of ``kernels.rope.rotate``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kernels.arrays import Array
from kernels.engines import Kernels, Place
from kernels.flash.arguments import Shape, rows
from kernels.flash.device import Launch, Memory, compilable, launch, rows_of_a_program
from kernels.flash.rotate import rotate_rows
from kernels.flash.tiles import padded_dim
from kernels.integers import ceil_div
from kernels.operands import Rotate

GPU_BLOCK = 32  # rows of a program: each is read and written once, so that few registers are needed


def rotator(device: str) -> Rotate:
    """``kernels.rope.rotate`` as our kernel computes it on ``device``: in float32."""
    place = Memory(device)

    def rotate(x: Array, cos: Array, sin: Array, *, style: str, dim_offset: int) -> Array:
        """x [b, h, len, d], cos and sin [b or 1, len, pairs] → x with the pairs turned, dtype kept."""
        if x.size == 0 or cos.shape[-1] == 0:
            return x.copy()
        source = place(x)
        turned = torch.empty_like(source)
        pointers = (source, turned, place(cos, "float32"), place(sin, "float32"))
        launch(*rotation(pointers, x.shape, cos.shape, place.target, style=style, dim_offset=dim_offset))
        return np.asarray(turned.cpu().numpy())

    return rotate


def rotation(
    pointers: tuple[Any, ...],
    shape: Shape,
    table_shape: Shape,
    target: str | None,
    *,
    style: str,
    dim_offset: int,
) -> Launch:
    """Of ``rotate_rows``. ``pointers``: of x and of its place when turned, [b, h, len, d] ``shape``, and of
    cos and sin, ``table_shape``; ``target``: see ``Place``."""
    source, turned, cos, sin = pointers
    batch, heads, length, dim = shape
    pairs = table_shape[-1]
    block = rows_of_a_program(length, GPU_BLOCK, interpreted=target is None)
    arguments = {
        "X": rows(source, shape),
        "Y": rows(turned, shape),
        "p_cos": cos,
        "p_sin": sin,
        "stride_batch": length * pairs if table_shape[0] > 1 else 0,
        "num_heads": heads,
        "length": length,
        "DIM": dim,
        "DIM_OFFSET": dim_offset,
        "PAIRS": pairs,
        "BLOCK_DIM": padded_dim(dim),
        "BLOCK_M": block,
        "INTERLEAVED": style == "interleaved",
    }
    return Launch("rotate_rows", rotate_rows, arguments, (batch * heads, ceil_div(length, block)))


def recorder(place: Place) -> tuple[Rotate, Kernels]:
    """For ``kernels_of``: what to pass as ``rotate`` to ``operands``, which turns nothing, and a list of the
    kernels that would have."""
    found: list[tuple[str, Any, dict[str, Any]]] = []

    def rotate(x: Array, cos: Array, sin: Array, *, style: str, dim_offset: int) -> Array:
        if x.size and cos.shape[-1]:
            pointers = tuple(place(array, "float32") for array in (x, x, cos, sin))
            turning = rotation(pointers, x.shape, cos.shape, place.target, style=style, dim_offset=dim_offset)
            found.extend(compilable([turning]))
        return x

    return rotate, found
