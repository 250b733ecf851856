"""Everything that anybody may find: pages, terms, papers, problems, places, operations of the API.

Made of what the site itself shows from, in one language; nothing of what somebody keeps here is among it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.urls import reverse
from django.utils.translation import gettext as _

from api.catalog.views import document
from classroom import recipes, statements
from classroom.checks import library
from concepts.asks import Ask
from concepts.figures import numerics
from concepts.pages import Book, Page, Source, book
from kernels.sizing import gpus, models
from lab.sources import model as sources
from lab.sources.kernels import KERNELS
from lab.templatetags.lab_places import PLACES
from search import plain

CONCEPT, TERM, PAPER, PROBLEM, MINE = "concept", "term", "paper", "problem", "mine"
PLACE, ENDPOINT = "place", "endpoint"
REFERENCES = "references"
# What tables of a page name, which are drawn by its figure.
LISTED: Mapping[str, Callable[[], tuple[str, ...]]] = {
    "models": lambda: tuple(model.title for model in models.models().values()),
    "gpus": lambda: tuple(gpu.title for gpu in gpus.gpus().values()),
    "numerics": lambda: tuple(str(trap.title) for trap in numerics.ROWS),
}
METHODS = ("get", "post", "put", "patch", "delete")
SOURCES = "sources"  # the anchor of a page's bibliography, which is shown where nothing else can be


@dataclass(frozen=True)
class Passage:
    """A stretch of a document that can be opened by itself."""

    anchor: str
    heading: str
    text: str
    is_section: bool = True  # or a part of one, whose heading says no more than any sentence


@dataclass(frozen=True)
class Link:
    url: str
    title: str


@dataclass(frozen=True)
class Document:
    kind: str
    url: str
    title: str
    names: tuple[str, ...] = ()  # what else it is called, or is there for: synonyms, terms that it explains
    people: str = ""  # who wrote it, or what it builds on
    passages: tuple[Passage, ...] = ()
    said: str = ""  # in place of an extract
    also: tuple[Link, ...] = ()  # where else it is


def documents(language: str) -> tuple[Document, ...]:
    shelf = book(language)
    return (
        *(_concept(page, shelf) for page in shelf.pages.values()),
        *_terms(shelf),
        *_papers(shelf),
        *_problems(),
        *_places(),
        *_kernels(),
        *_recipes(),
        *_endpoints(document()),
    )


def _concept(page: Page, shelf: Book) -> Document:
    read = "".join(_words(piece) for piece in page.pieces)
    terms = [term for term in shelf.glossary if term.entry.slug == page.slug]
    explained = [plain.text(name) for term in terms for name in (term.name, term.also) if name]
    bibliography = " · ".join(f"{_cited(source)}. {source.title}" for source in page.sources)
    cited = (Passage(SOURCES, _("Sources"), bibliography),) if bibliography else ()
    body = [
        Passage(each.anchor, each.heading, each.text, is_section=not each.is_claim)
        for each in plain.passages(read)
    ]
    return Document(
        CONCEPT,
        reverse("concepts:concept", args=[page.slug]),
        page.title,
        names=(page.slug, *explained, *LISTED.get(page.slug, tuple)()),
        people=" ".join(source.authors for source in page.sources),
        passages=(Passage("", "", page.summary), *body, *cited),
    )


def _words(piece: object) -> str:
    """Of a question what is asked, and not what is answered; a figure's caption is in the text around it."""
    if isinstance(piece, Ask):
        return f"<p>{piece.question}</p>"
    return piece if isinstance(piece, str) else ""


def _cited(source: Source) -> str:
    return f"{source.authors} ({source.year})"


def _terms(shelf: Book) -> Iterator[Document]:
    place = reverse("concepts:concept", args=["glossary"])
    for term in shelf.glossary:
        url = reverse("concepts:concept", args=[term.entry.slug])
        explained = (Link(url, term.entry.title),) if term.entry.written else ()
        yield Document(
            TERM,
            f"{place}#term-{term.slug}",
            plain.text(term.name),
            (plain.text(term.also), term.slug),
            passages=(Passage("", "", plain.text(term.means)),),
            also=explained,
        )


