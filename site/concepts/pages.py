"""The book: the table of contents, the bibliography and the concept pages of one language.

A language is a folder of content/. Everything is read once, on first use, and kept (the app's `ready` asks
for it, so that a mistake in the content stops the start and not a reader).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from django.conf import settings
from django.utils.translation import get_language, override

from classroom.checks import library
from concepts import strict
from concepts.asks import Ask
from concepts.errors import ContentError
from concepts.figures import registry
from concepts.markup import Check, Context, Heading, Piece, Slot, Symbol, Term, plain, render

CONTENT = Path(__file__).resolve().parent / "content"
REQUIRED = ("title", "part", "summary", "covers", "sources")
CLAIM = re.compile(
    r'<aside class="callout callout-warn wrong" id="([^"]+)"><p class="wrong-claim">(.*?)</p>\n(.*?)</aside>',
    re.DOTALL,
)
MEANS = re.compile(r'<span class="term-means".*?</span>| aria-describedby="means-[a-z0-9-]+"', re.DOTALL)
OPTIONAL = ("prerequisites", "next", "figure", "symbols")


@dataclass(frozen=True)
class Source:
    key: str
    authors: str
    short: str
    title: str
    venue: str
    year: int
    url: str


@dataclass(frozen=True)
class Entry:
    """A line of the table of contents."""

    slug: str
    title: str
    written: bool


@dataclass(frozen=True)
class Part:
    number: int
    numeral: str
    title: str
    summary: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Claim:
    """What is often said and wrong, and what is so, as HTML."""

    page: str
    id: str
    words: str
    answer: str

    @property
    def elsewhere(self) -> str:
        """The answer where its page is not around it: links lead back there, and terms are plain links."""
        return re.sub(r'href="(?=[?#])', f'href="../{self.page}/', MEANS.sub("", self.answer))


@dataclass(frozen=True)
class Page:
    slug: str
    title: str
    part: int
    summary: str
    covers: tuple[str, ...]
    prerequisites: tuple[Entry, ...]
    next: tuple[Entry, ...]
    sources: tuple[Source, ...]
    pieces: tuple[Piece, ...]
    headings: tuple[Heading, ...]
    facts: frozenset[str]
    terms: frozenset[str]
    words: int

    @property
    def figures(self) -> frozenset[str]:
        return frozenset(piece.figure for piece in self.pieces if isinstance(piece, Slot))

    @property
    def runs(self) -> frozenset[str]:
        """Figures whose way to the lab is on the page."""
        return frozenset(
            piece.figure for piece in self.pieces if isinstance(piece, Slot) and piece.part == "run"
        )

    @property
    def asks(self) -> tuple[Ask, ...]:
        return tuple(piece for piece in self.pieces if isinstance(piece, Ask))

    @property
    def claims(self) -> tuple[Claim, ...]:
        """What the page says is wrong, in its order."""
        html = "".join(piece for piece in self.pieces if isinstance(piece, str))
        return tuple(Claim(self.slug, *found) for found in CLAIM.findall(html))

    @property
    def has_checks(self) -> bool:
        return any(isinstance(piece, Check) for piece in self.pieces)


@dataclass(frozen=True)
class Definition:
    """A term with its words as HTML, and the page that explains it."""

    slug: str
    name: str
    also: str
    means: str
    entry: Entry


@dataclass(frozen=True)
class Book:
    language: str
    parts: tuple[Part, ...]
    pages: Mapping[str, Page]
    glossary: tuple[Definition, ...]  # by name

    def citing(self, source: Source) -> tuple[Entry, ...]:
        """The pages that cite it, in the order of the table of contents."""
        entries = (entry for part in self.parts for entry in part.entries if entry.written)
        return tuple(entry for entry in entries if source in self.pages[entry.slug].sources)


def read_yaml(path: Path) -> Any:
    try:
        return strict.read(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise ContentError(str(path), mark.line + 1 if mark else 1, str(error)) from error


@cache
def sources() -> Mapping[str, Source]:
    return load_sources(CONTENT / "sources.yaml")


def load_sources(path: Path) -> dict[str, Source]:
    """The bibliography, each entry with everything that a page shows of it."""
    found = {}
    lines = path.read_text(encoding="utf-8").split("\n")
    for key, fields in read_yaml(path).items():
        try:
            found[key] = Source(key=key, **fields)
            _check_source(found[key])
        except (TypeError, ValueError) as error:
            raise ContentError(path.name, lines.index(f"{key}:") + 1, f"{key}: {error}") from error
    return found


def _check_source(source: Source) -> None:
    for name in ("authors", "short", "title", "venue"):
        if not getattr(source, name):
            raise ValueError(f"{name} is empty")
    if not isinstance(source.year, int):
        raise ValueError("year is not a number")
    if str(source.year) not in source.short:
        raise ValueError(f"year is {source.year}, and short says {source.short}")
    if not source.url.startswith("https://"):
        raise ValueError(f"url is {source.url}, and not https://…")


@cache
def book(language: str) -> Book:
    """The book in `language`, or in the first language of the settings where that has no content."""
    folder = CONTENT / language
    if not folder.is_dir():
        return book(settings.LANGUAGE_CODE)
    with override(language):
        return load(folder, language)


def current_book() -> Book:
    """The book in the language of the request."""
    return book(get_language() or settings.LANGUAGE_CODE)


def load(folder: Path, language: str) -> Book:
    written = frozenset(path.stem for path in folder.glob("*.md"))
    terms = load_terms(folder / "glossary.yaml")
    parts = []
    for number, part in enumerate(read_yaml(folder / "contents.yaml"), 1):
        entries = tuple(Entry(slug, title, slug in written) for slug, title in part["concepts"].items())
        numeral = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII")[number - 1]
        parts.append(Part(number, numeral, part["title"], part["summary"], entries))
    listed = {entry.slug: entry for part in parts for entry in part.entries}
    if stray := written - listed.keys():
        raise ContentError(
            str(folder / "contents.yaml"), 1, f"pages without a line here: {', '.join(sorted(stray))}"
        )
    pages = {slug: load_page(folder / f"{slug}.md", listed, terms) for slug in listed if slug in written}
    return Book(language, tuple(parts), pages, _glossary(terms, listed))


def load_terms(path: Path) -> dict[str, Term]:
    """By slug. Empty where a book has no glossary."""
    if not path.is_file():
        return {}
    try:
        return {slug: Term(slug=slug, **fields) for slug, fields in read_yaml(path).items()}
    except TypeError as error:
        raise ContentError(path.name, 1, str(error)) from error


def _glossary(terms: Mapping[str, Term], listed: Mapping[str, Entry]) -> tuple[Definition, ...]:
    for term in terms.values():
        if term.page not in listed:
            raise ContentError(
                "glossary.yaml", 1, f"{term.slug}: {term.page} is not in the table of contents"
            )
    definitions = [
        Definition(
            slug=term.slug,
            name=plain(term.term),
            also=plain(term.also),
            means=plain(term.means),
            entry=listed[term.page],
        )
        for term in terms.values()
    ]
    return tuple(sorted(definitions, key=lambda one: one.name.casefold()))


def load_page(path: Path, listed: Mapping[str, Entry], terms: Mapping[str, Term] | None = None) -> Page:
    text = path.read_text(encoding="utf-8")
    match = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    if not match:
        raise ContentError(path.name, 1, "a page starts with front matter between two lines of ---")
    try:
        front = strict.read(match[1])
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise ContentError(path.name, mark.line + 2 if mark else 1, str(error)) from error
    _check_front(path, front, match[1], listed)
    figures = registry()
    bibliography = sources()
    context = Context(
        file=path.name,
        first_line=match[0].count("\n") + 1,
        titles={slug: entry.title for slug, entry in listed.items()},
        written=frozenset(slug for slug, entry in listed.items() if entry.written),
        sources={key: vars(bibliography[key]) for key in front["sources"]},
        figures={name: figure.parts for name, figure in figures.items()},
        can_check=library.can_be_filled_in,
        symbols=[Symbol(**symbol) for symbol in front.get("symbols", [])],
        figure_id=front.get("figure", ""),
        terms=terms or {},
    )
    body = text[match.end() :]
    pieces, headings = render(body, context)
    return Page(
        slug=path.stem,
        title=front["title"],
        part=front["part"],
        summary=front["summary"],
        covers=tuple(front["covers"]),
        prerequisites=tuple(listed[slug] for slug in front.get("prerequisites", [])),
        next=tuple(listed[slug] for slug in front.get("next", [])),
        sources=tuple(bibliography[key] for key in front["sources"]),
        pieces=tuple(pieces),
        headings=tuple(headings),
        facts=frozenset(context.used["facts"]),
        terms=frozenset(context.used["terms"]),
        words=_count_words(pieces),
    )


def _check_front(path: Path, front: Any, text: str, listed: Mapping[str, Entry]) -> None:
    def fail(word: str, message: str) -> ContentError:
        lines = text.split("\n")
        line = next((n for n, content in enumerate(lines, 2) if word and word in content), 1)
        return ContentError(path.name, line, message)

    if not isinstance(front, dict):
        raise fail("", "the front matter is not a list of keys and values")
    if missing := [key for key in REQUIRED if key not in front]:
        raise fail("", f"the front matter lacks {', '.join(missing)}")
    if unknown := front.keys() - set(REQUIRED) - set(OPTIONAL):
        key = min(unknown)
        raise fail(key, f"the front matter has an unknown key {key}")
    for key in front["sources"]:
        if key not in sources():
            raise fail(key, f"sources.yaml has no {key}")
    for slug in [*front.get("prerequisites", []), *front.get("next", [])]:
        if slug not in listed:
            raise fail(slug, f"{slug} is not in the table of contents")
    if front["title"] != listed[path.stem].title:
        raise fail("title", f"the table of contents calls this page “{listed[path.stem].title}”")


def _count_words(pieces: list[Piece]) -> int:
    html = " ".join(piece for piece in pieces if isinstance(piece, str))
    html = MEANS.sub("", html)
    html = re.sub(r"<math.*?</math>", "x", html, flags=re.DOTALL)
    return len(re.sub(r"<[^>]+>", " ", html).split())
