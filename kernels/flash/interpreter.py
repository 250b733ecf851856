"""Triton's interpreter: run it faster, count its memory traffic, listen to what a kernel calls.

All reach into ``triton.runtime.interpreter`` of the pinned Triton version.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from kernels.arrays import Array
from kernels.flash.memory import load_rows

# Decided when triton was imported: TRITON_INTERPRET=1 must be in the environment before that.
INTERPRETED = isinstance(load_rows, interpreter.InterpretedFunction)


@contextmanager
def patched_once() -> Iterator[None]:
    """Let one launch replace Triton's language by numpy once, and do again nothing that can be remembered.

    What a kernel computes is left as it is. But most of the time of a small tile goes to what surrounds it:
    the interpreter patches all of ``triton.language`` (1.7 ms) at each call of a ``@triton.jit`` helper,
    although its caller has just done so; it computes every integer sum again in 64 bits, for a check that is
    off; it makes the same types over and over; it fills a whole tile with each scalar; and it reads and
    writes memory number by number.
    """
    builder, original = interpreter.interpreter_builder, interpreter._patch_lang
    done: set[frozenset[int]] = set()

    def patch(fn: Any) -> Any:
        languages = _languages(fn)
        if languages in done:
            return interpreter._LangPatchScope()
        done.add(languages)
        return original(fn)

    checked = builder.options.debug and builder.options.sanitize_overflow
    changes = (
        (interpreter, "_patch_lang", patch),
        (interpreter, "_get_np_dtype", _np_dtype),
        (builder, "options", replace(builder.options, sanitize_overflow=checked)),
        (interpreter.InterpreterBuilder, "create_splat", _splat),
        (interpreter.InterpreterBuilder, "create_select", _select),
        (interpreter.InterpreterBuilder, "create_masked_load", _load),
        (interpreter.InterpreterBuilder, "create_masked_store", _store),
        (tl.core.block_type, "__init__", _make_block_type),
        (tl.core.tensor, "__init__", _make_tensor),
    )
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


@cache
def _languages(fn: Any) -> frozenset[int]:
    """Under which names, if any, a function knows the language that is to be patched."""
    return frozenset(id(value) for value in fn.__globals__.values() if value is tl or value is tl.core)


FEW = 256  # numbers are read and written as quickly one by one
_ORIGINAL_LOAD = interpreter.InterpreterBuilder.create_masked_load
_ORIGINAL_STORE = interpreter.InterpreterBuilder.create_masked_store
_ORIGINAL_DTYPE: Callable[[Any], Any] = interpreter._get_np_dtype
_ORIGINAL_BLOCK_TYPE: Callable[[Any, Any, Any], None] = tl.core.block_type.__init__
_dtypes: dict[str, Any] = {}
_block_types: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}


def _np_dtype(of: Any) -> Any:
    """numpy's dtype of a Triton type, by its name."""
    name = of.scalar.name
    if name not in _dtypes:
        _dtypes[name] = _ORIGINAL_DTYPE(of)
    return _dtypes[name]


def _splat(self: Any, block: Any, scalar: Any) -> Any:
    """A scalar in every place of a tile, which one number in memory can be."""
    data = np.broadcast_to(np.reshape(scalar.data, ()), tuple(block.shape))
    return interpreter.TensorHandle(data, scalar.dtype.scalar)


def _select(self: Any, condition: Any, given: Any, other: Any) -> Any:
    """``InterpreterBuilder.create_select``, in half the time of ``numpy.where``."""
    data = np.array(np.broadcast_to(other.data, np.shape(condition.data)))
    np.copyto(data, given.data, where=condition.data)
    return interpreter.TensorHandle(data, other.dtype.scalar)


@dataclass
class _Memory:
    """What lies at an address, for numpy to read and to write."""

    __array_interface__: dict[str, Any]


