"""Text as words to be searched by: the same of what is written and of what is asked.

A word is letters and digits, in lower case and without accents. Signs and formulas become words too: √ is
`sqrt`, α is `alpha`, ℓ is `l`, QKᵀ and QK^T are `qkt`, d_k is `dk`. What is written in one piece is found by
its pieces as well: `log-sum-exp`, `num_heads`, `FlashAttention`.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

# Letters and digits, possibly joined: d_k, log-sum-exp, QK^T, 65,504, torch.nn; or a sign that has a name.
LETTER = r"(?:[^\W_]|⊤)"
PIECE = re.compile(rf"{LETTER}+(?:(?:[_^’'‐‑-]|\.(?=[^\W\d])|(?<=\d),(?=\d\d\d)){LETTER}+)*|[√∞∑∏∂∇]")
JOINER = re.compile(r"[_^’'‐‑.,-]")
SIGNS = {"√": "sqrt", "∞": "inf", "∑": "sum", "∏": "product", "∂": "partial", "∇": "gradient"}
# Letters that no decomposition takes apart, and ⊤, which is how a T for “transposed” is set.
LETTERS = str.maketrans({"ł": "l", "ø": "o", "đ": "d", "ı": "i", "⊤": "t"})
CAMEL = re.compile(r"[A-Z]?[a-z]{2,}")
LONGEST = 40  # letters of a word; what follows says nothing

# Words that say nothing of a subject. A language without a list loses nothing but order.
ENGLISH = """
a an and are as at be but by can do does for from had has have how i if in into is it its my of on or our so
than that the their them then there these they this to use used using was we were what when where which who
why will with you your
"""
STOPWORDS = {"en": frozenset(ENGLISH.split())}


@dataclass(frozen=True, slots=True)
class Word:
    """A piece of a text, where it stands, and what it is found by: first of all its own words in one."""

    start: int
    end: int
    tokens: tuple[str, ...]


@lru_cache(maxsize=8192)
def read(text: str) -> tuple[Word, ...]:
    """Of a text of the site, from which extracts will be made. What is typed is not kept: see `iterate`."""
    return tuple(iterate(text))


def iterate(text: str) -> Iterator[Word]:
    for match in PIECE.finditer(text):
        if tokens := _tokens(match[0]):
            yield Word(match.start(), match.end(), tokens)


def content(text: str, language: str) -> Sequence[Word]:
    """The words that say something, or all if none does."""
    every = list(iterate(text))
    stopwords = STOPWORDS.get(language, frozenset())
    return [each for each in every if each.tokens[0] not in stopwords] or every


def name(text: str, language: str) -> str:
    """The same for all ways to say it, nearly."""
    return "".join(stem(word.tokens[0], language) for word in content(text, language))


@lru_cache(maxsize=30_000)  # pieces repeat: most are words of the language
def _tokens(piece: str) -> tuple[str, ...]:
    if piece in SIGNS:
        return (SIGNS[piece],)
    parts = [folded for part in JOINER.split(piece) if (folded := _folded(part))]
    whole = "".join(parts)[:LONGEST]
    if len(parts) == 1:
        camel = CAMEL.findall(piece)
        parts = [part.lower() for part in camel] if "".join(camel) == piece and len(camel) > 1 else []
        parts = parts if all(len(part) > 2 for part in parts) else []
    elif all(part.isdigit() for part in parts):
        parts = []  # thousands, set apart
    found = [whole, *(part[:LONGEST] for part in parts if len(part) > 1)]
    return tuple(dict.fromkeys(found)) if whole else ()


def _folded(part: str) -> str:
    if part.isascii():
        return part.lower()
    if len(part) == 1 and (name := unicodedata.name(part, "")).startswith("GREEK"):
        return name.split(" WITH ")[0].rpartition(" ")[2].lower()
    apart = unicodedata.normalize("NFKD", part).casefold().translate(LETTERS)
    return "".join(letter for letter in unicodedata.normalize("NFKD", apart) if letter.isalnum())


@lru_cache(maxsize=30_000)
def stem(word: str, language: str) -> str:
    """What the forms of a word have in common, roughly. Where the language is not known, the word itself."""
    if language != "en" or len(word) < 4 or not word.isalpha():
        return word
    word = word.replace("iz", "is")
    if word.endswith("ies") and len(word) > 4:
        word = word[:-3] + "y"
    elif word.endswith("s") and word[-2] not in "sui" and word[-2:] not in ("as", "os"):
        word = word[:-1]
    for ending in ("ation", "ing", "ed"):
        rest = word.removesuffix(ending)
        if rest != word and len(rest) > 2 and re.search("[aeiouy]", rest) and not word.endswith("eed"):
            word = rest
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeioulsz":
        word = word[:-1]
    return word[:-1] if word.endswith("e") and len(word) > 3 else word
