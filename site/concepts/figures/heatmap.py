"""A matrix of signed numbers as a picture, for matrices that are too large for a table of numbers.

As of a line plot, `svg` has the classes of the design system, so that it follows the page's theme, and
`document` is a file of its own with colours in it. Squares of one colour are one path, to keep pages small.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from concepts.figures import parts
from concepts.figures.scales import diverging, score_class

LEFT, TOP, BOTTOM = 46, 26, 40  # for the numbers and the names of the axes
WIDTH, HEIGHT = 384, 336  # of the squares, about


@dataclass(frozen=True)
class HeatMap:
    """`values` [rows, columns]; `largest` is the size that has the deepest colour. Rows and columns are
    numbered from 0, those of the axes that are given; `lit` is a row with a frame."""

    values: np.ndarray
    largest: float
    down: str
    across: str
    rows: Sequence[int]
    columns: Sequence[int]
    lit: int | None = None

    @property
    def square(self) -> tuple[float, float]:
        """Width and height of one."""
        rows, columns = self.values.shape
        return round(WIDTH / columns, 2), round(HEIGHT / rows, 2)

    @property
    def size(self) -> tuple[float, float]:
        """Of the drawing."""
        (wide, high), (rows, columns) = self.square, self.values.shape
        return LEFT + wide * columns + 2, TOP + high * rows + BOTTOM


def svg(heat: HeatMap, label: str) -> SafeString:
    return format_html(
        '<svg class="heatmap" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img"'
        ' aria-label="{2}">{3}</svg>',
        *(f"{side:g}" for side in heat.size),
        label,
        drawn(heat, is_bare=False),
    )


def document(heat: HeatMap, label: str) -> SafeString:
    return parts.drawing(*heat.size, label, drawn(heat, is_bare=True))


def drawn(heat: HeatMap, *, is_bare: bool) -> SafeString:
    return parts.join(
        [squares(heat, is_bare), frame(heat), *([lit(heat, heat.lit)] if heat.lit is not None else [])]
    )


def squares(heat: HeatMap, is_bare: bool) -> SafeString:
    wide, high = heat.square
    found: dict[str, list[str]] = {}
    for row, values in enumerate(heat.values.tolist()):
        for column, value in enumerate(values):
            place = f"M{LEFT + column * wide:.4g} {TOP + row * high:.4g}h{wide:g}v{high:g}h-{wide:g}z"
            found.setdefault(score_class(value, heat.largest), []).append(place)
    paths = (
        (
            SafeString(f'fill="{diverging(step_of(name)).hex}"' if is_bare else f'class="{name}"'),
            "".join(places),
        )
        for name, places in sorted(found.items())
    )
    return format_html(
        '<g shape-rendering="crispEdges">{}</g>', format_html_join("", '<path {} d="{}"/>', paths)
    )


def step_of(name: str) -> int:
    return int(name.rpartition("-")[2])


def frame(heat: HeatMap) -> SafeString:
    """The numbers and the names of the axes."""
    wide, high = heat.square
    bottom = TOP + high * len(heat.values)
    ticks = [
        *((LEFT - 6, TOP + high * (row + 0.5) + 4.5, "end", row) for row in heat.rows),
        *((LEFT + wide * (column + 0.5), bottom + 16, "middle", column) for column in heat.columns),
    ]
    numbers = format_html_join(
        "",
        '<text class="tick" x="{}" y="{}" text-anchor="{}">{}</text>',
        ((f"{x:.1f}", f"{y:.1f}", anchor, number) for x, y, anchor, number in ticks),
    )
    return format_html(
        '{}<text class="tick" x="2" y="14">{}</text>'
        '<text class="tick" x="{}" y="{}" text-anchor="middle">{}</text>',
        numbers,
        heat.down,
        f"{LEFT + wide * heat.values.shape[1] / 2:.1f}",
        f"{bottom + 34:.1f}",
        heat.across,
    )


def lit(heat: HeatMap, row: int) -> SafeString:
    wide, high = heat.square
    return format_html(
        '<rect class="lit-row" x="{}" y="{}" width="{}" height="{}" fill="none" stroke="currentColor"'
        ' stroke-width="2"/>',
        LEFT,
        f"{TOP + row * high:.1f}",
        f"{wide * heat.values.shape[1]:.1f}",
        f"{high:g}",
    )
