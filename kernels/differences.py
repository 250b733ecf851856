"""What differs between two computations of attention: one head of each, cell by cell, in float64.

A difference is the second less the first. A cell has *changed* where the two differ by more than ``ROUNDING``
of the largest number of its row in either: sums of float64 may be taken in any order. Where only one of two
queries may see a key, the difference of the masked scores is infinite; where neither may, there is none: NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from kernels import closeup
from kernels.arrays import Array
from kernels.operands import Operands
from kernels.spec.results import MATRICES

ROUNDING = 1e-12
TOP = 12  # cells that are listed
NAMES = (*MATRICES, "out")

# Of a picture of which cells changed; of a block of cells the largest.
NEITHER, SAME, CHANGED, ONLY_FIRST, ONLY_SECOND = range(5)


@dataclass(frozen=True)
class Changed:
    """One cell of a matrix that is not the same in both."""

    row: int
    column: int
    first: float
    second: float

    @property
    def difference(self) -> float:
        return self.second - self.first


@dataclass
class Difference:
    """One matrix of both, compared cell by cell; [rows, columns] may be more than the picture has."""

    rows: int
    columns: int
    picture: Array  # float64, of each block of cells the difference that is largest in size
    count: int = 0  # cells that changed
    largest: float = 0.0  # of the finite differences, in size
    only_first: int = 0  # cells that are seen (finite) in one alone
    only_second: int = 0
    changed_rows: int = 0  # rows with a cell that changed
    first_row: int | None = None  # of these, the first and the last
    last_row: int | None = None
    top: list[Changed] = field(default_factory=list)  # the largest, best first

    @property
    def cells(self) -> int:
        return self.rows * self.columns

    @property
    def share(self) -> float:
        return self.count / self.cells if self.cells else 0.0


@dataclass(frozen=True)
class Differences:
    """One head of two computations."""

    of: dict[str, Difference]  # by the names of ``kernels.spec.results``
    kinds: Array  # uint8: which cells changed, and who sees them; a picture as the others
    seen_by_both: int
    seen_by_neither: int


def compare(first: Operands, second: Operands, limit: int) -> Differences:
    """Two ``closeup.one_head``; pictures have at most ``limit`` rows and columns. Where one has fewer queries
    or keys, because of padding, those that it lacks are as results have them: nothing is seen there."""
    n, m = (max(x.q.shape[2] if name == "q" else x.k.shape[2] for x in (first, second)) for name in "qk")
    down, across = closeup.blocks((n, m), limit)
    width = max(first.v.shape[3], second.v.shape[3])
    sides = {name: _Side(n, width if name == "out" else m, limit) for name in NAMES}
    kinds, both, neither = [], 0, 0
    for start, height in _heights(n, m, down):
        one, other = (_rows(given, start, start + height, m, width) for given in (first, second))
        for name, side in sides.items():
            side.add(start, one[name], other[name])
        seen = [~np.isneginf(x["masked_scores"]) for x in (one, other)]
        both += int(np.count_nonzero(seen[0] & seen[1]))
        neither += int(np.count_nonzero(~seen[0] & ~seen[1]))
        changed = differ(one["weights"], other["weights"]) | differ(
            one["masked_scores"], other["masked_scores"]
        )
        kinds.append(closeup.block_maximum(_kinds(seen[0], seen[1], changed), down, across))
    empty = np.zeros((0, math.ceil(m / across)), np.uint8)
    return Differences(
        {name: side.found() for name, side in sides.items()},
        np.concatenate(kinds) if kinds else empty,
        both,
        neither,
    )


def of_arrays(first: Array, second: Array, limit: int, allowed: float = 0.0) -> Difference:
    """Two matrices of one shape; what differs by no more than ``allowed`` has not changed."""
    rows, columns = first.shape
    side = _Side(rows, columns, limit, allowed)
    side.add(0, first.astype(np.float64), second.astype(np.float64))
    return side.found()


def _heights(n: int, m: int, multiple_of: int) -> Iterator[tuple[int, int]]:
    """(first query, how many) of strips."""
    height = max(1, closeup.STRIP // max(m * multiple_of, 1)) * multiple_of
    for start in range(0, n, height):
        yield start, min(height, n - start)


def _rows(given: Operands, start: int, stop: int, m: int, width: int) -> dict[str, Array]:
    """The matrices of some queries, m keys and ``width`` dimensions wide: where there is no such query or
    key, nothing is seen, and scores are not known."""
    there = max(0, min(stop, given.q.shape[2]) - start)
    results: Mapping[str, Array] = closeup.rows(given, start, start + there).results if there else {}
    found = {}
    for name in NAMES:
        nothing = {"masked_scores": -np.inf, "weights": 0.0, "out": 0.0}.get(name, np.nan)
        whole = np.full((stop - start, width if name == "out" else m), nothing)
        if there:
            part = results[name]
            whole[: part.shape[0], : part.shape[1]] = part
        found[name] = whole
    return found


def differ(first: Array, second: Array, allowed: float = 0.0) -> Array:
    """Which cells of [n, m] are not the same in both. Where either is not known (NaN), both have to be."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(second - first)
    scale = np.maximum(*(np.max(_finite_size(x), axis=1, initial=0.0) for x in (first, second)))
    same = (first == second) | (apart <= np.maximum(allowed, ROUNDING * scale)[:, None])
    return np.asarray(~same & ~(np.isnan(first) | np.isnan(second)) | (np.isnan(first) != np.isnan(second)))


