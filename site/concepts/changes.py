"""What is new, as changes.yaml beside the table of contents has it: a page and an Atom feed."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from functools import cache
from pathlib import Path

from django.contrib.syndication.views import Feed
from django.http import HttpRequest
from django.urls import reverse
from django.utils.feedgenerator import Atom1Feed
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from concepts.errors import ContentError
from concepts.pages import CONTENT, Book, Entry, book, read_yaml

FILE = "changes.yaml"
MOST = 50  # in the feed


@dataclass(frozen=True)
class Change:
    date: date
    name: str  # its anchor on the page, which never changes
    title: str
    text: str
    pages: tuple[Entry, ...] = ()
    place: str = ""  # the name of an address outside the book

    @property
    def moment(self) -> datetime:
        return datetime.combine(self.date, time(), UTC)


@cache
def changes(language: str) -> tuple[Change, ...]:
    shelf = book(language)
    return load(CONTENT / shelf.language / FILE, shelf)


def load(path: Path, shelf: Book) -> tuple[Change, ...]:
    """Newest first."""
    lines = path.read_text(encoding="utf-8").split("\n")
    listed = {entry.slug: entry for part in shelf.parts for entry in part.entries}
    found: list[Change] = []
    for fields in read_yaml(path):
        name = fields.get("name", "")
        line = next((n for n, text in enumerate(lines, 1) if text.strip() == f"name: {name}"), 1)
        slugs = fields.pop("pages", [])
        for slug in slugs:
            if slug not in listed or not listed[slug].written:
                raise ContentError(path.name, line, f"{name}: there is no page {slug}")
        try:
            change = Change(**fields, pages=tuple(listed[slug] for slug in slugs))
        except TypeError as error:
            raise ContentError(path.name, line, f"{name}: {error}") from error
        if name in {each.name for each in found}:
            raise ContentError(path.name, line, f"{name} is there twice")
        if found and change.date > found[-1].date:
            raise ContentError(path.name, line, f"{name} is newer than the one above it")
        found.append(change)
    return tuple(found)


class Changes(Feed):  # type: ignore[type-arg]
    """The newest changes, for feed readers."""

    feed_type = Atom1Feed

    def get_object(self, request: HttpRequest) -> tuple[Change, ...]:
        return changes(get_language() or "en")

    def title(self) -> str:
        return _("Attention Lab: what is new")

    def link(self) -> str:
        return reverse("concepts:changes")

    def feed_url(self) -> str:
        return reverse("concepts:changes-feed")

    def author_name(self) -> str:
        return _("Attention Lab")

    def items(self, found: tuple[Change, ...]) -> tuple[Change, ...]:
        return found[:MOST]

    def item_title(self, item: Change) -> str:
        return item.title

    def item_description(self, item: Change) -> str:
        return item.text

    def item_link(self, item: Change) -> str:
        return f"{reverse('concepts:changes')}#{item.name}"

    def item_pubdate(self, item: Change) -> datetime:
        return item.moment

    def item_updateddate(self, item: Change) -> datetime:
        return item.moment
