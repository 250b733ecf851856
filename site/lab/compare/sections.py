"""What the page of a comparison shows, as plain data for its templates."""

import math
from typing import Any
from urllib.parse import urlencode

import numpy as np
from django.http import HttpRequest, QueryDict
from django.utils.functional import Promise
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from concepts.figures import parts, scales
from kernels import differences, flips
from kernels.differences import Difference, Differences
from kernels.spec import InputSpec, RunSpec
from lab import arrays, heatmap, png, units
from lab.compare import cells, configurations, sources, words
from lab.compare.chosen import ASKED, Chosen
from lab.compare.configurations import LETTERS
from lab.compare.looks import KINDS, RETURNED, Look
from lab.form.offers import result_name
from lab.runs import maps, panels
from lab.runs.choice import MAX_LINKS, Choice, index
from lab.runs.maps import Map
from workers.models import Run

ORDER = ("scores", "masked_scores", "weights", "out")
TITLES: dict[str, tuple[str, Promise]] = {
    KINDS: ("≠", gettext_lazy("which cells changed")),
    "scores": ("ΔS", gettext_lazy("scores")),
    "masked_scores": ("ΔS + M", gettext_lazy("masked scores")),
    "weights": ("ΔP", gettext_lazy("weights")),
    "out": ("ΔO", gettext_lazy("output, in float64")),
}
# Of each kind of cell: the class of its colour, and what stands in it. What the second run alone sees has its
# letter.
KIND_CLASSES = {
    differences.SAME: "kind-same",
    differences.CHANGED: "kind-changed",
    differences.ONLY_FIRST: "kind-first",
    differences.ONLY_SECOND: "kind-second",
    differences.NEITHER: "kind-neither",
}
SHORT = {
    differences.SAME: "=",
    differences.CHANGED: "≠",
    differences.ONLY_FIRST: LETTERS[0],
    differences.NEITHER: "·",
}


DECIMALS, SMALLEST = 3, 5e-4  # of a difference that stands in a cell; what is smaller is written as 2e−5


# --- The whole page -------------------------------------------------------------------------------


def page(chosen: Chosen, request: HttpRequest) -> dict[str, Any]:
    """Everything that needs no computation."""
    second = chosen.second(request.GET)
    rows = configurations.inputs(chosen.runs)
    waiting = [run for run in chosen.runs if not run.is_terminal]
    return {
        "chosen": chosen,
        "columns": [
            column | {"address": chosen.page_of(column["run"])}
            for column in configurations.header(chosen.runs)
        ],
        "waiting": waiting,
        "fields": configurations.fields(chosen.runs),
        "inputs": rows,
        "inputs_are_same": configurations.are_same(rows),
        "figures": configurations.figures(chosen.runs) if not waiting else [],
        "flip": flip(chosen.first, second),
        "second": second,
        "second_letter": LETTERS[chosen.runs.index(second)] if second else "",
        "pickers": pickers(chosen, request.GET),
        "announcement": announcement(chosen),
        "live": chosen.address("lab:compare-live", seen=statuses(chosen), **asked(request.GET)),
        "elsewhere": Chosen(chosen.runs[:1], chosen.keys).address("lab:elsewhere"),
    }


def statuses(chosen: Chosen) -> str:
    return ",".join(run.status for run in chosen.runs)


def asked(query: QueryDict, but: str = "") -> dict[str, str]:
    """What is looked at, as the address says it."""
    return {name: str(query[name]) for name in ASKED if name in query and name != but}


def announcement(chosen: Chosen) -> str:
    """The sentence for the live region."""
    done = sum(run.is_terminal for run in chosen.runs)
    if done == len(chosen.runs):
        return _("All runs are done. What differs is below.")
    return _("{done} of {count} runs are done.").format(done=done, count=len(chosen.runs))


def flip(first: Run, second: Run | None) -> dict[str, str] | None:
    """The one thing that was changed, where it is one."""
    if second is None:
        return None
    before, after = (RunSpec.from_dict(run.spec) for run in (first, second))
    found = flips.between(before, after)
    if found is None or not _inputs_fit(first, second, found):
        return None
    return {"title": words.title(found), "why": words.why(words.Change(found, before))}


