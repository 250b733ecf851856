"""Reading numbers that people paste: JSON, CSV, whitespace rows, numpy and torch printouts.

`parse` turns text into the nested lists of the REST body (rank 1 to 4 and beyond: what the ranks
mean is for `kernels.spec` to judge). Non-finite numbers become the strings "inf", "-inf", "nan", as
in a REST body. Everything wrong raises `MatrixError`, which says where (line and column, from 1).
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias, Union

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

# Longer texts belong in a file: a browser chokes on them before we do.
MAX_CHARACTERS = 1_000_000
MAX_DEPTH = 16

Number: TypeAlias = int | float | str | bool
Nested: TypeAlias = list[Union[Number, "Nested"]]

MINUS = "\u2212"  # what typeset pages (ours too) print instead of a hyphen
PREFIX = re.compile(
    r"\s*(?:[A-Za-z_]\w*\s*[=:]\s*)?"  # q =
    r"(?:Parameter\s+containing:\s*)?"
    r"(?P<call>(?:(?:np|numpy|torch|jnp|jax\.numpy|mx|tf)\.)?(?:array|asarray|tensor|Tensor|Array|constant)\s*\()?"
)
# `, dtype=float32)` and the like. One way only to read each space: text is sent by anybody, and a pattern
# that can share a run of spaces between two parts takes the square of its length to fail.
SUFFIX = re.compile(
    r"(?:\s*,\s*\w+\s*=\s*(?:<[^<>]*>|\([^()]*\)|'[^']*'|\"[^\"]*\"|[\w.:]+))*(?:\s*,)?\s*\)(?:\s*;)?"
)
MAX_SUFFIX = 1_000  # characters; what numpy and torch print after the last bracket is shorter
# What a word is comes after it was cut out: a pattern with a look-ahead would read long digits again and
# again.
TOKEN = re.compile(
    r"""(?P<newline>\n)
    |(?P<space>[^\S\n]+)
    |(?P<open>[\[(])
    |(?P<close>[\])])
    |(?P<separator>[,;])
    |(?P<ellipsis>\.\.\.|…)
    |(?P<comment>\#[^\n]*)
    |(?P<word>[^\s,;\[\]()]+)""",
    re.VERBOSE,
)
NUMBER = re.compile(rf"[+\-{MINUS}]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+\-{MINUS}]?\d+)?")
SPECIAL = re.compile(rf"""["']?[+\-{MINUS}]?(?:inf(?:inity)?|nan)["']?""", re.IGNORECASE)


class MatrixError(ValueError):
    """What is wrong with a pasted text, and where."""

    def __init__(self, detail: str, text: str, offset: int) -> None:
        before = text[:offset]
        self.detail = detail
        self.offset = offset
        self.line = before.count("\n") + 1
        self.column = offset - (before.rfind("\n") + 1) + 1
        place = _("Line {line}, column {column}: {detail}")
        super().__init__(place.format(line=self.line, column=self.column, detail=detail))


@dataclass
class Level:
    """A list that is being read."""

    offset: int
    bracket: str = "["
    items: Nested = field(default_factory=list)
    item_shape: tuple[int, ...] | None = None  # of the first item; () is a number
    after_separator: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.items), *(self.item_shape or ()))


BOOLEANS = {"true": True, "false": False}


def parse(text: str, *, booleans: bool = False) -> Nested:
    """Nested lists from a pasted text; with `booleans`, true and false are values too. Raises MatrixError."""
    if len(text) > MAX_CHARACTERS:
        detail = _("{count:,} characters are more than a text box holds ({limit:,}): upload a file instead.")
        raise MatrixError(detail.format(count=len(text), limit=MAX_CHARACTERS), text, 0)
    if not text.strip():
        raise MatrixError(_("nothing to read: paste one row per line, or [[1, 0], [0, 1]]."), text, 0)
    prefix = PREFIX.match(text)
    start = prefix.end() if prefix else 0
    start += len(text[start:]) - len(text[start:].lstrip())
    if text.startswith(("[", "("), start):
        return parse_brackets(text, start, in_call=bool(prefix and prefix["call"]), booleans=booleans)
    return parse_rows(text, booleans=booleans)


