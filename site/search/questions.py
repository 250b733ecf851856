"""What a question asks for: each of its words, with all that it may stand for among those that are written.

A word may be written in another form, be one of a pair that others write as one, go on (while it is typed) or
have a letter wrong. What nobody has written stands for those next to it.
"""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from search import words
from search.typos import Neighbours

EXACT, FORM = 1.0, 0.85  # how well it fits: the word itself, a form of it
BEGINNING = (0.0, 0.2, 0.4, 0.6)  # what begins with so many letters of it, or with more
NEAR = (1.0, 0.6, 0.4)  # what is so many letters off
MOST_WORDS = 8
MOST_NEAR = 6


@dataclass
class Wanted:
    """One word of a question; `words` are what it is taken for, and how well each fits."""

    typed: str
    words: dict[str, float]
    prefix: str = ""
    corrected: str = ""

    @property
    def whole(self) -> list[str]:
        """The words that do not just begin with the prefix."""
        return [word for word in self.words if not self.prefix or not word.startswith(self.prefix)]

    @property
    def marked(self) -> Collection[str]:
        """Those that are worth a mark where they stand: of “d”, not every word with that letter first."""
        return self.words if len(self.prefix) != 1 else [self.prefix, *self.whole]


@dataclass(frozen=True)
class Question:
    wanted: Sequence[Wanted] = ()
    name: str = ""  # as what is asked for may be called
    phrase: str = ""  # all of it in a row, if it is more than a word

    @property
    def corrections(self) -> list[tuple[str, str]]:
        return [(each.typed, each.corrected) for each in self.wanted if each.corrected]


class Vocabulary:
    """Of an index. held: all words that documents are found by, each with in how many; written: those of the
    texts, with how often."""

    def __init__(self, language: str, held: Mapping[str, int], written: Mapping[str, int]) -> None:
        self.language, self.held, self.written = language, held, written
        self.listed = sorted(written)
        self.neighbours = Neighbours(written)

    def question(self, text: str) -> Question:
        asked = words.content(text, self.language)[:MOST_WORDS]
        wanted: list[Wanted] = []
        for number, word in enumerate(asked):
            is_a_sign = len(asked) == 1 and len(word.tokens[0]) == 1  # a letter alone
            is_going_on = number == len(asked) - 1 and not is_a_sign
            wanted += self._wanted(word.tokens, text[word.start : word.end], is_going_on=is_going_on)
        del wanted[2 * MOST_WORDS :]
        for one, other in pairwise(wanted):  # soft max
            if (joined := one.typed.lower() + other.typed.lower()) in self.held:
                one.words.setdefault(joined, EXACT)
                other.words.setdefault(joined, EXACT)
        corrected = {each.typed.lower(): each.corrected for each in wanted if each.corrected}
        row = [corrected.get(word.tokens[0], word.tokens[0]) for word in words.iterate(text)]
        phrase = f" {' '.join(row)} "
        return Question(wanted, words.name(phrase, self.language), phrase if len(row) > 1 else "")

    def _wanted(self, tokens: Sequence[str], typed: str, *, is_going_on: bool = False) -> list[Wanted]:
        whole, *parts = tokens
        known = self._known(whole)
        begun = self._begun(whole)
        if known or (begun and is_going_on):
            return [Wanted(typed, {**begun, **known}, whole) if is_going_on else Wanted(typed, known)]
        if parts:
            return [each for part in parts for each in self._wanted([part], part)]
        near = self.neighbours.of(whole, is_beginning=is_going_on)[:MOST_NEAR]
        if (not near or near[0][1] > 1) and (pair := self._apart(whole)):
            return [Wanted(part, self._known(part)) for part in pair]
        if begun and not near:
            return [Wanted(typed, begun, whole)]
        taken = {word: NEAR[distance] for word, distance in near}
        forms = {words.stem(word, self.language): FORM * fits for word, fits in taken.items()}
        return [Wanted(typed, {**forms, **taken}, corrected=near[0][0] if near else "")]

    def _known(self, word: str) -> dict[str, float]:
        """The word and a form of it, as far as they are there."""
        form = words.stem(word, self.language)
        return {each: fits for each, fits in {form: FORM, word: EXACT}.items() if each in self.held}

    def _begun(self, word: str) -> dict[str, float]:
        start = bisect_left(self.listed, word)
        end = bisect_left(self.listed, word + "\U0010ffff")
        return dict.fromkeys(self.listed[start:end], BEGINNING[min(3, len(word))])

    def _apart(self, word: str) -> tuple[str, str] | None:
        """Two words that were written as one: crossattention."""
        pairs = [(word[:cut], word[cut:]) for cut in range(2, len(word) - 1)]
        pairs = [pair for pair in pairs if all(part in self.written for part in pair)]
        return max(pairs, key=lambda pair: min(self.held[part] for part in pair), default=None)