def difference(first: Array, second: Array) -> Array:
    """Second less first; ±∞ where only one is seen, NaN where neither is, or one is not known."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart = second - first
    return np.asarray(np.where((first == second) & np.isfinite(first), 0.0, apart))


def extreme(values: Array, row_block: int, column_block: int) -> Array:
    """Of each block of [rows, columns] the number that is largest in size, with its sign; NaN only where it
    is all there is."""
    high = _reduced(np.fmax, values, row_block, column_block)
    low = _reduced(np.fmin, values, row_block, column_block)
    return np.asarray(np.where(-low > high, low, high))


def _reduced(by: np.ufunc, values: Array, row_block: int, column_block: int) -> Array:
    for axis, block in enumerate((row_block, column_block)):
        if block > 1 and values.shape[axis]:
            values = by.reduceat(values, range(0, values.shape[axis], block), axis=axis)
    return values


def _kinds(first: Array, second: Array, changed: Array) -> Array:
    found = np.where(changed, CHANGED, SAME)
    found = np.where(first & ~second, ONLY_FIRST, np.where(second & ~first, ONLY_SECOND, found))
    return np.where(first | second, found, NEITHER).astype(np.uint8)


def _finite_size(values: Array) -> Array:
    return np.where(np.isfinite(values), np.abs(values), 0.0)


class _Side:
    """A ``Difference`` in the making, strip by strip from the top."""

    def __init__(self, rows: int, columns: int, limit: int, allowed: float = 0.0) -> None:
        self.down, self.across = closeup.blocks((rows, columns), limit)
        self.allowed = allowed
        self.pictures: list[Array] = []
        self.difference = Difference(rows, columns, np.zeros((0, math.ceil(columns / self.across))))

    def add(self, start: int, first: Array, second: Array) -> None:
        apart, changed = difference(first, second), differ(first, second, self.allowed)
        self.pictures.append(extreme(apart, self.down, self.across))
        it = self.difference
        it.count += int(np.count_nonzero(changed))
        it.largest = max(it.largest, float(np.max(_finite_size(apart), initial=0.0)))
        it.only_first += int(np.count_nonzero(np.isneginf(second) & np.isfinite(first)))
        it.only_second += int(np.count_nonzero(np.isneginf(first) & np.isfinite(second)))
        rows = np.flatnonzero(changed.any(axis=1))
        it.changed_rows += len(rows)
        if len(rows):
            it.first_row = start + int(rows[0]) if it.first_row is None else it.first_row
            it.last_row = start + int(rows[-1])
        it.top = self._top(start, first, second, np.where(changed, np.abs(apart), -1.0))

    def _top(self, start: int, first: Array, second: Array, sizes: Array) -> list[Changed]:
        flat = np.where(np.isnan(sizes), -1.0, sizes).ravel()
        count = min(TOP, int(np.count_nonzero(flat >= 0.0)))
        if not count:
            return self.difference.top
        least = np.partition(flat, len(flat) - count)[len(flat) - count]
        chosen = [*np.flatnonzero(flat > least), *np.flatnonzero(flat == least)][:count]
        columns = first.shape[1]
        here = [
            Changed(
                start + int(at) // columns, int(at) % columns, float(first.flat[at]), float(second.flat[at])
            )
            for at in chosen
        ]
        both = sorted(
            [*self.difference.top, *here], key=lambda one: (-abs(one.difference), one.row, one.column)
        )
        return both[:TOP]

    def found(self) -> Difference:
        if self.pictures:
            self.difference.picture = np.concatenate(self.pictures)
        return self.difference
