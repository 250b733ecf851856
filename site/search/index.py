"""What is searched, and the order of what is found.

Which documents have the words of a question the database says (`workers.search`). In which order they come is
decided here, from what each word counts in a document: in a title more than in a heading, there more than in
prose. So it is the same for both databases.
"""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from threading import Lock

from django.utils.translation import override

from search import words
from search.documents import (
    CONCEPT,
    ENDPOINT,
    MINE,
    PAPER,
    PLACE,
    PROBLEM,
    SOURCES,
    TERM,
    Document,
    Passage,
    documents,
)
from search.questions import Question, Vocabulary, Wanted


@dataclass(frozen=True)
class Counts:
    """What a word counts in the parts of a document."""

    title: float
    heading: float
    names: float
    people: float
    text: float


COUNTS = {
    CONCEPT: Counts(title=12, heading=5, names=4, people=2, text=1.5),
    TERM: Counts(title=6, heading=0, names=4, people=0, text=1),
    PAPER: Counts(title=5, heading=0, names=0, people=4, text=1),
    PROBLEM: Counts(title=4, heading=1.5, names=1.5, people=0, text=0.7),
    PLACE: Counts(title=6, heading=3, names=0, people=0, text=0.8),
    ENDPOINT: Counts(title=4, heading=0, names=2, people=0, text=0.5),
    MINE: Counts(title=8, heading=0, names=8, people=0, text=1),
}
# What makes it more: words that stand together as they were asked for, just this name, all of the title.
IN_A_ROW, CALLED, COVERED = 1.5, 2.0, 3.0
HEADED, CLAIMED = 3.0, 1.0  # what a word in the heading of a part counts beside those in its text
LISTED = 0.25  # what a part that only lists sources counts
MOST_PLACES = 2


@dataclass(frozen=True)
class Entry:
    """A document as it is searched."""

    document: Document
    weights: dict[str, float]  # what each word counts
    title: frozenset[str]
    title_length: int  # its words that say something
    names: tuple[str, ...]  # its title and what else it is called, as it may be asked for
    row: str  # all words as they follow each other
    passages: tuple[tuple[Counter[str], Counter[str]], ...]  # words of heading and text


@dataclass(frozen=True)
class Found:
    entry: Entry
    score: float
    has_all: bool  # words of the question
    is_named: bool  # its title, and nothing else, was asked for

    @property
    def document(self) -> Document:
        return self.entry.document


