"""Ways through the book: pages in an order for somebody, as paths.yaml beside the table of contents has them.

That a reader is on a path is in the address (`?path=slug`) and nowhere else. Links to the other pages of the
path carry it, and so do the forms of figures and questions; everywhere else it means nothing.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from concepts.errors import ContentError
from concepts.markup import plain
from concepts.pages import CONTENT, Book, Entry, Page, book, read_yaml

PARAMETER = "path"
FILE = "paths.yaml"
WORDS_A_MINUTE = 200  # of an adult who reads to understand
KEYS = ({"title", "summary", "pages"}, {"places"})  # needed, and allowed
# A link to a page, or to another state of this one: its place, its query, its anchor.
LINK = re.compile(r'href="((?:\.\./|/[a-z-]+/concepts/)([a-z0-9-]+)/|(?=\?))(?:\?([^"#]*))?(#[^"]*)?"')


@dataclass(frozen=True)
class Stop:
    """A page of a path, and what to take along from it, as HTML."""

    entry: Entry
    why: str


@dataclass(frozen=True)
class Trail:
    slug: str
    title: str
    summary: str
    stops: tuple[Stop, ...]
    words: int  # of its pages that are written
    places: tuple[tuple[str, str], ...] = ()  # names of addresses outside the book, and words

    @property
    def written(self) -> tuple[Entry, ...]:
        return tuple(stop.entry for stop in self.stops if stop.entry.written)

    @property
    def slugs(self) -> frozenset[str]:
        return frozenset(entry.slug for entry in self.written)

    @property
    def minutes(self) -> int:
        return round(self.words / WORDS_A_MINUTE)


@dataclass(frozen=True)
class Place:
    """Where on a path a reader is, among the pages that can be read."""

    trail: Trail
    number: int
    before: Entry | None
    after: Entry | None


@cache
def trails(language: str) -> Mapping[str, Trail]:
    shelf = book(language)
    return load(CONTENT / shelf.language / FILE, shelf)


def load(path: Path, shelf: Book) -> dict[str, Trail]:
    """By slug, in the order of the file."""
    lines = path.read_text(encoding="utf-8").split("\n")

    def fail(slug: str, word: str, message: str) -> ContentError:
        start = lines.index(f"{slug}:")
        line = next((n for n, text in enumerate(lines[start:], start + 1) if word in text), start + 1)
        return ContentError(path.name, line, f"{slug}: {message}")

    listed = {entry.slug: entry for part in shelf.parts for entry in part.entries}
    found = {}
    for slug, fields in read_yaml(path).items():
        needed, allowed = KEYS
        if missing := needed - fields.keys():
            raise fail(slug, slug, f"it lacks {', '.join(sorted(missing))}")
        if unknown := fields.keys() - needed - allowed:
            raise fail(slug, min(unknown), f"it has an unknown key {min(unknown)}")
        for name in fields["pages"]:
            if name not in listed:
                raise fail(slug, f"{name}:", f"{name} is not in the table of contents")
        stops = tuple(Stop(listed[name], plain(why)) for name, why in fields["pages"].items())
        words = sum(shelf.pages[stop.entry.slug].words for stop in stops if stop.entry.written)
        places = tuple(fields.get("places", {}).items())
        found[slug] = Trail(slug, fields["title"], fields["summary"], stops, words, places)
    return found


def trail_of(state: Mapping[str, str], page: Page, language: str) -> Trail | None:
    """The path by which this page is read, if it is on it."""
    trail = trails(language).get(state.get(PARAMETER, ""))
    return trail if trail and page.slug in trail.slugs else None


def place(trail: Trail, slug: str) -> Place:
    entries = trail.written
    at = next(n for n, entry in enumerate(entries) if entry.slug == slug)
    return Place(
        trail,
        number=at + 1,
        before=entries[at - 1] if at else None,
        after=entries[at + 1] if at + 1 < len(entries) else None,
    )


def along(html: str, trail: Trail) -> str:
    """A page's text, whose links to other pages of the path and to other states of itself stay on it."""

    def link(found: re.Match[str]) -> str:
        place, slug, query, anchor = found.groups(default="")
        if (slug and slug not in trail.slugs) or query.startswith(way):
            return found[0]
        return f'href="{place}?{"&amp;".join(filter(None, (way, query)))}{anchor}"'

    way = f"{PARAMETER}={trail.slug}"
    return LINK.sub(link, html)
