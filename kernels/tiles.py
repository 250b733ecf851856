"""Which tiles the kernels of an engine are launched in, and whether a target can hold them.

A tile far beyond the machine still compiles, after minutes, into a kernel that cannot be launched; so it is
refused before. The tiles chosen by default always pass. Arithmetic only: no torch, no triton.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from kernels.decode import splits
from kernels.engines import CannotRunError, TilesError
from kernels.flash import tiles as flash
from kernels.flash.tiles import Needs
from kernels.limits import MIN_BLOCK
from kernels.mla import forms
from kernels.registry import ENGINES
from kernels.spec.model import RunSpec
from kernels.spec.problems import FieldProblem, one_of
from kernels.targets import TARGETS, WARP_SIZE
from kernels.tuning import Tiling

# Of the 256 KiB of registers of a multiprocessor, for scores, weights and what is summed up: the rest is for
# factors and addresses. Tiles beyond are spilled, and were compiled for up to 36 s.
MAX_REGISTER_BYTES = 192 * 1024
# Float32 multiply-adds of a thread, which are written out one by one: 5 s of compiling, and 45 s for twice as
# many.
MAX_UNROLLED = 4096


def tilings(spec: RunSpec, target: str | None) -> dict[str, Tiling]:
    """How each kernel that works on tiles of queries and keys is launched for ``spec``, a spec of one of the
    Triton engines, by its name. ``target``: a key of TARGETS; None: Triton's interpreter."""
    if ENGINES[spec.engine].pricing is not None:  # whose tiles are of their own choice
        return {}
    if spec.engine == "mla":
        return forms.tilings(spec, target)
    if splits.is_decoding(spec, spec.engine):
        return splits.tilings(spec, target)
    return flash.tilings(spec, target)


def tile_problems(spec: RunSpec, targets: Iterable[str]) -> list[FieldProblem]:
    """Why some kernel of ``spec`` cannot be compiled for some of ``targets``, at most one problem for each;
    it names the largest tiles that can."""
    found = ((target, next(_excesses(spec, target), None)) for target in targets)
    return [_problem(spec, target, why) for target, why in found if why is not None]


def _problem(spec: RunSpec, target: str, why: str) -> FieldProblem:
    asked = [name for name in ("block_m", "block_n") if getattr(spec.options, name)]
    pointer = f"/options/{asked[0]}" if asked else "/targets"
    return FieldProblem(pointer, "tile-too-large", f"{why}. {_remedy(spec, target, asked)}")


def _excesses(spec: RunSpec, target: str) -> Iterator[str]:
    """What each kernel that needs too much needs too much of."""
    for kernel, tiling in tilings(spec, target).items():
        why = excess(kernel, spec, target, tiling)
        if why is not None:
            yield f"{kernel} in tiles of {tiling.block_m} × {tiling.block_n} for {target}: {why}"


def needs(kernel: str, spec: RunSpec, tiling: Tiling) -> Needs:
    """Of any kernel that ``tilings`` names."""
    return forms.needs(spec, tiling) if kernel == "latent_attention" else flash.needs(kernel, spec, tiling)


def excess(kernel: str, spec: RunSpec, target: str, tiling: Tiling) -> str | None:
    """What a kernel in such tiles needs more of than a multiprocessor has, or than can be compiled; None
    where it fits."""
    needed = needs(kernel, spec, tiling)
    is_full = spec.dtype == "float32"
    registers, shared = 4 * needed.registers, (4 if is_full else 2) * needed.shared
    most_shared = TARGETS[target].shared_bytes_per_block
    if registers > MAX_REGISTER_BYTES:
        return _said("scores, weights and sums take", registers, MAX_REGISTER_BYTES, "of registers")
    if shared > most_shared:
        return _said("queries, keys and values take", shared, most_shared, "of shared memory")
    unrolled = needed.multiplies // (WARP_SIZE * tiling.num_warps)
    if is_full and unrolled > MAX_UNROLLED:
        return (
            f"each thread makes {unrolled:,} float32 multiply-adds, written out one by one; at most "
            f"{MAX_UNROLLED:,} are compiled"
        )
    return None


def _said(what: str, needed: int, most: int, where: str) -> str:
    return f"{what} {needed // 1024} KiB {where}, and a multiprocessor has {most // 1024} KiB for them"


def _remedy(spec: RunSpec, target: str, asked: list[str]) -> str:
    """The largest of the tiles within those asked for in which every kernel fits."""

    def fits(sizes: tuple[int, ...]) -> bool:
        changes: dict[str, Any] = dict(zip(asked, sizes, strict=True))
        options = replace(spec.options, **changes)
        return not any(_excesses(replace(spec, options=options), target))

    smaller = itertools.product(*(_powers(getattr(spec.options, name)) for name in asked))
    fitting = [sizes for sizes in smaller if fits(sizes)]
    if not fitting:
        return "No smaller tile fits either: lower the dim, or leave this target out."
    best = max(fitting, key=lambda sizes: (math.prod(sizes), sizes))
    return f"The largest that fits is {' with '.join(map('{} {}'.format, asked, best))}."


@contextmanager
def advising(engine: str) -> Iterator[None]:
    """Have a TilesError, which a launch raises, say what ``engine`` can be asked for in its place."""
    try:
        yield
    except TilesError as error:
        known = [name for name in error.options if name in ENGINES[engine].options]
        advice = [f"ask for a {error.other} {one_of(known)}"] if known else []
        if error.other == "larger":
            advice.append("send shorter sequences")
        elif not known:
            advice.append("send fewer dimensions")
        raise CannotRunError(f"{error}: {', or '.join(advice)}") from error


def _powers(largest: int) -> list[int]:
    """Powers of two from the smallest tile to ``largest``."""
    return [1 << exponent for exponent in range(MIN_BLOCK.bit_length() - 1, largest.bit_length())]