def _inputs_fit(first: Run, second: Run, found: flips.Flip) -> bool:
    """Whether the inputs are those of the flip: where it replaces some, their shapes say so already."""
    rows = configurations.inputs((first, second))
    before, after = (RunSpec.from_dict(run.spec).inputs for run in (first, second))
    replaced = found.spec.inputs.keys() ^ before.keys()
    allowed = replaced | ({"k", "v"} if found.kind == "heads" else set())
    # Of a run that has not read its inputs, or never will, the seeds are all that is known.
    both = ((before[name], after[name]) for name in before.keys() & after.keys() - allowed)
    return all(_can_be_same(*pair) for pair in both) and all(
        not said["differs"] for row in rows if row["name"] not in allowed for said in row["said"]
    )


def _can_be_same(one: InputSpec, other: InputSpec) -> bool:
    if one.seed is None or other.seed is None:
        return True
    return (one.seed, one.distribution) == (other.seed, other.distribution)


def pickers(chosen: Chosen, query: QueryDict) -> list[dict[str, Any]]:
    """Which run beside the first, which batch row, which head."""
    spec = RunSpec.from_dict(chosen.first.spec)
    choice = Choice.read(query, spec)
    others = len(chosen.others)
    sizes = [
        ("with", _("A beside"), others, index(query.get("with", ""), others), list(LETTERS[1:])),
        ("batch", _("Batch row"), spec.batch, choice.batch, None),
        ("head", _("Head"), spec.num_heads, choice.head, None),
    ]
    found = []
    for name, label, size, at, texts in sizes:
        if size < 2:
            continue
        kept = [*chosen.query, *asked(query, name).items()]
        options = [
            {
                "label": texts[i] if texts else str(i),
                "href": "?" + urlencode([*kept, (name, str(i))]),
                "current": i == at,
            }
            for i in range(size if size <= MAX_LINKS else 0)
        ]
        found.append(
            {"name": name, "label": label, "kept": kept, "options": options, "last": size - 1, "chosen": at}
        )
    return found


# --- The matrices ---------------------------------------------------------------------------------


class Links:
    """Addresses of the same pair of heads, and the letter of the second run."""

    def __init__(self, chosen: Chosen, query: QueryDict) -> None:
        self.chosen = chosen
        spec = RunSpec.from_dict(chosen.first.spec)
        choice = Choice.read(query, spec)
        self.at = {"with": index(query.get("with", ""), len(chosen.others))} | {
            "batch": choice.batch,
            "head": choice.head,
        }

    @property
    def letter(self) -> str:
        return LETTERS[1 + self.at["with"]]

    @property
    def kept(self) -> list[tuple[str, str]]:
        return [*self.chosen.query, *((name, str(value)) for name, value in self.at.items())]

    def to(self, name: str, **more: object) -> str:
        return self.chosen.address(name, **{**self.at, **more})

    def cell(self, row: int, column: int) -> str:
        return self.to("lab:compare", row=row, col=column) + "#matrices"


def matrices(look: Look, link: Links, query: QueryDict) -> dict[str, Any]:
    """Difference maps, the cells that changed most, and one cell's arithmetic."""
    shown: dict[str, Any] = {
        "why_not": look.why_not,
        "returned": [returned(name, one, look.allowed[name]) for name, one in look.returned.items()],
        "kept": link.kept,
        "cell_address": link.to("lab:compare-cell"),
    }
    cursor = None
    if look.found is not None:
        weights = look.found.of["weights"]
        cursor = cursor_of(look, query)
        shown |= {
            "rows": weights.rows,
            "columns": weights.columns,
            "last_row": weights.rows - 1,
            "last_column": weights.columns - 1,
            "cursor": cursor,
            "counts": counts(look.found),
            "sentences": sentences(look.found, link.letter),
            "tops": [top(name, look.found.of[name], link) for name in ("weights", "out")],
            "cell": cell(look, query),
        }
        if look.splits:
            shown["sources"] = sources.section(look.splits, link.letter)
    else:
        one = next(iter(look.returned.values()), None)
        shown |= {"rows": one.rows if one else 0, "columns": one.columns if one else 0}
        shown["tops"] = [top("out", one, link)] if one and "out" in look.returned else []
    names = [KINDS, *ORDER] if look.found else []
    names += [f"{RETURNED}{name}" for name in look.returned]
    shown["is_small"] = any(look.maps[name].is_small for name in names)
    shown["panels"] = [panel(name, look, cursor, link) for name in names if look.maps[name].levels.size]
    return shown


