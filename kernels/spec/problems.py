"""What is wrong with a request, said so that its author can repair it.

Every check of :mod:`kernels.spec` reports here instead of raising at once, so that one answer names all the
mistakes. A problem has a pointer into the request body (RFC 6901), a stable code, a sentence that names the
value, the limit and the remedy, and the HTTP status it deserves: 400 malformed, 413 too large, 422
well-formed but not computable.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

MALFORMED, TOO_LARGE, NOT_COMPUTABLE = 400, 413, 422

MAX_REPORTED = 32  # problems in one answer; the rest are counted
MAX_SHOWN = 60  # characters of a value quoted back


@dataclass(frozen=True)
class FieldProblem:
    """One mistake: ``pointer`` says where, ``code`` what kind, ``detail`` what to do about it."""

    pointer: str
    code: str
    detail: str
    status: int = NOT_COMPUTABLE


class SpecError(ValueError):
    """The request cannot be computed; ``problems`` names everything that is wrong with it."""

    def __init__(self, problems: Iterable[FieldProblem]) -> None:
        self.problems: tuple[FieldProblem, ...] = tuple(problems)
        super().__init__("; ".join(f"{p.pointer or '(body)'}: {p.detail}" for p in self.problems))

    @property
    def status(self) -> int:
        """The status of the whole answer: the most basic kind of mistake decides."""
        found = {problem.status for problem in self.problems}
        return next((status for status in (MALFORMED, TOO_LARGE) if status in found), NOT_COMPUTABLE)


class Problems:
    """Collects problems while the body is being read."""

    def __init__(self) -> None:
        self.found: list[FieldProblem] = []
        self.dropped = 0

    def add(self, pointer: str, code: str, detail: str, status: int = NOT_COMPUTABLE) -> None:
        """Note one problem; beyond ``MAX_REPORTED`` they are only counted."""
        if self.is_full:
            self.dropped += 1
            return
        self.found.append(FieldProblem(pointer, code, detail, status))

    @property
    def is_full(self) -> bool:
        """Whether further problems are only counted."""
        return len(self.found) >= MAX_REPORTED

    def under(self, pointer: str) -> bool:
        """Whether something at or below this pointer is already known to be wrong."""
        return any(p.pointer == pointer or p.pointer.startswith(pointer + "/") for p in self.found)

    def raise_if_any(self) -> None:
        """Raise :class:`SpecError` with everything found so far."""
        if not self.found:
            return
        if self.dropped:
            more = FieldProblem("", "more", f"{self.dropped} further problems are not listed", MALFORMED)
            raise SpecError([*self.found, more])
        raise SpecError(self.found)


def join(pointer: str, *parts: object) -> str:
    """Extend an RFC 6901 pointer: ``join("/inputs", "a/b", 3)`` is ``/inputs/a~1b/3``."""
    for part in parts:
        pointer += "/" + printable(str(part)).replace("~", "~0").replace("/", "~1")
    return pointer


def printable(text: str) -> str:
    """Text that can always be encoded as UTF-8 (a lone surrogate from ``\\ud800`` cannot)."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def show(value: object) -> str:
    """Describe a value of the request in a few words, whatever its size."""
    match value:
        case None:
            text = "null"
        case bool():
            text = "true" if value else "false"
        case int() if value.bit_length() > 80:
            text = f"an integer of {value.bit_length()} bits"
        case int() | float():
            text = repr(value)
        case str():
            shown = printable(value[:MAX_SHOWN])
            text = f'"{shown}…"' if len(value) > MAX_SHOWN else f'"{shown}"'
        case list() | tuple():
            text = f"a list of {len(value)}"
        case dict():
            text = "an object"
        case _:
            text = f"a value of type {type(value).__name__}"
    return text


def one_of(names: Iterable[str]) -> str:
    """Names as they read in a sentence: ``a, b or c``."""
    return _listed(names, " or ") or "nothing"


def all_of(names: Iterable[str]) -> str:
    """Names as they read in a sentence: ``a, b and c``."""
    return _listed(names, " and ")


def _listed(names: Iterable[str], last: str) -> str:
    listed = list(names)
    return last.join(filter(None, [", ".join(listed[:-1]), *listed[-1:]]))


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint naming the known name closest to a misspelt one, or the whole list."""
    known = list(known)
    close = difflib.get_close_matches(name[:MAX_SHOWN].lower(), known, n=1)
    return f"did you mean {close[0]}?" if close else f"use one of {one_of(known)}"