def _at(addresses: Any, dtype: Any) -> tuple[Any, Any] | None:
    """(memory, index): the numbers at ``addresses`` are ``memory[index]``; None where they are not a whole
    number of numbers apart. Nothing else of the memory between the lowest and the highest is touched."""
    low, high = int(addresses.min()), int(addresses.max())
    steps = addresses - np.uint64(low)
    if (steps & np.uint64(dtype.itemsize - 1)).any():
        return None
    shape = ((high - low) // dtype.itemsize + 1,)
    memory = np.asarray(_Memory({"data": (low, False), "shape": shape, "typestr": dtype.str, "version": 3}))
    return memory, (steps >> np.uint64(dtype.itemsize.bit_length() - 1)).view(np.int64)


def _load(self: Any, pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
    """``InterpreterBuilder.create_masked_load``."""
    element, inside = pointers.get_element_ty(), mask.data
    dtype, is_whole = interpreter._get_np_dtype(element), inside.size >= FEW and inside.all()
    if inside.size < FEW or not inside.any():
        return _ORIGINAL_LOAD(self, pointers, mask, other, *rest)
    found = _at(pointers.data if is_whole else pointers.data[inside], dtype)
    if found is None:
        return _ORIGINAL_LOAD(self, pointers, mask, other, *rest)
    memory, index = found
    if is_whole:
        return interpreter.TensorHandle(memory[index], element)
    data = np.zeros(inside.shape, dtype) if other is None else np.array(other.data, dtype=dtype)
    data[inside] = memory[index]
    return interpreter.TensorHandle(data, element)


def _store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
    """``InterpreterBuilder.create_masked_store``."""
    inside = mask.data
    if inside.size < FEW or not inside.any():
        return _ORIGINAL_STORE(self, pointers, value, mask, *rest)
    found = _at(pointers.data[inside], value.data.dtype)
    if found is None:
        return _ORIGINAL_STORE(self, pointers, value, mask, *rest)
    memory, index = found
    memory[index] = value.data[inside]
    return None


def _make_block_type(self: Any, element_ty: Any, shape: Any) -> None:
    """``block_type.__init__``; a type never changes, so that equal ones may share what they hold."""
    key = element_ty.name, tuple([size if type(size) is int else size.value for size in shape])
    if key not in _block_types:
        _ORIGINAL_BLOCK_TYPE(self, element_ty, shape)
        _block_types[key] = {**vars(self), "of_tensors": _shape(key[1])}
    vars(self).update(_block_types[key])


def _make_tensor(self: Any, handle: Any, type: Any) -> None:
    """``tensor.__init__``."""
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = vars(type).get("of_tensors") or _shape(
        tuple(type.shape) if type.is_block() else ()
    )


@cache
def _shape(sizes: tuple[int, ...]) -> tuple[Any, Any]:
    """What tensors of so many rows and columns have as ``shape`` and ``numel``."""
    return tl.core.tuple([tl.core.constexpr(size) for size in sizes]), tl.core.constexpr(math.prod(sizes))


@dataclass
class Traffic:
    """Bytes that a kernel loaded from and stored to global memory: unmasked elements × their size."""

    bytes_read: int = 0
    bytes_written: int = 0


@contextmanager
def counted_traffic() -> Iterator[Traffic]:
    """Count what every load and store of the interpreter touches while the block runs."""
    builder, traffic = interpreter.interpreter_builder, Traffic()
    kind = type(builder)  # whose methods a launch replaces

    def counting_load(ptrs: Any, mask: Any, *rest: Any) -> Any:
        traffic.bytes_read += int(np.count_nonzero(mask.data)) * ptrs.get_element_ty().primitive_bitwidth // 8
        return kind.create_masked_load(builder, ptrs, mask, *rest)

    def counting_store(ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        traffic.bytes_written += (
            int(np.count_nonzero(mask.data)) * ptrs.get_element_ty().primitive_bitwidth // 8
        )
        return kind.create_masked_store(builder, ptrs, value, mask, *rest)

    builder.create_masked_load, builder.create_masked_store = counting_load, counting_store
    try:
        yield traffic
    finally:
        del builder.create_masked_load, builder.create_masked_store


# What a function was given, by name, and what it returned.
Listener = Callable[[Mapping[str, Any], Any], None]


@contextmanager
def overheard(module: ModuleType, listeners: Mapping[str, Listener]) -> Iterator[None]:
    """While the block runs, let each listener hear every call that the kernels of ``module`` make of the
    ``@triton.jit`` function of its name there. What is computed is what is computed without them."""
    before = {name: getattr(module, name) for name in listeners}
    try:
        for name, listener in listeners.items():
            setattr(module, name, _heard(before[name], listener))
        yield
    finally:
        for name, function in before.items():
            setattr(module, name, function)


def _heard(function: Any, listener: Listener) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        returned = function(*args, **kwargs)
        listener(dict(zip(function.arg_names, args, strict=False)) | kwargs, returned)
        return returned

    return call


def program() -> tuple[int, int, int]:
    """Which program of the grid is running."""
    x, y, z = interpreter.interpreter_builder.grid_idx
    return int(x), int(y), int(z)


def numbers(given: Any) -> Array:
    """What a kernel has under a name: the numbers of a tile, or one number."""
    return np.asarray(given.handle.data if isinstance(given, tl.tensor) else given)
