"""Small matrices with one row for each query and one column for each key, as tables."""

from collections.abc import Sequence

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from concepts.figures import parts
from concepts.figures.numbers import show
from concepts.figures.scales import ink, score_class, sequential, weight_class

NOT_A_NUMBER = "NaN"
SHUT = "–"  # in the place of a weight that a mask does not allow
ICON = 40.0  # width and height of a mask as a sign


def query_heads(count: int) -> list[SafeString]:
    return [parts.head("q", i, _("query")) for i in range(1, count + 1)]


def key_heads(count: int) -> list[SafeString]:
    return [parts.head("k", j, _("key")) for j in range(1, count + 1)]


def panel(title: str | SafeString, table: SafeString, note: str | SafeString = "") -> SafeString:
    """A matrix with its name above and a remark below."""
    below = format_html('<p class="panel-note">{}</p>', note) if note else parts.EMPTY
    return format_html('<section class="panel"><h3>{}</h3>{}{}</section>', title, table, below)


def panels(*items: SafeString) -> SafeString:
    """Matrices side by side, as many as there is room for."""
    return format_html('<div class="panels">{}</div>', parts.join(items))


def framed(table: SafeString, caption: str) -> SafeString:
    """A table that scrolls in its own box where it is too wide, by keyboard as well."""
    return format_html(
        '<div class="tight" role="region" tabindex="0" aria-label="{}">{}</div>', caption, table
    )


def weights(
    caption: str,
    values: np.ndarray,
    row_heads: Sequence[SafeString],
    column_heads: Sequence[SafeString],
    *,
    digits: int = 2,
    has_sums: bool = True,
    outlined: np.ndarray | None = None,
    allowed: np.ndarray | None = None,
) -> SafeString:
    """Numbers from 0 to 1 [rows, columns], and what each row adds up to. NaN is written as such. As booleans:
    which cells are `outlined` with a frame, and which a mask has `allowed`."""
    marked = np.zeros(values.shape, dtype=bool) if outlined is None else outlined
    seen = np.ones(values.shape, dtype=bool) if allowed is None else allowed
    rows = []
    for row, marks, opens in zip(values, marked.tolist(), seen.tolist(), strict=True):
        cells = [
            parts.cell(written(x, digits), heat=heat_of(x), extra="painted" if mark else "")
            if is_open
            else parts.cell(SHUT, extra="shut")
            for x, mark, is_open in zip(row.tolist(), marks, opens, strict=True)
        ]
        if has_sums:
            cells.append(parts.cell(written(round(float(row.sum()), 9), digits), extra="sum"))
        rows.append(cells)
    heads = [*column_heads, *([format_html("{}", _("sum"))] if has_sums else [])]
    return framed(parts.table(caption, rows, row_heads, heads), caption)


def scores(
    caption: str,
    values: np.ndarray,
    row_heads: Sequence[SafeString],
    column_heads: Sequence[SafeString],
    *,
    digits: int = 2,
    largest: float | None = None,
) -> SafeString:
    """Numbers of either sign [rows, columns]; `largest` is the size that has the deepest colour."""
    bound = float(np.abs(values).max()) if largest is None else largest
    rows = [
        [parts.cell(written(x, digits), heat=score_class(x, bound)) for x in row] for row in values.tolist()
    ]
    return framed(parts.table(caption, rows, row_heads, column_heads), caption)


def written(value: float, digits: int) -> str:
    return NOT_A_NUMBER if np.isnan(value) else show(value, digits)


def heat_of(value: float) -> str:
    return "" if np.isnan(value) else weight_class(value)


def icon(allowed: np.ndarray) -> SafeString:
    """A mask as a small sign: a square for each pair, full where it is open."""
    step = ICON / max(allowed.shape)
    squares = [
        format_html(
            '<rect x="{0}" y="{1}" width="{2}" height="{2}" fill="currentColor" fill-opacity="{3}"/>',
            f"{step * j + 0.5:.2f}",
            f"{step * i + 0.5:.2f}",
            f"{step - 1:.2f}",
            "0.85" if is_open else "0.12",
        )
        for i, row in enumerate(allowed.tolist())
        for j, is_open in enumerate(row)
    ]
    return format_html(
        '<svg class="mask-icon" viewBox="0 0 {0} {0}" width="{0}" height="{0}" aria-hidden="true">{1}</svg>',
        f"{ICON:g}",
        parts.join(squares),
    )


def shaded(
    values: np.ndarray, digits: int = 2, allowed: np.ndarray | None = None
) -> list[list[tuple[str, str, str]]]:
    """Numbers from 0 to 1 as cells of `picture`; `allowed` as in `weights`."""
    seen = np.ones(values.shape, dtype=bool) if allowed is None else allowed
    return [
        [
            (show(x, digits) if is_open else SHUT, shade.hex, ink(shade).hex)
            for x, is_open in zip(row, opens, strict=True)
            for shade in [sequential(round(20 * x))]
        ]
        for row, opens in zip(values.tolist(), seen.tolist(), strict=True)
    ]


def picture(title: str, tables: Sequence[tuple[str, Sequence[Sequence[tuple[str, str, str]]]]]) -> SafeString:
    """Matrices side by side as an SVG that stands alone. A cell is its text, its colour and that of the
    text."""
    drawn, left, tallest = [], 10, 0
    for name, rows in tables:
        drawn.append(format_html('<text x="{}" y="20" text-anchor="start">{}</text>', left, name))
        for i, row in enumerate(rows):
            for j, (text, paper, color) in enumerate(row):
                x, y = left + 46 * j, 32 + 34 * i
                drawn.append(
                    format_html(
                        '<rect x="{}" y="{}" width="44" height="32" fill="{}"/>'
                        '<text x="{}" y="{}" fill="{}" text-anchor="middle">{}</text>',
                        x, y, paper, x + 22, y + 21, color, text,
                    )
                )  # fmt: skip
        left += max(46 * max((len(row) for row in rows), default=0), 9 * len(name)) + 24
        tallest = max(tallest, len(rows))
    return parts.drawing(left, 42 + 34 * tallest, title, parts.join(drawn))
