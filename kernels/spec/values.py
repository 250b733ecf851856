"""Are the numbers that came with a request computable? Non-finite, out of range for the dtype, wrong kind."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kernels.arrays import Array, largest
from kernels.spec.families import FULL, NAMED, PARAMETERS
from kernels.spec.model import RunSpec
from kernels.spec.problems import Problems, join

HEADED = tuple(dict.fromkeys((*NAMED, "past_key", "past_value", "dout")))  # [batch, heads, ·, ·], canonical
ROUNDED = tuple(name for name in HEADED if name not in FULL)
QUERIES = ("q", "dout", "q_nope", "q_rope")  # as long as q_lens say, the others as kv_lens do
FORGETTING = "log_decay"  # of which −∞ is a value
INTEGERS = ("q_lens", "kv_lens", "block_table")


def check_values(spec: RunSpec, arrays: Mapping[str, Array], problems: Problems) -> None:
    """Check the data of inline and uploaded inputs; shapes are known to fit."""
    for name in ("q_lens", "kv_lens"):
        if name in arrays:
            _check_lengths(name, arrays[name], spec.q_len if name == "q_lens" else spec.kv_len, problems)
    if "block_table" in arrays and not problems.found:
        _check_block_table(arrays["block_table"], spec, arrays.get("kv_lens"), problems)
    if problems.found:
        return  # they say which numbers are read
    for name, array in arrays.items():
        if name in HEADED:
            _check_numbers(name, array, spec, arrays, problems)
        elif name == "attn_mask":
            _check_mask(array, problems)


def _check_lengths(name: str, lengths: Array, limit: int, problems: Problems) -> None:
    beyond = lengths > limit
    if beyond.any():
        where = int(beyond.argmax())
        detail = f"{name} says {lengths[where]} of row {where}, which exceeds the {limit} there are: lower it"
        problems.add(join("/inputs", name, where), "out-of-range", detail)


def _check_numbers(
    name: str, array: Array, spec: RunSpec, arrays: Mapping[str, Array], problems: Problems
) -> None:
    """q, k, v and the like: finite where they are read, and within the dtype they are rounded to."""
    pointer = join("/inputs", name)
    if array.dtype == np.bool_:
        problems.add(pointer, "boolean", f"{name} holds booleans; send numbers")
        return
    dtype = spec.dtype if name in ROUNDED else "float32"
    limit = largest(dtype)
    # In float64: compared as float16, the limit of float32 would itself be infinite. What is beyond float64
    # (a long double of an upload) becomes infinite there, which is what is looked for.
    with np.errstate(over="ignore", invalid="ignore"):
        wide = array.astype(np.float64, copy=False)
        wrong = ~(np.abs(wide) <= limit) & ~((name == FORGETTING) & np.isneginf(wide))
    if wrong.any():
        wrong = wrong & _is_read(name, array, spec, arrays)
    if not wrong.any():
        return
    where = np.unravel_index(int(wrong.argmax()), wrong.shape)
    index, value = [int(i) for i in where], array[where]
    if np.isfinite(value):
        detail = f"{value:g} at index {index} is beyond {dtype}, whose largest value is {limit:g}"
        fits = np.abs(wide[where]) <= largest("float32")
        remedy = "bfloat16 and float32 reach 3.4e38" if name in ROUNDED and fits else "scale it down"
        problems.add(pointer, "too-large-number", f"{detail}: {remedy}")
    else:
        detail = f"{value} at index {index}; {name} must be finite"
        problems.add(pointer, "not-finite", detail)


def _is_read(name: str, array: Array, spec: RunSpec, arrays: Mapping[str, Array]) -> Array:
    """True for the numbers that are read; what lies beyond the lengths, or in a page unnamed, is not."""
    if spec.is_paged and name in ("k", "v"):
        return np.asarray(np.broadcast_to(_slots_read(spec, arrays)[:, :, None, None], array.shape))
    lengths = arrays.get("q_lens" if name in QUERIES else "kv_lens")
    if lengths is None or name in ("w_uk", "w_uv", *FULL, *PARAMETERS):
        return np.ones(array.shape, dtype=np.bool_)
    if name in ("k", "v") and "past_key" in spec.inputs:
        lengths = lengths - spec.inputs["past_key"].shape[-2]  # kv_lens counts the past, which comes first
    packed = spec.is_packed and "past" not in name
    axis = 1 if packed else array.ndim - 2
    shape = [1] * array.ndim
    shape[axis] = array.shape[axis]
    tokens = np.arange(array.shape[axis]).reshape(shape)
    batched = packed or array.ndim == (3 if name in ("c_kv", "k_rope") else 4)
    rows = lengths.reshape([-1] + [1] * (array.ndim - 1)) if batched else lengths[0]
    return np.asarray(np.broadcast_to(tokens < rows, array.shape))


def _slots_read(spec: RunSpec, arrays: Mapping[str, Array]) -> Array:
    """[num_blocks, page_size]: which slots of the pages hold a token that some row reads."""
    blocks, size = spec.inputs["k"].shape[:2]
    table = arrays["block_table"].astype(np.int64)
    tokens = np.arange(spec.kv_len).reshape(1, table.shape[1], size)
    lengths = arrays.get("kv_lens", np.full(spec.batch, spec.kv_len))
    inside = np.broadcast_to(tokens < lengths[:, None, None], (*table.shape, size))
    read = np.zeros((blocks, size), dtype=np.bool_)
    named = table >= 0
    np.logical_or.at(read, table[named], inside[named])
    return read


def _check_mask(array: Array, problems: Problems) -> None:
    """A mask is boolean, or float32 numbers; −∞ forbids, and no other number becomes it."""
    pointer = "/inputs/attn_mask"
    if array.dtype == np.bool_:
        return
    if array.dtype.kind in "iu":
        detail = (
            f"a {array.dtype} mask could mean either; send bool (true = may attend) or floats to be added"
        )
        problems.add(pointer, "bad-dtype", detail)
        return
    limit = largest("float32")
    with np.errstate(over="ignore", invalid="ignore"):
        wrong = ~(np.abs(array.astype(np.float64, copy=False)) <= limit) & ~np.isneginf(array)
    if not wrong.any():
        return
    where = np.unravel_index(int(wrong.argmax()), wrong.shape)
    index, value = [int(i) for i in where], array[where]
    if np.isfinite(value):
        detail = (
            f"{value:g} at index {index} is beyond float32, whose largest value is {limit:g}; "
            'to forbid a key write "-inf"'
        )
        problems.add(pointer, "too-large-number", detail)
    else:
        detail = (
            f"{value:g} at index {index} would make the row NaN; an additive mask holds float32 numbers, and "
            '"-inf" where a key is forbidden'
        )
        problems.add(pointer, "not-finite", detail)


def _check_block_table(array: Array, spec: RunSpec, kv_lens: Array | None, problems: Problems) -> None:
    """Block numbers are integers that name an existing page; −1 only where no token is read."""
    pointer, (blocks, size) = "/inputs/block_table", spec.inputs["k"].shape[:2]
    whole = array.dtype.kind in "iu" or (array.dtype.kind == "f" and bool((array == np.floor(array)).all()))
    if not whole:
        problems.add(pointer, "bad-dtype", "block_table holds integers")
        return
    wrong = ~((array >= -1) & (array < blocks))
    if wrong.any():
        where = np.unravel_index(int(wrong.argmax()), wrong.shape)
        detail = f"block {array[where]} at index {[int(i) for i in where]}; there are {blocks} (-1: unused)"
        problems.add(pointer, "out-of-range", detail)
        return
    first = np.arange(array.shape[1]) * size
    lengths = np.full(array.shape[0], spec.kv_len) if kv_lens is None else kv_lens
    missing = (array == -1) & (first < lengths[:, None])
    if missing.any():
        where = np.unravel_index(int(missing.argmax()), missing.shape)
        row = int(where[0])
        there = (
            f"row {row} has {lengths[row]} tokens" if kv_lens is not None else "without kv_lens all are read"
        )
        detail = (
            f"block -1 (unused) at index {[int(i) for i in where]}, but {there}; name a page or shorten it"
        )
        problems.add(pointer, "out-of-range", detail)
