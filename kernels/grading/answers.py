"""Answers as they were handed in. What is no array is refused (400); whatever else is odd about an answer is
kept with it, for the judge to say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernels.arrays import Array
from kernels.grading.case import MAX_NUMBERS
from kernels.grading.model import Problem
from kernels.spec.array_input import ArrayParser, LoadUpload
from kernels.spec.problems import MALFORMED, TOO_LARGE, FieldProblem, Problems, all_of, join, printable, show

MAX_NOTED = 8  # names that nobody asked for, in one note
# What the parser finds in lists of numbers, and what the judge calls it.
UNREADABLE = {
    "ragged": "shape_mismatch",
    "wrong-rank": "shape_mismatch",
    "boolean": "dtype_mismatch",
    "not-a-number": "dtype_mismatch",
    "bad-dtype": "dtype_mismatch",
    "too-large-number": "non_finite",
}


@dataclass(frozen=True)
class Answer:
    """One array, and the dtype that it was handed in as: its own in base64 or in a file, else that of the
    problem. ``reason`` and ``detail`` say why it could not be read as numbers; ``array`` is empty then."""

    array: Array
    dtype: str
    reason: str | None = None
    detail: str = ""


@dataclass(frozen=True)
class Answers:
    """By case and name; ``notes`` on what nobody asked for."""

    by_case: Mapping[str, Mapping[str, Answer]]
    notes: tuple[str, ...] = field(default=())

    def get(self, case: str, name: str) -> Answer | None:
        """One answer, or None where it is missing."""
        return self.by_case.get(case, {}).get(name)

    def to_parts(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """What ``from_parts`` takes back: a header for JSON, and arrays by number for a file."""
        entries: list[list[Any]] = []
        arrays: dict[str, Array] = {}
        for case, named in self.by_case.items():
            for name, answer in named.items():
                arrays[str(len(entries))] = answer.array
                entries.append([case, name, answer.dtype, answer.reason, answer.detail])
        return {"answers": entries, "notes": list(self.notes)}, arrays

    @classmethod
    def from_parts(cls, header: Mapping[str, Any], arrays: Mapping[str, Array]) -> Answers:
        """Inverse of :meth:`to_parts`."""
        by_case: dict[str, dict[str, Answer]] = {}
        for number, (case, name, dtype, reason, detail) in enumerate(header["answers"]):
            by_case.setdefault(case, {})[name] = Answer(arrays[str(number)], dtype, reason, detail)
        return cls(by_case, tuple(header["notes"]))


def read_answers(
    problem: Problem, body: object, pointer: str = "/answers", load_upload: LoadUpload | None = None
) -> Answers:
    """The answers of one submission, ``{"<case>": {"<name>": ARRAY}}``; of a problem with a single case the
    names alone will do. Raises :class:`SpecError` for what is no array at all, or is too large."""
    problems = Problems()
    if not isinstance(body, dict):
        detail = f"answers must be an object, a case to each name, not {show(body)}"
        problems.add(pointer, "wrong-type", detail, MALFORMED)
        problems.raise_if_any()
        return Answers({})
    names = {part.name for part in problem.answers}
    if len(problem.cases) == 1 and problem.cases[0].name not in body and names & body.keys():
        reader = _Reader(problem, problems, load_upload)
        by_case = {problem.cases[0].name: reader.named(body, pointer)}
    else:
        reader = _Reader(problem, problems, load_upload)
        by_case = reader.cases(body, pointer)
    problems.raise_if_any()
    return Answers(by_case, reader.notes())


class _Reader:
    def __init__(self, problem: Problem, problems: Problems, load_upload: LoadUpload | None) -> None:
        self.problem, self.problems, self.load_upload = problem, problems, load_upload
        self.numbers = 0
        self.unknown_cases: dict[str, None] = {}
        self.unknown_names: dict[str, None] = {}

    def notes(self) -> tuple[str, ...]:
        known = all_of(case.name for case in self.problem.cases)
        names = all_of(part.name for part in self.problem.answers)
        found = []
        if self.unknown_cases:
            found.append(
                f"No case is called {_some(list(self.unknown_cases))}: nothing of it was graded. {known}"
            )
        if self.unknown_names:
            named = _some(list(self.unknown_names))
            found.append(f"Nobody asked for {named}: it was not graded. {names}")
        return tuple(note if note.endswith(".") else f"{note} can be handed in." for note in found)

    def cases(self, body: Mapping[str, Any], pointer: str) -> dict[str, dict[str, Answer]]:
        known = {case.name for case in self.problem.cases}
        found: dict[str, dict[str, Answer]] = {}
        for case, named in body.items():
            where = join(pointer, str(case)[:200])
            if case not in known:
                self.unknown_cases[str(case)] = None
            elif named is None:
                continue
            elif not isinstance(named, dict):
                names = all_of(part.name for part in self.problem.answers)
                detail = f"a case holds an object with {names}, not {show(named)}"
                self.problems.add(where, "wrong-type", detail, MALFORMED)
            else:
                found[case] = self.named(named, where)
        return found

    def named(self, body: Mapping[str, Any], pointer: str) -> dict[str, Answer]:
        known = {part.name for part in self.problem.answers}
        found: dict[str, Answer] = {}
        for name, value in body.items():
            if name not in known:
                self.unknown_names[str(name)] = None
            elif value is not None:
                answer = self._answer(value, join(pointer, name))
                if answer is not None:
                    found[name] = answer
        return found

    def _answer(self, value: Any, pointer: str) -> Answer | None:
        """None where a problem was noted."""
        if isinstance(value, dict) and "seed" in value:
            detail = "an answer is made of numbers: send lists, base64 or an upload, no seed"
            self.problems.add(pointer, "unsupported", detail, MALFORMED)
            return None
        own = Problems()
        left = MAX_NUMBERS - self.numbers
        parsed = ArrayParser(own, self.load_upload, max(left, 0)).parse(value, pointer, self.problem.dtype)
        described, array = parsed if parsed is not None else (None, None)
        if described is None or array is None:
            return self._refused(own.found, value)
        if array.size > left:  # of a list of numbers, not of lists
            detail = f"the answers of a submission are at most {MAX_NUMBERS:,} numbers: send fewer"
            self.problems.add(pointer, "too-large", detail, TOO_LARGE)
            return None
        self.numbers += array.size
        if isinstance(value, list):
            return Answer(array, self.problem.dtype if array.dtype != np.bool_ else "bool")
        return Answer(array, described.dtype)

    def _refused(self, found: list[FieldProblem], value: Any) -> Answer | None:
        first = found[0]
        if first.code in UNREADABLE and (isinstance(value, list) or "upload" in value):
            detail = f"{first.pointer}: {first.detail}"
            return Answer(np.zeros(0), self.problem.dtype, UNREADABLE[first.code], detail)
        if first.status == TOO_LARGE:
            detail = f"the answers of a submission are at most {MAX_NUMBERS:,} numbers; {first.detail}"
            self.problems.add(first.pointer, first.code, detail, TOO_LARGE)
            return None
        for problem in found:
            self.problems.add(problem.pointer, problem.code, problem.detail, problem.status)
        return None


def _some(names: list[str]) -> str:
    shown = [printable(name[:40]) for name in names[:MAX_NOTED]]
    return all_of(shown) + (f" and {len(names) - MAX_NOTED} more" if len(names) > MAX_NOTED else "")
