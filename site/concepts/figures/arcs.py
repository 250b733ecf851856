"""Words in a line with an arrow from each to one of them, as dependencies between words are drawn.

As of a line plot, `svg` has the classes of the design system, so that it follows the page's theme, and
`document` is a file of its own with colours in it.
"""

from collections.abc import Collection, Sequence

from django.utils.html import format_html
from django.utils.safestring import SafeString

from concepts.figures import parts

STEP, MARGIN = 84.0, 46.0  # between words; before the first and after the last
RISE = 30.0  # how much higher an arrow is for each word that it passes
SELF = 14.0  # half the width of an arrow from a word to itself
TIP = "M{0:.1f} {1:.1f}l-4.5 -9h9z"


def svg(words: Sequence[str], targets: Sequence[int], marked: Collection[int], label: str) -> SafeString:
    """`targets`: to which word each word points. Arrows from words that are `marked` are dashed and red."""
    width, height = size(words, targets)
    return format_html(
        '<svg class="arcs" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img"'
        ' aria-label="{2}">{3}</svg>',
        f"{width:g}",
        f"{height:g}",
        label,
        drawn(words, targets, marked, is_bare=False),
    )


def document(words: Sequence[str], targets: Sequence[int], marked: Collection[int], label: str) -> SafeString:
    width, height = size(words, targets)
    arcs = format_html('<g color="#1e1a24">{}</g>', drawn(words, targets, marked, is_bare=True))
    return parts.drawing(width, height, label, arcs, size=15)


def size(words: Sequence[str], targets: Sequence[int]) -> tuple[float, float]:
    return 2 * MARGIN + STEP * (len(words) - 1), base(targets) + 30


def base(targets: Sequence[int]) -> float:
    """How far down the arrows end."""
    return 16 + RISE * max(max(abs(target - word), 1) for word, target in enumerate(targets))


def drawn(
    words: Sequence[str], targets: Sequence[int], marked: Collection[int], *, is_bare: bool
) -> SafeString:
    bottom = base(targets)
    names = [
        format_html(
            '<text x="{}" y="{}" text-anchor="middle">{}</text>', f"{at(n):g}", f"{bottom + 20:g}", word
        )
        for n, word in enumerate(words)
    ]
    arrows = [
        arrow(word, target, bottom, is_marked=word in marked, is_bare=is_bare)
        for word, target in enumerate(targets)
    ]
    return parts.join([*arrows, *names])


def at(word: int) -> float:
    return MARGIN + STEP * word


def arrow(word: int, target: int, bottom: float, *, is_marked: bool, is_bare: bool) -> SafeString:
    """Leaves from the side of the word on which its target lies, and arrives on the other's middle."""
    side = (target > word) - (target < word)
    start = at(word) + 12 * side if side else at(word) - SELF
    end = at(target) - 6 * side if side else at(word) + SELF
    top = bottom - RISE * max(abs(target - word), 1) * 1.3
    line = f"M{start:.1f} {bottom:.1f}C{start:.1f} {top:.1f} {end:.1f} {top:.1f} {end:.1f} {bottom - 8:.1f}"
    color = "#b3251e" if is_marked and is_bare else "currentColor"
    return format_html(
        '<g class="{}"><path d="{}" fill="none" stroke="{}" stroke-width="1.8"{}/>'
        '<path d="{}" fill="{}"/></g>',
        "arc marked" if is_marked else "arc",
        line,
        color,
        SafeString(' stroke-dasharray="5 4"') if is_marked else "",
        TIP.format(end, bottom),
        color,
    )
