"""What a reader can set in a figure: numbers, choices, switches, words, small matrices.

Each control reads its own parameters of the query string, says what is wrong with them, draws itself, and
writes the shortest query string that reads back the same. A value that cannot be read never stops a figure:
the message says what is wrong and what is shown instead.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from django.template.loader import render_to_string
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from concepts.figures import parts
from concepts.figures.numbers import MatrixInput, Rows, plain, read_matrix, show, to_json

T = TypeVar("T")
Text = str | Promise  # a sentence, perhaps to be translated when it is shown
MAX_SHOWN = 20  # characters of what was typed that a message repeats
MAX_FIND = 60  # characters of the words that are looked for
SLIDER_STEPS = 200
CELLS = re.compile(r"[1-9]{2}(\.[1-9]{2}){0,80}")


@dataclass(frozen=True)
class Reading(Generic[T]):
    """What a query string says of one control: its value, and as it was typed, to be shown again."""

    value: T
    text: str
    #: by the key of the input that is wrong ("" where there is one input), the message
    problems: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Control(Generic[T]):
    """`name` is that of its parameter; in a page its id is `prefix-name`."""

    name: str
    label: Text
    usual: T
    template: ClassVar[str]

    def read(self, params: Mapping[str, str]) -> Reading[T]:
        raise NotImplementedError

    def query(self, value: T) -> list[tuple[str, str]]:
        """Parameters that say this value; none for the usual one."""
        return [] if value == self.usual else [(self.name, self.write(value))]

    def write(self, value: T) -> str:
        """The value as a parameter."""
        return str(value)

    def render(self, reading: Reading[T], prefix: str) -> SafeString:
        context = {"control": self, "reading": reading, **self.context(reading, prefix)}
        context |= self.messages(reading, prefix)
        return SafeString(render_to_string(f"concepts/controls/{self.template}.html", context))

    def context(self, reading: Reading[T], prefix: str) -> dict[str, Any]:
        """What else its template needs."""
        return {}

    def messages(self, reading: Reading[T], prefix: str) -> dict[str, Any]:
        pairs = [(f"{prefix}-{key or self.name}", message) for key, message in reading.problems.items()]
        return {"id": f"{prefix}-{self.name}", "messages": pairs}

    def told_elsewhere(self, reading: Reading[T], prefix: str) -> SafeString:
        """Its messages alone, which htmx puts in their place beside it."""
        context = {"oob": True, **self.messages(reading, prefix)}
        return SafeString(render_to_string("concepts/controls/problems.html", context))


def brief(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


@dataclass(frozen=True)
class Number(Control[float]):
    """A number from `low` to `high`: a box, and where there is JavaScript a slider that moves it.

    The slider of a number that `is_log` moves it by equal factors. `unit` is written behind the box.
    """

    low: float
    high: float
    step: float = 1.0
    unit: Text = ""
    is_log: bool = False
    template = "number"

    @property
    def is_whole(self) -> bool:
        return float(self.step).is_integer() and float(self.low).is_integer()

    def read(self, params: Mapping[str, str]) -> Reading[float]:
        if self.name not in params:
            return Reading(self.kind(self.usual), plain(self.usual))
        text = params[self.name].strip()
        value = to_number(text)
        if math.isnan(value):
            return self._instead(self.usual, text, _("“%(text)s” is not a number."))
        nearest = min(max(value, self.low), self.high)
        if nearest != value:
            return self._instead(nearest, text, _("%(text)s is outside %(low)s to %(high)s."))
        if self.is_whole and value != round(value):
            return self._instead(self._step(value), text, _("%(text)s is not a whole number."))
        if self.is_whole and value != self._step(value):
            told = _("%(text)s is not one of %(low)s, %(next)s and so on to %(high)s.")
            return self._instead(self._step(value), text, told)
        return Reading(self.kind(value), plain(value + 0.0))

    def _step(self, value: float) -> float:
        """The nearest value that the box can be stepped to."""
        return self.low + round((value - self.low) / self.step) * self.step

    def _instead(self, value: float, text: str, problem: str) -> Reading[float]:
        limits = {"low": self.low, "high": self.high, "next": self.low + self.step}
        words = problem % {"text": brief(text), **{name: show(one, 3) for name, one in limits.items()}}
        told = _("%(problem)s The figure shows %(value)s.") % {"problem": words, "value": show(value)}
        return Reading(self.kind(value), text[:40], {"": told})

    def kind(self, value: float) -> float:
        return round(value) if self.is_whole else float(value)

    def write(self, value: float) -> str:
        return plain(value)

    def context(self, reading: Reading[float], prefix: str) -> dict[str, Any]:
        move = math.log if self.is_log else float
        low, high = move(self.low), move(self.high)
        step = (high - low) / SLIDER_STEPS if self.is_log else self.step
        at = {"low": low, "high": high, "step": step, "at": move(reading.value)}
        return {
            "box": {
                "low": plain(self.low),
                "high": plain(self.high),
                "step": plain(self.step) if self.is_whole else "any",
                "grain": plain(self.step),
            },
            "slide": {name: f"{value:.8g}" for name, value in at.items()},
        }


def to_number(text: str) -> float:
    """A finite number as people write it, or nan."""
    try:
        value = float(text.replace("−", "-")) if len(text) <= 40 and "_" not in text else math.nan
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


@dataclass(frozen=True)
class Choice(Control[str]):
    """One of a few; `options` are (value, words)."""

    options: Sequence[tuple[str, Text]]
    template = "choice"

    def read(self, params: Mapping[str, str]) -> Reading[str]:
        text = params.get(self.name, self.usual)
        words = dict(self.options)
        if text in words:
            return Reading(text, text)
        told = _("“%(text)s” is none of the choices. The figure shows “%(usual)s”.")
        return Reading(self.usual, self.usual, {"": told % {"text": brief(text), "usual": words[self.usual]}})


@dataclass(frozen=True)
class Menu(Choice):
    """One of many."""

    template = "menu"


@dataclass(frozen=True)
class Switch(Control[bool]):
    """Yes or no."""

    template = "switch"

    def read(self, params: Mapping[str, str]) -> Reading[bool]:
        value = params.get(self.name, self.write(self.usual)) not in ("", "0")
        return Reading(value, self.write(value))

    def write(self, value: bool) -> str:
        return str(int(value))

    def told_elsewhere(self, reading: Reading[bool], prefix: str) -> SafeString:
        """Nothing, since whatever is sent can be read: there is no place for messages beside it."""
        return parts.EMPTY


@dataclass(frozen=True)
class Words(Control[tuple[str, ...]]):
    """A few words, separated by spaces: the tokens of a sentence."""

    most: int = 8
    longest: int = 12
    template = "words"

    def read(self, params: Mapping[str, str]) -> Reading[tuple[str, ...]]:
        text = params.get(self.name, self.write(self.usual))
        words = tuple(text.split())
        if not words:
            told = _("Nothing is typed in: the figure shows the usual words.")
            return Reading(self.usual, "", {"": told})
        kept = tuple(word[: self.longest] for word in words[: self.most])
        if kept == words:
            return Reading(kept, text[:200])
        told = ngettext(
            "%(most)d word of at most %(longest)d letters fits; the figure shows what fits.",
            "At most %(most)d words of %(longest)d letters fit; the figure shows what fits.",
            self.most,
        )
        return Reading(kept, text[:200], {"": told % {"most": self.most, "longest": self.longest}})

    def write(self, value: tuple[str, ...]) -> str:
        return " ".join(value)


@dataclass(frozen=True)
class Find(Control[str]):
    """Words that a row must have, all of them; none is every row."""

    template = "words"

    def read(self, params: Mapping[str, str]) -> Reading[str]:
        text = " ".join(params.get(self.name, self.usual).split())
        if len(text) <= MAX_FIND:
            return Reading(text, text)
        told = _("At most %(most)d letters are looked for; the rest is left out.") % {"most": MAX_FIND}
        return Reading(text[:MAX_FIND], text[:MAX_FIND], {"": told})


@dataclass(frozen=True)
class MatrixReading(Reading[Rows]):
    """Of a matrix also every cell as it was typed."""

    typed: MatrixInput = field(default_factory=lambda: MatrixInput("", []))


@dataclass(frozen=True)
class Matrix(Control[Rows]):
    """A small matrix of number boxes, of one shape; its name is a letter.

    `row_head` makes the head of a row, whose number is an `i` (a query) or a `j` (a key) of the cell that the
    matrices of a figure share. Where a cell is wrong the usual number stands in for it. Columns that mean
    something have `columns`, words for them.
    """

    row_head: Callable[[int], SafeString]
    coordinate: str = "j"
    columns: Sequence[Text] = ()
    template = "matrix"

    def read(self, params: Mapping[str, str]) -> MatrixReading:
        typed = read_matrix(self.name, params, self.usual)
        if (len(typed.texts), len(typed.texts[0])) != (len(self.usual), len(self.usual[0])):
            typed = read_matrix(self.name, {}, self.usual)
            told = _(
                "%(label)s has %(rows)d rows of %(columns)d numbers here; the figure shows the usual ones."
            )
            shape = {"rows": len(self.usual), "columns": len(self.usual[0])}
            typed.problems[""] = told % {"label": self.label, **shape}
        rows = [
            [usual if math.isnan(value) else value for value, usual in zip(*both, strict=True)]
            for both in zip(typed.rows, self.usual, strict=True)
        ]
        problems = {
            key: f"{message} {_used(rows[int(key[-2]) - 1][int(key[-1]) - 1])}" if key else message
            for key, message in typed.problems.items()
        }
        return MatrixReading(rows, to_json(rows), problems, typed)

    def write(self, value: Rows) -> str:
        return to_json(value)

    def context(self, reading: Reading[Rows], prefix: str) -> dict[str, Any]:
        typed = (
            reading.typed if isinstance(reading, MatrixReading) else read_matrix(self.name, {}, self.usual)
        )
        table = parts.input_matrix(
            typed,
            prefix=prefix,
            row_head=self.row_head,
            coordinate=self.coordinate,
            label=self._cell_label,
            caption=str(self.label),
            lit_row=0,
            column_heads=[str(text) for text in self.columns],
        )
        return {"table": table}

    def _cell_label(self, i: int, j: int) -> str:
        if self.columns:
            return _("%(column)s %(i)d") % {"column": self.columns[j - 1], "i": i}
        return _("%(label)s, row %(i)d, column %(j)d") % {"label": self.label, "i": i, "j": j}


@dataclass(frozen=True)
class Cell(Control[tuple[int, int]]):
    """Which cell the matrices of a figure point at, row and column from 1: chosen by its link in the view
    (static/js/figures.js), so that there is nothing to be typed."""

    rows: int = 1
    columns: int = 1
    template = "cell"

    def read(self, params: Mapping[str, str]) -> Reading[tuple[int, int]]:
        text = params.get(self.name, self.write(self.usual))
        first, _comma, second = text.partition(",")
        if first.isdecimal() and second.isdecimal() and len(text) < 8:
            cell = int(first), int(second)
            if 1 <= cell[0] <= self.rows and 1 <= cell[1] <= self.columns:
                return Reading(cell, text)
        told = _("“%(text)s” is no cell from 1,1 to %(rows)d,%(columns)d. The figure shows %(usual)s.") % {
            "text": brief(text),
            "rows": self.rows,
            "columns": self.columns,
            "usual": self.write(self.usual),
        }
        return Reading(self.usual, self.write(self.usual), {"": told})

    def write(self, value: tuple[int, int]) -> str:
        return f"{value[0]},{value[1]}"


def _used(value: float) -> str:
    return _("The figure uses %(value)s there.") % {"value": show(value)}


@dataclass(frozen=True)
class Cells(Control[tuple[tuple[int, int], ...]]):
    """Some cells of a grid, (row, column) from 1 to 9: written as `23.41`. A figure draws the grid itself, of
    links that each change one cell, and puts `hidden` into it, so that a form carries the cells along."""

    usual: tuple[tuple[int, int], ...] = ()
    most: int = 9
    template = "cells"

    def read(self, params: Mapping[str, str]) -> Reading[tuple[tuple[int, int], ...]]:
        text = params.get(self.name, "").strip()
        if not text:
            return Reading((), "")
        found = CELLS.fullmatch(text)
        cells = {(int(pair[0]), int(pair[1])) for pair in text.split(".")} if found else {(0, 0)}
        if not all(0 < number <= self.most for cell in cells for number in cell):
            told = _("“%(text)s” names no cells such as 23.41, row 2 column 3 and row 4 column 1.")
            return Reading((), "", {"": told % {"text": brief(text)}})
        return Reading(tuple(sorted(cells)), self.write(tuple(sorted(cells))))

    def write(self, value: tuple[tuple[int, int], ...]) -> str:
        return ".".join(f"{row}{column}" for row, column in value)

    def toggled(
        self, value: tuple[tuple[int, int], ...], cell: tuple[int, int]
    ) -> tuple[tuple[int, int], ...]:
        return tuple(sorted(set(value) ^ {cell}))

    def hidden(self, value: tuple[tuple[int, int], ...]) -> SafeString:
        return format_html('<input type="hidden" name="{}" value="{}">', self.name, self.write(value))
