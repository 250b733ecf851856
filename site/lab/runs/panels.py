"""Matrices side by side, with one cell that all of them show."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import lineplot, parts
from concepts.figures.lineplot import Axis, Series
from lab import heatmap, units
from lab.form.offers import result_name
from lab.runs.links import Links
from lab.runs.maps import MASKED, NOT_A_NUMBER, TOP, Map

LETTERS = {
    "scores": "S",
    "softcapped_scores": "S′",
    "masked_scores": "S + M",
    "weights": "P",
    "out": "O",
    "error": "ΔO",
}
ERROR = gettext_lazy("error: engine − float64")
ORDER = ("scores", "softcapped_scores", "masked_scores", "weights", "out", "error")
BY_DIMENSION = ("out", "error")  # their columns are dimensions, not keys
ROOMY = 4  # columns of which a phone has room for four decimals
FLAT = 4  # times as many columns as rows, and a picture is not drawn as a square
POINTS = 512  # of a plot over the queries
ROWS = 32  # of the table beside it


@dataclass(frozen=True)
class Cursor:
    """The query and the key that are lit."""

    query: int
    key: int

    @classmethod
    def read(cls, row: int | None, column: int | None, shape: tuple[int, int]) -> "Cursor | None":
        """Moved inside; None where there is no cell."""
        n, m = shape
        return cls(min(row or 0, n - 1), min(column or 0, m - 1)) if n and m else None


def title(name: str) -> str:
    return str(ERROR) if name == "error" else result_name(name)


def panel(one: Map, cursor: Cursor | None, link: Links, drawn: Mapping[str, Map]) -> dict[str, Any]:
    """drawn: all maps, one of which may be the same picture."""
    by_dimension = one.name in BY_DIMENSION
    shown = {
        "name": one.name,
        "letter": LETTERS.get(one.name, ""),
        "title": title(one.name) if one.name in LETTERS else capfirst(title(one.name)),
        "rows": one.rows,
        "columns": one.columns,
        "top": one.top,
        "left": one.left,
        "last_row": one.top + one.rows - 1,
        "last_column": one.left + one.columns - 1,
        "is_empty": one.is_empty,
        "by_dimension": by_dimension,
        "is_flat": one.rows * FLAT < one.columns,
        "lowest": heatmap.number(one.lowest),
        "largest": heatmap.number(one.largest),
        "kind": one.kind,
        "is_boolean": one.is_boolean,
        "has_masked": one.has_masked,
        "is_reduced": one.is_reduced,
        "has_preview": one.has_preview,
        "pixels": one.levels.shape,
        "reduction": reduction(one),
    }
    if one.is_empty:
        return shown
    if one.is_small:
        return shown | {"cells": small(one, cursor, link)}
    same = first_like(one, drawn)
    return shown | {"pictures": link.pictures(same), "table": table(one)}


def first_like(one: Map, drawn: Mapping[str, Map]) -> Map:
    """The first map with the same picture: without a mask the masked scores need none of their own."""
    scores = drawn.get("scores", one)
    is_same = scores.kind == one.kind and np.array_equal(scores.levels, one.levels)
    return scores if is_same and one.name not in BY_DIMENSION else one


def reduction(one: Map) -> str:
    """How the picture relates to the numbers; empty where it shows each of them."""
    if not one.is_reduced:
        return ""
    if one.is_boolean:
        what = _("each pixel shows whether any of those that it stands for is a yes.")
    elif one.name in BY_DIMENSION:
        what = _("each pixel is the one of largest size among those that it stands for, with its sign.")
    else:
        what = _("each pixel is the largest of those that it stands for, so that every peak stays visible.")
    return _("{rows:,} × {columns:,} numbers do not fit: {what} Zoom in for single numbers.").format(
        rows=one.rows, columns=one.columns, what=what
    )


def small(one: Map, cursor: Cursor | None, link: Links) -> SafeString:
    """A matrix as a table whose cells are links to themselves."""
    by_key = one.name not in BY_DIMENSION

    def cell(i: int, j: int) -> SafeString:
        row, column, value = one.top + i, one.left + j, float(one.table[i, j])
        lit = cursor is not None and cursor.query == row and (not by_key or cursor.key == column)
        label = _("query {i}, key {j}") if by_key else _("query {i}, dimension {j}")
        text = heatmap.written(value, one.dtype)
        return parts.cell(
            text if one.columns <= ROOMY or one.is_boolean else heatmap.brief(value),
            i=row + 1,
            j=column + 1 if by_key else None,
            heat=heat(one, i, j),
            lit=lit,
            href=link.cell(row, column) if by_key else "",
            label=label.format(i=row, j=column) + ": " + spoken(text, one),
        )

    rows = [[cell(i, j) for j in range(one.columns)] for i in range(one.rows)]
    heads = [SafeString(str(one.top + i)) for i in range(one.rows)]
    columns = [SafeString(str(one.left + j)) for j in range(one.columns)]
    return parts.table(title(one.name), rows, heads, columns)


def spoken(text: str, one: Map) -> str:
    """What is said of a cell."""
    if one.is_boolean:
        return _("yes") if text == heatmap.TRUE else _("no")
    return text


def heat(one: Map, i: int, j: int) -> str:
    level = int(one.levels[i, j])
    if level == MASKED:
        return "cell-masked"
    return "cell-nan" if level == NOT_A_NUMBER else f"heat-{one.kind}-{round(level * heatmap.STEPS / TOP)}"


def table(one: Map) -> dict[str, Any]:
    """The blocks of a picture as numbers, few enough to be read."""
    down, across = (
        -(-size // len_) for size, len_ in zip((one.rows, one.columns), one.table.shape, strict=True)
    )
    return {
        "note": table_note(one),
        "columns": [span(one.left, j, across, one.columns) for j in range(one.table.shape[1])],
        "rows": [
            (
                span(one.top, i, down, one.rows),
                [spoken(heatmap.written(float(value), one.dtype), one) for value in row],
            )
            for i, row in enumerate(one.table)
        ],
    }


def table_note(one: Map) -> str:
    """What a number stands for; "" where each is one of the matrix."""
    if one.table.shape == (one.rows, one.columns):
        return ""
    if one.name in BY_DIMENSION:
        return _("Each number is the one of largest size in its block.")
    return _("Each number is the largest of its block.")


def span(start: int, index: int, block: int, size: int) -> str:
    """The rows (or columns) that a row of a table stands for: "3", or "24–31"."""
    first = start + index * block
    last = min(first + block, start + size) - 1
    return str(first) if first == last else f"{first}–{last}"


# --- What there is one number of for each query ---------------------------------------------------


def profile(
    lse: np.ndarray | None, entropy: np.ndarray | None, seen: np.ndarray | None, cursor: Cursor | None
) -> dict[str, Any] | None:
    """Entropy and LSE over the queries: as plots, and as a table around the lit one."""
    columns = [("LSE", lse), (_("entropy, in nats"), entropy), (_("keys it sees"), seen)]
    there = [(name, values) for name, values in columns if values is not None]
    n = len(there[0][1]) if there else 0
    if n < 2:
        return None
    query = cursor.query if cursor else 0
    first = max(0, min(query - ROWS // 2, n - ROWS))
    return {
        "plots": list(plots(lse, entropy, seen)),
        "columns": [name for name, _values in there],
        "rows": [
            (i, i == query, [heatmap.written(values[i], values.dtype) for _name, values in there])
            for i in range(first, min(first + ROWS, n))
        ],
        "is_cut": n > ROWS,
        "count": n,
    }


def plots(
    lse: np.ndarray | None, entropy: np.ndarray | None, seen: np.ndarray | None
) -> Iterable[dict[str, Any]]:
    queries = Axis(_("query"), units.tick)
    if entropy is not None:
        series = [Series(_("entropy of the weights"), points(entropy), has_marks=False)]
        if seen is not None:
            most = [math.log(count) if count else 0.0 for count in seen]
            series.append(Series(_("the most: ln of the keys it sees"), points(most), has_marks=False))
        nats = Axis(_("nats"), units.tick, from_zero=True)
        yield plot(
            _("Entropy of each row of weights"),
            _("0: one key has all the weight. ln m: m keys share it evenly."),
            series,
            queries,
            nats,
        )
    if lse is not None:
        series = [Series("LSE", points(lse), has_marks=False)]
        yield plot(
            _("Log-sum-exp of each row of scores"),
            _("What the softmax divides by, as a logarithm: ln Σ exp of the row’s masked scores."),
            series,
            queries,
            Axis("LSE", units.tick),
        )


def points(values: Sequence[float] | np.ndarray) -> list[tuple[float, float]]:
    step = max(1, len(values) // POINTS)
    return [(float(i), float(values[i])) for i in range(0, len(values), step)]


def plot(name: str, meaning: str, series: list[Series], x: Axis, y: Axis) -> dict[str, Any]:
    return {
        "title": name,
        "meaning": meaning,
        "svg": lineplot.svg(series, x, y, name),
        "legend": lineplot.legend(series) if len(series) > 1 else "",
    }
