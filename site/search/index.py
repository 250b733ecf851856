"""What is searched, word by word, and the order of what is found.

Which documents have the words of a question the database says (`workers.search`). In which order they come is
decided here, from what each word counts in a document: in a title more than in a heading, there more than in
prose. So it is the same for both databases. A word that nobody has written is taken for those next to it.
"""

import hashlib
import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import pairwise
from threading import Lock

from django.utils.translation import override

from search import typos, words
from search.documents import (
    CONCEPT,
    ENDPOINT,
    MINE,
    PAPER,
    PROBLEM,
    SOURCES,
    TERM,
    Document,
    Passage,
    documents,
)


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
    ENDPOINT: Counts(title=4, heading=0, names=2, people=0, text=0.5),
    MINE: Counts(title=8, heading=0, names=8, people=0, text=1),
}
EXACT, FORM = 1.0, 0.85  # the word itself, a form of it
BEGINNING = (0.0, 0.2, 0.4, 0.6)  # what begins with so many letters of it, or with more
NEAR = (1.0, 0.6, 0.4)  # by how many letters off
IN_A_ROW = 1.5  # words that stand together as they were asked for
CALLED = 1.5  # what is known by just this name
HEADED = 3.0  # what a word in the heading of a part counts beside those in its text
MOST_PLACES = 2
MOST_WORDS = 8
MOST_NEAR = 6


@dataclass
class Wanted:
    """One word of a question, with all that it is taken for and how well that fits."""

    typed: str
    words: dict[str, float]
    prefix: str = ""
    corrected: str = ""

    @property
    def whole(self) -> list[str]:
        """The words that do not just begin with the prefix."""
        return [word for word in self.words if not self.prefix or not word.startswith(self.prefix)]


@dataclass(frozen=True)
class Question:
    wanted: tuple[Wanted, ...]
    name: str = ""  # as what is asked for may be called
    phrase: str = ""  # all of it in a row, if it is more than a word

    @property
    def corrections(self) -> list[tuple[str, str]]:
        return [(each.typed, each.corrected) for each in self.wanted if each.corrected]


@dataclass(frozen=True)
class Found:
    number: int
    document: Document
    score: float
    has_all: bool  # words of the question
    is_named: bool  # its title, and nothing else, was asked for


