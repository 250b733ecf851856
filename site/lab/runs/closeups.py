"""One head of a run, looked at closely: what its pictures, tables and cells are made of.

The matrices are computed again, in float64, from the inputs that the run has kept (`kernels.closeup`): a
kernel like flash never holds them. A finished run never changes, so a head that was looked at lately is kept.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from django.http import HttpRequest

from api.callers import caller_of
from api.computing import computing
from kernels import closeup
from kernels.operands import Operands
from kernels.registry import ENGINES, SOFTMAX
from kernels.spec import RunSpec
from kernels.spec.results import MATRICES
from lab import arrays
from lab.heatmap import Kind, levels
from workers import artifacts
from workers.models import Run

PIXELS = 1024  # of a picture, at most, each way
TABLE = 16  # rows and columns of the table beside a picture
CELLS = 8  # up to so many rows and columns a matrix is a table alone
FREE = 1 << 22  # multiply-adds that cost no more than the rest of a page
MOST = 1 << 31  # that a page computes: 4,096 queries and keys, 64 wide, in some 2 seconds
KEPT = 8  # heads, of the latest: some 10 MB each when they are large

Key = tuple[str, int, int, int]  # run, attempt, batch row, head

MASKED, NOT_A_NUMBER = 254, 255  # of a picture's bytes; the others are the scale, from its low end
TOP = 253


@dataclass(frozen=True)
class Map:
    """A matrix as a picture and as a table; both show the largest number of each block."""

    name: str
    kind: Kind
    levels: np.ndarray  # [rows, columns] uint8: the picture
    table: np.ndarray  # [rows, columns] float64, at most TABLE each way
    largest: float  # of the finite numbers (of their size, for "div"); 0 when there are none
    rows: int  # of the matrix
    columns: int
    has_masked: bool

    @property
    def is_small(self) -> bool:
        """Whether it is shown number by number."""
        return self.rows <= CELLS and self.columns <= CELLS

    @property
    def is_reduced(self) -> bool:
        return self.levels.shape != (self.rows, self.columns)

    @property
    def lowest(self) -> float:
        return -self.largest if self.kind == "div" else 0.0


@dataclass(frozen=True)
class Closeup:
    """n queries and m keys; the operands are those of this head alone."""

    head: Operands
    maps: dict[str, Map]
    lse: np.ndarray  # [n]
    entropy: np.ndarray  # [n]
    seen: np.ndarray  # [n], how many keys each query sees
    out: np.ndarray  # [n, e] float64
    error: np.ndarray | None  # [n, e], of what the engine returned; None where it returned no output


class _Kept:
    """The latest heads; one is computed at a time, so that all pictures of a page share one computation, and
    nobody waits for what is there."""

    def __init__(self) -> None:
        self.found: OrderedDict[Key, Closeup] = OrderedDict()
        self.lock = threading.Lock()

    def get(self, key: Key, compute: Callable[[], Closeup | None]) -> Closeup | None:
        """What is kept, or what `compute` gives; None is not kept."""
        if (there := self.found.get(key)) is not None:
            return there
        with self.lock:
            if (there := self.found.get(key)) is None and (there := compute()) is not None:
                self.found[key] = there
                while len(self.found) > KEPT:
                    self.found.popitem(last=False)
            return there


_kept = _Kept()


def can_look(run: Run, spec: RunSpec) -> bool:
    """Whether the run is softmax attention with a head to look at, and not too large for a page."""
    engine = ENGINES.get(run.engine)
    is_softmax = engine is not None and engine.computes == SOFTMAX
    return is_softmax and bool(spec.batch * spec.num_heads) and multiply_adds(spec) <= MOST


def multiply_adds(spec: RunSpec) -> int:
    return spec.q_len * spec.kv_len * (spec.head_dim + spec.v_head_dim)


def look(run: Run, spec: RunSpec, batch: int, head: int, request: HttpRequest) -> Closeup | None:
    """The head; None where the inputs of the run are gone.

    What costs much, and is not kept, is charged to the caller and done by few at once. Raises Busy.
    """

    def compute() -> Closeup | None:
        if multiply_adds(spec) <= FREE:
            return _look(run, spec, batch, head)
        with computing(caller_of(request)):
            return _look(run, spec, batch, head)

    return _kept.get((run.id, run.attempt, batch, head), compute)


def _look(run: Run, spec: RunSpec, batch: int, head: int) -> Closeup | None:
    inputs = artifacts.load_inputs(run)
    if not inputs:
        return None
    given = closeup.one_head(closeup.look(spec, inputs), batch, head)
    seen = closeup.pictures(given, PIXELS)
    maps = {name: picture(name, arrays.MAPS[name], seen.matrices[name], seen.n, seen.m) for name in MATRICES}
    error = None
    returned = artifacts.load_result(run, "out")
    if returned is not None:
        found = arrays.one(returned, "out", spec, batch, head)[: seen.n].astype(np.float64)
        error = np.abs(found - seen.out)
        maps["error"] = picture("error", "seq", *_reduced(error))
    maps["out"] = picture("out", "div", *_reduced(seen.out))
    return Closeup(given, maps, seen.lse, seen.entropy, seen.seen, seen.out, error)


def _reduced(values: np.ndarray) -> tuple[np.ndarray, int, int]:
    """A matrix no larger than a picture, and its own size."""
    return closeup.block_maximum(values, *closeup.blocks(values.shape, PIXELS)), *values.shape


def picture(name: str, kind: Kind, values: np.ndarray, rows: int, columns: int) -> Map:
    """values: [rows, columns] after the reduction to pixels; rows and columns are those of the matrix."""
    finite = values[np.isfinite(values)]
    largest = float(np.abs(finite).max()) if finite.size else 0.0
    return Map(
        name,
        kind,
        levels(values, kind, largest, steps=TOP, masked=MASKED, not_a_number=NOT_A_NUMBER).astype(np.uint8),
        closeup.block_maximum(values, *closeup.blocks(values.shape, TABLE)) if values.size else values,
        largest,
        rows,
        columns,
        bool(np.isneginf(values).any()),
    )
