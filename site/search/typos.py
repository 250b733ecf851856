"""Words next to one that nobody has written: a letter too many, too few, another, or two swapped."""

from collections import defaultdict
from collections.abc import Mapping

LONG = 8  # letters from which on two of them may be wrong
SHORT = 4  # and below this none may
MOST_LETTERS = 24


class Neighbours:
    """Of a vocabulary: words with how often each is there."""

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        self.times = vocabulary
        self.by_length: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for word in vocabulary:
            if word.isalpha() and len(word) >= SHORT - 1:
                self.by_length[len(word)].append((word, _letters(word)))

    def of(self, word: str, *, is_beginning: bool = False) -> list[tuple[str, int]]:
        """The nearest, each with how many letters it is off; those first that are there more often. With
        `is_beginning` also what a word that is not whole yet may go on to."""
        if not SHORT <= len(word) <= MOST_LETTERS or not word.isalpha():
            return []
        most = 2 if len(word) >= LONG else 1
        near = self._within(word, most)
        if not near and is_beginning and len(word) > SHORT:
            near = self._beginning(word, 1)
        best = min((off for _, off in near), default=0)
        nearest = [one for one in near if one[1] == best]
        return sorted(nearest, key=lambda one: (-self.times[one[0]], one[0]))

    def _within(self, word: str, most: int) -> list[tuple[str, int]]:
        letters = _letters(word)
        near = []
        for length in range(len(word) - most, len(word) + most + 1):
            for other, its in self.by_length.get(length, ()):
                # A letter that only one of them has needs an edit; one edit explains two of these at most.
                if (letters ^ its).bit_count() <= 2 * most and (off := distance(word, other, most)) <= most:
                    near.append((other, off))
        return near

    def _beginning(self, word: str, most: int) -> list[tuple[str, int]]:
        letters = _letters(word)
        near = []
        for length, others in self.by_length.items():
            if length <= len(word) + most:
                continue
            for other, its in others:
                if (letters & ~its).bit_count() <= most:
                    off = min(distance(word, other[: len(word) + more], most) for more in (0, 1, -1))
                    if off <= most:
                        near.append((other, off))
        return near


def _letters(word: str) -> int:
    """The set of its letters, in bits (those of other alphabets share them: it only sorts out)."""
    bits = 0
    for letter in word:
        bits |= 1 << (ord(letter) % 32)
    return bits


def distance(one: str, other: str, most: int = MOST_LETTERS) -> int:
    """Letters left out, put in, changed, or swapped with the next (optimal string alignment). Of more than
    `most` it is only said that they are more."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        row = [i]
        for j, its in enumerate(other, 1):
            best = last[j - 1] if letter == its else 1 + min(last[j], row[j - 1], last[j - 1])
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == its:
                best = min(best, before[j - 2] + 1)
            row.append(best)
        if min(row) > most and min(last) > most:  # a swap reaches back two rows
            return most + 1
        before, last = last, row
    return last[-1]
