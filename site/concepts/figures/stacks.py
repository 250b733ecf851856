"""Parts of a whole as one bar, piled up against a limit.

Parts are told apart by their numbers as well as by colour: the number of a part stands in its piece of the
bar, where there is room, and in its `key`, for the table beside it. `svg` has the classes of the design
system, `document` is a file of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.html import format_html
from django.utils.safestring import SafeString

from concepts.figures import parts
from concepts.figures.lineplot import COLORS
from concepts.figures.parts import EMPTY, join

WIDTH, HEIGHT = 480.0, 104.0
EDGE = 4.0  # on both sides
TOP, DEEP = 30.0, 44.0  # of the frame that is the limit
INSET = 4.0  # of the pieces in it
ROOM = 14.0  # that a number needs
LETTER = 7.8  # of a letter, about


@dataclass(frozen=True)
class Stack:
    """`sizes` of the parts in order, and the limit, in one unit; what is written above the limit's end and
    below the end of the bar."""

    sizes: Sequence[float]
    limit: float
    above: str
    below: str

    @property
    def total(self) -> float:
        return sum(self.sizes)

    def at(self, size: float) -> float:
        """How far from the left edge of the picture."""
        whole = max(self.total, self.limit) or 1.0
        return EDGE + size / whole * (WIDTH - 2 * EDGE)


def svg(stack: Stack, label: str) -> SafeString:
    """The bar; `label` says in words what it shows."""
    return format_html(
        '<svg class="stack" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-label="{2}">{3}'
        "</svg>",
        f"{WIDTH:g}",
        f"{HEIGHT:g}",
        label,
        drawn(stack, is_bare=False),
    )


def document(stack: Stack, label: str) -> SafeString:
    return parts.drawing(WIDTH, HEIGHT, label, drawn(stack, is_bare=True), size=15)


def key(number: int) -> SafeString:
    """The number of a part (from 0) in its colour, as it stands in the bar."""
    return format_html(
        '<svg class="stack-key" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">'
        '<rect class="piece {}" width="16" height="16" rx="2"/>'
        '<text class="number" x="8" y="12.5" text-anchor="middle">{}</text></svg>',
        css(number),
        number + 1,
    )


def drawn(stack: Stack, *, is_bare: bool) -> SafeString:
    """All of it; `is_bare`: with its colours, which a stylesheet has otherwise."""
    frame = format_html(
        '<rect class="limit" x="{}" y="{}" width="{}" height="{}" fill="{}" stroke="{}" stroke-width="1.5"/>',
        f"{EDGE:g}",
        f"{TOP:g}",
        f"{stack.at(stack.limit) - EDGE:.1f}",
        f"{DEEP:g}",
        "#f6f4f2" if is_bare else "none",
        "#57515f" if is_bare else "currentColor",
    )
    return SafeString(frame + pieces(stack, is_bare) + end(stack, is_bare) + words(stack))


def pieces(stack: Stack, is_bare: bool) -> SafeString:
    found, done = [], 0.0
    for number, size in enumerate(stack.sizes):
        left, right = stack.at(done), stack.at(done + size)
        done += size
        if right - left > 0.2:  # of a pixel: what is narrower is in the table alone
            found.append(piece(number, left, right, is_bare))
    return join(found)


def piece(number: int, left: float, right: float, is_bare: bool) -> SafeString:
    paint = format_html(' fill="{}"', COLORS[number % len(COLORS)]) if is_bare else EMPTY
    drawn = format_html(
        '<rect class="piece {}"{} x="{}" y="{}" width="{}" height="{}"/>',
        css(number),
        paint,
        f"{left:.1f}",
        f"{TOP + INSET:g}",
        f"{max(right - left - 1, 0.4):.1f}",  # a pixel of the frame shows between two pieces
        f"{DEEP - 2 * INSET:g}",
    )
    if right - left < ROOM:
        return drawn
    text = format_html(
        '<text class="number"{} x="{}" y="{}" text-anchor="middle">{}</text>',
        SafeString(' fill="#ffffff"') if is_bare else EMPTY,
        f"{(left + right) / 2:.1f}",
        f"{TOP + DEEP / 2 + 5:g}",
        number + 1,
    )
    return SafeString(drawn + text)


def end(stack: Stack, is_bare: bool) -> SafeString:
    """Where the limit is, drawn over what passes it."""
    x = f"{stack.at(stack.limit):.1f}"
    return format_html(
        '<path class="end{}"{} stroke-width="3" d="M{} {}V{}"/>',
        " passed" if stack.total > stack.limit else "",
        SafeString(' stroke="#1e1a24"') if is_bare else EMPTY,
        x,
        f"{TOP - 6:g}",
        f"{TOP + DEEP + 6:g}",
    )


def words(stack: Stack) -> SafeString:
    return join(
        [
            line(stack.above, stack.at(stack.limit), TOP - 12),
            line(stack.below, stack.at(stack.total), HEIGHT - 8),
        ]
    )


def line(text: str, x: float, y: float) -> SafeString:
    """A text that ends at x, or begins there where there is no room before it."""
    starts = x < LETTER * len(text)
    return format_html(
        '<text class="words" x="{}" y="{}" text-anchor="{}">{}</text>',
        f"{x:.1f}",
        f"{y:g}",
        "start" if starts else "end",
        text,
    )


def css(number: int) -> str:
    return f"series-{number % len(COLORS) + 1}"
