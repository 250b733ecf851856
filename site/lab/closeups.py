"""One head of a run, looked at closely: what its pictures, tables and cells are made of.

The matrices are computed again, in float64, from the inputs that the run has kept (`kernels.closeup`): a
kernel like flash never holds them. A finished run never changes, so a head that was looked at lately is kept.
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from lab.heatmap import Kind
from workers import artifacts
from workers.models import Run

PIXELS = 1024  # of a picture, at most, each way
TABLE = 16  # rows and columns of the table beside a picture
CELLS = 8  # up to so many rows and columns a matrix is a table alone
FREE = 1 << 22  # multiply-adds that cost no more than the rest of a page
KEPT = 8  # heads, of the latest: some 10 MB each when they are large

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
    """The latest heads; one is computed at a time, so that four pictures of a page share one computation."""

    def __init__(self) -> None:
        self.found: OrderedDict[tuple[str, int, int, int], Closeup] = OrderedDict()
        self.lock = threading.Lock()

    def get(self, key: tuple[str, int, int, int], compute: Callable[[], Closeup]) -> Closeup:
        with self.lock:
            if key not in self.found:
                self.found[key] = compute()
            self.found.move_to_end(key)
            while len(self.found) > KEPT:
                self.found.popitem(last=False)
            return self.found[key]

    def __contains__(self, key: tuple[str, int, int, int]) -> bool:
        return key in self.found


_kept = _Kept()


def can_look(run: Run, spec: RunSpec) -> bool:
    """Whether the run is softmax attention with a head to look at."""
    engine = ENGINES.get(run.engine)
    return engine is not None and engine.computes == SOFTMAX and bool(spec.batch * spec.num_heads)


def is_free(run: Run, spec: RunSpec, batch: int, head: int) -> bool:
    """Whether looking costs next to nothing: it is small, or kept already."""
    return multiply_adds(spec) <= FREE or _key(run, batch, head) in _kept


@contextmanager
def paid(run: Run, spec: RunSpec, batch: int, head: int, request: HttpRequest) -> Iterator[None]:
    """Look inside: what costs much is charged to the caller, and done by few at once. Raises Busy."""
    if is_free(run, spec, batch, head):
        yield
    else:
        with computing(caller_of(request)):
            yield


def multiply_adds(spec: RunSpec) -> int:
    return spec.q_len * spec.kv_len * (spec.head_dim + spec.v_head_dim)


def look(run: Run, spec: RunSpec, batch: int, head: int) -> Closeup | None:
    """The head; None where the inputs of the run are gone."""
    inputs = artifacts.load_inputs(run)
    if not inputs:
        return None
    return _kept.get(_key(run, batch, head), lambda: _look(run, spec, inputs, batch, head))


def _key(run: Run, batch: int, head: int) -> tuple[str, int, int, int]:
    return (run.id, run.attempt, batch, head)


def _look(run: Run, spec: RunSpec, inputs: dict[str, np.ndarray], batch: int, head: int) -> Closeup:
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
    down, across = (max(1, math.ceil(size / PIXELS)) for size in values.shape)
    return closeup.block_maximum(values, down, across), *values.shape


def picture(name: str, kind: Kind, values: np.ndarray, rows: int, columns: int) -> Map:
    """values: [rows, columns] after the reduction to pixels; rows and columns are those of the matrix."""
    finite = values[np.isfinite(values)]
    largest = float(np.abs(finite).max()) if finite.size else 0.0
    down, across = (max(1, math.ceil(size / TABLE)) for size in values.shape)
    return Map(
        name,
        kind,
        levels(values, kind, largest),
        closeup.block_maximum(values, down, across) if values.size else values,
        largest,
        rows,
        columns,
        bool(np.isneginf(values).any()),
    )


def levels(values: np.ndarray, kind: Kind, largest: float) -> np.ndarray:
    """The number of each value's colour."""
    unit = np.where(np.isfinite(values), values, 0.0) / (largest or 1.0)
    unit[np.isposinf(values)] = 1.0
    position = unit * TOP if kind == "seq" else (unit + 1) * (TOP / 2)
    level = np.rint(np.clip(position, 0, TOP)).astype(np.uint8)
    level[np.isneginf(values)] = MASKED
    level[np.isnan(values)] = NOT_A_NUMBER
    return level
