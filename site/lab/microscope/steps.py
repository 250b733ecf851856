"""One row of queries under the online softmax, tile of keys by tile, from the trace of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import numpy as np
from django.http import QueryDict
from django.utils.translation import gettext as _

from concepts.figures import lineplot
from concepts.figures.lineplot import Axis, Series
from kernels.closeup import look, one_head, rows
from kernels.engines.reference import Head
from kernels.flash.schedule import FULL, MASKED, SKIPPED
from kernels.flash.steps import Step, start, step
from kernels.flash.tiles import choose_tiles
from kernels.spec import RunSpec
from kernels.spec.results import TRACE
from lab import arrays, units
from lab.heatmap import number
from lab.runs import choice
from lab.runs.arithmetic import Line, signed, vector
from workers import artifacts
from workers.models import Run

TERMS = 4  # of a sum that are written
COLUMNS = 16  # of a vector in a table
ROWS = 48  # of the table of all tiles, around the one that is looked at
MARKS = 80  # points of a plot up to which each has a mark


@dataclass(frozen=True)
class Place:
    """What of a run is looked at; from the query string, never out of range."""

    batch: int
    head: int
    row: int
    tile: int

    @classmethod
    def read(cls, query: QueryDict, spec: RunSpec, tiles: int) -> "Place":
        """Unless another query is named it is the last one, which under a causal mask sees most."""
        return cls(
            *(
                choice.index(query.get(name, str(size - 1) if name == "row" else ""), size)
                for name, size in (
                    ("batch", spec.batch),
                    ("head", spec.num_heads),
                    ("row", spec.q_len),
                    ("tile", tiles),
                )
            )
        )

    def query(self, key: str, **changed: int) -> str:
        """The address of this place, or of one beside it; `key`: the share key."""
        return "?" + urlencode(dict(self.items(key)) | changed)

    def items(self, key: str) -> list[tuple[str, str | int]]:
        """What the address says."""
        share = [("key", key)] if key else []
        return [*share, ("batch", self.batch), ("head", self.head), ("row", self.row), ("tile", self.tile)]


@dataclass(frozen=True)
class Row:
    """One query of a traced run: what its kernel held, and what float64 makes of it."""

    reference: Head  # of this query alone
    trace: dict[str, np.ndarray]  # [tiles] each, and [tiles, e]
    block_n: int
    lse: float | None  # as the run returned it
    out: np.ndarray | None  # [e], likewise


def tile_size(spec: RunSpec) -> int:
    """Keys to a tile of a trace."""
    return choose_tiles(spec, interpreted=True)[1]


def tile_count(run: Run) -> int:
    return int(run.array_info["trace_tiles"]["shape"][-1])


def weight(spec: RunSpec) -> int:
    """Numbers that are looked at for a step, about: all inputs, and the pairs that a mask is made of."""
    pairs = spec.batch * spec.q_len * spec.kv_len if spec.attention.pattern else 0
    return pairs + sum(given.elements for given in spec.inputs.values())


def load(run: Run, spec: RunSpec, place: Place) -> Row | None:
    """None where the arrays of the run are gone, or the query is padding."""
    at = (place.batch, place.head, place.row)
    index = at if spec.is_packed else at[4 - spec.rank :]
    found = {name: artifacts.load_part(run, name, *index) for name in (*TRACE, "lse")}
    inputs = artifacts.load_inputs(run)
    if not inputs or any(found[name] is None for name in TRACE):
        return None
    head = one_head(look(spec, inputs), place.batch, place.head)
    if place.row >= head.q.shape[2]:
        return None
    out = artifacts.load_result(run, "out")
    return Row(
        rows(head, place.row, place.row + 1),
        {name: np.asarray(found[name]) for name in TRACE},
        tile_size(spec),
        None if found["lse"] is None else float(found["lse"]),
        None if out is None else arrays.one(out, "out", spec, place.batch, place.head)[place.row],
    )


def section(row: Row, place: Place, key: str) -> dict[str, Any]:
    """What the page shows of one step; the addresses of the others carry the share `key`."""
    one = step(row.reference, row.trace, place.tile, row.block_n)
    last = len(row.trace["trace_tiles"]) - 1
    return {
        "step": one,
        "kind": kind_name(one.kind),
        "keys": span(one.first, one.end),
        "sentence": sentence(one),
        "lines": spelt(one),
        "scores": scores(one),
        "compared": compared(one),
        "vectors": vectors(one),
        "columns": range(min(COLUMNS, len(one.after.o))),
        "is_cut": len(one.after.o) > COLUMNS,
        "width": len(one.after.o),
        "previous": place.query(key, tile=place.tile - 1) if place.tile else "",
        "next": place.query(key, tile=place.tile + 1) if place.tile < last else "",
        "last": last,
        "is_last": place.tile == last,
        "end": end(row),
        "plots": plots(row, place.tile),
        "table": table(row, place, key),
    }


def kind_name(kind: int) -> str:
    return {SKIPPED: _("skipped"), MASKED: _("masked"), FULL: _("full")}[kind]


def span(first: int, end: int) -> str:
    """24–31"""
    if first >= end:
        return _("none")
    return str(first) if end - first == 1 else f"{first}–{end - 1}"


def sentence(one: Step) -> str:
    """What changed, and why."""
    words = {
        "tile": one.tile,
        "m": number(one.after.m),
        "old": number(one.before.m),
        "factor": number(one.rescale),
        "sum": number(one.added_sum),
        "largest": number(one.largest),
    }
    if one.is_skipped:
        return _(
            "Tile {tile} is skipped: none of the queries that share a tile with this one may see any of its "
            "keys, so they are never loaded and nothing changes."
        ).format(**words)
    if not np.isfinite(one.largest):
        return _(
            "This query may see no key of tile {tile}; others of its tile do. The tile adds nothing, and "
            "everything stays."
        ).format(**words)
    if not np.isfinite(one.before.m):
        return _(
            "Tile {tile} holds the first keys that this query sees: m becomes their largest score, {m}. "
            "There is nothing yet to rescale."
        ).format(**words)
    if one.raises:
        return _(
            "Tile {tile} holds a larger score: m rises from {old} to {m}, and everything so far is "
            "multiplied by exp(m_old − m_new) = {factor}."
        ).format(**words)
    return _(
        "No score of tile {tile} is above the largest so far ({largest} against {old}): m stays, the factor "
        "is 1, and {sum} is added to the sum."
    ).format(**words)


def pickers(place: Place, spec: RunSpec, key: str) -> list[dict[str, Any]]:
    """Batch row and head: links that keep query and tile, or a number box for very many."""
    found = []
    for name, label, size, chosen in (
        ("batch", _("Batch row"), spec.batch, place.batch),
        ("head", _("Head"), spec.num_heads, place.head),
    ):
        if size > 1:
            options = [
                {"label": str(i), "href": place.query(key, **{name: i}), "current": i == chosen}
                for i in range(size if size <= choice.MAX_LINKS else 0)
            ]
            kept = [item for item in place.items(key) if item[0] != name]
            found.append(
                {"name": name, "label": label, "kept": kept, "options": options}
                | {"last": size - 1, "chosen": chosen}
            )
    return found


# --- The arithmetic -------------------------------------------------------------------------------


def spelt(one: Step) -> list[Line]:
    """Line by line, with the numbers that the kernel held before and after."""
    if one.is_skipped:
        return []
    before, after = one.before, one.after
    nothing = not np.isfinite(after.m)
    factor = (
        _("nothing was seen before")
        if not np.isfinite(before.m)
        else (f"exp({number(before.m)} − {signed(after.m)})")
    )
    return [
        Line(_("largest score of the tile"), largest(one), number(one.largest)),
        Line("m", f"max({number(before.m)}, {number(one.largest)})", number(after.m), "m"),
        Line(_("factor"), _("no key seen") if nothing else factor, number(one.rescale)),
        Line(_("sum of the tile"), exponentials(one), number(one.added_sum)),
        Line(
            "ℓ",
            f"{number(before.l)} × {number(one.rescale)} + {number(one.added_sum)}",
            number(after.l),
            "l",
        ),
        Line(
            "O",
            f"{vector(before.o)} × {number(one.rescale)} + {vector(one.added_out)}",
            vector(after.o),
            "o",
        ),
        Line(
            "O ∕ ℓ",
            f"{vector(after.o)} ∕ {number(after.l)}" if after.l else _("no key seen"),
            vector(after.out),
        ),
    ]


def largest(one: Step) -> str:
    if not np.isfinite(one.largest):
        return _("all of its keys are masked for this query")
    return _("key {key}").format(key=one.first + int(one.scores.argmax()))


def exponentials(one: Step) -> str:
    """exp(0.5 − 1.2) + … of the keys that are seen."""
    seen = one.scores[np.isfinite(one.scores)]
    terms = [f"exp({number(float(score))} − {signed(one.after.m)})" for score in seen[:TERMS]]
    if not terms:
        return _("no key seen")
    more = _(" + … ({count} terms)").format(count=len(seen)) if len(seen) > TERMS else ""
    return " + ".join(terms) + more


def scores(one: Step) -> list[dict[str, Any]]:
    """The keys of the tile, each with its score and what it adds to ℓ."""
    adds = np.zeros(len(one.scores)) if one.is_skipped else one.exponentials
    return [
        {
            "key": one.first + at,
            "score": number(float(score)),
            "adds": number(float(adds[at])),
            "is_masked": not np.isfinite(score),
            "heat": "cell-masked"
            if not np.isfinite(score)
            else f"heat-seq-{round(20 * min(1.0, float(adds[at])))}",
        }
        for at, score in enumerate(one.scores)
    ]


def compared(one: Step) -> list[tuple[str, str, str, str, str]]:
    """(quantity, before, after, exact over the keys so far, distance of the kernel from it)."""
    errors, before, after, exact = one.errors(), one.before, one.after, one.exact
    return [
        ("m", number(before.m), number(after.m), number(exact.m), units.error(errors["m"])),
        ("ℓ", number(before.l), number(after.l), number(exact.l), units.error(errors["l"])),
        (
            "m + ln ℓ",
            number(before.lse),
            number(after.lse),
            number(exact.lse),
            units.error(0.0 if after.lse == exact.lse else abs(after.lse - exact.lse)),
        ),
        (
            "O ∕ ℓ",
            vector(before.out),
            vector(after.out),
            vector(exact.out),
            units.error(errors["out"]),
        ),
    ]


def vectors(one: Step) -> list[tuple[str, list[str]]]:
    """O on its way, by dimension."""
    named = (
        (_("O before"), one.before.o),
        (_("what the tile adds"), one.added_out),
        (_("O after"), one.after.o),
        ("O ∕ ℓ", one.after.out),
        (_("exact softmax over the keys so far, times V"), one.exact.out),
    )
    return [(name, [number(float(x)) for x in values[:COLUMNS]]) for name, values in named]


def end(row: Row) -> dict[str, Any] | None:
    """After the last tile: the LSE, beside what the run returned."""
    final = step(row.reference, row.trace, len(row.trace["trace_tiles"]) - 1, row.block_n).after
    returned = row.lse
    return {
        "m": number(final.m),
        "l": number(final.l),
        "lse": number(final.lse),
        "sees_nothing": not final.l,
        "returned": None if returned is None else number(returned),
        "agrees": returned is not None
        and (returned == final.lse or abs(returned - final.lse) <= 1e-5 * max(1.0, abs(final.lse))),
        "out": None if row.out is None else vector(row.out.astype(np.float64)),
        "divided": vector(final.out),
    }


# --- All tiles ------------------------------------------------------------------------------------


def plots(row: Row, tile: int) -> list[dict[str, Any]]:
    """m and ℓ over the tiles, the current one marked."""
    before = start(row.reference)
    return [
        plot(_("Running maximum m"), [before.m, *row.trace["trace_max"]], tile, Axis("m", short)),
        plot(_("Running sum ℓ"), [before.l, *row.trace["trace_sum"]], tile, Axis("ℓ", short, from_zero=True)),
    ]


def plot(title: str, values: Sequence[float], tile: int, y: Axis) -> dict[str, Any]:
    """values: before any tile, and after each."""
    points = [(at - 1.0, float(value)) for at, value in enumerate(values)]
    now = _("tile {tile}").format(tile=tile)
    series = [
        Series(y.name, points, has_marks=len(points) <= MARKS),
        Series(now, [points[tile + 1]], is_joined=False),
    ]
    label = _("{title} after each tile; {now} is marked.").format(title=title, now=now)
    return {
        "title": title,
        "svg": lineplot.svg(series, Axis(_("tile of keys"), whole), y, label),
        "legend": lineplot.legend(series),
    }


def whole(value: float) -> str:
    """A tile's number; −1 is the start, and between two tiles is nothing."""
    if value == -1:
        return _("start")
    return f"{value:.0f}" if value == int(value) else ""


def short(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")


def table(row: Row, place: Place, key: str) -> dict[str, Any]:
    """Every tile, or those around the current one: the table behind the plots."""
    count = len(row.trace["trace_tiles"])
    first = max(0, min(place.tile - ROWS // 2, count - ROWS))
    last = min(count, first + ROWS) - 1
    return {
        "rows": [table_row(row, tile, place, key) for tile in range(first, last + 1)],
        "first": first,
        "end": last,
        "count": count,
        "is_cut": count > ROWS,
    }


def table_row(row: Row, tile: int, place: Place, key: str) -> dict[str, Any]:
    first, end_ = (min(edge, len(row.reference.k)) for edge in (tile * row.block_n, (tile + 1) * row.block_n))
    names = ("trace_max", "trace_rescale", "trace_sum")
    return {
        "tile": tile,
        "href": place.query(key, tile=tile),
        "is_current": tile == place.tile,
        "keys": span(first, end_),
        "kind": kind_name(int(row.trace["trace_tiles"][tile])),
        "numbers": [number(float(row.trace[name][tile])) for name in names],
    }
