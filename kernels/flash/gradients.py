"""Launch the backward pass: memory, grids and dtypes of the kernels in ``backward.py``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from kernels.arrays import Array, largest, largest_norm
from kernels.engines import Kernels, Place
from kernels.flash.arguments import Shapes, rows, shared_arguments, terms
from kernels.flash.backward import Rebuild, flash_backward_keys, flash_backward_queries, row_deltas
from kernels.flash.device import Launch, compilable, launch
from kernels.flash.logits import Terms
from kernels.flash.softmax import Kept
from kernels.flash.tiles import padded_dim, tilings
from kernels.integers import ceil_div
from kernels.operands import Operands, zero_beyond
from kernels.spec.model import RunSpec
from kernels.spec.results import GRADIENTS
from kernels.tuning import Tiles

# Which gradients take each kernel, in the order of their launch.
MADE_BY = {
    "row_deltas": ("dq", "dk", "dv"),
    "flash_backward_keys": ("dk", "dv"),
    "flash_backward_queries": ("dq",),
}


def kernels_of(spec: RunSpec, given: Operands, place: Place) -> Kernels:
    """See ``kernels.engines``: those that the gradients among ``spec.returns`` need."""
    if not spec.differentiates:
        return
    inputs, full = place(given.q, spec.dtype), place(given.q, "float32")
    pointers = dict.fromkeys(("q", "k", "v", "out", "dout", *GRADIENTS), inputs) | {"delta": full}
    tiles = tilings(spec, place.target)["flash_backward_keys"]
    logit_terms = terms(given, tiles, place)
    launches = backward_launches(pointers, Kept(full, full), Shapes.of(given), logit_terms, tiles)
    yield from compilable(one for one in launches if is_needed(one, spec.returns))


def is_needed(one: Launch, wanted: Collection[str]) -> bool:
    """For those of dq, dk and dv that are ``wanted``."""
    return any(gradient in wanted for gradient in MADE_BY[one.name])


def backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    logit_terms: Terms,
    *,
    out: torch.Tensor,
    kept: Kept,
    dout: torch.Tensor,
    tiles: Tiles,
    wanted: Collection[str] = GRADIENTS,
) -> dict[str, torch.Tensor]:
    """Those of dq, dk and dv that are ``wanted``, each of its input's shape and dtype; sums are float32.

    q [b, h, n, d], k [b, h_kv, m, d], v [b, h_kv, m, e], contiguous; out [b, h, n, e] and ``kept`` ([b, h, n]
    each) as ``launch.forward`` gave them for these; dout like out. ``logit_terms``: see ``arguments.terms``,
    for the ``tiles`` (block_m, block_n) of the backward pass.
    """
    pointers = {"q": q, "k": k, "v": v, "out": out, "dout": dout}
    for name, like in (("delta", kept.p_m), ("dq", q), ("dk", k), ("dv", v)):
        pointers[name] = torch.empty(tuple(like.shape), dtype=like.dtype, device=like.device)
    shapes = Shapes(tuple(q.shape), tuple(k.shape), tuple(v.shape))
    for one in backward_launches(pointers, kept, shapes, logit_terms, tiles):
        if is_needed(one, wanted):
            launch(*one)
    return {name: pointers[name] for name in GRADIENTS if name in wanted}


def backward_launches(
    pointers: Mapping[str, Any], kept: Kept, shapes: Shapes, logit_terms: Terms, tiles: Tiles
) -> list[Launch]:
    """Of every kernel. ``pointers``: of q, k, v, out, dout, dq, dk, dv, and of delta, which row_deltas
    makes for the others."""
    v_dim = shapes.v[3]
    shape_of = {"q": shapes.q, "k": shapes.k, "v": shapes.v, "dq": shapes.q, "dk": shapes.k, "dv": shapes.v}
    shape_of |= dict.fromkeys(("out", "dout"), (*shapes.q[:3], v_dim))
    at = {name: rows(pointers[name], shape) for name, shape in shape_of.items()}
    shared = shared_arguments(shapes, logit_terms, tiles) | {"E": v_dim, "BLOCK_E": padded_dim(v_dim)}
    by_row = ("T", "num_heads", "q_len", "kv_len", "E", "BLOCK_E", "BLOCK_M")
    rebuild = Rebuild(at["q"], at["dout"], kept, pointers["delta"])
    both = {"B": rebuild, "K": at["k"], "V": at["v"], **shared}
    deltas = {"O": at["out"], "dO": at["dout"], "p_delta": pointers["delta"]}
    deltas |= {name: shared[name] for name in by_row}
    keys = {**both, "num_kv_heads": shapes.k[1], "dK": at["dk"], "dV": at["dv"]}
    queries = {**both, "dQ": at["dq"]}
    by_queries = (shapes.q[0] * shapes.q[1], ceil_div(shapes.q[2], tiles[0]))
    by_keys = (shapes.k[0] * shapes.k[1], ceil_div(shapes.k[2], tiles[1]))
    return [
        Launch("row_deltas", row_deltas, deltas, by_queries),
        Launch("flash_backward_keys", flash_backward_keys, keys, by_keys),
        Launch("flash_backward_queries", flash_backward_queries, queries, by_queries),
    ]


def backward_dtype(dtype: str, given: Operands, dout: Array) -> tuple[str, tuple[str, ...]]:
    """What both passes compute on, and what must be said: float32 in the place of a float16 that might not
    hold the gradient of some logit.

    For the second product ds = P (dP − Δ) is rounded to the dtype of the inputs. No |dP| is larger than
    |dO|·|v|, nor is Δ, which is a mean of them.
    """
    notes: tuple[str, ...] = ("timed together: the forward pass and the backward pass",)
    if dtype == "float16":
        upstream = largest_norm(zero_beyond(dout, given.q_lens))
        value = largest_norm(zero_beyond(given.v, given.kv_lens))
        if 2 * upstream * value >= largest("float16"):
            dtype, notes = "float32", (*notes, "computed in float32: gradients of logits may exceed float16")
    return dtype, notes
