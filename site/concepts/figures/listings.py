"""A short program whose lines are marked: those that are wrong here, and those that were mended.

The marks are drawn by the stylesheet and said in words that are not seen, so that what is copied is the
program.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from concepts.figures import parts

Mark = Literal["", "wrong", "mended"]


@dataclass(frozen=True)
class Line:
    text: str
    mark: Mark = ""


def program(lines: Sequence[Line]) -> str:
    return "\n".join(line.text for line in lines) + "\n"


def listing(caption: str, lines: Sequence[Line]) -> SafeString:
    """The program in a box of its own, in which it scrolls where it is too wide."""
    spoken = {"": "", "wrong": _("wrong: "), "mended": _("mended: ")}
    drawn = format_html_join(
        "",
        '<span class="line {}"><span class="visually-hidden unselected">{}</span>{}\n</span>',
        ((line.mark, spoken[line.mark], line.text) for line in lines),
    )
    return format_html(
        '<pre class="listing-code" role="region" tabindex="0" aria-label="{}"><code>{}</code></pre>',
        caption,
        drawn,
    )


def picture(title: str, lines: Sequence[Line]) -> SafeString:
    """The program as an SVG that stands alone."""
    paint = {"": "#ffffff", "wrong": "#ffe58a", "mended": "#e5f4ee"}
    width, height = 24 + 8 * max(len(line.text) for line in lines), 20 * len(lines) + 16
    drawn = format_html_join(
        "",
        '<rect y="{}" width="{}" height="20" fill="{}"/><text x="12" y="{}" xml:space="preserve">{}</text>',
        ((8 + 20 * row, width, paint[line.mark], 22 + 20 * row, line.text) for row, line in enumerate(lines)),
    )
    return parts.drawing(width, height, title, drawn, font="monospace")