@dataclass
class Index:
    """Of one language, or of what somebody has."""

    language: str
    documents: Sequence[Document]
    weights: list[dict[str, float]] = field(default_factory=list)  # of each document: what a word counts
    titles: list[frozenset[str]] = field(default_factory=list)
    called: list[list[str]] = field(default_factory=list)  # titles and other names, as they may be asked for
    lengths: list[int] = field(default_factory=list)  # words of titles
    passages: list[list[tuple[Counter[str], Counter[str]]]] = field(default_factory=list)  # heading, text
    rows: list[str] = field(default_factory=list)  # all words of a document, as they follow each other
    held: Counter[str] = field(default_factory=Counter)  # in how many documents a word is
    written: Counter[str] = field(default_factory=Counter)  # the same, of words as they stand in texts

    def __post_init__(self) -> None:
        lengths = [sum(len(passage.text) for passage in each.passages) for each in self.documents]
        usual = max(1.0, sum(lengths) / max(1, len(lengths)))
        for each, length in zip(self.documents, lengths, strict=True):
            self._add(each, 0.3 + 0.7 * length / usual)
        self.listed = sorted(self.written)
        self.neighbours = typos.Neighbours(self.written)

    def _add(self, document: Document, length: float) -> None:
        counts = COUNTS[document.kind]
        title = {*self._tokens(document.title), *self._joined(document.title)}
        passages = [
            (self._tokens(passage.heading), self._tokens(passage.text)) for passage in document.passages
        ]
        people = [token for token in self._tokens(document.people) if len(token) > 1]  # no initials
        weights: defaultdict[str, float] = defaultdict(float)
        for tokens, counted in (
            (title, counts.title),
            ({token for heading, _ in passages for token in heading}, counts.heading),
            ({token for name in document.names for token in self._tokens(name)}, counts.names),
            (people, counts.people),
        ):
            for token in tokens:
                weights[token] += counted
        for token, times in sum((text for _, text in passages), self._tokens(document.said)).items():
            weights[token] += counts.text * times / (times + length)
        said = [document.title, document.said]
        said += [part for passage in document.passages for part in (passage.heading, passage.text)]
        self.rows.append(" . ".join(" ".join(word.tokens[0] for word in words.read(text)) for text in said))
        self.passages.append(passages)
        self.titles.append(frozenset(title))
        self.called.append([self._name(name) for name in (document.title, *document.names)])
        self.lengths.append(sum(max(1, len(word.tokens) - 1) for word in self._content(document.title)))
        self.weights.append(dict(weights))
        self.held.update(weights.keys())

    def _joined(self, text: str) -> list[str]:
        """Neighbours in one: some write KVcache."""
        every = [word.tokens[0] for word in words.iterate(text)]
        return [one + other for one, other in pairwise(every)]

    def _tokens(self, text: str) -> Counter[str]:
        """Words and what their forms have in common."""
        found: Counter[str] = Counter()
        for word in words.read(text):
            self.written.update(word.tokens)
            found.update(
                {each for token in word.tokens for each in (token, words.stem(token, self.language))}
            )
        return found

    def _content(self, text: str) -> list[words.Word]:
        """The words that say something, or all if none does."""
        every = list(words.iterate(text))
        stopwords = words.STOPWORDS.get(self.language, frozenset())
        return [each for each in every if each.tokens[0] not in stopwords] or every

    def _name(self, text: str) -> str:
        """The same for all ways to say it, nearly."""
        return " ".join(words.stem(word.tokens[0], self.language) for word in self._content(text))

    @cached_property
    def digest(self) -> str:
        whole = hashlib.sha256()
        for weights in self.weights:
            whole.update(" ".join(sorted(weights)).encode() + b"\n")
        return whole.hexdigest()

    def idf(self, each: Wanted) -> float:
        held = max((self.held[word] for word in each.words), default=0)
        return math.log(1 + (len(self.documents) - held + 0.5) / (held + 0.5))

    # --- The question -----------------------------------------------------------------------

    def question(self, text: str) -> Question:
        asked = self._content(text)[:MOST_WORDS]
        typed = [each.tokens for each in asked]
        wanted: list[Wanted] = []
        for number, tokens in enumerate(typed):
            beginning = BEGINNING[min(3, len(tokens[0]))] if number == len(typed) - 1 else 0
            beginning *= len(typed) > 1 or len(tokens[0]) > 1  # a letter alone is a sign
            wanted += self._wanted(tokens, text[asked[number].start : asked[number].end], beginning=beginning)
        for one, other in pairwise(wanted):  # soft max
            if (joined := one.typed.lower() + other.typed.lower()) in self.held:
                one.words.setdefault(joined, EXACT)
                other.words.setdefault(joined, EXACT)
        corrected = {each.typed.lower(): each.corrected for each in wanted if each.corrected}
        row = [corrected.get(each.tokens[0], each.tokens[0]) for each in words.iterate(text)]
        phrase = f" {' '.join(row)} "
        return Question(tuple(wanted), self._name(phrase), phrase if len(row) > 1 else "")

    def _wanted(self, tokens: Sequence[str], typed: str, *, beginning: float) -> list[Wanted]:
        """What a piece of the question stands for. beginning: how well what begins with it fits."""
        whole, *parts = tokens
        if known := self._known(whole, beginning):
            return [Wanted(typed, known, whole if beginning else "")]
        if parts:
            return [each for part in parts for each in self._wanted([part], part, beginning=0)]
        near = self.neighbours.of(whole, is_beginning=beginning > 0)[:MOST_NEAR]
        if (not near or near[0][1] > 1) and (pair := self._apart(whole)):
            return [Wanted(part, self._known(part, 0)) for part in pair]
        taken = {word: NEAR[distance] for word, distance in near}
        forms = {words.stem(word, self.language): FORM * fits for word, fits in taken.items()}
        return [Wanted(typed, {**forms, **taken}, corrected=near[0][0] if near else "")]

    def _known(self, word: str, beginning: float) -> dict[str, float]:
        """What is written of it: itself, a form of it and, of what may not be whole yet, how it goes on."""
        form = words.stem(word, self.language)
        known = dict.fromkeys(self._beginning(word), beginning) if beginning else {}
        known |= {form: FORM} if form in self.held else {}
        return known | ({word: EXACT} if word in self.held else {})

    def _beginning(self, word: str) -> list[str]:
        start = bisect_left(self.listed, word)
        end = bisect_left(self.listed, word + "\U0010ffff")
        return self.listed[start:end]

    def _apart(self, word: str) -> tuple[str, str] | None:
        """Two words that were written as one: kvcache."""
        pairs = [(word[:cut], word[cut:]) for cut in range(2, len(word) - 1)]
        pairs = [pair for pair in pairs if all(part in self.written and len(part) > 1 for part in pair)]
        return max(pairs, key=lambda pair: min(self.held[part] for part in pair), default=None)

    # --- The order --------------------------------------------------------------------------

    def ranked(self, question: Question, numbers: Sequence[int]) -> list[Found]:
        """These documents, best first; what has only some of the words after what has all of them."""
        rarity = [self.idf(each) for each in question.wanted]
        found = [self._scored(question, number, rarity) for number in numbers]
        return sorted(
            filter(lambda each: each.score > 0, found), key=lambda each: (not each.has_all, -each.score)
        )

    def _scored(self, question: Question, number: int, rarity: Sequence[float]) -> Found:
        weights, title, in_title, total, missing = self.weights[number], self.titles[number], 0.0, 0.0, 0
        for each, rare in zip(question.wanted, rarity, strict=True):
            fits = [(fit * weights[word], word) for word, fit in each.words.items() if word in weights]
            if not fits:
                missing += 1
                continue
            total += rare * max(fits)[0]
            in_title += max((each.words[word] for _, word in fits if word in title), default=0.0)
        covered = min(1.0, in_title / max(1, self.lengths[number]))
        share = 1 - missing / max(1, len(question.wanted))
        row = IN_A_ROW if question.phrase and question.phrase in f" {self.rows[number]} " else 1.0
        named, *called = (name == question.name for name in self.called[number])
        row *= CALLED if any(called) else 1.0
        return Found(
            number, self.documents[number], total * share * row * (1 + 2 * covered), not missing, named
        )

    def places(self, question: Question, number: int) -> list[Passage]:
        """The parts of a document that have most of the words, in headings first of all; of one that has none
        in its text, how it begins."""
        passages, scored = self.documents[number].passages, []
        for place, (heading, text) in enumerate(self.passages[number]):
            score = 0.0
            for each in question.wanted:
                times = sum(text[word] for word in each.words if word in text)
                score += times / (times + 2) + (HEADED if heading.keys() & each.words.keys() else 0)
            scored.append((score / 4 if passages[place].anchor == SOURCES else score, -place))
        best = [-place for score, place in sorted(scored, reverse=True)[:MOST_PLACES] if score > 0]
        return [passages[place] for place in best] or list(passages[:1])


_lock = Lock()


def index(language: str) -> Index:
    """Made once a process, of what it serves: it is as new as the pages are."""
    with _lock:
        return _index(language)


@cache
def _index(language: str) -> Index:
    with override(language):
        return Index(language, documents(language))