def _papers(shelf: Book) -> Iterator[Document]:
    """Each opens where it is cited first, or in the list of all of them."""
    cited: dict[str, list[Page]] = {}
    known: dict[str, Source] = {}
    for page in shelf.pages.values():
        for source in page.sources:
            known[source.key] = source
            cited.setdefault(source.key, []).append(page)
    for key, source in known.items():
        citing = [page for page in cited[key] if page.slug != REFERENCES]
        links = tuple(Link(_reference(page.slug, key), page.title) for page in citing)
        url = _reference(REFERENCES if REFERENCES in shelf.pages else cited[key][0].slug, key)
        said = f"{_cited(source)}. {source.venue}."
        name = source.title.partition(": ")[0]  # FlashAttention: Fast and …
        yield Document(PAPER, url, source.title, (name,), source.authors, said=said, also=links)


def _reference(slug: str, key: str) -> str:
    return f"{reverse('concepts:concept', args=[slug])}#ref-{key}"


def _problems() -> Iterator[Document]:
    """Statements alone: hints and solutions are for who asks for them."""
    for slug in library.slugs():
        asked = library.problem(slug)
        statement = plain.text(str(statements.to_html(asked.statement)))
        url = reverse("classroom:problem", args=[slug])
        yield Document(PROBLEM, url, asked.title, (slug,), passages=(Passage("", "", statement),))


def _places() -> Iterator[Document]:
    for view, name in PLACES:
        yield Document(PLACE, reverse(view), str(name), said=_("In the lab"))


def _kernels() -> Iterator[Document]:
    """Each explanation opens beside the code that it is of."""
    for kernel in KERNELS.values():
        notes = (part for file in kernel.files for part in sources.parts(file))
        passages = (Passage(part.id, str(part.note.title), str(part.note.text)) for part in notes)
        url = reverse("lab:kernel", args=[kernel.slug])
        yield Document(PLACE, url, str(kernel.title), said=str(kernel.lede), passages=tuple(passages))


def _recipes() -> Iterator[Document]:
    for slug in recipes.RECIPES:
        title, text = recipes.read(slug)
        url = f"{reverse('classroom:recipes')}#{slug}"
        passage = Passage("", "", plain.text(str(statements.to_html(text))))
        yield Document(PLACE, url, title, passages=(passage,))


def _endpoints(schema: Mapping[str, Any]) -> Iterator[Document]:
    page = reverse("api:docs")
    schemas = schema.get("components", {}).get("schemas", {})
    for path, operations in schema["paths"].items():
        for method in METHODS:
            if method not in operations:
                continue
            operation = operations[method]
            call = f"{method.upper()} {path}"
            fields = " ".join(_fields(operation.get("requestBody", {}), schemas, set()))
            described = Passage("", "", operation["description"].replace("`", ""))
            parameters = [each["name"] for each in operation.get("parameters", ()) if "name" in each]
            yield Document(
                ENDPOINT,
                f"{page}#/{operation['tags'][0]}/{operation['operationId']}",
                call,
                (operation["summary"], operation["operationId"], *parameters),
                passages=(described, Passage("", _("Fields"), fields)),
                said=operation["summary"],
            )


def _fields(schema: object, schemas: Mapping[str, Any], seen: set[str]) -> Iterator[str]:
    """The names of all fields of a body, through what it refers to."""
    if isinstance(schema, list):
        for each in schema:
            yield from _fields(each, schemas, seen)
    if not isinstance(schema, Mapping):
        return
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    if name and name not in seen:
        seen.add(name)
        yield from _fields(schemas.get(name, {}), schemas, seen)
    for key, value in schema.items():
        if key == "properties":
            yield from value
        if key != "example":
            yield from _fields(list(value.values()) if key == "properties" else value, schemas, seen)
