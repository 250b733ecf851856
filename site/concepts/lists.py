"""What the whole book has, listed on a page of its own: `::: list name` in its text."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from typing import Any

from django.conf import settings
from django.template.loader import render_to_string
from django.utils.html import strip_tags
from django.utils.translation import gettext as _

from concepts.figures.controls import MAX_FIND
from concepts.pages import Book, Claim, Entry, Source, sources
from workers.release import release

FIND = "find"  # the parameter
MEBIBYTE = 2**20
TEX = re.compile(r"<annotation.*?</annotation>", re.DOTALL)


@dataclass(frozen=True)
class Work:
    """A source, and the pages that cite it."""

    source: Source
    pages: tuple[Entry, ...]


@dataclass(frozen=True)
class Wrong:
    """What is often said and wrong, by the page that says so."""

    entry: Entry
    claims: tuple[Claim, ...]


def render(
    name: str, shelf: Book, state: Mapping[str, str], home: str, others: Sequence[tuple[str, str]] = ()
) -> str:
    """The listing as HTML; `home` is the address of its page, `others` are that page's other parameters."""
    context = {"home": home, "others": others, **CONTEXTS[name](shelf, state)}
    return render_to_string(f"concepts/lists/{name}.html", context)


def glossary(shelf: Book, state: Mapping[str, str]) -> dict[str, Any]:
    return {"rows": shelf.glossary}


def references(shelf: Book, state: Mapping[str, str]) -> dict[str, Any]:
    """All sources, by who wrote them and when."""
    works = (Work(source, shelf.citing(source)) for source in sources().values())
    by_name = sorted(works, key=lambda work: (work.source.short.casefold(), work.source.title.casefold()))
    return {"rows": by_name}


def misconceptions(shelf: Book, state: Mapping[str, str]) -> dict[str, Any]:
    """Those with all the words that are looked for, page by page."""
    find = state.get(FIND, "")[:MAX_FIND]
    found = [
        Wrong(entry, tuple(claim for claim in shelf.pages[entry.slug].claims if has(claim, find)))
        for part in shelf.parts
        for entry in part.entries
        if entry.written
    ]
    rows = [one for one in found if one.claims]
    return {"rows": rows, "count": sum(len(one.claims) for one in rows), "find": find, "most": MAX_FIND}


def has(claim: Claim, find: str) -> bool:
    """Whether a reader sees all of these words in it."""
    html = TEX.sub(" ", f"{claim.words} {claim.elsewhere}")
    text = unescape(strip_tags(html)).casefold()
    return all(word in text for word in find.casefold().split())


def limits(shelf: Book, state: Mapping[str, str]) -> dict[str, Any]:
    """What this server allows: without a token, and with one (None: as much as there is)."""
    rows: list[tuple[str, int, int | None]] = [
        (_("time of a run, seconds"), settings.RUN_BUDGET_ANONYMOUS, settings.RUN_BUDGET_TOKEN),
        (_("runs a minute"), settings.ANONYMOUS_RUNS_PER_MINUTE, None),
        (_("time of all runs of an hour, seconds"), settings.ANONYMOUS_SECONDS_PER_HOUR, None),
        (_("memory of a run, MiB"), *2 * (settings.MAX_RUN_BYTES // MEBIBYTE,)),
        (_("numbers in the results of a run"), *2 * (settings.MAX_RESULT_ELEMENTS,)),
        (_("size of a request, MiB"), *2 * (settings.MAX_BODY_BYTES // MEBIBYTE,)),
        (
            _("processor time of estimates in a minute, seconds"),
            settings.ANONYMOUS_COMPUTING_SECONDS_PER_MINUTE,
            settings.TOKEN_COMPUTING_SECONDS_PER_MINUTE,
        ),
        (_("submissions a minute"), settings.SUBMISSIONS_PER_MINUTE, settings.TOKEN_SUBMISSIONS_PER_MINUTE),
        (_("days that a run is kept"), settings.RETENTION_DAYS_ANONYMOUS, settings.RETENTION_DAYS_TOKEN),
    ]
    said = [(name, f"{alone:,}", "–" if token is None else f"{token:,}") for name, alone, token in rows]
    return {"rows": said}


def citation(shelf: Book, state: Mapping[str, str]) -> dict[str, Any]:
    return {"release": release()}


CONTEXTS: Mapping[str, Callable[[Book, Mapping[str, str]], dict[str, Any]]] = {
    "citation": citation,
    "glossary": glossary,
    "limits": limits,
    "misconceptions": misconceptions,
    "references": references,
}
