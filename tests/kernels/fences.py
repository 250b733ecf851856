"""Where a kernel reads and writes, watched address by address in Triton's interpreter.

Every tensor of a launch is moved to a place of its own between wide borders, and each address that a kernel
loads from or stores to must lie within one of them. Nothing needs to be known of the kernel: a launch hands
its arguments to the interpreter, and there they are exchanged.

This reaches into ``triton.runtime.interpreter`` of the pinned Triton version.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter

from kernels.flash.logits import Terms
from kernels.flash.memory import Rows

BORDER = 1 << 14  # bytes on either side
POISON = 0xFF  # repeated, a NaN of every float and −1 of every integer


class OutOfBoundsError(Exception):
    """A kernel touched memory that is none of its arguments."""


@contextmanager
def exchanged(exchange: Callable[[Any], Any], finish: Callable[[], None]) -> Iterator[None]:
    """While the block runs, every argument of every launch passes through ``exchange`` (tuples by their
    members), and ``finish`` is called at the end of each launch instead of copying arguments back."""
    executor = interpreter.GridExecutor
    take, give_back = executor._init_args_hst, executor._restore_args_dev

    def members(argument: Any) -> Any:
        changed = exchange(argument)
        if changed is argument and isinstance(argument, tuple):
            parts = [members(part) for part in argument]
            return type(argument)(*parts) if hasattr(argument, "_fields") else tuple(parts)
        return changed

    executor._init_args_hst = lambda _, args, kwargs: (
        [members(argument) for argument in args],
        {name: members(argument) for name, argument in kwargs.items()},
    )
    executor._restore_args_dev = lambda *_: finish()
    try:
        yield
    finally:
        executor._init_args_hst, executor._restore_args_dev = take, give_back


# -- fences --------------------------------------------------------------------------------------------------


@dataclass
class Fenced:
    """The storage of a tensor while a launch has it elsewhere."""

    original: torch.UntypedStorage
    buffer: torch.Tensor  # uint8: border, data, border
    start: int

    @property
    def data(self) -> torch.Tensor:
        return self.buffer[self.start : self.start + self.original.nbytes()]

    def borders_are_intact(self) -> bool:
        end = self.start + self.original.nbytes()
        return bool((self.buffer[: self.start] == POISON).all() and (self.buffer[end:] == POISON).all())


@dataclass
class Watch:
    """What was seen so far."""

    launches: int = 0
    loads: int = 0  # elements
    stores: int = 0
    fenced: dict[int, Fenced] = field(default_factory=dict)  # by the address of the original storage
    extents: list[tuple[int, int]] = field(default_factory=list)  # of each argument: first byte, end
    stored: list[np.ndarray] = field(default_factory=list)

    def fence(self, argument: Any) -> Any:
        """A tensor's double between borders; anything else as it is."""
        if not isinstance(argument, torch.Tensor):
            return argument
        storage = argument.untyped_storage()
        place = self.fenced.get(storage.data_ptr())
        if place is None or not storage.nbytes():
            place = self._place(storage)
            self.fenced[storage.data_ptr()] = place
        double = torch.empty(0, dtype=argument.dtype).set_(
            place.buffer.untyped_storage(),
            place.start // argument.element_size() + argument.storage_offset(),
            argument.size(),
            argument.stride(),
        )
        span = 1 + sum((n - 1) * step for n, step in zip(argument.size(), argument.stride(), strict=True))
        span = span if argument.numel() else 0
        self.extents.append((double.data_ptr(), double.data_ptr() + span * argument.element_size()))
        return double

    def _place(self, storage: torch.UntypedStorage) -> Fenced:
        buffer = torch.full((storage.nbytes() + 2 * BORDER + 64,), POISON, dtype=torch.uint8)
        place = Fenced(storage, buffer, BORDER + (-buffer.data_ptr() - BORDER) % 64)
        if storage.nbytes():
            place.data.copy_(torch.empty(0, dtype=torch.uint8).set_(storage))
        return place

    def finish(self) -> None:
        """The end of a launch: nothing beside the arguments changed, and no two programs wrote to one
        place."""
        for place in self.fenced.values():
            if not place.borders_are_intact():
                raise OutOfBoundsError("a border was written to")
            if place.original.nbytes():
                torch.empty(0, dtype=torch.uint8).set_(place.original).copy_(place.data)
        written = np.concatenate([np.zeros(0, np.uint64), *self.stored])
        if len(np.unique(written)) != len(written):
            raise OutOfBoundsError("a place was written to twice in one launch")
        self.launches += 1
        self.fenced, self.extents, self.stored = {}, [], []

    def check(self, what: str, pointers: Any, mask: Any) -> np.ndarray:
        """The addresses [elements] that are not masked, all inside an argument."""
        addresses = np.asarray(pointers.data[np.broadcast_to(mask.data, pointers.data.shape)])
        size = np.uint64(max(pointers.get_element_ty().primitive_bitwidth // 8, 1))
        inside = np.zeros(addresses.shape, np.bool_)
        for first, end in self.extents:
            begins = (addresses >= np.uint64(first)) & ((addresses - np.uint64(first)) % size == 0)
            inside |= begins & (addresses + size <= np.uint64(end))
        if not inside.all():
            nearest = min(
                (min(abs(int(addresses[~inside][0]) - edge) for edge in extent), extent)
                for extent in [*self.extents, (0, 0)]
            )
            raise OutOfBoundsError(
                f"{what} of {int((~inside).sum())} elements outside every argument, the first {nearest[0]} "
                f"bytes from an edge of one of {nearest[1][1] - nearest[1][0]} bytes"
            )
        return addresses


@contextmanager
def fences() -> Iterator[Watch]:
    """Watch every launch of the block. Raises OutOfBoundsError (within a kernel, as the interpreter passes it
    on, InterpreterError naming it)."""
    watch, builder = Watch(), interpreter.interpreter_builder
    kind = type(builder)  # a launch may replace its methods by faster ones: these come before them

    def checked_load(pointers: Any, mask: Any, *rest: Any) -> Any:
        watch.loads += watch.check("a load", pointers, mask).size
        return kind.create_masked_load(builder, pointers, mask, *rest)

    def checked_store(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        addresses = watch.check("a store", pointers, mask)
        watch.stores += addresses.size
        watch.stored.append(addresses.ravel())
        return kind.create_masked_store(builder, pointers, value, mask, *rest)

    def refused(*_: Any) -> Any:
        raise OutOfBoundsError("an atomic operation, which nobody watches")

    changes = {
        "create_masked_load": checked_load, "create_masked_store": checked_store,
        "create_atomic_cas": refused, "create_atomic_rmw": refused,
    }  # fmt: skip
    for name, method in changes.items():
        setattr(builder, name, method)
    try:
        with exchanged(watch.fence, watch.finish):
            yield watch
    finally:
        for name in changes:
            delattr(builder, name)


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Memory that torch hands out unwritten holds NaN, and −1 for integers."""
    empty, empty_like = torch.empty, torch.empty_like

    def poison(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "cpu":
            return tensor
        return tensor.fill_(
            torch.nan if tensor.is_floating_point() else -1 if tensor.dtype.is_signed else 255
        )

    torch.empty = lambda *args, **kwargs: poison(empty(*args, **kwargs))
    torch.empty_like = lambda *args, **kwargs: poison(empty_like(*args, **kwargs))
    try:
        yield
    finally:
        torch.empty, torch.empty_like = empty, empty_like


# -- long strides --------------------------------------------------------------------------------------------


MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python 3.11 has no name for it
STEP = 1 << 28  # elements from one row to the next: fits 32 bits, and eight times it does not


@dataclass
class Sprawl:
    """Arrays taken apart: their rows so far from each other that the ninth starts 2³¹ elements away.

    The address space is only reserved; what is written takes memory, a page per row. As much is reserved
    below an array as 32 bits can wrap around to, so that a wrong offset finds zeros instead of ending the
    process.
    """

    back: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)  # original, double
    farthest: int = 0  # offset, in elements

    def take_apart(self, argument: Any) -> Any:
        """Rows, and the masks and biases in Terms, with their rows STEP apart; anything else as it is."""
        if isinstance(argument, Rows):
            codes = argument.codes
            if codes is not None and codes.scales is not None:
                argument = argument._replace(codes=codes._replace(scales=self._apart(codes.scales)))
            return self._apart(argument)
        if isinstance(argument, Terms):
            found = {name: getattr(argument, name) for name in ("mask", "bias")}
            return argument._replace(**{name: self._apart(given) for name, given in found.items() if given})
        return argument

    def _apart(self, given: Any) -> Any:
        strides = {name: getattr(given, name) for name in ("stride_batch", "stride_head", "stride_row")}
        width = min((stride for stride in strides.values() if stride), default=given.p.numel())
        original = given.p.view(-1, max(width, 1))
        double = self._reserve(original.dtype, len(original) * STEP).as_strided(original.shape, (STEP, 1))
        double.copy_(original)
        self.back.append((original, double))
        self.farthest = max(self.farthest, (len(original) - 1) * STEP)
        return given._replace(p=double, **{name: stride // width * STEP for name, stride in strides.items()})

    def finish(self) -> None:
        """The end of a launch: results back to where they are expected."""
        for original, double in self.back:
            original.copy_(double)
        self.back = []

    def _reserve(self, dtype: torch.dtype, elements: int) -> torch.Tensor:
        below = 1 << 31
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        space = mmap.mmap(-1, (below + elements) * dtype.itemsize, flags=flags)
        return torch.frombuffer(space, dtype=dtype)[below:]


@contextmanager
def long_strides() -> Iterator[Sprawl]:
    """Take apart the arrays of every launch of the block."""
    sprawl = Sprawl()
    with exchanged(sprawl.take_apart, sprawl.finish):
        yield sprawl
