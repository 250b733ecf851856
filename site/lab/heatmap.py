"""A heat map of attention weights or scores as a pure function of numbers.

`figure` makes a HeatMap from one [rows, columns] array; `svg` draws it with the classes of the design
system (no inline style: the colours follow the page's theme). Larger maps are reduced to at most
LIMIT × LIMIT cells by block maximum, so that a peak is never averaged away, and the caption says so.
"""

import base64
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from django.utils.functional import cached_property
from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from concepts.figures import scales
from kernels.closeup import block_maximum, blocks

LIMIT = 64
STEPS = 20  # the classes run from heat-…-0 to heat-…-20
MASKED = -1
NOT_A_NUMBER = -2
TRUE, FALSE = "●", "·"
DOTS_UP_TO = 32  # columns
NUMBERS_UP_TO = 8  # columns; more do not leave room to print a number in each cell

Kind = Literal["seq", "div"]


@dataclass(frozen=True)
class HeatMap:
    """A picture of one matrix. values: [rows, columns] after reduction, float64."""

    values: np.ndarray
    kind: Kind
    row_block: int
    column_block: int
    source_rows: int
    source_columns: int
    largest: float  # of the finite values (of their size, for "div"); 0 when there are none
    dtype: np.dtype  # of the source
    by_dimension: bool = False  # columns are dimensions, not keys

    @property
    def rows(self) -> int:
        return int(self.values.shape[0])

    @property
    def columns(self) -> int:
        return int(self.values.shape[1])

    @property
    def is_reduced(self) -> bool:
        return self.row_block > 1 or self.column_block > 1

    @property
    def is_boolean(self) -> bool:
        return self.dtype == np.bool_

    @property
    def has_masked(self) -> bool:
        return bool(np.isneginf(self.values).any())

    @property
    def shows_numbers(self) -> bool:
        most = DOTS_UP_TO if self.is_boolean else NUMBERS_UP_TO
        return self.columns <= most and not self.is_reduced

    @property
    def lowest(self) -> float:
        return -self.largest if self.kind == "div" else 0.0

    @cached_property
    def levels(self) -> np.ndarray:
        return levels(self.values, self.kind, self.largest)

    def row_name(self, row: int) -> str:
        return span(row, self.row_block, self.source_rows)

    def column_name(self, column: int) -> str:
        return span(column, self.column_block, self.source_columns)

    def row_start(self, row: int) -> int:
        return row * self.row_block

    def column_start(self, column: int) -> int:
        return column * self.column_block

    def table(self) -> list[tuple[str, list[str]]]:
        """The same cells as text: (name of the row, its values)."""
        return [(self.row_name(i), [self.words(value) for value in row]) for i, row in enumerate(self.values)]

    def text(self, value: float) -> str:
        """What stands in a cell."""
        return written(value, self.dtype)

    def words(self, value: float) -> str:
        """What is said of a cell."""
        if self.is_boolean:
            return str(_("yes") if value else _("no"))
        return self.text(value)

    def column_names(self) -> list[str]:
        return [self.column_name(column) for column in range(self.columns)]


def figure(values: np.ndarray, kind: Kind, limit: int = LIMIT, *, by_dimension: bool = False) -> HeatMap:
    """The heat map of a [rows, columns] array."""
    if values.ndim != 2:
        raise ValueError(f"a heat map shows a matrix, not an array of shape {values.shape}")
    row_block, column_block = blocks(values.shape, limit)
    cells = block_maximum(values.astype(np.float64), row_block, column_block)
    found = reduced(cells, kind, (row_block, column_block), values.shape)
    return replace(found, dtype=values.dtype, by_dimension=by_dimension)


def reduced(cells: np.ndarray, kind: Kind, block: tuple[int, int], shape: tuple[int, ...]) -> HeatMap:
    """The heat map of a [rows, columns] array of this shape, whose blocks are in `cells` [·, ·] float64."""
    finite = cells[np.isfinite(cells)]
    largest = float(np.abs(finite).max()) if finite.size else 0.0
    rows, columns = shape
    return HeatMap(cells, kind, *block, rows, columns, largest, cells.dtype)


