"""The whole book on one page: to read at one go, to print, to keep as a file.

Figures are as their pages open with; each page of the book has its place (`#slug`), and so has whatever on it
has a name (`#slug--name`).
"""

from dataclasses import dataclass
from functools import cache
from threading import Lock

from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.safestring import SafeString

from concepts import lists, static
from concepts.asks import Ask
from concepts.figures import Links, registry
from concepts.markup import Check, Listing, Piece, Slot
from concepts.pages import Book, Entry, Page, Part, book

COMPUTING = Lock()


@dataclass(frozen=True)
class Chapter:
    page: Page
    before: tuple[Entry, ...]
    body: SafeString


@dataclass(frozen=True)
class Section:
    """A part of the book with those of its pages that are written."""

    part: Part
    chapters: tuple[Chapter, ...]


def sections(language: str) -> tuple[Section, ...]:
    """Computed once, which takes seconds: whoever asks meanwhile waits for it."""
    with COMPUTING:
        return _sections(language)


@cache
def _sections(language: str) -> tuple[Section, ...]:
    shelf = book(language)
    found = []
    for part in shelf.parts:
        pages = [shelf.pages[entry.slug] for entry in part.entries if entry.written]
        if pages:
            found.append(Section(part, tuple(chapter(page, shelf) for page in pages)))
    return tuple(found)


def chapter(page: Page, shelf: Book) -> Chapter:
    home = reverse("concepts:concept", args=[page.slug])
    html = "".join(_still(piece, page, shelf, home) for piece in page.pieces)
    before = tuple(entry for entry in page.prerequisites if entry.written)
    return Chapter(page, before, SafeString(static.still(html, page.slug, home, shelf.pages)))


def _still(piece: Piece, page: Page, shelf: Book, home: str) -> str:
    if isinstance(piece, str):
        return piece
    if isinstance(piece, Ask):
        return render_to_string("concepts/whole/ask.html", {"ask": piece})
    if isinstance(piece, Check):
        return render_to_string("concepts/whole/check.html", {"slug": piece.slug})
    if isinstance(piece, Listing):
        return _listing(piece.name, shelf, home)
    return _figure(piece, page, home)


def _listing(name: str, shelf: Book, home: str) -> str:
    if name != "misconceptions":
        return lists.render(name, shelf, {}, home)
    # What is so stands beside what is wrong, in the pages: here are the ways to it.
    return render_to_string("concepts/whole/misconceptions.html", lists.misconceptions(shelf, {}))


def _figure(slot: Slot, page: Page, home: str) -> str:
    links = Links(home, "", reverse("lab:home"), has_run=slot.figure in page.runs)
    return registry()[slot.figure].render({}, links, slot.part)
