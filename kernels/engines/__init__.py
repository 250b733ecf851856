"""Engines: each module has ``prepare(spec, arrays, device) -> Prepared``.

``arrays`` are numpy, canonical ``[batch, heads, len, dim]`` and already rounded to the spec's dtype
(bfloat16 as float32 holding bfloat16 values). ``prepare`` moves them to where they are computed on;
``compute`` is the part that is timed; ``collect`` brings its results back as numpy, canonical again.

A module of Triton kernels also has ``kernels_of(spec, arrays, place)``, which yields ``(name, kernel,
arguments)`` for every kernel that running ``spec`` launches, the one that the engine is about first. The
arguments are those of a launch, but for the pointers, which ``place`` makes (see ``Place``): so a kernel is
compiled for a GPU that is not there as it would be launched on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kernels.arrays import Array

__all__ = ["Array", "CannotRunError", "Place", "Prepared"]


class Place(Protocol):
    """Stands in for the memory of ``target`` (a key of ``kernels.targets.TARGETS``)."""

    target: str

    def __call__(self, array: Array, dtype: str | None = None) -> Any:
        """What a kernel is given as the pointer to ``array``, in its own dtype or as ``dtype``."""
        ...


class CannotRunError(RuntimeError):
    """This process or machine cannot run what was asked for; the message says what is missing."""


@dataclass(frozen=True)
class Prepared:
    """One computation, ready to be run any number of times."""

    compute: Callable[[], Mapping[str, Any]]
    collect: Callable[[Mapping[str, Any]], dict[str, Array]]
    notes: tuple[str, ...] = ()