def levels(
    values: np.ndarray,
    kind: Kind,
    largest: float,
    *,
    steps: int = STEPS,
    masked: int = MASKED,
    not_a_number: int = NOT_A_NUMBER,
) -> np.ndarray:
    """Where each value stands on the scale: 0 … steps; and what stands for −∞ and for NaN."""
    position = values / (largest or 1.0)
    position *= steps if kind == "seq" else steps / 2
    if kind == "div":
        position += steps / 2
    np.clip(position, 0, steps, out=position)
    np.rint(position, out=position)
    position[np.isneginf(values)] = masked
    position[np.isnan(values)] = not_a_number
    return position.astype(int)


def span(index: int, block: int, size: int) -> str:
    """The source rows (or columns) that a cell stands for: "3", or "24–31"."""
    first = index * block
    last = min(first + block, size) - 1
    return str(first) if first == last else f"{first}–{last}"


def number(value: float, digits: int = 4) -> str:
    """A number for people: fixed point where that reads well, scientific elsewhere, typographic minus."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    size = abs(value)
    text = f"{value:.{digits}f}" if 10**-digits * 0.5 <= size < 1e6 else f"{value:.2e}"
    return text.replace("-", "−")


def brief(value: float) -> str:
    """A number where there is little room: −26.8, 2.07, 0.71, 4e−11."""
    size = abs(value)
    if not math.isfinite(value) or value == 0:
        return number(value)
    if not 0.01 <= size < 1e5:
        mantissa, exponent = f"{value:.0e}".split("e")
        return f"{mantissa}e{int(exponent)}".replace("-", "−")
    return f"{value:.{2 if size < 10 else 1 if size < 1000 else 0}f}".replace("-", "−")


def written(value: float, dtype: np.dtype) -> str:
    """A number as its type asks for: a dot for true and a point for false, integers without decimals."""
    if dtype == np.bool_:
        return TRUE if value else FALSE
    if np.issubdtype(dtype, np.integer):
        return str(int(value)).replace("-", "−")
    return number(float(value))


# --- SVG ------------------------------------------------------------------------------------------

LEFT, TOP = 56, 48  # room for axis names and ticks, in SVG units (pixels at natural size)
MIDDLE = 'text-anchor="middle"'
CENTERED = f'{MIDDLE} dominant-baseline="central"'

# The attributes of a cell, and of the number printed on it, for a level of the scale.
Paint = Callable[[Kind, int], tuple[str, str]]


def by_class(kind: Kind, level: int) -> tuple[str, str]:
    """Colours from the page's stylesheet, which follow its theme."""
    unusual = {MASKED: "cell-masked", NOT_A_NUMBER: "cell-nan"}
    return f'class="{unusual.get(level, f"heat-{kind}-{level}")}"', f'class="on-heat" {CENTERED}'


def by_value(kind: Kind, level: int) -> tuple[str, str]:
    """The light colours themselves, for a file that travels alone; `dark_style` has the dark ones."""
    if level < 0:
        return 'class="none" fill="#ffffff" stroke="#8b8492"', f'fill="#57515f" {CENTERED}'
    color = (scales.sequential if kind == "seq" else scales.diverging)(level)
    return f'class="c{level}" fill="{color.hex}"', f'fill="{scales.ink(color).hex}" {CENTERED}'


def dark_style(kind: Kind) -> str:
    """What a file says of dark surroundings; whoever knows no media queries keeps the light colours."""
    scale = scales.sequential if kind == "seq" else scales.diverging
    steps = ((step, scale(step, dark=True)) for step in range(STEPS + 1))
    cells = "".join(f".c{n}{{fill:{c.hex}}}.c{n}+text{{fill:{scales.ink(c).hex}}}" for n, c in steps)
    others = ".paper{fill:#151319}.axis,.tick,.none+text{fill:#b3adba}.none{fill:#1d1a22;stroke:#847c8d}"
    return f"@media (prefers-color-scheme:dark){{{others}{cells}}}"


def svg(heat_map: HeatMap, label: str, paint: Paint = by_class, lit: int | None = None) -> SafeString:
    """The map as SVG; every cell carries its value as a <title>, and `label` names the whole. The row of
    query `lit` has a frame."""
    width, _height = cell_size(heat_map)
    total = natural_size(heat_map)
    head = '<svg class="{}" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">'
    return format_html(
        head + "{}{}{}</svg>",
        "heatmap" if width >= 16 else "heatmap heatmap-dense",
        *total,
        *total,
        label,
        axes(heat_map),
        cells(heat_map, paint),
        "" if lit is None else frame(heat_map, lit),
    )