def cursor_of(look: Look, query: QueryDict) -> tuple[int, int] | None:
    """The cell of the query string, or the one whose weight changed most; None where there is none."""
    if look.found is None:
        return None
    weights = look.found.of["weights"]
    if not weights.cells:
        return None
    if "row" in query or "col" in query:
        return index(query.get("row", ""), weights.rows), index(query.get("col", ""), weights.columns)
    top = next(iter(weights.top), None)
    return (top.row, top.column) if top else (0, 0)


def cell(look: Look, query: QueryDict) -> dict[str, Any] | None:
    at = cursor_of(look, query)
    return cells.beside(look.heads, *at) if at is not None and look.heads else None


def title_of(name: str) -> tuple[str, str]:
    if name.startswith(RETURNED):
        result = name.removeprefix(RETURNED)
        letter = {"out": "ΔO", "weights": "ΔP", "scores": "ΔS"}.get(result, "Δ")
        return letter, _("{result}, as returned").format(result=result_name(result))
    letter, title = TITLES[name]
    return letter, str(title)


def by_dimension(name: str) -> bool:
    """Whether its columns are something else than keys."""
    result = name.removeprefix(RETURNED)
    return result != KINDS and result not in arrays.MAPS


def panel(name: str, look: Look, cursor: tuple[int, int] | None, link: Links) -> dict[str, Any]:
    one = look.maps[name]
    letter, title = title_of(name)
    end = heatmap.number(one.largest) if one.largest >= 1e-4 or not one.largest else f"{one.largest:.1e}"
    shown = {
        "name": name,
        "letter": letter,
        "title": title,
        "rows": one.rows,
        "columns": one.columns,
        "last_row": one.rows - 1,
        "last_column": one.columns - 1,
        "by_dimension": by_dimension(name),
        "is_kinds": name == KINDS,
        "is_same": name != KINDS and not one.largest and not has_infinite(one),
        "lowest": f"−{end}" if one.largest else LETTERS[0],
        "largest": end.replace("-", "−") if one.largest else link.letter,
        "has_masked": one.has_masked,
        "is_reduced": one.is_reduced,
        "pixels": one.levels.shape,
    }
    if one.is_small:
        return shown | {"cells": small(one, cursor, link)}

    def address(*more: tuple[str, str]) -> str:
        return link.to("lab:compare-picture", map_name=name, **dict(more))

    return shown | {"pictures": maps.pictures(one, address), "table": table(one, link.letter)}


def has_infinite(one: Map) -> bool:
    return bool(np.isinf(one.table).any())


def text(one: Map, i: int, j: int, letter: str) -> str:
    """What stands in a cell of the table beside a map. letter: of the second run."""
    value = float(one.table[i, j])
    if one.name == KINDS:
        return SHORT.get(int(value), letter)
    if math.isnan(value):  # neither sees it
        return "·"
    if math.isinf(value):
        return letter if value > 0 else LETTERS[0]
    tiny = 0 < abs(value) < SMALLEST
    shown = f"{value:.0e}".replace("-", "−") if tiny else heatmap.number(value, DECIMALS)
    return f"+{shown}" if value > 0 else shown


def heat(one: Map, i: int, j: int) -> str:
    if one.name == KINDS:
        return KIND_CLASSES[int(one.levels[i, j])]
    return panels.heat(one, i, j)


def small(one: Map, cursor: tuple[int, int] | None, link: Links) -> SafeString:
    """A matrix as a table whose cells are links to themselves."""
    by_key = not by_dimension(one.name)

    def drawn(i: int, j: int) -> SafeString:
        lit = cursor is not None and cursor[0] == i and (not by_key or cursor[1] == j)
        label = _("query {i}, key {j}") if by_key else _("row {i}, column {j}")
        shown = text(one, i, j, link.letter)
        return parts.cell(
            shown,
            i=i + 1,
            j=j + 1 if by_key else None,
            heat=heat(one, i, j),
            lit=lit,
            href=link.cell(i, j) if by_key and cursor is not None else "",
            label=f"{label.format(i=i, j=j)}: {shown}",
        )

    rows = [[drawn(i, j) for j in range(one.columns)] for i in range(one.rows)]
    heads = [SafeString(str(i)) for i in range(one.rows)]
    return parts.table(title_of(one.name)[1], rows, heads, [SafeString(str(j)) for j in range(one.columns)])


