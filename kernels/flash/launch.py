"""Launch the flash kernels: memory, grid, tile sizes; on a GPU, or on a CPU through Triton's interpreter."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton

from kernels.engines import Array, CannotRunError, Prepared
from kernels.engines.tensors import TORCH_DTYPES, as_inputs, to_numpy, to_tensor
from kernels.flash.arguments import retiled, rows, shared_arguments, terms
from kernels.flash.gradients import GRADIENTS, backward, backward_dtype
from kernels.flash.interpreter import INTERPRETED, on_device
from kernels.flash.kernel import flash_forward
from kernels.flash.logits import Terms
from kernels.flash.rotation import rotator
from kernels.flash.scores import flash_scores
from kernels.flash.tiles import backward_tiles, choose_tiles, padded_dim
from kernels.operands import operands
from kernels.spec.model import RunSpec

SOURCES = ("memory.py", "logits.py", "softmax.py", "kernel.py", "scores.py", "rotate.py", "backward.py")
KERNEL_VERSION = hashlib.sha256(
    b"".join((Path(__file__).parent / name).read_bytes() for name in SOURCES)
).hexdigest()[:12]
MATRIX_ARGUMENTS = {
    "scores": "p_scores",
    "softcapped_scores": "p_softcapped",
    "masked_scores": "p_masked",
    "weights": "p_weights",
}
MATRICES = tuple(MATRIX_ARGUMENTS)


def prepare(spec: RunSpec, arrays: Mapping[str, Array], device: str) -> Prepared:
    """Move the inputs to ``device`` and bind them; raises CannotRunError where no kernel can run."""
    require_triton(device, spec.engine)
    dtype, notes = working_dtype(spec)
    given = operands(spec, arrays, dtype=np.float32, rotate=rotator(device))
    computed = ("out", "lse", *MATRICES, *GRADIENTS)
    wanted = tuple(dict.fromkeys(("out", *(name for name in spec.returns if name in computed))))
    upstream = arrays["dout"] if any(name in wanted for name in GRADIENTS) else None
    if upstream is not None:
        dtype, more_notes = backward_dtype(dtype, given, upstream)
        notes = (*notes, *more_notes)
    q, k, v = (to_tensor(array, device, dtype) for array in (given.q, given.k, given.v))
    dout = None if upstream is None else to_tensor(upstream, device, dtype)

    def place(array: Array) -> torch.Tensor:
        return to_tensor(array, device)

    tiles = choose_tiles(spec, interpreted=INTERPRETED)
    tiles_back = backward_tiles(spec, interpreted=INTERPRETED)
    bound = terms(given, tiles, place)
    bound_back = bound if tiles_back == tiles or dout is None else retiled(bound, given, tiles_back, place)

    def compute() -> Mapping[str, Any]:
        results = forward(q, k, v, bound, tiles=tiles, wanted=wanted)
        if dout is not None:
            results |= backward(
                q,
                k,
                v,
                bound_back,
                out=results["out"],
                lse=results["lse"],
                dout=dout,
                tiles=tiles_back,
                wanted=wanted,
            )
        results["out"] = results["out"].to(TORCH_DTYPES[spec.dtype])
        return {name: results[name] for name in wanted}

    def collect(results: Mapping[str, Any]) -> dict[str, Array]:
        return as_inputs(spec, arrays, given, to_numpy(results))

    return Prepared(compute, collect, notes)


def require_triton(device: str, engine: str) -> None:
    """Raises CannotRunError where no kernel can run."""
    if device == "cpu" and not INTERPRETED:
        raise CannotRunError(
            f"the {engine} engine needs a CUDA GPU, or a process started with TRITON_INTERPRET=1 so that "
            "Triton's interpreter runs the kernel on the CPU"
        )


def working_dtype(spec: RunSpec) -> tuple[str, tuple[str, ...]]:
    """What the kernels compute on, and what must be said about it."""
    if INTERPRETED and spec.dtype == "bfloat16":
        return "float32", (
            "bfloat16 under the interpreter: inputs rounded to bfloat16, computed in float32, out "
            "rounded back",
        )
    return spec.dtype, ()


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bound: Terms,
    *,
    tiles: tuple[int, int],
    wanted: tuple[str, ...] = ("out", "lse"),
) -> dict[str, torch.Tensor]:
    """q [b, h, n, d], k [b, h_kv, m, d], v [b, h_kv, m, e], contiguous → out [b, h, n, e] (dtype of v), lse
    [b, h, n].

    ``bound``: see ``arguments.terms``. ``tiles``: (block_m, block_n). The matrices named in ``wanted`` are
    [b, h, n, m] float32.
    """
    batch, heads, n, _ = q.shape
    m, e = v.shape[-2:]
    results = {
        "out": torch.empty((batch, heads, n, e), dtype=v.dtype, device=q.device),
        "lse": torch.empty((batch, heads, n), dtype=torch.float32, device=q.device),
    }
    for name in MATRICES:
        if name in wanted:
            results[name] = torch.empty((batch, heads, n, m), dtype=torch.float32, device=q.device)
    if results["lse"].numel() == 0:
        return results
    shared = shared_arguments(q.shape, k.shape, bound, tiles)
    _launch(q, k, v, results, shared)
    return results


def _launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    results: dict[str, torch.Tensor],
    shared: dict[str, Any],
) -> None:
    """The forward kernel, then the one that rebuilds whichever matrices are among ``results``."""
    batch, heads, n, _ = q.shape
    m, e = v.shape[-2:]
    out, lse = results["out"], results["lse"]
    grid_m, grid_n = triton.cdiv(n, shared["BLOCK_M"]), triton.cdiv(m, shared["BLOCK_N"])
    Q, K, V, O = (rows(tensor, tuple(tensor.shape)) for tensor in (q, k, v, out))  # noqa: E741, N806
    with on_device():
        flash_forward[(batch * heads, grid_m)](Q, K, V, O, lse, DV=e, BLOCK_DV=padded_dim(e), **shared)
    if m and any(name in results for name in MATRICES):
        targets = {argument: results.get(name) for name, argument in MATRIX_ARGUMENTS.items()}
        with on_device():
            flash_scores[(batch * heads, grid_m, grid_n)](Q, K, lse, **targets, **shared)