def tokens(text: str, start: int, end: int, *, booleans: bool = False) -> Iterator[tuple[str, str, int]]:
    """(kind, word, offset) of each token of text[start:end]; what cannot be part of any matrix raises."""
    for match in TOKEN.finditer(text, start, end):
        kind = match.lastgroup or ""
        if kind in {"space", "comment"}:
            continue
        if kind == "ellipsis":
            raise MatrixError(shortened(), text, match.start())
        if kind == "word":
            kind = kind_of(match.group())
            if booleans and match.group().lower() in BOOLEANS:
                kind = "boolean"
            if kind == "word":
                raise MatrixError(not_a_number(match.group()), text, match.start())
        yield kind, match.group(), match.start()


def kind_of(word: str) -> str:
    """What a word is: "number", "special" (inf and nan), or neither and still "word"."""
    if NUMBER.fullmatch(word):
        return "number"
    return "special" if SPECIAL.fullmatch(word) else "word"


def shortened() -> str:
    return _(
        "“...” stands for numbers that the printout left out. Print all of them: "
        "np.set_printoptions(threshold=sys.maxsize) or torch.set_printoptions(profile='full'), "
        "or print array.tolist(), or upload the array as a .npy file."
    )


def not_a_number(word: str) -> str:
    if "..." in word or "…" in word:
        return shortened()
    shown = brief(word)
    if word.strip("\"'").lower() in {"true", "false", "none", "null"}:
        return _("“{word}” is not a number: write 1 or 0.").format(word=shown)
    if word.lower().endswith("j"):
        return _("“{word}” is complex; attention takes real numbers.").format(word=shown)
    return _("“{word}” is not a number.").format(word=shown)


def brief(word: str) -> str:
    """A word as it can be quoted in a sentence."""
    return word if len(word) <= 24 else word[:23] + "…"


def number(kind: str, word: str, text: str, offset: int) -> Number:
    """The value of a number token; inf and nan in the spelling of the REST body."""
    if kind == "boolean":
        return BOOLEANS[word.lower()]
    plain = word.strip("\"'").replace(MINUS, "-")
    if kind == "special":
        name = "nan" if plain.lstrip("+-")[0] in "nN" else "inf"
        return "-inf" if name == "inf" and plain.startswith("-") else name
    if plain.lstrip("+-").isdigit() and len(plain) <= 16:
        return int(plain)
    value = float(plain)
    if math.isinf(value):
        detail = _("{word} is larger than the largest float64, about 1.8e308.")
        raise MatrixError(detail.format(word=brief(word)), text, offset)
    return value


# --- Brackets: JSON, Python, numpy, torch ---------------------------------------------------------


def parse_brackets(text: str, start: int, *, in_call: bool, booleans: bool) -> Nested:
    """Nested brackets; items may be separated by commas or by space alone."""
    levels = [Level(start)]  # the outermost collects rows that were pasted one list after the other
    for kind, word, offset in tokens(text, start, end_of_brackets(text, in_call), booleans=booleans):
        if kind == "newline":
            continue
        if kind == "open":
            open_level(levels, word, text, offset)
        elif kind == "close":
            close_level(levels, word, text, offset)
        elif kind == "separator":
            separate(levels[-1], word, text, offset)
        else:
            add_item(levels[-1], number(kind, word, text, offset), (), text, offset)
    if len(levels) > 1:
        detail = _("this “{bracket}” is never closed: is the text cut off?")
        raise MatrixError(detail.format(bracket=levels[-1].bracket), text, levels[-1].offset)
    root = levels[0].items
    only = root[0] if len(root) == 1 else None
    return only if isinstance(only, list) else root


def end_of_brackets(text: str, in_call: bool) -> int:
    """Where the brackets of a printout end and `, dtype=float32)` begins."""
    end = text.rfind("]") + 1
    suffix = text[end:].strip()
    return end if in_call and len(suffix) <= MAX_SUFFIX and SUFFIX.fullmatch(suffix) else len(text)


def open_level(levels: list[Level], bracket: str, text: str, offset: int) -> None:
    if len(levels) > MAX_DEPTH:
        raise MatrixError(_("nested deeper than any array that attention takes."), text, offset)
    if levels[-1].item_shape == ():
        raise MatrixError(_("a list among plain numbers: every row must be a list."), text, offset)
    levels.append(Level(offset, bracket))


