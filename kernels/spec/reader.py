"""Read one JSON object field by field, strictly, noting every mistake.

A reader never raises: a bad field is noted in ``problems`` and its default returned, so that the rest of the
body is checked too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kernels.spec.problems import MALFORMED, Problems, join, nearest, one_of, printable, show


class ObjectReader:
    """The fields of one JSON object at ``pointer``; fields outside ``allowed`` are reported as unknown."""

    def __init__(self, value: object, pointer: str, problems: Problems, allowed: Sequence[str]) -> None:
        self.pointer, self.problems = pointer, problems
        self.fields: dict[str, Any] = {}
        if not isinstance(value, dict):
            where = pointer.rsplit("/", 1)[-1] or "the request body"
            problems.add(pointer, "wrong-type", f"{where} must be an object, not {show(value)}", MALFORMED)
            return
        self.fields = value
        for name in value:
            if name not in allowed and problems.is_full:
                problems.dropped += 1  # a hint costs a search; thousands would cost seconds
            elif name not in allowed:
                hint = nearest(str(name), allowed)
                detail = f"unknown field {printable(str(name)[:60])}; {hint}"
                problems.add(join(pointer, str(name)[:200]), "unknown-field", detail, MALFORMED)

    def at(self, name: str) -> str:
        """Pointer of a field."""
        return join(self.pointer, name)

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.fields.get(name) is not None

    def wrong_type(self, name: str, wanted: str) -> None:
        """Note a field whose JSON type is wrong."""
        detail = f"{name} must be {wanted}, not {show(self.fields[name])}"
        self.problems.add(self.at(name), "wrong-type", detail, MALFORMED)

    def boolean(self, name: str, default: bool) -> bool:
        """``true`` or ``false``."""
        value = self.fields.get(name, default)
        if isinstance(value, bool):
            return value
        self.wrong_type(name, "true or false")
        return default

    def choice(self, name: str, default: str, choices: Sequence[str]) -> str:
        """One of some words."""
        value = self.fields.get(name, default)
        if not isinstance(value, str):
            self.wrong_type(name, one_of(choices))
        elif value not in choices:
            detail = f"{name} must be {one_of(choices)}, not {show(value)}"
            self.problems.add(self.at(name), "not-a-choice", detail)
        else:
            return value
        return default

    def choice_or_null(self, name: str, choices: Sequence[str]) -> str | None:
        """One of some words, or null."""
        return self.choice(name, choices[0], choices) if self.has(name) else None

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        """A whole number between two limits, both allowed."""
        value = self.fields.get(name, default)
        if not is_integer(value):
            self.wrong_type(name, "an integer")
            return default
        if not low <= value <= high:
            detail = f"{name} must be between {low} and {high}, not {show(value)}"
            self.problems.add(self.at(name), "out-of-range", detail)
            return default
        return int(value)

    def integer_or_null(self, name: str, low: int, high: int) -> int | None:
        """A whole number between two limits, or null."""
        return self.integer(name, low, low, high) if self.has(name) else None

    def number(self, name: str, default: float, low: float, high: float, also: str = "") -> float:
        """A number between two limits, both allowed; ``also`` says what else the field may be."""
        value = self.fields.get(name, default)
        if not is_number(value):
            self.wrong_type(name, "a number")
            return default
        if not low <= to_float(value) <= high:
            detail = f"{name} must be between {low:g} and {high:g}{also}, not {show(value)}"
            self.problems.add(self.at(name), "out-of-range", detail)
            return default
        return to_float(value)

    def number_or_null(self, name: str, low: float, high: float) -> float | None:
        """A number between two limits, or null."""
        return self.number(name, 0.0, low, high) if self.has(name) else None


def is_integer(value: object) -> bool:
    """A JSON integer; ``true`` is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """A JSON number; ``true`` is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def to_float(value: Any) -> float:
    """As a float; an integer beyond the range of float64 becomes an infinity of its sign."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
