"""One head of a run, computed again: what its pictures, tables and cells are made of.

The matrices are computed in float64 from the inputs that the run has kept (`kernels.closeup`): a kernel like
flash never holds them. A finished run never changes, so what was looked at lately is kept.
"""

from dataclasses import dataclass

import numpy as np
from django.http import HttpRequest

from api.callers import caller_of
from api.computing import computing
from kernels import closeup
from kernels.operands import Operands
from kernels.spec import RunSpec
from kernels.spec.results import MATRICES
from lab import arrays
from lab.kept import Kept
from lab.runs import maps
from lab.runs.heads import Head, HeadKey
from lab.runs.maps import Map, Part
from workers import artifacts

FREE = 1 << 22  # of `work`, that costs no more than the rest of a page
AT_ONCE = 1 << 25  # that a page does before it is sent: 512 queries and keys, 64 wide; more comes after it
MOST = 1 << 31  # multiply-adds that are done at all: 4,096 queries and keys, 64 wide, in some 2 seconds
KEPT = 8  # heads, of the latest: some 15 MB each when they are large

Maps = dict[str, Map]


@dataclass(frozen=True)
class Closeup:
    """n queries and m keys; the operands are those of this head alone."""

    head: Operands
    maps: Maps  # of the whole matrices
    lse: np.ndarray  # [n]
    entropy: np.ndarray  # [n]
    seen: np.ndarray  # [n], how many keys each query sees
    out: np.ndarray  # [n, e] float64
    error: np.ndarray | None  # [n, e], what the engine returned minus `out`; None where it returned none

    @property
    def shape(self) -> tuple[int, int]:
        """(n, m)."""
        return self.lse.size, self.head.k.shape[2]


latest: Kept[HeadKey, Closeup] = Kept(KEPT)
latest_parts: Kept[tuple[HeadKey, Part], Maps] = Kept(4 * KEPT)


def can_look(of: Head) -> bool:
    """Whether the run is softmax attention with a head to look at, and not too large for a page."""
    return of.is_softmax and of.is_there and multiply_adds(of.spec) <= MOST


def is_at_once(of: Head) -> bool:
    """Whether a head is there before a page has to wait for it."""
    return work(of.spec) <= AT_ONCE or of.key in latest.found


def multiply_adds(spec: RunSpec) -> int:
    return spec.q_len * spec.kv_len * (spec.head_dim + spec.v_head_dim)


def work(spec: RunSpec) -> int:
    """What a head costs: its multiply-adds, and the numbers of all inputs, which are read for any head."""
    return multiply_adds(spec) + sum(given.elements for given in spec.inputs.values())


def is_meant(name: str, spec: RunSpec) -> bool:
    """Without a softcap the softcapped scores are the scores."""
    return name != "softcapped_scores" or bool(spec.attention.softcap)


def look(of: Head, request: HttpRequest) -> Closeup | None:
    """The head; None where the inputs of the run are gone.

    What costs much, and is not kept, is charged to the caller and done by few at once. Raises Busy.
    """

    def make() -> Closeup | None:
        if work(of.spec) <= FREE:
            return _look(of)
        with computing(caller_of(request)):
            return _look(of)

    return latest.get(of.key, make)


def closer(of: Head, found: Closeup, part: Part, request: HttpRequest) -> Maps:
    """The maps of a part of a head, number by number. Charged as `look` is. Raises Busy."""
    if not part.side:
        return found.maps

    def make() -> Maps:
        if part.side * found.head.k.size <= FREE:
            return _closer(of, found, part)
        with computing(caller_of(request)):
            return _closer(of, found, part)

    return latest_parts.get((of.key, part), make) or {}


def _look(of: Head) -> Closeup | None:
    inputs = artifacts.load_inputs(of.run)
    if not inputs:
        return None
    given = closeup.one_head(closeup.look(of.spec, inputs), of.batch, of.head)
    seen = closeup.pictures(given, maps.PIXELS, names_of(of.spec))
    found = {
        name: maps.drawn(name, arrays.MAPS[name], values, (seen.n, seen.m))
        for name, values in seen.matrices.items()
    }
    error = None
    returned = of.returned("out")
    if returned is not None:
        error = returned[: seen.n].astype(np.float64) - seen.out
        found["error"] = maps.whole("error", "div", error)
    found["out"] = maps.whole("out", "div", seen.out)
    return Closeup(closeup.alone(given), found, seen.lse, seen.entropy, seen.seen, seen.out, error)


def _closer(of: Head, found: Closeup, part: Part) -> Maps:
    n, m = found.shape
    square = part.rows(n), part.columns(m)
    corner = square[0].start, square[1].start
    near = {
        name: maps.drawn(name, arrays.MAPS[name], matrix, matrix.shape, corner=corner)
        for name, matrix in closeup.detail(found.head, square, names_of(of.spec)).items()
    }
    if found.error is not None:
        near["error"] = maps.cut("error", "div", found.error, part, by_key=False)
    near["out"] = maps.cut("out", "div", found.out, part, by_key=False)
    return near


def names_of(spec: RunSpec) -> tuple[str, ...]:
    """The matrices that say something each."""
    return tuple(name for name in MATRICES if is_meant(name, spec))
