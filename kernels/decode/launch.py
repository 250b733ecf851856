"""Launch the decode kernels: splits, tile sizes, the states between the two kernels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton

from kernels.decode.kernel import decode_split
from kernels.decode.merge import States, merge_splits
from kernels.decode.splits import Plan, make_plan, merge_tile
from kernels.engines import Array, Place, Prepared
from kernels.engines.tensors import TORCH_DTYPES, as_inputs, to_numpy, to_tensor
from kernels.flash.arguments import Place as PlaceArray
from kernels.flash.arguments import cache_rows, rows, shared_arguments, terms
from kernels.flash.interpreter import INTERPRETED, on_device
from kernels.flash.launch import KERNEL_VERSION as FLASH_VERSION
from kernels.flash.launch import require_triton, working_dtype
from kernels.flash.logits import Terms
from kernels.flash.memory import Rows
from kernels.flash.rotation import recorder, rotator
from kernels.flash.tiles import padded_dim
from kernels.operands import Operands, operands
from kernels.quantise import held, quantised_cache
from kernels.registry import MAX_DECODE_LEN
from kernels.spec.model import RunSpec

SOURCES = ("kernel.py", "merge.py")
KERNEL_VERSION = hashlib.sha256(
    FLASH_VERSION.encode() + b"".join((Path(__file__).parent / name).read_bytes() for name in SOURCES)
).hexdigest()[:12]
COMPILED_FOR = 132  # multiprocessors (an H100's), where no GPU is there to be asked: they decide the splits
KERNELS = {"decode_split": decode_split, "merge_splits": merge_splits}


def prepare(spec: RunSpec, arrays: Mapping[str, Array], device: str) -> Prepared:
    """Move the inputs to ``device`` and bind them; raises CannotRunError where no kernel can run."""
    require_triton(device, spec.engine)
    dtype, notes = working_dtype(spec)
    given = operands(spec, arrays, dtype=np.float32, rotate=rotator(device))
    plan = make_plan(spec, multiprocessors=multiprocessors(device))
    cache = quantised_cache(spec, given)

    def place(array: Array) -> torch.Tensor:
        return to_tensor(array, device)

    def place_input(array: Array) -> torch.Tensor:
        return to_tensor(array, device, dtype)

    q, (keys, values) = place_input(given.q), cache_rows(given, cache, place, place_input)
    bound = decode_terms(given, plan, place)

    def compute() -> Mapping[str, Any]:
        results = decode(q, keys, values, bound=bound, given=given, plan=plan)
        return {**results, "out": results["out"].to(TORCH_DTYPES[spec.dtype])}

    def collect(results: Mapping[str, Any]) -> dict[str, Array]:
        return as_inputs(spec, arrays, held(given, cache), to_numpy(results))

    return Prepared(compute, collect, (*notes, said(plan)))


def kernels_of(
    spec: RunSpec, arrays: Mapping[str, Array], place: Place
) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """See ``kernels.engines``: the splits, their merger and the rotation."""
    rotate, rotations = recorder(place)
    given = operands(spec, arrays, dtype=np.float32, rotate=rotate)
    cache = quantised_cache(spec, given)
    keys, values = cache_rows(given, cache, place, lambda array: place(array, spec.dtype))
    yield from decode_kernels(spec, given, keys, values, place)
    yield from rotations


def decode_kernels(
    spec: RunSpec, given: Operands, keys: Rows, values: Rows, place: Place
) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """``kernels_of`` for the attention itself, whose keys and values may be pages."""
    plan = make_plan(spec, multiprocessors=COMPILED_FOR)
    bound = decode_terms(given, plan, place)
    inputs, full = place(given.q, spec.dtype), place(given.q, "float32")
    states = States(full, full, full, spec.batch * spec.num_heads * spec.q_len)
    launched = arguments(
        given, bound, plan, queries=rows(inputs, given.q.shape), keys=keys, values=values, states=states,
        out=inputs, lse=full, interpreted=False,
    )  # fmt: skip
    yield from ((name, KERNELS[name], launched[name]) for name in launched)


def multiprocessors(device: str) -> int | None:
    """How many the GPU has; None in the interpreter."""
    if INTERPRETED or device == "cpu":
        return None
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def said(plan: Plan) -> str:
    """What a result says of how it was computed."""
    splits = "1 split" if plan.num_splits == 1 else f"{plan.num_splits} splits"
    return f"Keys read in {splits}, {plan.block_n} keys to a tile."


def decode_terms(given: Operands, plan: Plan, place: PlaceArray) -> Terms:
    """``arguments.terms`` for tiles that hold every query of all heads that share a key head."""
    return terms(given, (MAX_DECODE_LEN, plan.block_n), place, group=given.group)


def decode(
    q: torch.Tensor, keys: Rows, values: Rows, *, bound: Terms, given: Operands, plan: Plan
) -> dict[str, torch.Tensor]:
    """q [b, h, n, d], keys [b, h_kv, m, d], values [b, h_kv, m, e] → out [b, h, n, e] (dtype of q), lse
    [b, h, n] float32.

    ``bound``: see ``decode_terms``. Of ``given`` only shapes are read: keys and values may be pages.
    """
    batch, heads, n, _ = q.shape
    e = given.v.shape[3]

    def full(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32, device=q.device)

    out, lse = torch.empty((batch, heads, n, e), dtype=q.dtype, device=q.device), full(batch, heads, n)
    if lse.numel() == 0:
        return {"out": out, "lse": lse}
    splits, count = plan.num_splits, batch * heads * n
    states = States(full(splits, count), full(splits, count), full(splits, count, e), count)
    launched = arguments(
        given, bound, plan, queries=rows(q, given.q.shape), keys=keys, values=values, states=states, out=out,
        lse=lse, interpreted=INTERPRETED,
    )  # fmt: skip
    for name, grid in grids(given, plan, launched).items():
        with on_device():
            KERNELS[name][grid](**launched[name])
    return {"out": out, "lse": lse}


def arguments(
    given: Operands,
    bound: Terms,
    plan: Plan,
    *,
    queries: Rows,
    keys: Rows,
    values: Rows,
    states: States,
    out: Any,
    lse: Any,
    interpreted: bool,
) -> dict[str, dict[str, Any]]:
    """What each of KERNELS is launched with, by name. The pointers are tensors, or what stands for them."""
    e = given.v.shape[3]
    width = {"DV": e, "BLOCK_DV": padded_dim(e)}
    shared = shared_arguments(given.q.shape, given.k.shape, bound, (plan.block_m, plan.block_n))
    block_rows, block_splits = merge_tile(states.rows, plan.num_splits, e, interpreted=interpreted)
    tile = {"BLOCK_R": block_rows, "BLOCK_S": block_splits}
    splits = {"S": states, "num_splits": plan.num_splits}
    return {
        "decode_split": {"Q": queries, "K": keys, "V": values, **splits, **shared, **width},
        "merge_splits": {**splits, "p_out": out, "p_lse": lse, **width, **tile},
    }


def grids(
    given: Operands, plan: Plan, launched: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[int, ...]]:
    """The grid of each of KERNELS, in the order of their launch."""
    tiles = triton.cdiv(given.group * given.q.shape[2], plan.block_m)
    merge = launched["merge_splits"]
    return {
        "decode_split": (given.k.shape[0] * given.k.shape[1], plan.num_splits, tiles),
        "merge_splits": (triton.cdiv(merge["S"].rows, merge["BLOCK_R"]),),
    }
