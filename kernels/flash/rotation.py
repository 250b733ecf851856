"""Launch the rotary embedding kernel in the place of ``kernels.rope.rotate``."""

from __future__ import annotations

import numpy as np
import torch
import triton

from kernels.engines import Array
from kernels.flash.arguments import rows
from kernels.flash.interpreter import on_device
from kernels.flash.rotate import rotate_rows
from kernels.flash.tiles import INTERPRETER_BLOCK, padded_dim
from kernels.operands import Rotate

GPU_BLOCK = 32  # rows of a program: each is read and written once, so that few registers are needed


def rotator(device: str) -> Rotate:
    """``kernels.rope.rotate`` as our kernel computes it on ``device``: in float32."""

    def rotate(x: Array, cos: Array, sin: Array, *, style: str, dim_offset: int) -> Array:
        """x [b, h, len, d], cos and sin [b or 1, len, pairs] → x with the pairs turned, dtype kept."""
        if x.size == 0 or cos.shape[-1] == 0:
            return x.copy()
        source = torch.from_numpy(np.ascontiguousarray(x)).to(device)
        turned = torch.empty_like(source)
        tables = [torch.from_numpy(np.array(t, dtype=np.float32, order="C")).to(device) for t in (cos, sin)]
        batch, heads, length, dim = x.shape
        block = min(INTERPRETER_BLOCK, triton.next_power_of_2(length)) if device == "cpu" else GPU_BLOCK
        with on_device():
            rotate_rows[(batch * heads, triton.cdiv(length, block))](
                rows(source, x.shape), rows(turned, x.shape), *tables,
                length * cos.shape[-1] if len(cos) > 1 else 0, heads, length,
                DIM=dim, DIM_OFFSET=dim_offset, PAIRS=cos.shape[-1], BLOCK_DIM=padded_dim(dim),
                BLOCK_M=block, INTERLEAVED=style == "interleaved",
            )  # fmt: skip
        return np.asarray(turned.cpu().numpy())

    return rotate
