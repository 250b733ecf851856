"""Launch the rotary embedding kernel in the place of ``kernels.rope.rotate``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton

from kernels.engines import Array, Place
from kernels.engines.tensors import to_tensor
from kernels.flash.arguments import rows
from kernels.flash.interpreter import INTERPRETED, on_device
from kernels.flash.rotate import rotate_rows
from kernels.flash.tiles import INTERPRETER_BLOCK, next_power_of_two, padded_dim
from kernels.operands import Rotate

GPU_BLOCK = 32  # rows of a program: each is read and written once, so that few registers are needed


def rotator(device: str) -> Rotate:
    """``kernels.rope.rotate`` as our kernel computes it on ``device``: in float32."""

    def rotate(x: Array, cos: Array, sin: Array, *, style: str, dim_offset: int) -> Array:
        """x [b, h, len, d], cos and sin [b or 1, len, pairs] → x with the pairs turned, dtype kept."""
        if x.size == 0 or cos.shape[-1] == 0:
            return x.copy()
        source, tables = to_tensor(x, device), (to_tensor(table, device, "float32") for table in (cos, sin))
        turned = torch.empty_like(source)
        length = x.shape[2]
        block = min(INTERPRETER_BLOCK, next_power_of_two(length)) if INTERPRETED else GPU_BLOCK
        arguments = kernel_arguments(
            (source, turned, *tables), x.shape, cos.shape, style=style, dim_offset=dim_offset, block=block
        )
        with on_device():
            rotate_rows[(x.shape[0] * x.shape[1], triton.cdiv(length, block))](**arguments)
        return np.asarray(turned.cpu().numpy())

    return rotate


def kernel_arguments(
    pointers: tuple[Any, ...],
    shape: tuple[int, ...],
    table_shape: tuple[int, ...],
    *,
    style: str,
    dim_offset: int,
    block: int,
) -> dict[str, Any]:
    """What the kernel is launched with. ``pointers``: of x and of its place when turned, [b, h, len, d]
    ``shape``, and of cos and sin, ``table_shape``."""
    source, turned, cos, sin = pointers
    _, heads, length, dim = shape
    pairs = table_shape[-1]
    return {
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


def recorder(place: Place) -> tuple[Rotate, list[tuple[str, Any, dict[str, Any]]]]:
    """For ``kernels_of``: what to pass as ``rotate`` to ``operands``, which turns nothing, and a list of the
    kernels that would have: that of the queries alone, which that of the keys is much like."""
    found: list[tuple[str, Any, dict[str, Any]]] = []

    def rotate(x: Array, cos: Array, sin: Array, *, style: str, dim_offset: int) -> Array:
        if x.size and cos.shape[-1] and not found:
            pointers = tuple(place(array, "float32") for array in (x, x, cos, sin))
            arguments = kernel_arguments(
                pointers, x.shape, cos.shape, style=style, dim_offset=dim_offset, block=GPU_BLOCK
            )
            found.append(("rotate_rows", rotate_rows, arguments))
        return x

    return rotate, found
