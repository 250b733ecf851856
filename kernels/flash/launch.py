"""Launch the flash kernels: what they read and write, in which tiles, on which grid."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernels.arrays import Array
from kernels.engines import Kernels, Place, Prepared, version_of
from kernels.engines.tensors import TORCH_DTYPES, as_inputs, to_numpy
from kernels.flash import gradients
from kernels.flash.arguments import Shape, Shapes, cache_rows, retiled, rows, shared_arguments, terms
from kernels.flash.device import Launch, Memory, compilable, launch, require_triton, working_dtype
from kernels.flash.kernel import flash_forward
from kernels.flash.logits import Terms
from kernels.flash.memory import Rows
from kernels.flash.rotation import recorder, rotator
from kernels.flash.scores import flash_scores
from kernels.flash.softmax import Kept
from kernels.flash.tiles import padded_dim, tilings
from kernels.flash.trace import require_interpreter, traced
from kernels.integers import ceil_div
from kernels.operands import Operands, operands
from kernels.quantise import quantised_cache
from kernels.spec.model import RunSpec
from kernels.spec.results import GRADIENTS, MATRICES
from kernels.tuning import Tiles, Tiling

SOURCES = (
    "memory.py", "codes.py", "logits.py", "softmax.py", "kernel.py", "scores.py", "rotate.py", "backward.py",
)  # fmt: skip
KERNEL_VERSION = version_of(Path(__file__).parent, SOURCES)
MATRIX_ARGUMENTS = {
    "scores": "p_scores",
    "softcapped_scores": "p_softcapped",
    "masked_scores": "p_masked",
    "weights": "p_weights",
}


def prepare(spec: RunSpec, arrays: Mapping[str, Array], device: str) -> Prepared:
    """Move the inputs to ``device`` and bind them; raises CannotRunError where no kernel can run."""
    require_triton(device, spec.engine)
    if spec.is_traced:
        require_interpreter()
    place = Memory(device)
    dtype, notes = working_dtype(spec)
    given = operands(spec, arrays, dtype=np.float32, rotate=rotator(device))
    wanted = wanted_results(spec)
    if spec.differentiates:
        dtype, more_notes = gradients.backward_dtype(dtype, given, arrays["dout"])
        notes = (*notes, *more_notes)
    cache = quantised_cache(spec, given)
    q, (keys, values) = place(given.q, dtype), cache_rows(given, cache, place, dtype)
    dout = place(arrays["dout"], dtype) if spec.differentiates else None
    sized = replace(spec, dtype=dtype)
    cut = tilings(sized, place.target)
    tiles = cut["flash_forward"]
    tiles_back = cut.get("flash_backward_keys", tiles)
    logit_terms = terms(given, tiles, place)
    terms_back = logit_terms
    if tiles_back[:2] != tiles[:2]:
        terms_back = retiled(logit_terms, given, tiles_back, place)
    shapes = Shapes.of(given)

    def compute() -> Mapping[str, Any]:
        results = attend(
            q, keys, values, logit_terms, shapes=shapes, tiles=tiles,
            scores_tiles=cut.get("flash_scores"), wanted=wanted,
        )  # fmt: skip
        if dout is not None:
            results |= gradients.backward(
                q, keys.p, values.p, terms_back, out=results["out"], kept=Kept(results["m"], results["l"]),
                dout=dout, tiles=tiles_back, wanted=wanted,
            )  # fmt: skip
        results["out"] = results["out"].to(TORCH_DTYPES[spec.dtype])
        return {name: results[name] for name in wanted}

    def again() -> None:
        attend(q, keys, values, logit_terms, shapes=shapes, tiles=tiles, wanted=())

    def collect(results: Mapping[str, Any]) -> dict[str, Array]:
        found = as_inputs(spec, arrays, given, to_numpy(results), cache)
        return found | traced(again, shapes, tiles, given.q_lens) if spec.is_traced else found

    return Prepared(compute, collect, notes)


def kernels_of(spec: RunSpec, arrays: Mapping[str, Array], place: Place) -> Kernels:
    """See ``kernels.engines``: the forward pass, the matrices, the rotation and the backward pass."""
    rotate, rotations = recorder(place)
    given = operands(spec, arrays, dtype=np.float32, rotate=rotate)
    keys, values = cache_rows(given, quantised_cache(spec, given), place, spec.dtype)
    yield from forward_kernels(spec, given, keys, values, place)
    yield from rotations
    yield from gradients.kernels_of(spec, given, place)


def forward_kernels(spec: RunSpec, given: Operands, keys: Rows, values: Rows, place: Place) -> Kernels:
    """``kernels_of`` for the forward pass and the matrices, whose keys and values may be pages."""
    cut = tilings(spec, place.target)
    tiles = cut["flash_forward"]
    inputs, full, shapes = place(given.q, spec.dtype), place(given.q, "float32"), Shapes.of(given)
    results = dict.fromkeys(written(wanted_results(spec), shapes), full) | {"out": inputs}
    launches = forward_launches(
        inputs, keys, values, results, shapes=shapes, logit_terms=terms(given, tiles, place), tiles=tiles,
        scores_tiles=cut.get("flash_scores", tiles),
    )  # fmt: skip
    yield from compilable(launches)


def wanted_results(spec: RunSpec) -> tuple[str, ...]:
    """What the kernels compute for ``spec``: always out, to be compared."""
    computed = ("out", "lse", *MATRICES, *GRADIENTS)
    return tuple(dict.fromkeys(("out", *(name for name in spec.returns if name in computed))))


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    logit_terms: Terms,
    *,
    tiles: Tiles,
    wanted: Collection[str] = ("out", "lse"),
) -> dict[str, torch.Tensor]:
    """``attend`` for k [b, h_kv, m, d] and v [b, h_kv, m, e], contiguous and of the dtype of q."""
    shapes = Shapes(tuple(q.shape), tuple(k.shape), tuple(v.shape))
    keys, values = rows(k, shapes.k), rows(v, shapes.v)
    return attend(q, keys, values, logit_terms, shapes=shapes, tiles=Tiling(*tiles), wanted=wanted)


def attend(
    q: torch.Tensor,
    keys: Rows,
    values: Rows,
    logit_terms: Terms,
    *,
    shapes: Shapes,
    tiles: Tiling,
    scores_tiles: Tiling | None = None,
    wanted: Collection[str] = ("out", "lse"),
) -> dict[str, torch.Tensor]:
    """q [b, h, n, d] contiguous, keys and values in a row or in pages, numbers or codes → what ``written``
    lists: out of the dtype of q, the rest float32.

    ``logit_terms``: see ``arguments.terms``, for ``tiles``. The matrices are made in ``scores_tiles`` (None:
    in ``tiles`` too).
    """
    results = {
        name: torch.empty(shape, dtype=q.dtype if name == "out" else torch.float32, device=q.device)
        for name, shape in written(wanted, shapes).items()
    }
    for one in forward_launches(
        q, keys, values, results, shapes=shapes, logit_terms=logit_terms, tiles=tiles,
        scores_tiles=scores_tiles or tiles,
    ):  # fmt: skip
        launch(*one)
    return results


def written(wanted: Collection[str], shapes: Shapes) -> dict[str, Shape]:
    """What is written where ``wanted`` is: out and lse, of the matrices those named, and the m and l of each
    row (``softmax.Kept``) where weights are made again, be it for gradients."""
    by_row = shapes.q[:3]
    found = {"out": (*by_row, shapes.v[3]), "lse": by_row}
    if any(name in wanted for name in ("weights", *GRADIENTS)):
        found |= {"m": by_row, "l": by_row}
    return found | {name: (*by_row, shapes.k[2]) for name in MATRICES if name in wanted}


def forward_launches(
    q: Any,
    keys: Rows,
    values: Rows,
    results: Mapping[str, Any],
    *,
    shapes: Shapes,
    logit_terms: Terms,
    tiles: Tiling,
    scores_tiles: Tiling,
) -> list[Launch]:
    """Of ``flash_forward``, and of ``flash_scores`` where a matrix is among the ``results``. These and ``q``
    are pointers."""
    (batch, heads, n, _), m, v_dim = shapes.q, shapes.k[2], shapes.v[3]
    queries = rows(q, shapes.q)
    kept = Kept(results["m"], results["l"]) if "m" in results else None
    arguments = {
        "Q": queries,
        "K": keys,
        "V": values,
        "O": rows(results["out"], (batch, heads, n, v_dim)),
        "p_lse": results["lse"],
        "kept": kept,
        "DV": v_dim,
        "BLOCK_DV": padded_dim(v_dim),
        **shared_arguments(shapes, logit_terms, tiles),
    }
    grid = (batch * heads, ceil_div(n, tiles.block_m))
    launches = [Launch("flash_forward", flash_forward, arguments, grid)]
    if any(name in results for name in MATRICES):
        matrices = {argument: results.get(name) for name, argument in MATRIX_ARGUMENTS.items()}
        shared = shared_arguments(shapes, logit_terms, scores_tiles)
        arguments = {"Q": queries, "K": keys, "kept": kept, **matrices, **shared}
        by_tile = (ceil_div(n, scores_tiles.block_m), ceil_div(m, scores_tiles.block_n))
        launches.append(Launch("flash_scores", flash_scores, arguments, (batch * heads, *by_tile)))
    return launches
