"""Levels of memory as a pyramid: the smallest and nearest on top, each as wide as its size on a logarithm."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from concepts.figures import parts

WIDTH, STEP, GAP = 400, 66, 5  # narrow, so that its text can still be read on a phone
NARROWEST, WIDEST = 240.0, 396.0
SLANT = 12.0
COLORS = ("#5f2d94", "#1459a8", "#0a7a5c", "#b4560f")  # of a picture that stands alone, from the top


@dataclass(frozen=True)
class Level:
    """`size` in bytes; `texts`: its name, and a line or two below it."""

    size: float
    texts: tuple[str, ...]


def svg(levels: Sequence[Level], label: str) -> SafeString:
    """With the classes of the design system, so that it follows the page's theme."""
    height = len(levels) * STEP
    return format_html(
        '<svg class="pyramid" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-label="{2}">'
        "{3}</svg>",
        WIDTH, height, label, drawn(levels, is_bare=False),
    )  # fmt: skip


def document(levels: Sequence[Level], label: str) -> SafeString:
    """A file of its own, with its colours."""
    return parts.drawing(WIDTH, len(levels) * STEP, label, drawn(levels, is_bare=True), size=14)


def drawn(levels: Sequence[Level], *, is_bare: bool) -> SafeString:
    low, high = (math.log(level.size) for level in (levels[0], levels[-1]))
    return format_html_join(
        "",
        '<g class="level"><path d="{}"{}/>{}</g>',
        (
            (
                outline(number, (math.log(level.size) - low) / max(high - low, 1e-9)),
                SafeString(f' fill="{COLORS[number % len(COLORS)]}"') if is_bare else "",
                words(number, level.texts, is_bare),
            )
            for number, level in enumerate(levels)
        ),
    )


def outline(number: int, share: float) -> str:
    """A trapezoid around the middle."""
    wide = NARROWEST + (WIDEST - NARROWEST) * share
    top, middle = number * STEP, WIDTH / 2
    left, right, bottom = middle - wide / 2, middle + wide / 2, top + STEP - GAP
    return f"M{left + SLANT:.0f} {top}H{right - SLANT:.0f}L{right:.0f} {bottom}H{left:.0f}z"


def words(number: int, texts: Sequence[str], is_bare: bool) -> SafeString:
    """Lines in the middle of a level, the first of them its name."""
    first = number * STEP + (STEP - GAP) / 2 - 9 * (len(texts) - 1) + 5
    color = SafeString(' fill="#ffffff"') if is_bare else ""
    return format_html_join(
        "",
        '<text class="{}" x="{}" y="{}" text-anchor="middle"{}>{}</text>',
        (
            ("" if line else "name", WIDTH // 2, f"{first + 18 * line:.0f}", color, text)
            for line, text in enumerate(texts)
        ),
    )
