"""Engines: each module has ``prepare(spec, arrays, device) -> Prepared``.

``arrays`` are numpy, canonical ``[batch, heads, len, dim]`` and already rounded to the spec's dtype
(bfloat16 as float32 holding bfloat16 values). ``prepare`` moves them to where they are computed on;
``compute`` is the part that is timed; ``collect`` brings its results back as numpy, canonical again.

A module that computes anything but softmax attention also has ``expected(spec, arrays, wanted, checkpoint)``,
which gives the ``wanted`` results in float64, by name, and how far from each rounding may take its own,
unless it computes in float64 itself.

A module of Triton kernels also has ``KERNEL_VERSION``, a digest of their source, and ``kernels_of(spec,
arrays, place)``, which yields ``(name, kernel, arguments)`` for every kernel that running ``spec`` launches,
the one that the engine is about first. The arguments are those of a launch, but for the pointers, which
``place`` makes (see ``Place``): so a kernel is compiled for a GPU that is not there as it would be launched
on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kernels.arrays import Array

Checkpoint = Callable[[], None]  # raises where the time of a run is used up
Kernels = Iterable[tuple[str, Any, dict[str, Any]]]  # (name, kernel, arguments) of each launch


class Place(Protocol):
    """Where the arrays of a kernel lie: in the memory of a device, or for a compilation in none."""

    @property
    def target(self) -> str | None:
        """The GPU that the kernel is for, a key of ``kernels.targets.TARGETS``; None: the interpreter."""
        ...

    def __call__(self, array: Array, dtype: str | None = None) -> Any:
        """What a kernel is given as the pointer to ``array``, in its own dtype or as ``dtype``."""
        ...


class CannotRunError(RuntimeError):
    """This process or machine cannot run what was asked for; the message says what is missing."""


class TilesError(CannotRunError):
    """A kernel cannot be launched in its tiles. In ``other`` ones it could, "larger" or "smaller", and
    ``options`` are those that ask for them, though not every engine has them."""

    def __init__(self, why: str, other: str, options: tuple[str, ...]) -> None:
        super().__init__(why)
        self.other, self.options = other, options


@dataclass(frozen=True)
class Prepared:
    """One computation, ready to be run any number of times."""

    compute: Callable[[], Mapping[str, Any]]
    collect: Callable[[Mapping[str, Any]], dict[str, Array]]
    notes: tuple[str, ...] = ()
    # Figures beside the arrays, as the registry declares them: numbers, in dicts and lists. Not timed.
    findings: Callable[[Mapping[str, Any], Checkpoint], dict[str, Any]] | None = None


def version_of(folder: Path, sources: tuple[str, ...], beneath: str = "") -> str:
    """A digest of the kernels in the files ``sources`` of ``folder``, and of those that they call, whose
    version is ``beneath``."""
    texts = b"".join((folder / name).read_bytes() for name in sources)
    return hashlib.sha256(beneath.encode() + texts).hexdigest()[:12]
