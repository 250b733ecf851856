"""A search: what was typed, what is found for it, in groups of a kind."""

import logging
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Thread

from django.conf import settings
from django.db import connection
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from search import extracts, mine
from search.documents import CONCEPT, ENDPOINT, MINE, PAPER, PLACE, PROBLEM, TERM, Link
from search.index import Found, Index, index, places
from search.questions import Question
from workers import search as full_text

log = logging.getLogger(__name__)

EXAMPLES = ("√d", "QKᵀ", "causal mask", "KV cache", "log-sum-exp", "Vaswani", "POST /runs")
MOST_TYPED = 200  # characters that are read
KINDS = (CONCEPT, TERM, PROBLEM, MINE, PLACE, PAPER, ENDPOINT)
SHOWN = {CONCEPT: 6, TERM: 3, PROBLEM: 3, MINE: 3, PLACE: 3, PAPER: 3, ENDPOINT: 4}
SHOWN_OF_ONE = 100
# A page comes first, unless something else is just what was asked for, or that much nearer to it.
CLEARLY = 3.0


def name_of(kind: str) -> str:
    return {
        CONCEPT: _("Concepts"),
        TERM: _("Glossary"),
        PROBLEM: _("Problems"),
        MINE: _("Your problems"),
        PLACE: _("Lab and classroom"),
        PAPER: _("Papers and sources"),
        ENDPOINT: _("REST API"),
    }[kind]


@dataclass(frozen=True)
class Hit:
    """What is shown of a document; made when it is shown."""

    searched: Index
    question: Question
    found: Found

    @property
    def kind(self) -> str:
        return self.found.document.kind

    @property
    def url(self) -> str:
        return self.found.document.url

    @property
    def also(self) -> Sequence[Link]:
        return self.found.document.also

    @property
    def title(self) -> SafeString:
        return self._marked(self.found.document.title)

    @property
    def said(self) -> SafeString:
        return self._marked(self.found.document.said)

    @property
    def places(self) -> Sequence[extracts.Place]:
        """Each opens at its anchor."""
        chosen = places(self.found.entry, self.question)
        return [extracts.place(each, self.question, self.searched.language) for each in chosen]

    def _marked(self, text: str) -> SafeString:
        return extracts.marked(text, self.question, self.searched.language)


@dataclass(frozen=True)
class Group:
    kind: str
    name: str
    hits: Sequence[Hit]
    total: int

    @property
    def more(self) -> int:
        return self.total - len(self.hits)


@dataclass(frozen=True)
class Results:
    typed: str
    groups: Sequence[Group] = ()
    corrections: Sequence[tuple[str, str]] = ()
    has_all: bool = True  # the words

    @property
    def total(self) -> int:
        return sum(group.total for group in self.groups)


def clean(typed: str) -> str:
    """What can be read of it: one line, bounded, nothing that cannot be seen."""
    line = "".join(" " if unicodedata.category(each)[0] in "CZ" else each for each in typed[: 4 * MOST_TYPED])
    return unicodedata.normalize("NFC", " ".join(line.split()))[:MOST_TYPED]


def find(typed: str, language: str, owner: str = "", kind: str = "") -> Results:
    """typed: as `clean` leaves it; owner: whose own things are found too; kind: that alone, and all of it."""
    whole = index(language)
    question = whole.vocabulary.question(typed)
    found = _hits(whole, question, _holding(whole, question))
    if owner:
        own = mine.index(owner, language)
        found += _hits(own, own.vocabulary.question(typed), range(len(own.entries)))
    has_all = any(each.found.has_all for each in found)
    found = [each for each in found if each.found.has_all == has_all]
    groups = [
        _group(each, [one for one in found if one.kind == each], is_alone=each == kind)
        for each in _order(found)
        if not kind or each == kind
    ]
    return Results(typed, groups, question.corrections, has_all)


def _hits(searched: Index, question: Question, numbers: Sequence[int]) -> list[Hit]:
    return [Hit(searched, question, each) for each in searched.ranked(question, numbers)]


def _holding(whole: Index, question: Question) -> list[int]:
    """The documents with all of the words or, where none has, with some."""
    asked = [full_text.Asked(tuple(each.whole), each.prefix) for each in question.wanted if each.words]
    if not asked:
        return []
    _keep(whole)
    every = full_text.holding(whole.digest, asked) if len(asked) == len(question.wanted) else []
    return every or full_text.holding(whole.digest, asked, every=False)


def _keep(whole: Index) -> None:
    full_text.keep(whole.digest, (each.weights for each in whole.entries))


def _order(found: Sequence[Hit]) -> list[str]:
    """Kinds by their best, but pages first unless another is clearly better."""
    best: dict[str, tuple[bool, float]] = {}
    for each in found:
        is_named = each.found.is_named and each.kind != TERM
        score = each.found.score * (CLEARLY if each.kind == CONCEPT else 1)
        best[each.kind] = max(best.get(each.kind, (False, 0.0)), (is_named, score))
    return sorted(best, key=lambda kind: best[kind], reverse=True)


def _group(kind: str, found: Sequence[Hit], *, is_alone: bool) -> Group:
    return Group(kind, name_of(kind), found[: SHOWN_OF_ONE if is_alone else SHOWN[kind]], len(found))


def warm() -> None:
    """Make the indexes while nobody waits for them. The first search would do it as well."""

    def make() -> None:
        try:
            for code, _name in settings.LANGUAGES:
                _keep(index(code))
        except Exception:
            log.exception("the search index was not made ahead")
        finally:
            connection.close()

    Thread(target=make, name="search", daemon=True).start()
