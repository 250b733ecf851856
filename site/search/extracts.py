"""What is shown of a text that was found: the words around what was asked for, which are marked."""

from collections.abc import Sequence
from dataclasses import dataclass

from search import words
from search.documents import Passage
from search.questions import Question

LENGTH = 170  # characters of an extract
BEFORE = 50  # of them at most before the first word that was asked for
SENTENCE_ENDS = (". ", "? ", "! ", ": ")


@dataclass(frozen=True)
class Part:
    """A stretch of text; whether it is what was asked for."""

    text: str
    is_hit: bool


@dataclass(frozen=True)
class Place:
    """A part of a document: its heading, the words, and where it opens."""

    anchor: str
    heading: Sequence[Part]
    parts: Sequence[Part]


def marked(text: str, question: Question, language: str) -> list[Part]:
    """All of a text."""
    return _cut(text, _hits(text, question, language), 0, len(text))


def place(passage: Passage, question: Question, language: str) -> Place:
    """The heading, and the stretch of the text with most of the words that were asked for."""
    heading = marked(passage.heading, question, language)
    return Place(passage.anchor, heading, extract(passage.text, question, language))


def extract(text: str, question: Question, language: str) -> list[Part]:
    hits = _hits(text, question, language)
    if not hits:
        return _cut(text, hits, 0, _end(text, 0))

    def worth(start: int) -> int:
        end = start + LENGTH - BEFORE
        return len({token for word, token in hits if start <= word.start and word.end <= end})

    first = max((word.start for word, _ in hits), key=lambda start: (worth(start), -start))
    start = _start(text, first)
    return _cut(text, hits, start, _end(text, start))


def _hits(text: str, question: Question, language: str) -> list[tuple[words.Word, str]]:
    """Words of the text that were asked for, each with the form in which it was."""
    wanted = {word for each in question.wanted for word in each.words}
    found = []
    for word in words.read(text):
        forms = (form for token in word.tokens for form in (token, words.stem(token, language)))
        token = next((form for form in forms if form in wanted), None)
        if token is not None:
            found.append((word, token))
    return found


def _start(text: str, first: int) -> int:
    """Where to begin: with the sentence, if that is near, or else with a word."""
    if first <= BEFORE:
        return 0
    near = text[first - BEFORE : first]
    ends = max(near.rfind(end) for end in SENTENCE_ENDS)
    return first - BEFORE + (ends + 2 if ends >= 0 else near.find(" ") + 1)


def _end(text: str, start: int) -> int:
    if len(text) <= start + LENGTH:
        return len(text)
    end = text.rfind(" ", start, start + LENGTH)
    return end if end > start else start + LENGTH


def _cut(text: str, hits: Sequence[tuple[words.Word, str]], start: int, end: int) -> list[Part]:
    parts = [Part("… ", False)] if start else []
    at = start
    for word, _ in hits:
        if word.start >= at and word.end <= end:
            parts += [Part(text[at : word.start], False), Part(text[word.start : word.end], True)]
            at = word.end
    parts.append(Part(text[at:end] + (" …" if end < len(text) else ""), False))
    return [part for part in parts if part.text]
