"""The list of what somebody submitted: by this browser, as its cookie says, or by an account."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.core.paginator import Page, Paginator
from django.db.models import QuerySet
from django.urls import reverse

from api.runs import sharing
from kernels.registry import ENGINES
from kernels.spec import RunSpec
from lab.runs.presentation import STATUS_NAMES, shape_sentence
from lab.sharing.history import Entry
from workers.artifacts import INLINE_FIELDS
from workers.models import Kind as RowKind
from workers.models import Run, Status

PER_PAGE = 20


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
    entries = [entry for entry in entries if entry.kind == "run"]
    found = plain_runs().filter(owner="", id__in=[entry.id for entry in entries])
    items = {run.id: run_item(run) for run in found}
    return [items.get(entry.id, Item(entry)) for entry in entries]


def of_account(owner: str, page: str) -> tuple[Page[Any], list[Item]]:
    """A page of what the account's tokens submitted. The points of a sweep are in the sweep."""
    mine = plain_runs().filter(owner=owner, sweep=None)
    shown = Paginator(mine, PER_PAGE).get_page(page)
    return shown, [run_item(run) for run in shown]


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
        href=reverse("lab:run", kwargs={"run_id": run.id}) + key_of(run),
    )


def key_of(run: Run) -> str:
    """For the page of what is somebody's, which its owner is shown here."""
    return "?" + urlencode({"key": sharing.share_key(run)}) if run.owner else ""
