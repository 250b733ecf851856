"""Launch the backward pass: memory, grids and dtypes of the kernels in ``backward.py``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
import triton

from kernels.engines import Array
from kernels.flash.arguments import rows, shared_arguments
from kernels.flash.backward import Rebuild, flash_backward_keys, flash_backward_queries, row_dots
from kernels.flash.interpreter import on_device
from kernels.flash.logits import Terms
from kernels.flash.softmax import Kept
from kernels.flash.tiles import padded_dim
from kernels.operands import Operands, zero_beyond

GRADIENTS = ("dq", "dk", "dv")
KERNELS = {
    "row_dots": row_dots,
    "flash_backward_keys": flash_backward_keys,
    "flash_backward_queries": flash_backward_queries,
}
MADE_BY = {"row_dots": GRADIENTS, "flash_backward_keys": ("dk", "dv"), "flash_backward_queries": ("dq",)}
POINTERS = ("q", "k", "v", "out", "m", "l", "dout", "dots", *GRADIENTS)  # dots: Δ, which row_dots computes


def backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bound: Terms,
    *,
    out: torch.Tensor,
    kept: Kept,
    dout: torch.Tensor,
    tiles: tuple[int, int],
    wanted: Collection[str] = GRADIENTS,
) -> dict[str, torch.Tensor]:
    """Those of dq, dk and dv that are ``wanted``, each of its input's shape and dtype; sums are float32.

    q [b, h, n, d], k [b, h_kv, m, d], v [b, h_kv, m, e], contiguous; out [b, h, n, e] and
    ``kept``, [b, h, n] each, as ``launch.forward`` gave them for these; dout like out. ``bound``: see
    ``arguments.terms``, for the ``tiles`` (block_m, block_n) of the backward pass.
    """
    pointers = {"q": q, "k": k, "v": v, "out": out, "m": kept.p_m, "l": kept.p_l, "dout": dout}
    for name, like in (("dots", kept.p_m), ("dq", q), ("dk", k), ("dv", v)):
        pointers[name] = torch.empty(tuple(like.shape), dtype=like.dtype, device=like.device)
    arguments = kernel_arguments(pointers, (q.shape, k.shape, v.shape), bound, tiles)
    by_queries = (q.shape[0] * q.shape[1], triton.cdiv(q.shape[2], tiles[0]))
    by_keys = (k.shape[0] * k.shape[1], triton.cdiv(k.shape[2], tiles[1]))
    for name, kernel in KERNELS.items():
        grid = by_keys if name == "flash_backward_keys" else by_queries
        if 0 not in grid and any(gradient in wanted for gradient in MADE_BY[name]):
            with on_device():
                kernel[grid](**arguments[name])
    return {name: pointers[name] for name in GRADIENTS if name in wanted}


def kernel_arguments(
    pointers: Mapping[str, Any], shapes: tuple[tuple[int, ...], ...], bound: Terms, tiles: tuple[int, int]
) -> dict[str, dict[str, Any]]:
    """What each of KERNELS is launched with. ``pointers``: all of POINTERS; ``shapes``: of q, k and v."""
    q_shape, k_shape, v_shape = (tuple(shape) for shape in shapes)
    v_dim = v_shape[3]
    shape_of = {"q": q_shape, "k": k_shape, "v": v_shape, "dq": q_shape, "dk": k_shape, "dv": v_shape}
    shape_of |= dict.fromkeys(("out", "dout"), (*q_shape[:3], v_dim))
    at = {name: rows(pointers[name], shape) for name, shape in shape_of.items()}
    shared = shared_arguments(q_shape, k_shape, bound, tiles) | {"E": v_dim, "BLOCK_E": padded_dim(v_dim)}
    by_row = ("T", "num_heads", "q_len", "kv_len", "E", "BLOCK_E", "BLOCK_M")
    rebuild = Rebuild(at["q"], at["dout"], Kept(pointers["m"], pointers["l"]), pointers["dots"])
    both = {"B": rebuild, "K": at["k"], "V": at["v"], **shared}
    # Float32 products have no tensor cores: their factors are in registers too, which more threads share.
    both["num_warps"] = 8 if pointers["q"].dtype == torch.float32 else 4
    return {
        "row_dots": {
            "O": at["out"],
            "dO": at["dout"],
            "p_dots": pointers["dots"],
            **{name: shared[name] for name in by_row},
        },
        "flash_backward_keys": {**both, "dK": at["dk"], "dV": at["dv"]},
        "flash_backward_queries": {**both, "dQ": at["dq"]},
    }


def backward_dtype(dtype: str, given: Operands, dout: Array) -> tuple[str, tuple[str, ...]]:
    """What both passes compute on, and what must be said: float32 in the place of a float16 that might not
    hold the gradient of some logit.

    For the second product ds = P (dP − Δ) is rounded to the dtype of the inputs. No |dP| is larger than
    |dO|·|v|, nor is Δ, which is a mean of them.
    """
    notes: tuple[str, ...] = ("timed together: the forward pass and the backward pass",)
    if dtype == "float16":
        factors = zero_beyond(dout, given.q_lens), zero_beyond(given.v, given.kv_lens)
        norms = [np.sqrt(np.square(x, dtype=np.float64).sum(-1)).max(initial=0.0) for x in factors]
        if 2 * norms[0] * norms[1] >= float(np.finfo(np.float16).max):
            dtype, notes = "float32", (*notes, "computed in float32: gradients of logits may exceed float16")
    return dtype, notes
