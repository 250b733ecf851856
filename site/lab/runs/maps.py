"""A matrix, or a part of one, as a picture and as a table.

A part is a square of `side` rows and columns out of a grid that begins at the first query and key, so that a
query string says which it is: the square that the lit cell lies in. Without a side it is the whole, and what
does not fit into a picture is reduced: scores and weights to the largest of each block, what has both signs
(outputs, errors) to what is largest in size, so that no peak is lost.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from django.http import QueryDict

from concepts.figures import scales
from kernels import closeup
from lab import heatmap, png
from lab.heatmap import Kind

PIXELS = 1024  # of a picture, at most, each way
PREVIEW = 96  # of the one that a page begins with: four of noise are 18 KB, where the whole are a megabyte
TABLE = 16  # rows and columns of the table beside a picture
CELLS = 8  # up to so many rows and columns a matrix is a table alone
SIDES = (512, 64, CELLS)  # of the squares that can be looked at, from far to near
THEMES = ("light", "dark")

MASKED, NOT_A_NUMBER = 254, 255  # of a picture's bytes; the others are the scale, from its low end
TOP = 253

SIGNED = ("out", "error")  # of both signs, and reduced by size

Reduce = Callable[[np.ndarray, int, int], np.ndarray]


@dataclass(frozen=True)
class Part:
    """Which rows and columns of the matrices [n, m] of a head are looked at; side 0: all of them."""

    side: int = 0
    top: int = 0
    left: int = 0

    @classmethod
    def around(cls, side: int, query: int, key: int) -> "Part":
        """The square that a cell lies in."""
        return cls(side, query // side * side, key // side * side) if side else cls()

    def rows(self, count: int) -> slice:
        return self._slice(self.top, count)

    def columns(self, count: int) -> slice:
        return self._slice(self.left, count)

    def _slice(self, start: int, count: int) -> slice:
        return slice(min(start, count), min(start + self.side, count)) if self.side else slice(0, count)


@dataclass(frozen=True)
class Map:
    """rows × columns numbers of a matrix, from row `top` and column `left` on."""

    name: str
    kind: Kind
    rows: int
    columns: int
    top: int
    left: int
    levels: np.ndarray  # [·, ·] uint8: the picture, of a byte for each number or block of them
    table: np.ndarray  # [·, ·] float64: the numbers of a small one; of another TABLE blocks each way at most
    largest: float  # of the finite numbers (of their size, for "div"); 0 when there are none
    has_masked: bool
    dtype: np.dtype  # of the source
    by_size: bool  # whether blocks are reduced to what is largest in size

    @property
    def lowest(self) -> float:
        return -self.largest if self.kind == "div" else 0.0

    @property
    def is_empty(self) -> bool:
        return not self.levels.size

    @property
    def is_small(self) -> bool:
        """Whether it is shown number by number."""
        return self.rows <= CELLS and self.columns <= CELLS

    @property
    def is_reduced(self) -> bool:
        return self.levels.shape != (self.rows, self.columns)

    @property
    def is_boolean(self) -> bool:
        return self.dtype == np.bool_

    @property
    def has_preview(self) -> bool:
        return max(self.levels.shape, default=0) > PREVIEW

    def preview(self) -> "Map":
        """Of PREVIEW pixels each way at most, reduced as the picture itself is."""
        return replace(self, levels=coarser(self.levels, by_size=self.by_size))

    def picture(self, theme: str) -> bytes:
        """PNG: a pixel for each cell, masked ones seen through."""
        return png.encode(self.levels, palette(self.kind, is_dark=theme == "dark"), MASKED)


@dataclass(frozen=True)
class Picture:
    """Where a map is drawn for one theme: `first` is what a page begins with, small where `full` is large."""

    theme: str
    first: str
    full: str


def pictures(one: Map, address: Callable[..., str]) -> list[Picture]:
    """address: from parameters of the query string."""
    small = [("preview", "1")] if one.has_preview else []
    return [
        Picture(theme, first=address(("theme", theme), *small), full=address(("theme", theme)))
        for theme in THEMES
    ]


def asked(one: Map, query: QueryDict) -> Map:
    """The map as the address of one of its pictures asks for it."""
    return one.preview() if "preview" in query else one


@cache
def palette(kind: Kind, *, is_dark: bool) -> list[tuple[int, int, int]]:
    """The 256 colours of a picture."""
    scale = scales.sequential if kind == "seq" else scales.diverging
    numbers = [scale(number * heatmap.STEPS / TOP, is_dark).rgb for number in range(TOP + 1)]
    masked, wrong = (0, 0, 0), (255, 155, 144) if is_dark else (179, 37, 30)
    return [*numbers, masked, wrong]


def coarser(levels: np.ndarray, *, by_size: bool) -> np.ndarray:
    """levels: [·, ·] uint8. Masked only where a whole block is; what is no number shows."""
    blocks = closeup.blocks(levels.shape, PREVIEW)
    middle = TOP / 2 if by_size else 0.0
    values = np.where(levels == NOT_A_NUMBER, np.nan, levels - middle)
    is_masked = levels == MASKED
    found = closeup.block_maximum(np.where(is_masked, -np.inf, values), *blocks)
    if by_size:
        lowest = -closeup.block_maximum(np.where(is_masked, -np.inf, -values), *blocks)
        found = np.where(found < -lowest, lowest, found)
    coded = np.where(np.isneginf(found), MASKED, found + middle)
    return np.where(np.isnan(found), NOT_A_NUMBER, coded).astype(np.uint8)


def reduction(name: str) -> Reduce:
    return closeup.block_extreme if name in SIGNED else closeup.block_maximum


def drawn(
    name: str,
    kind: Kind,
    values: np.ndarray,
    shape: tuple[int, ...],
    *,
    corner: tuple[int, int] = (0, 0),
    dtype: np.dtype | None = None,
) -> Map:
    """values: [·, ·] after the reduction to pixels of what has this shape."""
    finite = values[np.isfinite(values)]
    largest = float(np.abs(finite).max()) if finite.size else 0.0
    is_listed = not values.size or max(shape) <= CELLS
    (rows, columns), (top, left) = shape, corner
    return Map(
        name,
        kind,
        rows,
        columns,
        top,
        left,
        levels=heatmap.levels(
            values, kind, largest, steps=TOP, masked=MASKED, not_a_number=NOT_A_NUMBER
        ).astype(np.uint8),
        table=values if is_listed else reduction(name)(values, *closeup.blocks(values.shape, TABLE)),
        largest=largest,
        has_masked=bool(np.isneginf(values).any()),
        dtype=values.dtype if dtype is None else dtype,
        by_size=name in SIGNED,
    )


def whole(name: str, kind: Kind, matrix: np.ndarray, corner: tuple[int, int] = (0, 0)) -> Map:
    """Of all [rows, columns] of a matrix."""
    values = reduction(name)(matrix, *closeup.blocks(matrix.shape, PIXELS)).astype(np.float64)
    return drawn(name, kind, values, matrix.shape, corner=corner, dtype=matrix.dtype)


def cut(name: str, kind: Kind, matrix: np.ndarray, part: Part, *, by_key: bool) -> Map:
    """A part of a matrix; where columns are no keys, all of them."""
    rows, columns = matrix.shape
    down, across = part.rows(rows), part.columns(columns) if by_key else slice(0, columns)
    return whole(name, kind, matrix[down, across], (down.start, across.start))