def table(one: Map, letter: str) -> dict[str, Any]:
    """The blocks of a picture as text, few enough to be read."""
    rows, columns = one.table.shape
    down, across = -(-one.rows // max(rows, 1)), -(-one.columns // max(columns, 1))
    is_reduced = (rows, columns) != (one.rows, one.columns)
    return {
        "note": _("Each is the largest difference in its block.") if is_reduced else "",
        "columns": [heatmap.span(j, across, one.columns) for j in range(columns)],
        "rows": [
            (heatmap.span(i, down, one.rows), [text(one, i, j, letter) for j in range(columns)])
            for i in range(rows)
        ],
    }


def picture(one: Map, theme: str) -> bytes:
    """The map as PNG."""
    dark = theme == "dark"
    if one.name != KINDS:
        return one.picture(theme)
    first, second = (scales.diverging(step, dark).rgb for step in (0, heatmap.STEPS))
    same, changed = ((43, 39, 51), (174, 144, 207)) if dark else ((238, 234, 242), (124, 95, 168))
    palette = [(0, 0, 0), same, changed, first, second]
    return png.encode(one.levels, palette, differences.NEITHER)


# --- In words -------------------------------------------------------------------------------------


def counts(differences_of: Differences) -> list[dict[str, Any]]:
    """Which cells changed, matrix by matrix."""
    found = []
    for name in ORDER:
        one = differences_of.of[name]
        found.append(
            {
                "letter": TITLES[name][0],
                "title": TITLES[name][1],
                "count": units.whole(one.count),
                "cells": units.whole(one.cells),
                "share": units.percent(one.share),
                "largest": significant(one.largest),
                "rows": rows_of(one),
            }
        )
    return found


def significant(value: float) -> str:
    return "0" if not value else units.significant(value)


def rows_of(one: Difference) -> str:
    """0–3, or 2 of them between 1 and 7."""
    if one.first_row is None or one.last_row is None:
        return "–"
    if one.changed_rows == one.rows:
        return _("all")
    if one.last_row - one.first_row + 1 == one.changed_rows:
        return str(one.first_row) if one.changed_rows == 1 else f"{one.first_row}–{one.last_row}"
    return _("{count}, from {first} to {last}").format(
        count=units.whole(one.changed_rows), first=one.first_row, last=one.last_row
    )


def sentences(found: Differences, letter: str) -> list[str]:
    """What changed in this head, counted. letter: of the second run."""
    masked, weights, out = (found.of[name] for name in ("masked_scores", "weights", "out"))
    said = []
    pairs = units.whole(weights.cells)
    if masked.only_first or masked.only_second:
        said.append(
            _(
                "Of {pairs} pairs of a query and a key, A alone sees {first} and {letter} alone sees "
                "{second}."
            ).format(
                pairs=pairs,
                first=units.whole(masked.only_first),
                letter=letter,
                second=units.whole(masked.only_second),
            )
        )
    else:
        said.append(_("Both see the same pairs."))
    if not weights.count:
        said.append(_("In float64, all {pairs} weights are the same.").format(pairs=pairs))
    else:
        said.append(
            ngettext(
                "In float64, {count} weight of {pairs} changed ({share}), in {rows} of {queries} queries; by "
                "{largest} at most.",
                "In float64, {count} weights of {pairs} changed ({share}), in {rows} of {queries} queries; "
                "by {largest} at most.",
                weights.count,
            ).format(
                count=units.whole(weights.count),
                pairs=pairs,
                share=units.percent(weights.share),
                rows=units.whole(weights.changed_rows),
                queries=units.whole(weights.rows),
                largest=significant(weights.largest),
            )
        )
    if out.count:
        said.append(
            _("The output changed in {rows} of {queries} queries, by {largest} at most.").format(
                rows=units.whole(out.changed_rows),
                queries=units.whole(out.rows),
                largest=significant(out.largest),
            )
        )
    return said


def top(name: str, one: Difference, link: Links) -> dict[str, Any]:
    """The cells that changed most, as links."""
    letter, title = TITLES[name]
    return {
        "letter": letter,
        "title": title,
        "by_dimension": name == "out",
        "cells": [
            {
                "row": each.row,
                "column": each.column,
                "href": link.cell(each.row, each.column) if name != "out" else "",
                "first": heatmap.number(each.first),
                "second": heatmap.number(each.second),
                "difference": significant(each.difference),
            }
            for each in one.top
        ],
    }


def returned(name: str, one: Difference, allowed: float) -> dict[str, str]:
    """What both engines returned, beside what rounding explains."""
    return {
        "name": capfirst(result_name(name)),
        "count": units.whole(one.count),
        "cells": units.whole(one.cells),
        "share": units.percent(one.share),
        "largest": significant(one.largest),
        "allowed": significant(allowed),
    }
