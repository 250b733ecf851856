"""What the page of a run shows of one head: matrices side by side, a cell, and the numbers of a table.

Of softmax attention all of it is computed again in float64, where a page can afford that. Else what the
engine returned is shown in the same places, and the page says what is missing, why, and what to do.
"""

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _

from api.computing import Busy
from kernels.closeup import cell as cell_of
from kernels.registry import ENGINES
from kernels.spec import RunSpec
from kernels.spec.results import MATRICES
from lab import heatmap, units
from lab.form.offers import result_name
from lab.runs import arithmetic, closeups, numbers, panels, stored
from lab.runs.arithmetic import Line
from lab.runs.choice import Choice, head_pickers, source_picker, zoom_picker
from lab.runs.closeups import Closeup, Maps
from lab.runs.heads import Head
from lab.runs.links import Links
from lab.runs.maps import Map
from lab.runs.panels import Cursor
from lab.runs.stored import Stored
from workers.models import Run

EXPECTED = (*MATRICES, "out")  # of which the page says where they are missing


@dataclass(frozen=True)
class View:
    """One head as it is looked at: `computed` or `returned`, or neither."""

    of: Head
    choice: Choice
    computed: Closeup | None = None
    returned: Stored | None = None

    @property
    def found(self) -> Closeup | Stored | None:
        return self.computed or self.returned

    @property
    def shape(self) -> tuple[int, int]:
        return self.found.shape if self.found else (0, 0)

    @property
    def cursor(self) -> Cursor | None:
        return Cursor.read(self.choice.row, self.choice.column, self.shape)

    def maps(self, request: HttpRequest) -> Maps:
        """Of the part that is looked at. Raises Busy."""
        if self.computed:
            return closeups.closer(self.of, self.computed, self.choice.part, request)
        return stored.closer(self.of, self.returned, self.choice.part) if self.returned else {}


def view(run: Run, spec: RunSpec, request: HttpRequest) -> View:
    """What there is to see of the head that the query string names. Raises Busy."""
    choice = Choice.read(request.GET, spec)
    of = Head(run, spec, choice.batch, choice.head)
    if closeups.can_look(of) and not choice.source:
        computed = closeups.look(of, request)
        if computed is not None:
            return View(of, choice, computed=computed)
    return View(of, choice, returned=stored.look(of, request))


def section(run: Run, spec: RunSpec, request: HttpRequest, *, waits: bool) -> dict[str, Any]:
    """Everything that depends on which head is looked at. waits: whether a page may take long; where not, it
    says how what takes long is fetched."""
    choice = Choice.read(request.GET, spec)
    of = Head(run, spec, choice.batch, choice.head)
    shown: dict[str, Any] = {
        "pickers": head_pickers(choice, spec, request.GET),
        **numbers.section(run, spec, request.GET),
    }
    if closeups.can_look(of) and not choice.source and not waits and not closeups.is_at_once(of):
        return shown | {"is_later": True}
    try:
        return shown | side_by_side(view(run, spec, request), request)
    except Busy as busy:
        return shown | {"busy": busy.detail, "retry_after": busy.retry_after}


def side_by_side(seen: View, request: HttpRequest) -> dict[str, Any]:
    of, choice, cursor = seen.of, seen.choice, seen.cursor
    (rows, columns), link = seen.shape, Links(of.run, request, choice)
    drawn = seen.maps(request)
    order = panels.ORDER if seen.computed else stored.ORDER
    shown = [drawn[name] for name in order if name in drawn]
    return {
        "is_computed": seen.computed is not None,
        "panels": [panels.panel(one, cursor, link, drawn) for one in shown],
        "has_small": any(one.is_small for one in shown),
        "pickers": [
            *head_pickers(choice, of.spec, request.GET),
            *(source_picker(choice, request.GET) if has_both(seen) else []),
            *zoom_picker(choice, seen.shape, request.GET),
        ],
        "cursor": cursor,
        "rows": rows,
        "columns": columns,
        "last_row": rows - 1,
        "last_column": columns - 1,
        "has_keys": any(one.name not in panels.BY_DIMENSION for one in shown),
        "side": choice.side,
        "cell": cell(seen),
        "cell_address": link.to("cell"),
        "look_address": link.bare("look"),
        "kept": link.kept,
        "profile": profile(seen),
        "missing": None if seen.computed or choice.source else missing(of, drawn),
    }


