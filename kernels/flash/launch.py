"""Launch the flash kernels: memory, grid, tile sizes; on a GPU, or on a CPU through Triton's interpreter."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton

from kernels.engines import Array, CannotRunError, Place, Prepared
from kernels.engines.tensors import TORCH_DTYPES, as_inputs, to_numpy, to_tensor
from kernels.flash.arguments import meaning, retiled, rows, shared_arguments, terms
from kernels.flash.codes import Codes
from kernels.flash.gradients import GRADIENTS, MADE_BY, POINTERS, backward, backward_dtype
from kernels.flash.gradients import KERNELS as BACKWARD
from kernels.flash.gradients import kernel_arguments as backward_arguments
from kernels.flash.interpreter import INTERPRETED, on_device, target_here
from kernels.flash.kernel import flash_forward
from kernels.flash.logits import Terms
from kernels.flash.rotation import recorder, rotator
from kernels.flash.scores import flash_scores
from kernels.flash.softmax import Kept
from kernels.flash.tiles import backward_tiles, choose_tiling, padded_dim
from kernels.operands import operands
from kernels.quantise import held, quantised_cache
from kernels.spec.model import RunSpec
from kernels.tuning import Tiles, Tiling

SOURCES = (
    "memory.py", "codes.py", "logits.py", "softmax.py", "kernel.py", "scores.py", "rotate.py", "backward.py",
)  # fmt: skip
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
KEPT = ("m", "l")  # of each row, to make weights again: see ``softmax.py``
NUMBERS: tuple[Codes | None, Codes | None] = (None, None)  # neither keys nor values are codes
KERNELS = {"flash_forward": flash_forward, "flash_scores": flash_scores}


def prepare(spec: RunSpec, arrays: Mapping[str, Array], device: str) -> Prepared:
    """Move the inputs to ``device`` and bind them; raises CannotRunError where no kernel can run."""
    require_triton(device, spec.engine)
    dtype, notes = working_dtype(spec)
    given = operands(spec, arrays, dtype=np.float32, rotate=rotator(device))
    wanted = wanted_results(spec)
    upstream = arrays["dout"] if any(name in wanted for name in GRADIENTS) else None
    if upstream is not None:
        dtype, more_notes = backward_dtype(dtype, given, upstream)
        notes = (*notes, *more_notes)
    cache = quantised_cache(spec, given)
    q = to_tensor(given.q, device, dtype)
    if cache is None:
        k, v = (to_tensor(array, device, dtype) for array in (given.k, given.v))
    else:
        k, v = (to_tensor(quantised.codes, device) for quantised in (cache.k, cache.v))
    dout = None if upstream is None else to_tensor(upstream, device, dtype)

    def place(array: Array) -> torch.Tensor:
        return to_tensor(array, device)

    sized = replace(spec, dtype=dtype)
    tiles, scores_tiles = (choose_tiling(sized, target_here(), name) for name in KERNELS)
    tiles_back = backward_tiles(sized, interpreted=INTERPRETED)
    bound = terms(given, tiles, place)
    codes = NUMBERS if cache is None else (meaning(cache.k, place), meaning(cache.v, place))
    bound_back = bound
    if dout is not None and tiles_back != tiles[:2]:
        bound_back = retiled(bound, given, tiles_back, place)

    def compute() -> Mapping[str, Any]:
        results = forward(q, k, v, bound, tiles=tiles, scores_tiles=scores_tiles, wanted=wanted, codes=codes)
        if dout is not None:
            results |= backward(
                q,
                k,
                v,
                bound_back,
                out=results["out"],
                kept=Kept(results["m"], results["l"]),
                dout=dout,
                tiles=tiles_back,
                wanted=wanted,
            )
        results["out"] = results["out"].to(TORCH_DTYPES[spec.dtype])
        return {name: results[name] for name in wanted}

    def collect(results: Mapping[str, Any]) -> dict[str, Array]:
        return as_inputs(spec, arrays, held(given, cache), to_numpy(results))

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


def wanted_results(spec: RunSpec) -> tuple[str, ...]:
    """What the kernels compute for ``spec``: always out, to be compared."""
    computed = ("out", "lse", *MATRICES, *GRADIENTS)
    return tuple(dict.fromkeys(("out", *(name for name in spec.returns if name in computed))))


def kernels_of(
    spec: RunSpec, arrays: Mapping[str, Array], place: Place
) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """See ``kernels.engines``: the forward pass, the matrices, the rotation and the backward pass."""
    rotate, rotations = recorder(place)
    given, wanted = operands(spec, arrays, dtype=np.float32, rotate=rotate), wanted_results(spec)
    dtype = spec.dtype
    cache = quantised_cache(spec, given)
    q = place(given.q, dtype)
    if cache is None:
        k, v, codes = place(given.k, dtype), place(given.v, dtype), NUMBERS
    else:
        k, v = place(cache.k.codes), place(cache.v.codes)
        codes = meaning(cache.k, place), meaning(cache.v, place)
    full, out = place(given.q, "float32"), place(given.q, dtype)
    shapes = given.q.shape, given.k.shape, given.v.shape
    tiles, scores_tiles = (choose_tiling(spec, place.target, name) for name in KERNELS)
    pointers = {"q": q, "k": k, "v": v, "out": out, "lse": full} | {
        name: full for name in (*wanted, *kept_for(wanted)) if name in (*MATRICES, *KEPT)
    }
    bound = terms(given, tiles, place)
    launched = kernel_arguments(pointers, shapes, bound, tiles, scores_tiles, codes=codes)
    yield from ((name, KERNELS[name], arguments) for name, arguments in launched.items())
    yield from rotations
    if any(name in wanted for name in GRADIENTS):
        pointers |= dict.fromkeys(POINTERS[6:], q) | {"dots": full}
        tiles_back = backward_tiles(spec, interpreted=False)
        bound_back = retiled(bound, given, tiles_back, place)
        back = backward_arguments(pointers, shapes, bound_back, tiles_back)
        for name, kernel in BACKWARD.items():
            if any(gradient in wanted for gradient in MADE_BY[name]):
                yield name, kernel, back[name]


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bound: Terms,
    *,
    tiles: Tiles,
    scores_tiles: Tiling | None = None,
    wanted: Collection[str] = ("out", "lse"),
    codes: tuple[Codes | None, Codes | None] = NUMBERS,
) -> dict[str, torch.Tensor]:
    """q [b, h, n, d], k [b, h_kv, m, d], v [b, h_kv, m, e], contiguous → out [b, h, n, e] (dtype of q), lse
    [b, h, n].

    ``bound``: see ``arguments.terms``, for ``tiles``. The matrices named in ``wanted`` are [b, h, n, m]
    float32, and made in ``scores_tiles`` (None: like the rest). With weights or gradients wanted, m and l of
    ``softmax.py`` come too, like the LSE. ``codes``: what k and v mean if they are bytes.
    """
    batch, heads, n, _ = q.shape
    m, e = v.shape[-2:]
    results = {
        "out": torch.empty((batch, heads, n, e), dtype=q.dtype, device=q.device),
        "lse": torch.empty((batch, heads, n), dtype=torch.float32, device=q.device),
    }
    results |= {name: torch.empty_like(results["lse"]) for name in kept_for(wanted)}
    for name in MATRICES:
        if name in wanted:
            results[name] = torch.empty((batch, heads, n, m), dtype=torch.float32, device=q.device)
    if results["lse"].numel() == 0:
        return results
    pointers, shapes = {"q": q, "k": k, "v": v, **results}, (q.shape, k.shape, v.shape)
    tiling = Tiling(*tiles)
    launched = kernel_arguments(pointers, shapes, bound, tiling, scores_tiles or tiling, codes=codes)
    for name, arguments in launched.items():
        grid: tuple[int, ...] = (batch * heads, triton.cdiv(n, arguments["BLOCK_M"]))
        if name == "flash_scores":
            grid = (*grid, triton.cdiv(m, arguments["BLOCK_N"]))
        if 0 not in grid:
            with on_device():
                KERNELS[name][grid](**arguments)
    return results


def kept_for(wanted: Collection[str]) -> tuple[str, ...]:
    """Those of KEPT that some of ``wanted`` is made from."""
    return KEPT if any(name in wanted for name in ("weights", *GRADIENTS)) else ()


def kernel_arguments(
    pointers: Mapping[str, Any],
    shapes: tuple[tuple[int, ...], ...],
    bound: Terms,
    tiles: Tiling,
    scores_tiles: Tiling,
    *,
    codes: tuple[Codes | None, Codes | None] = NUMBERS,
) -> dict[str, dict[str, Any]]:
    """What each of KERNELS that is needed is launched with. ``pointers``: q, k, v, out, lse, and those of
    MATRICES and of KEPT that are needed; ``shapes``: of q, k and v; ``codes``: what k and v mean if they are
    bytes."""
    q_shape, k_shape, v_shape = (tuple(shape) for shape in shapes)
    q = rows(pointers["q"], q_shape)
    k, v = rows(pointers["k"], k_shape, codes[0]), rows(pointers["v"], v_shape, codes[1])
    e = v_shape[3]
    kept = Kept(*(pointers[name] for name in KEPT)) if KEPT[0] in pointers else None
    launched = {
        "flash_forward": {
            "Q": q,
            "K": k,
            "V": v,
            "O": rows(pointers["out"], (*q_shape[:3], e)),
            "p_lse": pointers["lse"],
            "kept": kept,
            "DV": e,
            "BLOCK_DV": padded_dim(e),
            **shared_arguments(q_shape, k_shape, bound, tiles),
        }
    }
    if any(name in pointers for name in MATRICES):
        targets = {argument: pointers.get(name) for name, argument in MATRIX_ARGUMENTS.items()}
        shared = shared_arguments(q_shape, k_shape, bound, scores_tiles)
        launched["flash_scores"] = {"Q": q, "K": k, "kept": kept, **targets, **shared}
    return launched
