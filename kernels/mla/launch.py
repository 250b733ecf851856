"""Run multi-head latent attention in either form: memory, grid, tile sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernels.arrays import Array, largest, largest_norm
from kernels.engines import Kernels, Place, Prepared, version_of
from kernels.engines.tensors import TORCH_DTYPES, as_inputs, to_numpy
from kernels.flash.arguments import Shape, rows, terms
from kernels.flash.device import Memory, compilable, launch, require_triton, working_dtype
from kernels.flash.interpreter import INTERPRETED
from kernels.flash.launch import KERNEL_VERSION as FLASH_VERSION
from kernels.flash.launch import forward, forward_kernels
from kernels.flash.logits import Terms
from kernels.flash.rotation import recorder, rotator
from kernels.mla.arguments import LatentShapes, absorbed_launches, expanded_launches, latent_terms
from kernels.mla.forms import FORMS, chosen_form, multiply_adds, tilings
from kernels.operands import Latents, Operands, operands, zero_beyond
from kernels.spec.families import MLA_INPUTS
from kernels.spec.model import RunSpec
from kernels.tuning import Tiles, Tiling

KERNEL_VERSION = version_of(Path(__file__).parent, ("kernel.py",), FLASH_VERSION)

Tensors = dict[str, torch.Tensor]


def prepare(spec: RunSpec, arrays: Mapping[str, Array], device: str) -> Prepared:
    """Move the inputs to ``device`` and bind them; raises CannotRunError where no kernel can run."""
    require_triton(device, spec.engine)
    place = Memory(device)
    given = operands(spec, arrays, dtype=np.float32, expand=False, rotate=rotator(device))
    if given.latents is None:
        raise ValueError("a spec of engine mla has the inputs of MLA")
    dtype, notes = working_dtype(spec)
    if dtype == "float16" and largest_product(given, given.latents) > largest("float16"):
        dtype = "float32"
        notes = (*notes, "Products with w_uk or w_uv may be beyond float16: computed in float32.")
    latents = given.latents
    inputs = {name: place(getattr(latents, name), dtype) for name in MLA_INPUTS}
    form, sized = chosen_form(spec), replace(spec, dtype=dtype)
    if form == "absorbed":
        tiles = tilings(sized, place.target)["latent_attention"]
        run = partial(absorbed, inputs, latent_terms(given, tiles.block_n, place), tiles=tiles)
    else:
        tiles = tilings(sized, place.target)["flash_forward"]
        queries = place(np.concatenate([latents.q_nope, latents.q_rope], axis=3), dtype)
        run = partial(expanded, queries, inputs, terms(given, tiles, place), tiles=tiles)

    def compute() -> Mapping[str, Any]:
        results = run()
        return {"out": results["out"].to(TORCH_DTYPES[spec.dtype]), "lse": results["lse"]}

    def collect(results: Mapping[str, Any]) -> dict[str, Array]:
        return as_inputs(spec, arrays, given, to_numpy(results))

    return Prepared(compute, collect, (*notes, form_note(spec, form)))


def kernels_of(spec: RunSpec, arrays: Mapping[str, Array], place: Place) -> Kernels:
    """See ``kernels.engines``: the attention of the chosen form, the products around it, and the rotation."""
    rotate, rotations = recorder(place)
    given = operands(spec, arrays, dtype=np.float32, expand=False, rotate=rotate)
    if given.latents is None:
        raise ValueError("a spec of engine mla has the inputs of MLA")
    shapes, interpreted = LatentShapes.of(vars(given.latents)), place.target is None
    number, full = place(given.latents.c_kv, spec.dtype), place(given.latents.c_kv, "float32")
    at = dict.fromkeys((*MLA_INPUTS, "absorbed", "sums", "out", "keys", "values"), number) | {"lse": full}
    if chosen_form(spec) == "absorbed":
        tiles = tilings(spec, place.target)["latent_attention"]
        logit_terms = latent_terms(given, tiles.block_n, place)
        absorb, attention, release = absorbed_launches(
            shapes, at, logit_terms, tiles, dtype=spec.dtype, interpreted=interpreted
        )
        yield from compilable((attention, absorb, release))
    else:
        keys, values = rows(number, shapes.keys), rows(number, shapes.values)
        yield from forward_kernels(spec, given, keys, values, place)
        products = expanded_launches(shapes, at, dtype=spec.dtype, interpreted=interpreted)
        yield from compilable(products)
    yield from rotations


def form_note(spec: RunSpec, form: str) -> str:
    """What a result says of its form, and why it was that one."""
    (other,) = (name for name in FORMS if name != form)
    mine, its = multiply_adds(spec, form), multiply_adds(spec, other)
    if spec.options.more.get("form") is not None:
        why = "as asked for"
    elif mine == its:
        why = "chosen since it makes no keys and values"
    else:
        why = "chosen since it takes the fewer"
    beside = f"as many as {other} takes" if mine == its else f"where {other} takes {its:,}"
    return f"Form {form}, {why}: {mine:,} multiply-adds, {beside}."


def absorbed(inputs: Mapping[str, torch.Tensor], logit_terms: Terms, *, tiles: Tiles) -> Tensors:
    """``inputs`` as in ``Latents``, contiguous, of one dtype → out [b, h, n, e] of that dtype, lse [b, h, n].

    ``logit_terms``: see ``arguments.latent_terms``.
    """
    shapes = LatentShapes.of(inputs)
    made = {
        "absorbed": _empty_like(inputs, shapes.sums),
        "sums": _empty_like(inputs, shapes.sums),
        "out": _empty_like(inputs, shapes.out),
        "lse": torch.empty(shapes.sums[:3], dtype=torch.float32, device=inputs["c_kv"].device),
    }
    for one in absorbed_launches(
        shapes, {**inputs, **made}, logit_terms, Tiling(*tiles), dtype=_dtype(inputs), interpreted=INTERPRETED
    ):
        launch(*one)
    return {"out": made["out"], "lse": made["lse"]}


def expanded(
    queries: torch.Tensor, inputs: Mapping[str, torch.Tensor], logit_terms: Terms, *, tiles: Tiles
) -> Tensors:
    """As ``absorbed``, by way of all keys and values; ``queries`` [b, h, n, d + r]: q_nope and q_rope side by
    side. ``logit_terms``: see ``flash.arguments.terms``."""
    shapes = LatentShapes.of(inputs)
    keys, values = _empty_like(inputs, shapes.keys), _empty_like(inputs, shapes.values)
    for one in expanded_launches(
        shapes, {**inputs, "keys": keys, "values": values}, dtype=_dtype(inputs), interpreted=INTERPRETED
    ):
        launch(*one)
    return forward(queries, keys, values, logit_terms, tiles=tiles)


def largest_product(given: Operands, latents: Latents) -> float:
    """No key, value or absorbed query is larger, by Cauchy and Schwarz."""
    query = largest_norm(zero_beyond(latents.q_nope, given.q_lens))
    latent = largest_norm(zero_beyond(latents.c_kv, given.kv_lens))
    return max(
        query * largest_norm(latents.w_uk),
        latent * largest_norm(latents.w_uk.swapaxes(2, 3)),
        latent * largest_norm(latents.w_uv.swapaxes(2, 3)),
    )


def _empty_like(inputs: Mapping[str, torch.Tensor], shape: Shape) -> torch.Tensor:
    return torch.empty(shape, dtype=inputs["c_kv"].dtype, device=inputs["c_kv"].device)


def _dtype(inputs: Mapping[str, torch.Tensor]) -> str:
    return str(inputs["c_kv"].dtype).removeprefix("torch.")