class Index:
    """Of one language, or of what somebody has."""

    def __init__(self, language: str, documents: Sequence[Document]) -> None:
        self.language = language
        self.written: Counter[str] = Counter()  # words as they stand in texts
        lengths = [sum(len(passage.text) for passage in each.passages) for each in documents]
        usual = max(1.0, sum(lengths) / max(1, len(lengths)))
        self.entries = [
            self._entry(each, 0.3 + 0.7 * length / usual)
            for each, length in zip(documents, lengths, strict=True)
        ]
        self.held = Counter(word for each in self.entries for word in each.weights)  # in how many documents
        self.vocabulary = Vocabulary(language, self.held, self.written)

    def _entry(self, document: Document, length: float) -> Entry:
        """length: of its text, in that of the usual one; in a long text a word says less."""
        counts = COUNTS[document.kind]
        title = {*self._tokens(document.title), *_joined(document.title)}
        passages = tuple((self._tokens(each.heading), self._tokens(each.text)) for each in document.passages)
        sections = [each.heading for each in document.passages if each.is_section]
        headings = {word for heading in sections for word in self._tokens(heading)}
        people = {word for word in self._tokens(document.people) if len(word) > 1}  # no initials
        weights: defaultdict[str, float] = defaultdict(float)
        for some, counted in (
            (title, counts.title),
            (headings, counts.heading),
            ({word for name in document.names for word in self._tokens(name)}, counts.names),
            (people, counts.people),
        ):
            for word in some:
                weights[word] += counted
        claims = [each.heading for each in document.passages if not each.is_section]
        said = sum((self._tokens(claim) for claim in claims), self._tokens(document.said))
        for word, times in sum((text for _, text in passages), said).items():
            weights[word] += counts.text * times / (times + length)
        texts = [document.title, document.said]
        texts += [text for each in document.passages for text in (each.heading, each.text)]
        return Entry(
            document,
            dict(weights),
            frozenset(title),
            sum(max(1, len(word.tokens) - 1) for word in words.content(document.title, self.language)),
            tuple(words.name(name, self.language) for name in (document.title, *document.names)),
            " . ".join(" ".join(word.tokens[0] for word in words.read(text)) for text in texts),
            passages,
        )

    def _tokens(self, text: str) -> Counter[str]:
        """Words, and what their forms have in common."""
        found: Counter[str] = Counter()
        for word in words.read(text):
            self.written.update(word.tokens)
            found.update({*word.tokens, *(words.stem(token, self.language) for token in word.tokens)})
        return found

    @cached_property
    def digest(self) -> str:
        whole = hashlib.sha256()
        for each in self.entries:
            whole.update(" ".join(sorted(each.weights)).encode() + b"\n")
        return whole.hexdigest()

    def ranked(self, question: Question, numbers: Sequence[int]) -> list[Found]:
        """These documents, best first; what has only some of the words after what has all of them."""
        rarity = [self._rarity(each) for each in question.wanted]
        found = [_found(self.entries[number], question, rarity) for number in numbers]
        return sorted(
            (each for each in found if each.score), key=lambda each: (not each.has_all, -each.score)
        )

    def _rarity(self, each: Wanted) -> float:
        held = max((self.held[word] for word in each.words), default=0)
        return math.log(1 + (len(self.entries) - held + 0.5) / (held + 0.5))


def _joined(text: str) -> list[str]:
    """Neighbours in one: some write KVcache."""
    return [one.tokens[0] + other.tokens[0] for one, other in pairwise(words.read(text))]


def _found(entry: Entry, question: Question, rarity: Sequence[float]) -> Found:
    score, in_title, missing = 0.0, 0.0, 0
    for each, rare in zip(question.wanted, rarity, strict=True):
        fits = [
            (each.words[word] * entry.weights[word], word)
            for word in each.words.keys() & entry.weights.keys()
        ]
        if not fits:
            missing += 1
            continue
        score += rare * max(fits)[0]
        in_title += max((each.words[word] for _, word in fits if word in entry.title), default=0.0)
    is_named, *is_called = (name == question.name for name in entry.names)
    score *= 1 - missing / max(1, len(question.wanted))
    score *= 1 + (COVERED - 1) * min(1.0, in_title / max(1, entry.title_length))
    score *= IN_A_ROW if question.phrase and question.phrase in f" {entry.row} " else 1
    score *= CALLED if any(is_called) else 1
    return Found(entry, score, not missing, is_named)


def places(entry: Entry, question: Question) -> Sequence[Passage]:
    """The parts of a document that have most of the words, in headings first of all; of one that has none in
    its text, how it begins."""
    passages, scored = entry.document.passages, []
    for place, (heading, text) in enumerate(entry.passages):
        headed = HEADED if passages[place].is_section else CLAIMED
        score = 0.0
        for each in question.wanted:
            times = sum(text[word] for word in each.words.keys() & text.keys())
            score += times / (times + 2) + (headed if heading.keys() & each.words.keys() else 0)
        scored.append((score * (LISTED if passages[place].anchor == SOURCES else 1), -place))
    best = [-place for score, place in sorted(scored, reverse=True)[:MOST_PLACES] if score > 0]
    return [passages[place] for place in best] or passages[:1]


_lock = Lock()


def index(language: str) -> Index:
    """Made once a process, of what it serves: it is as new as the pages are."""
    with _lock:
        return _index(language)


@cache
def _index(language: str) -> Index:
    with override(language):
        return Index(language, documents(language))
