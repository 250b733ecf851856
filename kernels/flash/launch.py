"""Launch the flash kernels: memory, grid, tile sizes; on a GPU, or on a CPU through Triton's interpreter."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import triton
from triton.runtime.errors import OutOfResources
from triton.runtime.interpreter import InterpretedFunction

from kernels import positions
from kernels.engines import Array, CannotRunError, Prepared
from kernels.engines.tensors import TORCH_DTYPES, to_numpy, to_tensor
from kernels.flash.interpreter import patched_once
from kernels.flash.kernel import flash_forward
from kernels.flash.scores import flash_scores
from kernels.flash.tiles import choose_tiles, padded_dim
from kernels.spec.model import RunSpec

# Decided when triton was imported: TRITON_INTERPRET=1 must be in the environment before that.
INTERPRETED = isinstance(flash_forward, InterpretedFunction)
KERNEL_VERSION = hashlib.sha256(
    b"".join((Path(__file__).parent / name).read_bytes() for name in ("kernel.py", "scores.py"))
).hexdigest()[:12]
MATRIX_FLAGS = {"SCORES": "scores", "MASKED": "masked_scores", "WEIGHTS": "weights"}
MATRICES = tuple(MATRIX_FLAGS.values())


def prepare(spec: RunSpec, arrays: Mapping[str, Array], device: str) -> Prepared:
    """Move the inputs to ``device`` and bind them; raises CannotRunError where no kernel can run."""
    if device == "cpu" and not INTERPRETED:
        raise CannotRunError(
            "the flash engine needs a CUDA GPU, or a process started with TRITON_INTERPRET=1 so that "
            "Triton's interpreter runs the kernel on the CPU"
        )
    notes: list[str] = []
    dtype = spec.dtype
    if INTERPRETED and dtype == "bfloat16":
        dtype = "float32"
        notes.append(
            "bfloat16 under the interpreter: inputs rounded to bfloat16, computed in float32, out "
            "rounded back"
        )
    q, k, v = (to_tensor(arrays[name], device, dtype) for name in ("q", "k", "v"))
    tiles = choose_tiles(spec, interpreted=INTERPRETED)
    wanted = tuple(dict.fromkeys(("out", *spec.returns)))
    offset = positions.query_offset(spec)
    if offset is None:
        raise CannotRunError("the flash engine takes positions as integers, not as lists")

    def compute() -> Mapping[str, Any]:
        results = forward(
            q,
            k,
            v,
            scale=spec.scale,
            is_causal=spec.attention.is_causal,
            offset=offset,
            tiles=tiles,
            wanted=wanted,
        )
        results["out"] = results["out"].to(TORCH_DTYPES[spec.dtype])
        return {name: results[name] for name in wanted}

    return Prepared(compute, to_numpy, tuple(notes))


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float,
    is_causal: bool,
    offset: int,
    tiles: tuple[int, int],
    wanted: tuple[str, ...] = ("out", "lse"),
) -> dict[str, torch.Tensor]:
    """q [b, h, n, d], k [b, h_kv, m, d], v [b, h_kv, m, e], contiguous → out [b, h, n, e] (dtype of v), lse
    [b, h, n].

    ``offset``: causal query i sees keys j ≤ i + offset. ``tiles``: (block_m, block_n). The matrices named in
    ``wanted`` are [b, h, n, m] float32.
    """
    batch, heads, n, d = q.shape
    m, e = v.shape[-2:]
    out = torch.empty((batch, heads, n, e), dtype=v.dtype, device=q.device)
    lse = torch.empty((batch, heads, n), dtype=torch.float32, device=q.device)
    matrices = {
        name: torch.empty((batch, heads, n, m), dtype=torch.float32, device=q.device)
        for name in MATRICES
        if name in wanted
    }
    results = {"out": out, "lse": lse, **matrices}
    if lse.numel() == 0:
        return results
    shared = shared_arguments(
        scale=scale, is_causal=is_causal, offset=offset, group=heads // k.shape[1], n=n, m=m, d=d, tiles=tiles
    )
    try:
        _launch(q, k, v, results, shared)
    except OutOfResources as error:
        raise CannotRunError(f"tiles of {tiles[0]} x {tiles[1]} do not fit this GPU ({error})") from error
    return results


def shared_arguments(
    *, scale: float, is_causal: bool, offset: int, group: int, n: int, m: int, d: int, tiles: tuple[int, int]
) -> dict[str, Any]:
    """What both kernels are launched with beside their arrays."""
    return {
        "scale": scale,
        # Beyond these bounds every key is seen, or none; clamped, the offset always fits 32 bits.
        "offset": max(-n, min(m, offset)),
        "group": group,
        "q_len": n,
        "kv_len": m,
        "D": d,
        "BLOCK_D": padded_dim(d),
        "BLOCK_M": tiles[0],
        "BLOCK_N": tiles[1],
        "CAUSAL": is_causal,
    }


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
    lse = results["lse"]
    grid_m, grid_n = triton.cdiv(n, shared["BLOCK_M"]), triton.cdiv(m, shared["BLOCK_N"])
    with patched_once() if INTERPRETED else nullcontext():
        flash_forward[(batch * heads, grid_m)](
            q, k, v, results["out"], lse, DV=e, BLOCK_DV=padded_dim(e), **shared
        )
    if m and any(name in results for name in MATRICES):
        # A result that was not asked for needs no memory: any pointer will do, it is not written to.
        targets = [results.get(name, lse) for name in MATRICES]
        flags = {flag: name in results for flag, name in MATRIX_FLAGS.items()}
        with patched_once() if INTERPRETED else nullcontext():
            flash_scores[(batch * heads, grid_m, grid_n)](q, k, lse, *targets, **shared, **flags)
