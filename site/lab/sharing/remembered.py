"""The list of what somebody submitted: by this browser, as its cookie says, or by an account."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.core.paginator import Page, Paginator
from django.db.models import CharField, QuerySet, Value
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from api.runs import sharing as of_runs
from api.sweeps import sharing as of_sweeps
from kernels.registry import ENGINES
from kernels.spec import RunSpec
from lab.runs.presentation import STATUS_NAMES, shape_sentence
from lab.sharing.history import Entry, Kind
from lab.sweeps import presentation
from workers import sweeps
from workers.artifacts import INLINE_FIELDS
from workers.models import Kind as RowKind
from workers.models import Run, Status, Sweep

PER_PAGE = 20
# The pill of a sweep, in the colours of runs: all of a sweep that is over has succeeded or says so there.
SWEEP_PILLS = {Sweep.RUNNING: Status.RUNNING, Sweep.CANCELED: Status.CANCELED, Sweep.FINISHED: "finished"}


@dataclass(frozen=True)
class Item:
    """A line of the list. Without an address it is gone."""

    entry: Entry
    title: str = ""
    facts: str = ""
    status: str = ""
    status_name: str = ""
    created_at: datetime | None = None
    href: str = ""


def of_browser(entries: list[Entry]) -> list[Item]:
    """What the cookie names, newest first; what is nobody's alone, for that is all it can have put there."""
    runs = {row.id: run_item(row) for row in plain_runs().filter(owner="", id__in=ids_of(entries, "run"))}
    found = Sweep.objects.filter(owner="", id__in=ids_of(entries, "sweep"))
    swept = {row.id: sweep_item(row) for row in sweeps.with_progress(found)}
    items = {"run": runs, "sweep": swept}
    return [items[entry.kind].get(entry.id, Item(entry)) for entry in entries]


def ids_of(entries: Iterable[Entry], kind: Kind) -> list[str]:
    return [entry.id for entry in entries if entry.kind == kind]


def of_account(owner: str, page: str) -> tuple[Page[Any], list[Item]]:
    """A page of what the account's tokens submitted. The points of a sweep are in the sweep."""

    def lines(rows: QuerySet[Any], kind: Kind) -> Any:
        marked = rows.annotate(what=Value(kind, output_field=CharField()))
        return marked.order_by().values_list("what", "pk", "created_at")

    runs, swept = plain_runs().filter(owner=owner, sweep=None), Sweep.objects.filter(owner=owner)
    both = lines(runs, "run").union(lines(swept, "sweep"), all=True).order_by("-created_at", "pk")
    shown = Paginator(both, PER_PAGE).get_page(page)
    entries = [Entry(kind, row_id) for kind, row_id, _created in shown]
    items = {
        "run": {row.id: run_item(row) for row in runs.filter(id__in=ids_of(entries, "run"))},
        "sweep": {
            row.id: sweep_item(row)
            for row in sweeps.with_progress(swept.filter(id__in=ids_of(entries, "sweep")))
        },
    }
    return shown, [items[entry.kind].get(entry.id, Item(entry)) for entry in entries]


def plain_runs() -> QuerySet[Run]:
    return Run.objects.filter(kind=RowKind.RUN).defer(*INLINE_FIELDS)


def run_item(run: Run) -> Item:
    return Item(
        entry=Entry("run", run.id),
        title=ENGINES[run.engine].title if run.engine in ENGINES else run.engine,
        facts=shape_sentence(RunSpec.from_dict(run.spec)),
        status=run.status,
        status_name=str(STATUS_NAMES[Status(run.status)]),
        created_at=run.created_at,
        href=reverse("lab:run", kwargs={"run_id": run.id}) + keyed(run.owner and of_runs.share_key(run)),
    )


def sweep_item(sweep: Sweep) -> Item:
    """sweep: from `sweeps.with_progress`."""
    active: int = sweep.active  # type: ignore[attr-defined]
    status = sweep.status_with(active)
    points = ngettext("{count} point", "{count} points", len(sweep.values)).format(count=len(sweep.values))
    engine = sweep.body.get("engine", "")
    return Item(
        entry=Entry("sweep", sweep.id),
        title=_("Sweep: {engine}").format(engine=ENGINES[engine].title if engine in ENGINES else engine),
        facts=", ".join([points, *(f"{name}" for name in sweep.vary)]),
        status=SWEEP_PILLS[status],
        status_name=str(presentation.STATUS_NAMES[status]),
        created_at=sweep.created_at,
        href=reverse("lab:sweep", kwargs={"sweep_id": sweep.id})
        + keyed(sweep.owner and of_sweeps.share_key(sweep)),
    )


def keyed(key: str) -> str:
    """For the page of what is somebody's, which its owner is shown here."""
    return "?" + urlencode({"key": key}) if key else ""
