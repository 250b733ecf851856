"""The matrices of one head side by side, with one cell that all of them show."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.urls import reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import lineplot, parts, scales
from concepts.figures.lineplot import Axis, Series
from kernels.closeup import cell as cell_of
from kernels.spec import RunSpec
from lab import heatmap, png, units
from lab.runs import arithmetic
from lab.runs.closeups import MASKED, NOT_A_NUMBER, TOP, Closeup, Map
from workers.models import Run

ORDER = ("scores", "softcapped_scores", "masked_scores", "weights", "out", "error")
TITLES = {
    "scores": ("S", gettext_lazy("scores")),
    "softcapped_scores": ("S′", gettext_lazy("softcapped scores")),
    "masked_scores": ("S + M", gettext_lazy("masked scores")),
    "weights": ("P", gettext_lazy("weights")),
    "out": ("O", gettext_lazy("output")),
    "error": ("|ΔO|", gettext_lazy("error of what the engine returned")),
}
BY_DIMENSION = ("out", "error")  # their columns are dimensions, not keys
THEMES = ("light", "dark")
POINTS = 512  # of a plot over the queries


@dataclass(frozen=True)
class Cursor:
    """The query and the key that are lit."""

    query: int
    key: int


def section(found: Closeup, spec: RunSpec, link: "Links") -> dict[str, Any]:
    """What the page shows of the head; `link` knows which run and head it is."""
    cursor = cursor_of(found, link.request)
    maps = [found.maps[name] for name in ORDER if name in found.maps and is_worth_it(name, spec)]
    return {
        "panels": [panel(one, cursor, link) for one in maps],
        "cursor": cursor,
        "rows": found.lse.size,
        "columns": found.head.k.shape[2],
        "last_row": found.lse.size - 1,
        "last_column": found.head.k.shape[2] - 1,
        "cell": cell(found, cursor),
        "cell_address": link.to("lab:cell"),
        "kept": link.kept,
        "plots": plots(found),
    }


def is_worth_it(name: str, spec: RunSpec) -> bool:
    return name != "softcapped_scores" or bool(spec.attention.softcap)


def cursor_of(found: Closeup, request: HttpRequest) -> Cursor | None:
    """What the query string says, moved inside; None where there is no cell."""
    n, m = found.lse.size, found.head.k.shape[2]
    if not n or not m:
        return None

    def index(name: str, size: int) -> int:
        text = request.GET.get(name, "")
        return min(int(text), size - 1) if text.isascii() and text.isdigit() and len(text) < 10 else 0

    return Cursor(index("row", n), index("col", m))


class Links:
    """Addresses of the same head: of its pictures, and of its cells."""

    def __init__(self, run: Run, request: HttpRequest, batch: int, head: int) -> None:
        self.run, self.request = run, request
        share = [("key", request.GET["key"])] if request.GET.get("key") else []
        self.kept = [*share, ("batch", str(batch)), ("head", str(head))]

    def to(self, name: str, **more: str) -> str:
        kwargs = {"run_id": self.run.id, **({"map_name": more.pop("map_name")} if "map_name" in more else {})}
        return f"{reverse(name, kwargs=kwargs)}?{urlencode([*self.kept, *more.items()])}"

    def cell(self, query: int, key: int) -> str:
        return "?" + urlencode([*self.kept, ("row", query), ("col", key)])


def panel(one: Map, cursor: Cursor | None, link: Links) -> dict[str, Any]:
    letter, title = TITLES[one.name]
    shown = {
        "name": one.name,
        "letter": letter,
        "title": title,
        "rows": one.rows,
        "columns": one.columns,
        "last_row": one.rows - 1,
        "last_column": one.columns - 1,
        "is_empty": not one.levels.size,
        "by_dimension": one.name in BY_DIMENSION,
        "lowest": heatmap.number(one.lowest),
        "largest": heatmap.number(one.largest),
        "kind": one.kind,
        "has_masked": one.has_masked,
        "is_reduced": one.is_reduced,
        "pixels": one.levels.shape,
    }
    if shown["is_empty"]:
        return shown
    if one.is_small:
        return shown | {"cells": small(one, cursor, link)}
    pictures = [(theme, link.to("lab:picture", map_name=one.name, theme=theme)) for theme in THEMES]
    return shown | {"pictures": pictures, "table": table(one)}


def small(one: Map, cursor: Cursor | None, link: Links) -> SafeString:
    """A matrix as a table whose cells are links to themselves."""
    by_key = one.name not in BY_DIMENSION

    def cell(i: int, j: int) -> SafeString:
        value = float(one.table[i, j])
        lit = cursor is not None and cursor.query == i and (not by_key or cursor.key == j)
        label = _("query {i}, key {j}") if by_key else _("query {i}, dimension {j}")
        return parts.cell(
            heatmap.number(value),
            i=i + 1,
            j=j + 1 if by_key else None,
            heat=heat(one, i, j),
            lit=lit,
            href=link.cell(i, j) if by_key else "",
            label=label.format(i=i, j=j) + ": " + heatmap.number(value),
        )

    rows = [[cell(i, j) for j in range(one.columns)] for i in range(one.rows)]
    heads = [SafeString(str(i)) for i in range(one.rows)]
    return parts.table(
        str(TITLES[one.name][1]), rows, heads, [SafeString(str(j)) for j in range(one.columns)]
    )


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
        "is_reduced": one.table.shape != (one.rows, one.columns),
        "columns": [heatmap.span(j, across, one.columns) for j in range(one.table.shape[1])],
        "rows": [
            (heatmap.span(i, down, one.rows), [heatmap.number(float(value)) for value in row])
            for i, row in enumerate(one.table)
        ],
    }


def cell(found: Closeup, cursor: Cursor | None) -> dict[str, Any] | None:
    """The arithmetic of the lit cell, and what is known of its row."""
    if cursor is None:
        return None
    one = cell_of(found.head, cursor.query, cursor.key)
    lines = arithmetic.spelt(one, found.head)
    if found.error is not None:
        worst = float(found.error[cursor.query].max(initial=0.0))
        lines.append(
            arithmetic.Line(
                _("error of the output"), _("the largest of this query"), heatmap.number(worst), "error"
            )
        )
    return {
        "query": cursor.query,
        "key": cursor.key,
        "positions": None
        if (one.query_position, one.key_position) == (cursor.query, cursor.key)
        else (one.query_position, one.key_position),
        "lines": lines,
        "row": [
            (_("log-sum-exp"), heatmap.number(float(found.lse[cursor.query]))),
            (_("entropy"), _("{nats} nats").format(nats=heatmap.number(float(found.entropy[cursor.query])))),
            (_("keys it sees"), units.whole(int(found.seen[cursor.query]))),
        ],
    }


def plots(found: Closeup) -> list[dict[str, Any]]:
    """Entropy and LSE over the queries."""
    n = found.lse.size
    if n < 2:
        return []
    step = max(1, n // POINTS)
    at = range(0, n, step)
    most = [math.log(seen) if seen else 0.0 for seen in found.seen[::step]]
    queries = Axis(_("query"), units.tick)
    entropy = [
        Series(_("entropy of the weights"), points(at, found.entropy[::step]), has_marks=False),
        Series(_("the most: ln of the keys it sees"), points(at, most), has_marks=False),
    ]
    lse = [Series("LSE", points(at, found.lse[::step]), has_marks=False)]
    return [
        plot(
            _("Entropy of each row, in nats"), entropy, queries, Axis(_("nats"), units.tick, from_zero=True)
        ),
        plot(_("Log-sum-exp of each row"), lse, queries, Axis("LSE", units.tick)),
    ]


def points(at: Sequence[int], values: Any) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in zip(at, values, strict=True)]


def plot(title: str, series: list[Series], x: Axis, y: Axis) -> dict[str, Any]:
    return {
        "title": title,
        "svg": lineplot.svg(series, x, y, title),
        "legend": lineplot.legend(series) if len(series) > 1 else "",
    }


def picture(one: Map, theme: str) -> bytes:
    """The map as PNG: a pixel for each cell, masked ones seen through."""
    dark = theme == "dark"
    scale = scales.sequential if one.kind == "seq" else scales.diverging
    palette = [scale(number * heatmap.STEPS / TOP, dark).rgb for number in range(TOP + 1)]
    masked, wrong = (0, 0, 0), (255, 155, 144) if dark else (179, 37, 30)
    return png.encode(one.levels, [*palette, masked, wrong], MASKED)
