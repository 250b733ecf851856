"""Launch the decode kernels: splits, tile sizes, the states between the two kernels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernels.arrays import Array
from kernels.decode.kernel import decode_split
from kernels.decode.merge import States, merge_splits
from kernels.decode.splits import Plan, make_plan, merge_tile
from kernels.engines import Kernels, Place, Prepared, version_of
from kernels.engines.tensors import TORCH_DTYPES, as_inputs, to_numpy
from kernels.flash.arguments import Shapes, cache_rows, rows, shared_arguments, terms
from kernels.flash.device import (
    Launch,
    Memory,
    compilable,
    launch,
    multiprocessors,
    require_triton,
    working_dtype,
)
from kernels.flash.interpreter import INTERPRETED
from kernels.flash.launch import KERNEL_VERSION as FLASH_VERSION
from kernels.flash.logits import Terms
from kernels.flash.memory import Rows
from kernels.flash.rotation import recorder, rotator
from kernels.flash.tiles import padded_dim
from kernels.integers import ceil_div
from kernels.limits import MAX_DECODE_LEN
from kernels.operands import Operands, operands
from kernels.quantise import quantised_cache
from kernels.spec.model import RunSpec
from kernels.targets import TARGETS

SOURCES = ("kernel.py", "merge.py")
KERNEL_VERSION = version_of(Path(__file__).parent, SOURCES, FLASH_VERSION)


def prepare(spec: RunSpec, arrays: Mapping[str, Array], device: str) -> Prepared:
    """Move the inputs to ``device`` and bind them; raises CannotRunError where no kernel can run."""
    require_triton(device, spec.engine)
    place = Memory(device)
    dtype, notes = working_dtype(spec)
    given = operands(spec, arrays, dtype=np.float32, rotate=rotator(device))
    plan = make_plan(spec, target=place.target, multiprocessors=multiprocessors(device))
    cache = quantised_cache(spec, given)
    q, (keys, values) = place(given.q, dtype), cache_rows(given, cache, place, dtype)
    logit_terms, shapes = decode_terms(given, plan, place), Shapes.of(given)

    def compute() -> Mapping[str, Any]:
        results = decode(q, keys, values, logit_terms, shapes=shapes, plan=plan)
        return {**results, "out": results["out"].to(TORCH_DTYPES[spec.dtype])}

    def collect(results: Mapping[str, Any]) -> dict[str, Array]:
        return as_inputs(spec, arrays, given, to_numpy(results), cache)

    return Prepared(compute, collect, (*notes, plan_note(plan)))


def kernels_of(spec: RunSpec, arrays: Mapping[str, Array], place: Place) -> Kernels:
    """See ``kernels.engines``: the splits, their merger and the rotation."""
    rotate, rotations = recorder(place)
    given = operands(spec, arrays, dtype=np.float32, rotate=rotate)
    keys, values = cache_rows(given, quantised_cache(spec, given), place, spec.dtype)
    yield from decode_kernels(spec, given, keys, values, place)
    yield from rotations


def decode_kernels(spec: RunSpec, given: Operands, keys: Rows, values: Rows, place: Place) -> Kernels:
    """``kernels_of`` for the attention itself, whose keys and values may be pages."""
    count = None if place.target is None else TARGETS[place.target].count
    plan = make_plan(spec, target=place.target, multiprocessors=count)
    inputs, full = place(given.q, spec.dtype), place(given.q, "float32")
    pointers = {"q": inputs, "out": inputs, "lse": full} | dict.fromkeys(("m", "l", "o"), full)
    launches = decode_launches(
        pointers, keys, values, decode_terms(given, plan, place), shapes=Shapes.of(given), plan=plan,
        interpreted=place.target is None,
    )  # fmt: skip
    yield from compilable(launches)


def plan_note(plan: Plan) -> str:
    """What a result says of how it was computed."""
    splits = "1 split" if plan.num_splits == 1 else f"{plan.num_splits} splits"
    return f"Keys read in {splits}, {plan.tiling.block_n} keys to a tile."


def decode_terms(given: Operands, plan: Plan, place: Place) -> Terms:
    """``arguments.terms`` for tiles that hold every query of all heads that share a key head."""
    return terms(given, (MAX_DECODE_LEN, plan.tiling.block_n), place, group=given.group)


def decode(
    q: torch.Tensor, keys: Rows, values: Rows, logit_terms: Terms, *, shapes: Shapes, plan: Plan
) -> dict[str, torch.Tensor]:
    """q [b, h, n, d] contiguous, keys and values in a row or in pages, numbers or codes → out [b, h, n, e]
    (dtype of q), lse [b, h, n] float32. ``logit_terms``: see ``decode_terms``."""
    batch, heads, n, _ = shapes.q
    splits, count, v_dim = plan.num_splits, batch * heads * n, shapes.v[3]

    def full(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32, device=q.device)

    results = {
        "out": torch.empty((batch, heads, n, v_dim), dtype=q.dtype, device=q.device),
        "lse": full(batch, heads, n),
    }
    states = {"m": full(splits, count), "l": full(splits, count), "o": full(splits, count, v_dim)}
    pointers = {"q": q, **results, **states}
    for one in decode_launches(
        pointers, keys, values, logit_terms, shapes=shapes, plan=plan, interpreted=INTERPRETED
    ):
        launch(*one)
    return results


def decode_launches(
    pointers: Mapping[str, Any],
    keys: Rows,
    values: Rows,
    logit_terms: Terms,
    *,
    shapes: Shapes,
    plan: Plan,
    interpreted: bool,
) -> list[Launch]:
    """Of the splits and of their merger. ``pointers``: of q, out and lse, and of the m, l and o of the states
    between the two."""
    (batch, heads, n, _), v_dim = shapes.q, shapes.v[3]
    count = batch * heads * n
    states = States(pointers["m"], pointers["l"], pointers["o"], count)
    both = {"S": states, "num_splits": plan.num_splits, "DV": v_dim, "BLOCK_DV": padded_dim(v_dim)}
    shared = shared_arguments(shapes, logit_terms, plan.tiling)
    split = {"Q": rows(pointers["q"], shapes.q), "K": keys, "V": values, **both, **shared}
    block_rows, block_splits = merge_tile(count, plan.num_splits, v_dim, interpreted=interpreted)
    merge = {"p_out": pointers["out"], "p_lse": pointers["lse"], **both}
    merge |= {"BLOCK_R": block_rows, "BLOCK_S": block_splits}
    tiles = ceil_div(shapes.group * n, plan.tiling.block_m)
    return [
        Launch("decode_split", decode_split, split, (batch * shapes.k[1], plan.num_splits, tiles)),
        Launch("merge_splits", merge_splits, merge, (ceil_div(count, block_rows),)),
    ]