def close_level(levels: list[Level], bracket: str, text: str, offset: int) -> None:
    if len(levels) == 1:
        raise MatrixError(_("this “{bracket}” closes nothing.").format(bracket=bracket), text, offset)
    if (levels[-1].bracket == "[") != (bracket == "]"):
        detail = _("“{open}” is closed by “{close}”.").format(open=levels[-1].bracket, close=bracket)
        raise MatrixError(detail, text, offset)
    done = levels.pop()
    add_item(levels[-1], done.items, done.shape, text, done.offset)


def separate(level: Level, word: str, text: str, offset: int) -> None:
    if word == ";":
        raise MatrixError(_("“;” between items: use a comma, and a list for each row."), text, offset)
    if level.after_separator or not level.items:
        raise MatrixError(_("a number is missing before this comma."), text, offset)
    level.after_separator = True


def add_item(level: Level, item: Number | Nested, shape: tuple[int, ...], text: str, offset: int) -> None:
    if level.item_shape is None:
        level.item_shape = shape
    elif level.item_shape != shape:
        raise MatrixError(uneven(shape, level.item_shape), text, offset)
    level.items.append(item)
    level.after_separator = False


def uneven(shape: tuple[int, ...], first: tuple[int, ...]) -> str:
    if shape == ():
        return _("a plain number among lists: every row must be a list.")
    if len(shape) == len(first) == 1:
        detail = ngettext(
            "this row has {count} number; the first row has {first}.",
            "this row has {count} numbers; the first row has {first}.",
            shape[0],
        )
        return detail.format(count=shape[0], first=first[0])
    return _("this part is {shape}; the first one is {first}.").format(shape=times(shape), first=times(first))


def times(shape: tuple[int, ...]) -> str:
    """(8, 64, 2) -> 8 × 64 × 2"""
    return " × ".join(f"{size:,}" for size in shape)


# --- Rows: CSV, TSV, columns of a terminal --------------------------------------------------------


def parse_rows(text: str, *, booleans: bool) -> Nested:
    """One row per line; a blank line starts the next head, so that rank 3 needs no brackets."""
    heads: list[Level] = [Level(0)]
    offset = 0
    for line in text.split("\n"):
        if not line.strip():
            if heads[-1].items:
                heads.append(Level(offset))
        elif not line.lstrip().startswith("#"):
            row = parse_row(text, offset, line, booleans=booleans)
            add_item(heads[-1], row, (len(row),), text, offset + len(line) - len(line.lstrip()))
        offset += len(line) + 1
    outer = Level(0)
    for head in heads:
        if head.items:
            add_item(outer, head.items, head.shape, text, head.offset + 1)
    if not outer.items:
        raise MatrixError(_("only comments, no numbers."), text, 0)
    only = outer.items[0] if len(outer.items) == 1 else None
    return only if isinstance(only, list) else outer.items


def parse_row(text: str, start: int, line: str, *, booleans: bool = False) -> Nested:
    """The numbers of one line, separated by commas, semicolons, tabs or spaces."""
    if "," in line and ";" in line:
        detail = _("both “,” and “;”: if the comma is a decimal point, write a point.")
        raise MatrixError(detail, text, start + line.index(","))
    row: Nested = []
    pending = True  # a separator here would leave an empty cell before it
    for kind, word, offset in tokens(text, start, start + len(line), booleans=booleans):
        if kind in {"open", "close"}:
            detail = _("a “{word}” among bare rows: give every row brackets or none.").format(word=word)
            raise MatrixError(detail, text, offset)
        if kind == "separator":
            if pending:
                raise MatrixError(_("an empty cell before this “{word}”.").format(word=word), text, offset)
            pending = True
        else:
            row.append(number(kind, word, text, offset))
            pending = False
    return row


# --- Back to text ---------------------------------------------------------------------------------


def to_text(values: object, indent: int = 0) -> str:
    """Nested lists as JSON with one row per line, the way `parse` and a REST client read them."""
    if isinstance(values, bool):
        return "true" if values else "false"
    if not isinstance(values, list):
        return f'"{values}"' if isinstance(values, str) else repr(values)
    if not values or not isinstance(values[0], list):
        return "[" + ", ".join(to_text(value) for value in values) + "]"
    inner = (",\n" + " " * (indent + 1)).join(to_text(value, indent + 1) for value in values)
    return f"[{inner}]"
