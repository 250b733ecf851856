"""Are the numbers that came with a request computable? Non-finite, out of range for the dtype, wrong kind."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kernels.arrays import largest
from kernels.spec.array_input import Array
from kernels.spec.model import RunSpec
from kernels.spec.problems import Problems, join

ROUNDED = ("q", "k", "v", "past_key", "past_value", "dout")
INTEGERS = ("q_lens", "kv_lens", "block_table")


def check_values(spec: RunSpec, arrays: Mapping[str, Array], problems: Problems) -> None:
    """Check the data of inline and uploaded inputs; shapes are known to fit."""
    for name, array in arrays.items():
        pointer = join("/inputs", name)
        if name in ROUNDED:
            _check_numbers(name, array, spec, arrays, problems)
        elif name == "attn_mask":
            _check_mask(array, problems)
        elif name == "block_table":
            _check_block_table(array, spec, problems)
        elif name in ("q_lens", "kv_lens"):
            limit = spec.q_len if name == "q_lens" else spec.kv_len
            beyond = array > limit
            if beyond.any():
                where = int(beyond.argmax())
                detail = f"length {array[where]} exceeds the {limit} there are"
                problems.add(join(pointer, where), "out-of-range", detail)


def _check_numbers(
    name: str, array: Array, spec: RunSpec, arrays: Mapping[str, Array], problems: Problems
) -> None:
    """q, k, v and the like: finite where they are read, and within the dtype they are rounded to."""
    pointer = join("/inputs", name)
    if array.dtype == np.bool_:
        problems.add(pointer, "boolean", f"{name} holds booleans; send numbers")
        return
    limit = largest(spec.dtype)
    # In float64: compared as float16, the limit of float32 would itself be infinite. What is beyond float64
    # (a long double of an upload) becomes infinite there, which is what is looked for.
    with np.errstate(over="ignore", invalid="ignore"):
        wrong = ~(np.abs(array.astype(np.float64, copy=False)) <= limit)
    if not wrong.any():
        return
    lengths = arrays.get("q_lens" if name in ("q", "dout") else "kv_lens")
    if lengths is not None and "past" not in name and not spec.is_paged:
        wrong = wrong & _within_lengths(lengths, array, packed=spec.is_packed)
        if not wrong.any():
            return
    where = np.unravel_index(int(wrong.argmax()), wrong.shape)
    index, value = [int(i) for i in where], array[where]
    if np.isfinite(value):
        detail = f"{value:g} at index {index} is beyond {spec.dtype}, whose largest value is {limit:g}"
        problems.add(pointer, "too-large-number", detail)
    else:
        detail = f"{value} at index {index}; {name} must be finite"
        problems.add(pointer, "not-finite", detail)


def _within_lengths(lengths: Array, array: Array, *, packed: bool) -> Array:
    """True where a ragged, right-padded array is read: token < its row's length."""
    axis = 1 if packed else array.ndim - 2
    shape = [1] * array.ndim
    shape[axis] = array.shape[axis]
    tokens = np.arange(array.shape[axis]).reshape(shape)
    rows = lengths.reshape([-1] + [1] * (array.ndim - 1)) if packed or array.ndim == 4 else lengths[0]
    return np.asarray(np.broadcast_to(tokens < rows, array.shape))


def _check_mask(array: Array, problems: Problems) -> None:
    """A mask is boolean, or floats without NaN or +inf (−inf forbids)."""
    pointer = "/inputs/attn_mask"
    if array.dtype == np.bool_:
        return
    if array.dtype.kind in "iu":
        detail = (
            f"a {array.dtype} mask could mean either; send bool (true = may attend) or floats to be added"
        )
        problems.add(pointer, "bad-dtype", detail)
        return
    with np.errstate(over="ignore", invalid="ignore"):
        wrong = ~(array.astype(np.float64, copy=False) <= largest("float32"))
    if wrong.any():
        where = np.unravel_index(int(wrong.argmax()), wrong.shape)
        detail = (
            f"{array[where]:g} at index {[int(i) for i in where]}; an additive mask is a float32 number or "
            '"-inf" (forbidden), since NaN or +inf would make the row NaN'
        )
        problems.add(pointer, "not-finite", detail)


def _check_block_table(array: Array, spec: RunSpec, problems: Problems) -> None:
    """Block numbers are integers that name an existing page."""
    pointer, blocks = "/inputs/block_table", spec.inputs["k"].shape[0]
    whole = array.dtype.kind in "iu" or (array.dtype.kind == "f" and bool((array == np.floor(array)).all()))
    if not whole:
        problems.add(pointer, "bad-dtype", "block_table holds integers")
        return
    wrong = ~((array >= -1) & (array < blocks))
    if wrong.any():
        where = np.unravel_index(int(wrong.argmax()), wrong.shape)
        detail = f"block {array[where]} at index {[int(i) for i in where]}; there are {blocks} (-1: unused)"
        problems.add(pointer, "out-of-range", detail)
