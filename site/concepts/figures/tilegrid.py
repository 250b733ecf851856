"""The scores of all queries and keys, cut into tiles, as a kernel walks over them: Q at the left, K and V on
top, O and what is kept of a row at the right, and what of all that is on chip at this moment.

As of a line plot, `svg` has the classes of the design system, so that it follows the page's theme, and
`document` is a file of its own with colours in it. What is drawn is also told apart by signs, not by colour
alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from concepts.figures import parts
from concepts.figures.scales import diverging, score_class

Edges = tuple[float, float, float, float]  # left, top, right, bottom

SIDE = 300.0  # of the scores
STRIP, GAP = 24.0, 8.0  # of an operand beside them
LEFT = STRIP + GAP + 22
TOP = 2 * (STRIP + 4) + GAP + 4
WIDTH = LEFT + SIDE + 2 * (STRIP + GAP) + 12
HEIGHT = TOP + SIDE + 4
SMALL = 15.0  # below it a tile has no room for a sign
SIGNS = {"done": "✓", "skipped": "–", "now": "", "todo": ""}
PAINT = {  # of a picture that stands alone
    "done": 'fill="#ddd4e9" stroke="#ffffff"',
    "skipped": 'fill="#ffffff" stroke="#c9c3c9" stroke-dasharray="2 3"',
    "todo": 'fill="#ffffff" stroke="#8a828c"',
    "now": 'fill="none" stroke="#1e1a24" stroke-width="3"',
    "far": 'fill="#ffffff" stroke="#8a828c"',
    "near": 'fill="#ffe58a" stroke="#1e1a24"',
    "written": 'fill="#ddd4e9" stroke="#8a828c"',
    "shut": 'fill="#ffffff"',
}


@dataclass(frozen=True)
class TileGrid:
    """`states` [tiles of queries, tiles of keys]: done, now, todo, skipped. `rows`: how many tiles of queries
    are written. `tile`: the one on chip; its `scores` are −∞ where a mask forbids the pair."""

    n: int
    m: int
    block_m: int
    block_n: int
    states: Sequence[Sequence[str]]
    written: int
    tile: tuple[int, int] | None = None
    scores: np.ndarray | None = None

    def across(self, key: float) -> float:
        return LEFT + SIDE * min(key, self.m) / self.m

    def down(self, query: float) -> float:
        return TOP + SIDE * min(query, self.n) / self.n

    def edges(self, i: int, j: int) -> Edges:
        """Of a tile."""
        return (
            self.across(j * self.block_n),
            self.down(i * self.block_m),
            self.across((j + 1) * self.block_n),
            self.down((i + 1) * self.block_m),
        )


def svg(grid: TileGrid, label: str) -> SafeString:
    return format_html(
        '<svg class="tile-map" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-label="{2}">'
        "{3}</svg>",
        f"{WIDTH:g}",
        f"{HEIGHT:g}",
        label,
        drawn(grid, is_bare=False),
    )


def document(grid: TileGrid, label: str) -> SafeString:
    return parts.drawing(WIDTH, HEIGHT, label, drawn(grid, is_bare=True), size=14)


def legend() -> SafeString:
    """What the signs and colours mean."""
    items = (
        ("near", "", _("in fast memory now")),
        ("done", SIGNS["done"], _("computed, used and gone; of O and L: written")),
        ("todo", "", _("to come")),
        ("skipped", SIGNS["skipped"], _("skipped: no query may see a key of it")),
    )
    return format_html(
        '<ul class="tile-key">{}</ul>',
        format_html_join(
            "",
            '<li><svg class="tile-map" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">'
            '<rect class="{}" x="1" y="1" width="14" height="14"/>'
            '<text class="sign" x="8" y="12.5" text-anchor="middle">{}</text></svg> {}</li>',
            items,
        ),
    )


def drawn(grid: TileGrid, *, is_bare: bool) -> SafeString:
    return parts.join([*tiles(grid, is_bare), *strips(grid, is_bare), *now(grid, is_bare), *names()])


def box(look: SafeString, edges: Edges) -> SafeString:
    left, top, right, bottom = edges
    return format_html(
        '<rect {} x="{}" y="{}" width="{}" height="{}"/>',
        look, f"{left:.2f}", f"{top:.2f}", f"{right - left:.2f}", f"{bottom - top:.2f}",
    )  # fmt: skip


def look(name: str, *, is_bare: bool) -> SafeString:
    """As a class, or as colours; `name` is one of PAINT or a class of the scale of scores."""
    if not is_bare:
        return format_html('class="{}"', name)
    if name in PAINT:
        return SafeString(PAINT[name])
    return format_html('fill="{}"', diverging(int(name.rpartition("-")[2])).hex)


def tiles(grid: TileGrid, is_bare: bool) -> Iterator[SafeString]:
    for i, row in enumerate(grid.states):
        for j, state in enumerate(row):
            edges = grid.edges(i, j)
            if state != "now":
                yield box(look(state, is_bare=is_bare), edges)
            if SIGNS[state]:
                yield sign(SIGNS[state], edges)


def sign(text: str, edges: Edges) -> SafeString:
    """In the middle of a tile, if it has room."""
    left, top, right, bottom = edges
    if min(right - left, bottom - top) < SMALL:
        return parts.EMPTY
    return format_html(
        '<text class="sign" x="{}" y="{}" text-anchor="middle">{}</text>',
        f"{(left + right) / 2:.1f}",
        f"{(top + bottom) / 2 + 5:.1f}",
        text,
    )


def now(grid: TileGrid, is_bare: bool) -> Iterator[SafeString]:
    """The tile that is on chip: its scores, and a frame."""
    if grid.tile is None or grid.scores is None:
        return
    top, left = grid.tile[0] * grid.block_m, grid.tile[1] * grid.block_n
    largest = float(np.abs(grid.scores[np.isfinite(grid.scores)]).max(initial=0.0))
    for row, values in enumerate(grid.scores.tolist(), top):
        for column, value in enumerate(values, left):
            name = "shut" if value == -np.inf else score_class(value, largest)
            edges = grid.across(column), grid.down(row), grid.across(column + 1), grid.down(row + 1)
            yield box(look(name, is_bare=is_bare), edges)
    yield box(look("now", is_bare=is_bare), grid.edges(*grid.tile))


def strips(grid: TileGrid, is_bare: bool) -> Iterator[SafeString]:
    """Q, O and what is kept of a row beside the scores, K and V above them, each in its tiles."""
    here = grid.tile or (-1, -1)
    right = LEFT + SIDE + GAP
    columns = (right, right + STRIP), (right + STRIP + 14, right + STRIP + 22)
    for i in range(len(grid.states)):
        _left, top, _right, bottom = grid.edges(i, 0)
        state = "near" if i == here[0] else "far"
        yield box(look(state, is_bare=is_bare), (LEFT - GAP - STRIP, top, LEFT - GAP, bottom))
        state = "near" if i == here[0] else "written" if i < grid.written else "far"
        for start, end in columns:
            yield box(look(state, is_bare=is_bare), (start, top, end, bottom))
    for j in range(len(grid.states[0]) if grid.states else 0):
        left, _top, end, _bottom = grid.edges(0, j)
        for top in (2.0, STRIP + 6):
            state = "near" if j == here[1] else "far"
            yield box(look(state, is_bare=is_bare), (left, top, end, top + STRIP))


def names() -> Iterator[SafeString]:
    right = LEFT + SIDE + GAP
    places = (
        ("K", LEFT - GAP, 2 + STRIP / 2 + 5, "end"),
        ("V", LEFT - GAP, 2 + STRIP + 4 + STRIP / 2 + 5, "end"),
        ("Q", LEFT - GAP - STRIP - 6, TOP + SIDE / 2, "end"),
        ("O", right + STRIP / 2, TOP - 8, "middle"),
        ("L", right + STRIP + 18, TOP - 8, "middle"),
    )
    for text, x, y, anchor in places:
        yield format_html(
            '<text class="name" x="{}" y="{}" text-anchor="{}">{}</text>', f"{x:g}", f"{y:g}", anchor, text
        )
