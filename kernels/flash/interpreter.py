"""Helpers for launches, in Triton's interpreter above all: patch its language once, count its memory traffic.

Those two reach into ``triton.runtime.interpreter`` of the pinned Triton version; on a GPU neither does
anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import driver, interpreter
from triton.runtime.errors import OutOfResources

from kernels.engines import CannotRunError
from kernels.flash.memory import load_rows
from kernels.targets import nearest

# Decided when triton was imported: TRITON_INTERPRET=1 must be in the environment before that.
INTERPRETED = isinstance(load_rows, interpreter.InterpretedFunction)


def target_here() -> str | None:
    """The key of ``kernels.targets.TARGETS`` that suits the current GPU; None in the interpreter."""
    return None if INTERPRETED else nearest(int(driver.active.get_current_target().arch))


@contextmanager
def on_device() -> Iterator[None]:
    """The context of one launch; raises CannotRunError where the tiles are too large for the GPU."""
    with patched_once() if INTERPRETED else nullcontext():
        try:
            yield
        except OutOfResources as error:
            raise CannotRunError(
                f"these tiles do not fit this GPU ({error}): ask for a smaller block_m or block_n"
            ) from error


@contextmanager
def patched_once() -> Iterator[None]:
    """Let one launch replace Triton's language by numpy once, not again in every helper it calls.

    The interpreter re-patches all of ``triton.language`` (1.7 ms) at each call of a ``@triton.jit`` helper,
    although its caller has just done so; small kernels written with helpers spend most of their time there.
    """
    original = interpreter._patch_lang
    done: set[frozenset[int]] = set()

    def patch(fn: Any) -> Any:
        languages = frozenset(
            id(value) for value in fn.__globals__.values() if value is tl or value is tl.core
        )
        if languages in done:
            return interpreter._LangPatchScope()
        done.add(languages)
        return original(fn)

    interpreter._patch_lang = patch
    try:
        yield
    finally:
        interpreter._patch_lang = original


@dataclass
class Traffic:
    """Bytes that a kernel loaded from and stored to global memory: unmasked elements × their size."""

    bytes_read: int = 0
    bytes_written: int = 0


@contextmanager
def counted_traffic() -> Iterator[Traffic]:
    """Count what every load and store of the interpreter touches while the block runs."""
    builder, traffic = interpreter.interpreter_builder, Traffic()
    load, store = builder.create_masked_load, builder.create_masked_store

    def counting_load(ptrs: Any, mask: Any, *rest: Any) -> Any:
        traffic.bytes_read += int(np.count_nonzero(mask.data)) * ptrs.get_element_ty().primitive_bitwidth // 8
        return load(ptrs, mask, *rest)

    def counting_store(ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        traffic.bytes_written += (
            int(np.count_nonzero(mask.data)) * ptrs.get_element_ty().primitive_bitwidth // 8
        )
        return store(ptrs, value, mask, *rest)

    builder.create_masked_load, builder.create_masked_store = counting_load, counting_store
    try:
        yield traffic
    finally:
        del builder.create_masked_load, builder.create_masked_store