def document(heat_map: HeatMap, label: str) -> str:
    """The map as a file of its own."""
    head = '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="13" fill="#57515f" '
    style = f"<style>{dark_style(heat_map.kind)}</style>"
    paper = '<path class="paper" d="M0 0h{}v{}H0z" fill="#fdfcfa"/>'.format(*natural_size(heat_map))
    opened, rest = svg(heat_map, label, by_value).replace("<svg ", head, 1).split(">", 1)
    return f"{opened}>{style}{paper}{rest}"


def style_hashes() -> list[str]:
    """By which a policy lets the styles of these files in, and no others."""
    kinds: tuple[Kind, ...] = ("seq", "div")
    digests = (hashlib.sha256(dark_style(kind).encode()).digest() for kind in kinds)
    return [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]


def natural_size(heat_map: HeatMap) -> tuple[int, int]:
    """Width and height of the whole, in SVG units."""
    width, height = cell_size(heat_map)
    return LEFT + heat_map.columns * width + 1, TOP + heat_map.rows * height + 1


def cell_size(heat_map: HeatMap) -> tuple[int, int]:
    """Width and height of a cell in SVG units."""
    if heat_map.shows_numbers and not heat_map.is_boolean:
        return 68, 44
    side = min(40, max(8, 512 // max(heat_map.rows, heat_map.columns, 1)))
    return side, side


def cells(heat_map: HeatMap, paint: Paint) -> SafeString:
    """One <g> per row; a number, if there is room, comes right after its cell."""
    width, height = cell_size(heat_map)
    words = (
        _("query {row}, dimension {column}: {value}")
        if heat_map.by_dimension
        else _("query {row}, key {column}: {value}")
    )
    title = escape(words)
    size = f'width="{width}" height="{height}"'
    paints = {level: paint(heat_map.kind, level) for level in range(NOT_A_NUMBER, STEPS + 1)}
    names = heat_map.column_names()
    parts = []
    for row in range(heat_map.rows):
        row_name, row_levels = heat_map.row_name(row), heat_map.levels[row].tolist()
        parts.append(f'<g transform="translate({LEFT} {TOP + row * height})">')
        for column, value in enumerate(heat_map.values[row].tolist()):
            rect, ink = paints[row_levels[column]]
            name = title.format(row=row_name, column=names[column], value=heat_map.words(value))
            parts.append(f'<rect {rect} x="{column * width}" {size}><title>{name}</title></rect>')
            if heat_map.shows_numbers:
                middle = column * width + width // 2
                parts.append(f'<text {ink} x="{middle}" y="{height // 2}">{heat_map.text(value)}</text>')
        parts.append("</g>")
    # Made of numbers and one escaped sentence. format_html on each of 4,096 cells takes ten times as long.
    return SafeString("".join(parts))


def frame(heat_map: HeatMap, query: int) -> SafeString:
    """Around the row that stands for a query."""
    width, height = cell_size(heat_map)
    return format_html(
        '<path class="lit-row" fill="none" d="M{} {}h{}v{}h{}z"/>',
        LEFT,
        TOP + query // heat_map.row_block * height,
        heat_map.columns * width,
        height,
        -heat_map.columns * width,
    )


def axes(heat_map: HeatMap) -> SafeString:
    """Names and ticks; at most about eight ticks a side, so that they never touch."""
    width, height = cell_size(heat_map)
    keys = (
        (SafeString(MIDDLE), LEFT + column * width + width / 2, TOP - 8, heat_map.column_start(column))
        for column in range(0, heat_map.columns, tick_step(heat_map.columns))
    )
    end = SafeString('text-anchor="end" dominant-baseline="central"')
    queries = (
        (end, LEFT - 8, TOP + row * height + height / 2, heat_map.row_start(row))
        for row in range(0, heat_map.rows, tick_step(heat_map.rows))
    )
    return format_html(
        '<text class="axis" x="{}" y="14">{}</text><text class="axis" x="0" y="{}">{}</text>{}',
        LEFT,
        _("dimension →") if heat_map.by_dimension else _("key →"),
        TOP - 8,
        _("query ↓"),
        format_html_join("", '<text class="tick" {} x="{}" y="{}">{}</text>', (*keys, *queries)),
    )


def tick_step(size: int) -> int:
    return next(step for step in (1, 2, 4, 8, 16, 32, 64) if size / step <= 8 or step == 64)
