"""A number at every point of a plane, as a heat map in squares, with an arrow and marks on it.

As of a line plot, `svg` has the classes of the design system, so that it follows the page's theme, and
`document` is a file of its own with colours in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from concepts.figures import parts
from concepts.figures.numbers import show
from concepts.figures.scales import diverging, score_class

SQUARES = 21  # along a side, so that 0 lies in the middle of one
SIDE = 15.0  # of one, in pixels
SIZE = SQUARES * SIDE
MARGIN = 22.0  # below and on the left, for the numbers of the axes
WHOLE = SIZE + MARGIN
RADIUS = 5.0


@dataclass(frozen=True)
class Mark:
    """A point of the plane and its name."""

    x: float
    y: float
    name: str


@dataclass(frozen=True)
class Field:
    """`of` gives the numbers at points (n, 2); the plane reaches from −reach to reach in both directions."""

    of: Callable[[np.ndarray], np.ndarray]
    reach: float
    arrow: Mark
    marks: Sequence[Mark]

    def squares(self) -> np.ndarray:
        """The numbers in the middles of the squares, the row of the largest y first."""
        half = self.reach * (1 - 1 / SQUARES)
        across = np.linspace(-half, half, SQUARES)
        points = np.stack(np.meshgrid(across, across[::-1]), axis=-1).reshape(-1, 2)
        return self.of(points).reshape(SQUARES, SQUARES)

    def at(self, mark: Mark) -> tuple[str, str]:
        """Where a point of the plane is in the picture."""
        x, y = (SIZE / 2 * (1 + value / self.reach) for value in (mark.x, -mark.y))
        return f"{MARGIN + x:.1f}", f"{y:.1f}"


def svg(field: Field, label: str) -> SafeString:
    return format_html(
        '<svg class="field" viewBox="0 0 {0} {0}" width="{0}" height="{0}" role="img"'
        ' aria-label="{1}">{2}</svg>',
        f"{WHOLE:g}",
        label,
        drawn(field, is_bare=False),
    )


def document(field: Field, label: str) -> SafeString:
    return parts.drawing(WHOLE, WHOLE, label, drawn(field, is_bare=True))


def drawn(field: Field, *, is_bare: bool) -> SafeString:
    """All of it; `is_bare`: with its colours, which a stylesheet has otherwise."""
    return SafeString(squares(field, is_bare) + axes(field) + arrow(field, is_bare) + marks(field, is_bare))


def squares(field: Field, is_bare: bool) -> SafeString:
    """Runs of squares of one colour in a row are one rectangle."""
    found = field.squares()
    largest = float(np.abs(found).max())
    rows = []
    for number, row in enumerate(found.tolist()):
        names = [score_class(value, largest) for value in row]
        starts = [n for n in range(SQUARES) if n == 0 or names[n] != names[n - 1]]
        rows += [
            (
                paint(names[start], is_bare),
                f"{MARGIN + start * SIDE:g}",
                f"{number * SIDE:g}",
                f"{(end - start) * SIDE:g}",
            )
            for start, end in zip(starts, [*starts[1:], SQUARES], strict=True)
        ]
    template = f'<rect {{}} x="{{}}" y="{{}}" width="{{}}" height="{SIDE:g}"/>'
    return format_html('<g shape-rendering="crispEdges">{}</g>', format_html_join("", template, rows))


def paint(name: str, is_bare: bool) -> SafeString:
    step = int(name.rpartition("-")[2])
    return format_html('fill="{}"', diverging(step).hex) if is_bare else format_html('class="{}"', name)


def axes(field: Field) -> SafeString:
    """Lines through 0, and the ends of both axes."""
    middle, reach = SIZE / 2, show(field.reach, 1)
    lines = format_html(
        '<path class="cross" stroke="currentColor" stroke-opacity="0.35" fill="none"'
        ' d="M{0} {1}H{2}M{3} 0V{4}"/>',
        f"{MARGIN:g}",
        f"{middle:g}",
        f"{WHOLE:g}",
        f"{MARGIN + middle:g}",
        f"{SIZE:g}",
    )
    texts = (
        (MARGIN + 2, SIZE + 16, "start", f"−{reach}"),
        (MARGIN + middle, SIZE + 16, "middle", "0"),
        (WHOLE - 2, SIZE + 16, "end", reach),
        (MARGIN - 5, 12, "end", reach),
        (MARGIN - 5, middle + 4, "end", "0"),
        (MARGIN - 5, SIZE - 2, "end", f"−{reach}"),
    )
    words = format_html_join(
        "",
        '<text class="tick" x="{}" y="{}" text-anchor="{}">{}</text>',
        ((f"{x:g}", f"{y:g}", anchor, text) for x, y, anchor, text in texts),
    )
    return SafeString(lines + words)


def arrow(field: Field, is_bare: bool) -> SafeString:
    """From 0 to a point, with its name."""
    x, y = field.at(field.arrow)
    color = SafeString(' stroke="#1459a8"') if is_bare else ""
    return format_html(
        '<g class="arrow" stroke-linecap="round">'
        '<path class="halo" stroke="#ffffff" stroke-width="6" d="M{0} {1}L{2} {3}"/>'
        '<path class="stem"{5} stroke-width="3" d="M{0} {1}L{2} {3}"/>'
        '<circle class="tip"{6} cx="{2}" cy="{3}" r="4.5"/>{4}</g>',
        f"{MARGIN + SIZE / 2:g}",
        f"{SIZE / 2:g}",
        x,
        y,
        named(field, field.arrow, below=True),
        color,
        SafeString(' fill="#1459a8"') if is_bare else "",
    )


def marks(field: Field, is_bare: bool) -> SafeString:
    color = SafeString(' fill="#a34a06" stroke="#ffffff" stroke-width="1.5"') if is_bare else ""
    return format_html_join(
        "",
        '<g class="key-mark"><circle{} cx="{}" cy="{}" r="{}"/>{}</g>',
        ((color, *field.at(mark), f"{RADIUS:g}", named(field, mark)) for mark in field.marks),
    )


def named(field: Field, mark: Mark, *, below: bool = False) -> SafeString:
    """The name beside a point, on the side where there is room; above it, or below."""
    x, y = (float(value) for value in field.at(mark))
    is_left = x > WHOLE - 40
    return format_html(
        '<text class="name" x="{}" y="{}" text-anchor="{}">{}</text>',
        f"{x - 9 if is_left else x + 9:.1f}",
        f"{min(max(y + 17 if below else y - 7, 13), SIZE - 4):.1f}",
        "end" if is_left else "start",
        mark.name,
    )
