"""Blocks with wires between them: layers of a model, or models of a family. A block may be a link, and one of
them may be lit.

As of a line plot, `svg` has the classes of the design system, so that it follows the page's theme, and
`document` is a file of its own with colours in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.html import format_html
from django.utils.safestring import SafeString

from concepts.figures import parts
from concepts.figures.parts import EMPTY, join

PAPER = {"": "#f6f4f2", "main": "#f1eaf8", "lit": "#ffe58a", "note": "none"}


@dataclass(frozen=True)
class Block:
    """From its upper left corner. `kind` is "main" where something is computed that is learned, else ""; a
    "note" is its text alone. `label` is said in the place of the text."""

    x: float
    y: float
    width: float
    height: float
    text: str
    kind: str = ""
    href: str = ""
    label: str = ""
    is_lit: bool = False

    @property
    def middle(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height / 2


@dataclass(frozen=True)
class Wire:
    """A path, as in SVG; with a tip where it ends: "down", "left" or "right"."""

    path: str
    end: tuple[float, float] = (0.0, 0.0)
    tip: str = ""
    is_lit: bool = False


@dataclass(frozen=True)
class Diagram:
    width: float
    height: float
    blocks: Sequence[Block]
    wires: Sequence[Wire]


TIPS = {"down": "l-4 -7h8z", "left": "l7 -4v8z", "right": "l-7 -4v8z"}


def svg(diagram: Diagram, label: str) -> SafeString:
    return format_html(
        '<svg class="blocks" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="group" aria-label="{2}">{3}'
        "</svg>",
        f"{diagram.width:g}",
        f"{diagram.height:g}",
        label,
        drawn(diagram, is_bare=False),
    )


def document(diagram: Diagram, label: str) -> SafeString:
    return parts.drawing(diagram.width, diagram.height, label, drawn(diagram, is_bare=True))


def drawn(diagram: Diagram, *, is_bare: bool) -> SafeString:
    wires = [wire(one, is_bare) for one in diagram.wires]
    return join([*wires, *(block(one, is_bare) for one in diagram.blocks)])


def wire(one: Wire, is_bare: bool) -> SafeString:
    x, y = one.end
    tip = f"M{x:g} {y:g}{TIPS[one.tip]}" if one.tip else ""
    lit = " lit" if one.is_lit else ""
    return format_html(
        '<path class="wire{}" d="{}"{}/>{}',
        lit,
        one.path,
        SafeString(' fill="none" stroke="#57515f"') if is_bare else EMPTY,
        format_html(
            '<path class="tip{}" d="{}"{}/>', lit, tip, SafeString(' fill="#57515f"') if is_bare else EMPTY
        )
        if tip
        else EMPTY,
    )


def block(one: Block, is_bare: bool) -> SafeString:
    x, y = one.middle
    kind = "lit" if one.is_lit else one.kind
    frame = format_html(
        '<rect x="{}" y="{}" width="{}" height="{}" rx="3"{}/>',
        f"{one.x:g}",
        f"{one.y:g}",
        f"{one.width:g}",
        f"{one.height:g}",
        format_html(' fill="{}" stroke="#8b8492"', PAPER[kind]) if is_bare else EMPTY,
    )
    text = format_html(
        '<text x="{}" y="{}" text-anchor="middle">{}</text>', f"{x:g}", f"{y + 4.5:g}", one.text
    )
    inside = SafeString(text if one.kind == "note" else frame + text)
    if one.href and not is_bare:
        inside = format_html(
            '<a href="{}" aria-label="{}"{}>{}</a>',
            one.href,
            one.label or one.text,
            SafeString(' aria-current="true"') if one.is_lit else EMPTY,
            inside,
        )
    return format_html('<g class="block {}">{}</g>', kind, inside)