def has_both(seen: View) -> bool:
    """Whether the same head can be shown as computed and as returned."""
    return closeups.can_look(seen.of) and bool(stored.names(seen.of.run)) and seen.found is not None


def profile(seen: View) -> dict[str, Any] | None:
    if seen.computed:
        return panels.profile(seen.computed.lse, seen.computed.entropy, seen.computed.seen, seen.cursor)
    return (
        panels.profile(seen.returned.lse, seen.returned.entropy, None, seen.cursor) if seen.returned else None
    )


# --- One cell -------------------------------------------------------------------------------------


def cell(seen: View) -> dict[str, Any] | None:
    """The arithmetic of the lit cell, or what was stored of it; and what is known of its row."""
    cursor = seen.cursor
    if cursor is None:
        return None
    if seen.computed:
        return spelt(seen.computed, cursor)
    lines = [
        Line(
            result_name(name),
            _("as the engine returned it"),
            arithmetic.vector(value) if name == "out" else heatmap.written(value.item(), value.dtype),
            name,
        )
        for name, value in stored.numbers(seen.of, cursor.query, cursor.key).items()
    ]
    row = []
    if seen.returned and seen.returned.lse is not None:
        row.append((_("log-sum-exp"), heatmap.number(float(seen.returned.lse[cursor.query]))))
    if seen.returned and seen.returned.entropy is not None:
        row.append((_("entropy"), in_nats(seen.returned.entropy[cursor.query])))
    return {"query": cursor.query, "key": cursor.key, "positions": None, "lines": lines, "row": row}


def spelt(found: Closeup, cursor: Cursor) -> dict[str, Any]:
    one = cell_of(found.head, cursor.query, cursor.key)
    lines = arithmetic.spelt(one, found.head)
    if found.error is not None:
        lines.append(
            Line(
                _("error of the output"),
                _("what the engine returned, minus this"),
                arithmetic.vector(found.error[cursor.query]),
                "error",
            )
        )
    at = (one.query_position, one.key_position)
    return {
        "query": cursor.query,
        "key": cursor.key,
        "positions": None if at == (cursor.query, cursor.key) else at,
        "lines": lines,
        "row": [
            (_("log-sum-exp"), heatmap.number(float(found.lse[cursor.query]))),
            (_("entropy"), in_nats(found.entropy[cursor.query])),
            (_("keys it sees"), units.whole(int(found.seen[cursor.query]))),
        ],
    }


def in_nats(value: float) -> str:
    return _("{nats} nats").format(nats=heatmap.number(float(value)))


# --- What is missing, and why ---------------------------------------------------------------------


def missing(of: Head, drawn: Maps) -> dict[str, Any]:
    """Why nothing was computed again, and which matrices are therefore not here."""
    engine = ENGINES.get(of.run.engine)
    names = [name for name in EXPECTED if name not in drawn and closeups.is_meant(name, of.spec)]
    names = names if of.is_softmax and of.is_there else []
    return {
        "why": why_not(of),
        "names": [result_name(name) for name in names],
        "can_return": [result_name(name) for name in names if engine and name in engine.returns],
    }


def why_not(of: Head) -> str:
    engine = ENGINES.get(of.run.engine)
    if not of.is_there:
        return _("There is no head to look at: the batch or the number of heads is 0.")
    if engine is None:
        return _("This service no longer has the engine {engine}.").format(engine=of.run.engine)
    if not of.is_softmax:
        return _(
            "This engine computes {what}, not softmax attention, so that there are no scores and weights to "
            "spell out. Shown is what it returned."
        ).format(what=engine.computes)
    needed = closeups.multiply_adds(of.spec)
    if needed > closeups.MOST:
        return _(
            "One head of this run takes {needed} multiply-adds in float64, and a page computes at most "
            "{most}. Shown is what the engine returned."
        ).format(needed=units.count(needed), most=units.count(closeups.MOST))
    return _("The stored inputs of this run are gone, so that nothing can be computed again.")


def picture(run: Run, spec: RunSpec, request: HttpRequest, name: str) -> Map | None:
    """The map that an address names. Raises Busy."""
    one = view(run, spec, request).maps(request).get(name)
    return None if one is None or one.is_empty else one
