"""Run multi-head latent attention in either form: memory, grid, tile sizes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernels.arrays import largest
from kernels.engines import Array, Place, Prepared
from kernels.engines.tensors import TORCH_DTYPES, as_inputs, to_numpy, to_tensor
from kernels.flash.arguments import terms
from kernels.flash.interpreter import INTERPRETED, on_device, target_here
from kernels.flash.launch import KERNEL_VERSION as FLASH_VERSION
from kernels.flash.launch import KERNELS as FLASH_KERNELS
from kernels.flash.launch import forward, kernel_arguments, require_triton, working_dtype
from kernels.flash.logits import Terms
from kernels.flash.rotation import recorder, rotator
from kernels.flash.tiles import choose_tiling
from kernels.mla.arguments import (
    KERNELS,
    Launches,
    Shapes,
    absorbed_launches,
    expanded_launches,
    grid,
    latent_terms,
)
from kernels.mla.forms import FORMS, chosen_form, latent_tiles, multiply_adds
from kernels.operands import Latents, Operands, operands
from kernels.spec.latent import MLA_INPUTS
from kernels.spec.model import RunSpec
from kernels.tuning import Tiles, Tiling

SOURCES = ("kernel.py",)
KERNEL_VERSION = hashlib.sha256(
    FLASH_VERSION.encode() + b"".join((Path(__file__).parent / name).read_bytes() for name in SOURCES)
).hexdigest()[:12]

Tensors = dict[str, torch.Tensor]


def prepare(spec: RunSpec, arrays: Mapping[str, Array], device: str) -> Prepared:
    """Move the inputs to ``device`` and bind them; raises CannotRunError where no kernel can run."""
    require_triton(device, spec.engine)
    given = operands(spec, arrays, dtype=np.float32, expand=False, rotate=rotator(device))
    if given.latents is None:
        raise ValueError("a spec of engine mla has the inputs of MLA")
    dtype, notes = working_dtype(spec)
    if dtype == "float16" and largest_product(given.latents) > largest("float16"):
        dtype = "float32"
        notes = (*notes, "Products with w_uk or w_uv may be beyond float16: computed in float32.")
    form, run = chosen_form(spec), {"absorbed": absorbed, "expanded": expanded}
    inputs = {name: to_tensor(getattr(given.latents, name), device, dtype) for name in MLA_INPUTS}
    tiles, bound = tiled(replace(spec, dtype=dtype), given, target_here(), lambda x: to_tensor(x, device))

    def compute() -> Mapping[str, Any]:
        results = run[form](inputs, bound, tiles=tiles)
        return {"out": results["out"].to(TORCH_DTYPES[spec.dtype]), "lse": results["lse"]}

    def collect(results: Mapping[str, Any]) -> dict[str, Array]:
        return as_inputs(spec, arrays, given, to_numpy(results))

    return Prepared(compute, collect, (*notes, said(spec, form)))


def tiled(
    spec: RunSpec, given: Operands, target: str | None, place: Callable[[Array], Any]
) -> tuple[Tiling, Terms]:
    """How the attention itself is launched on ``target``, a key of TARGETS (None: the interpreter), and what
    it must know of masks."""
    if chosen_form(spec) == "absorbed":
        tiles = latent_tiles(spec, interpreted=target is None)
        return tiles, latent_terms(given, tiles.block_n, place)
    tiles = choose_tiling(spec, target)
    return tiles, terms(given, tiles, place)


def kernels_of(
    spec: RunSpec, arrays: Mapping[str, Array], place: Place
) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """See ``kernels.engines``: the attention of the chosen form, the products around it, and the rotation."""
    rotate, rotations = recorder(place)
    given = operands(spec, arrays, dtype=np.float32, expand=False, rotate=rotate)
    if given.latents is None:
        raise ValueError("a spec of engine mla has the inputs of MLA")
    form, shapes = chosen_form(spec), Shapes.of(given.latents)
    number, full = place(given.latents.c_kv, spec.dtype), place(given.latents.c_kv, "float32")
    at = dict.fromkeys((*MLA_INPUTS, "absorbed", "sums", "out", "keys", "values"), number) | {"lse": full}
    tiles, bound = tiled(spec, given, place.target, place)
    if form == "absorbed":
        launched = absorbed_launches(shapes, at, bound, tiles, dtype=spec.dtype, interpreted=False)
        yield "latent_attention", KERNELS[form]["latent_attention"], launched.pop("latent_attention")
    else:
        pointers = {"q": number, "k": number, "v": number, "out": number, "lse": full}
        flash_shapes = (given.q.shape, shapes.keys, shapes.values)
        (flash,) = kernel_arguments(pointers, flash_shapes, bound, tiles, tiles).items()
        yield flash[0], FLASH_KERNELS[flash[0]], flash[1]
        launched = expanded_launches(shapes, at, dtype=spec.dtype, interpreted=False)
    yield from ((name, KERNELS[form][name], arguments) for name, arguments in launched.items())
    yield from rotations


def said(spec: RunSpec, form: str) -> str:
    """What a result says of its form, and why it was that one."""
    (other,) = (name for name in FORMS if name != form)
    chosen = "chosen, since the fewer are the faster" if spec.options.form is None else "as asked for"
    mine, its = (multiply_adds(spec, name) for name in (form, other))
    return f"Form {form}, {chosen}: {mine:,} multiply-adds; {other} takes {its:,}."


def absorbed(inputs: Mapping[str, torch.Tensor], bound: Terms, *, tiles: Tiles) -> Tensors:
    """``inputs`` as in ``Latents``, contiguous, of one dtype → out [b, h, n, e] of that dtype, lse [b, h, n].

    ``bound``: see ``arguments.latent_terms``.
    """
    shapes = Shapes(**{name: tuple(inputs[name].shape) for name in MLA_INPUTS})
    made = {
        "absorbed": _empty_like(inputs, shapes.sums),
        "sums": _empty_like(inputs, shapes.sums),
        "out": _empty_like(inputs, shapes.out),
        "lse": torch.empty(shapes.sums[:3], dtype=torch.float32, device=inputs["c_kv"].device),
    }
    launches = absorbed_launches(
        shapes, {**inputs, **made}, bound, Tiling(*tiles), dtype=_dtype(inputs), interpreted=INTERPRETED
    )
    _launch("absorbed", launches, shapes)
    return {"out": made["out"], "lse": made["lse"]}


def expanded(inputs: Mapping[str, torch.Tensor], bound: Terms, *, tiles: Tiles) -> Tensors:
    """As ``absorbed``, by way of all keys and values; ``bound``: see ``flash.arguments.terms``."""
    shapes = Shapes(**{name: tuple(inputs[name].shape) for name in MLA_INPUTS})
    keys, values = _empty_like(inputs, shapes.keys), _empty_like(inputs, shapes.values)
    launches = expanded_launches(
        shapes, {**inputs, "keys": keys, "values": values}, dtype=_dtype(inputs), interpreted=INTERPRETED
    )
    _launch("expanded", launches, shapes)
    keys[..., shapes.w_uk[3] :] = inputs["k_rope"]
    queries = torch.cat([inputs["q_nope"], inputs["q_rope"]], dim=3)
    return forward(queries, keys, values, bound, tiles=tiles)


def largest_product(latents: Latents) -> float:
    """No key, value or absorbed query is larger, by Cauchy and Schwarz; what is not finite is padding."""
    rows = {name: _largest_norm(getattr(latents, name), 3) for name in ("q_nope", "c_kv")}
    return max(
        rows["q_nope"] * _largest_norm(latents.w_uk, 3),
        rows["c_kv"] * _largest_norm(latents.w_uk, 2),
        rows["c_kv"] * _largest_norm(latents.w_uv, 2),
    )


def _largest_norm(array: Array, axis: int) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        norms = np.sqrt(np.square(array, dtype=np.float64).sum(axis))
    return float(np.max(norms, initial=0.0, where=np.isfinite(norms)))


def _empty_like(inputs: Mapping[str, torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(shape, dtype=inputs["c_kv"].dtype, device=inputs["c_kv"].device)


def _dtype(inputs: Mapping[str, torch.Tensor]) -> str:
    return str(inputs["c_kv"].dtype).removeprefix("torch.")


def _launch(form: str, launches: Launches, shapes: Shapes) -> None:
    for name, kernel in KERNELS[form].items():
        programs = grid(name, launches[name], shapes)
        if 0 not in programs:
            with on_device():
                kernel[programs](**launches[name])
