"""What the whole book has, listed on a page of its own: `::: list name` in its text."""

from dataclasses import dataclass

from django.template.loader import render_to_string

from concepts.pages import Book, Entry, Source, sources


@dataclass(frozen=True)
class Work:
    """A source, and the pages that cite it."""

    source: Source
    pages: tuple[Entry, ...]


def render(name: str, shelf: Book) -> str:
    """The listing as HTML."""
    rows = shelf.glossary if name == "glossary" else references(shelf)
    return render_to_string(f"concepts/lists/{name}.html", {"rows": rows})


def references(shelf: Book) -> list[Work]:
    """All sources, by who wrote them and when."""
    works = (Work(source, shelf.citing(source)) for source in sources().values())
    return sorted(works, key=lambda work: (work.source.short.casefold(), work.source.title.casefold()))
