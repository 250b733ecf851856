"""What is shown of a text that was found: the words around what was asked for, which are marked."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.html import escape
from django.utils.safestring import SafeString

from search import words
from search.documents import Passage
from search.questions import Question

LENGTH = 170  # characters of an extract
BEFORE = 50  # of them at most before the first word that was asked for
SENTENCE_ENDS = (". ", "? ", "! ", ": ")


@dataclass(frozen=True)
class Place:
    """A part of a document, as HTML: its heading, an extract, and where it opens."""

    anchor: str
    heading: SafeString
    extract: SafeString


@dataclass(frozen=True)
class Hit:
    """A word of a text that was asked for, and the form in which it was."""

    start: int
    end: int
    token: str


def place(passage: Passage, question: Question, language: str) -> Place:
    heading = marked(passage.heading, question, language)
    return Place(passage.anchor, heading, extract(passage.text, question, language))


def marked(text: str, question: Question, language: str) -> SafeString:
    """All of a text."""
    return _cut(text, _hits(text, question, language), 0, len(text))


def extract(text: str, question: Question, language: str) -> SafeString:
    """The stretch with most of the words that were asked for."""
    hits = _hits(text, question, language)

    def worth(first: Hit) -> int:
        end = first.start + LENGTH - BEFORE
        return len({hit.token for hit in hits if first.start <= hit.start and hit.end <= end})

    best = max(hits, key=lambda hit: (worth(hit), -hit.start), default=None)
    start = _start(text, best.start) if best else 0
    return _cut(text, hits, start, _end(text, start))


def _hits(text: str, question: Question, language: str) -> list[Hit]:
    wanted = {word for each in question.wanted for word in each.marked}
    found = []
    for word in words.read(text):
        forms = (form for token in word.tokens for form in (token, words.stem(token, language)))
        token = next((form for form in forms if form in wanted), None)
        if token is not None:
            found.append(Hit(word.start, word.end, token))
    return found


def _start(text: str, first: int) -> int:
    """Where to begin: with the sentence, if that is near, or else with a word."""
    if first <= BEFORE:
        return 0
    near = text[first - BEFORE : first]
    end = max(near.rfind(end) for end in SENTENCE_ENDS)
    return first - BEFORE + (end + 2 if end >= 0 else near.find(" ") + 1)


def _end(text: str, start: int) -> int:
    if len(text) <= start + LENGTH:
        return len(text)
    end = text.rfind(" ", start, start + LENGTH)
    return end if end > start else start + LENGTH


def _cut(text: str, hits: Sequence[Hit], start: int, end: int) -> SafeString:
    html, at = ["… " if start else ""], start
    for hit in hits:
        if hit.start >= at and hit.end <= end:
            html += [escape(text[at : hit.start]), f"<mark>{escape(text[hit.start : hit.end])}</mark>"]
            at = hit.end
    html += [escape(text[at:end]), " …" if end < len(text) else ""]
    return SafeString("".join(html))
