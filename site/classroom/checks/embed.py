"""“Check yourself”: a case of the course to be filled in on a page, judged by the students' own grader.

A pure function of the query string, as a figure is: what was typed in is in the address, so it works without
JavaScript and can be shared; htmx only makes it immediate. What is right is never shown, only what is off.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.http import HttpRequest
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from api import computing
from api.callers import caller_of
from classroom import words
from classroom.checks import library
from classroom.checks.library import Exercise
from classroom.students.inputs import array_page, times
from kernels.grading.answers import read_answers
from lab import matrices
from workers.grading import judging

MAX_CELL = 40  # characters


@dataclass
class Sheet:
    """What was filled in of an exercise."""

    cells: dict[str, list[list[str]]]  # by answer, row and column, as typed
    errors: dict[tuple[str, int, int], str] = field(default_factory=dict)
    wrong: set[tuple[str, int, int]] = field(default_factory=set)  # those that are furthest off

    @classmethod
    def read(cls, exercise: Exercise, state: Mapping[str, str]) -> "Sheet":
        return cls(
            {
                name: [
                    [state.get(key(exercise, name, i, j), "").strip()[:MAX_CELL] for j in range(columns)]
                    for i in range(rows)
                ]
                for name, (rows, columns) in exercise.shapes.items()
            }
        )

    def numbers(self) -> dict[str, Any]:
        """Each answer that is filled in whole, as lists; what is no number is noted."""
        found: dict[str, Any] = {}
        for name, rows in self.cells.items():
            values = [
                [self._number(name, i, j, text) for j, text in enumerate(row)] for i, row in enumerate(rows)
            ]
            if not any(value is None for row in values for value in row):
                found[name] = values if len(values) > 1 or name != "lse" else values[0]
        return found

    def _number(self, name: str, i: int, j: int, text: str) -> Any:
        if not text:
            return None
        try:
            row = matrices.parse_row(text, 0, text)
        except matrices.MatrixError as error:
            self.errors[name, i, j] = error.detail
            return None
        if len(row) != 1:
            self.errors[name, i, j] = _("one number, please; decimals after a point.")
            return None
        return row[0]

    def empty(self, name: str) -> int:
        return sum(not text for row in self.cells[name] for text in row)


def key(exercise: Exercise, name: str, i: int, j: int) -> str:
    """The name of a cell in a query string."""
    return f"{exercise.slug}.{name}.{i + 1}.{j + 1}"


def render(
    request: HttpRequest,
    slug: str,
    case_name: str,
    page: str,
    others: Sequence[tuple[str, str]] = (),
    *,
    is_fragment: bool = False,
) -> SafeString:
    """The exercise, as far as the query string has filled it in; `page` is where it stands, and `others` are
    the parameters of the rest of that page."""
    exercise = library.exercise(slug, case_name)
    state = {name: str(value) for name, value in request.GET.items()}
    sheet = Sheet.read(exercise, state)
    context = {
        "id": f"check-{slug}",
        "slug": slug,
        "case": case_name,
        "page": page,
        "others": others,
        "fragment": reverse("classroom:check", args=[slug]),
        "title": exercise.problem.title,
        "inputs": [array_page(name, array, exercise.case) for name, array in exercise.inputs().items()],
        "is_fragment": is_fragment,
        **_judged(request, exercise, sheet),
    }
    context["answers"] = [_answer(exercise, sheet, name, context["verdicts"]) for name in exercise.shapes]
    return SafeString(render_to_string("classroom/checks/check.html", context))


def _judged(request: HttpRequest, exercise: Exercise, sheet: Sheet) -> dict[str, Any]:
    """What the grader says of what is filled in: a sentence, what was done instead, and a word for each."""
    given = sheet.numbers()
    nothing: dict[str, Any] = {"sentence": "", "diagnosis": [], "verdicts": {}, "is_right": False}
    if not given:
        filled = any(text for rows in sheet.cells.values() for row in rows for text in row)
        return {**nothing, "sentence": _("Fill in one matrix at least, all of it.") if filled else ""}
    try:
        with computing.computing(caller_of(request)):
            answers = read_answers(exercise.problem, {exercise.case.name: given})
            result = judging.judge_once(exercise.problem, exercise.seeds, answers)
    except computing.Busy as error:
        return {**nothing, "sentence": error.detail}
    verdicts: dict[str, dict[str, Any]] = {}
    for test in result["tests"]:
        data = test["extra_data"]
        if data["answer"] in given:
            verdicts[data["answer"]] = _word(sheet, data, passed=test["status"] == "passed")
    right = [name for name, verdict in verdicts.items() if verdict["passed"]]
    if len(right) == len(exercise.shapes):
        sentence = _("Right, all of it.")
    elif len(right) == len(given):
        sentence = _("Right so far.")
    else:
        sentence = _("Not right yet.")
    return {
        "sentence": sentence,
        "diagnosis": words.diagnosis(result["hypotheses"]),
        "verdicts": verdicts,
        "is_right": len(right) == len(given),
    }


def _word(sheet: Sheet, data: Mapping[str, Any], *, passed: bool) -> dict[str, Any]:
    """Of one answer; the cells that are furthest off are noted on the sheet."""
    if passed:
        return {"passed": True, "detail": _("right")}
    numerics = data["numerics"] or {}
    for cell in numerics.get("worst", ()):
        *_front, i, j = cell["index"].values()
        sheet.wrong.add((data["answer"], i if data["answer"] != "lse" else 0, j))
    off = numerics.get("mismatched", 0)
    detail = ngettext("{off} number is off", "{off} numbers are off", off).format(off=off)
    return {"passed": False, "detail": detail}


def _answer(
    exercise: Exercise, sheet: Sheet, name: str, verdicts: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """The cells of one answer for the template."""
    rows = [
        [
            {
                "name": key(exercise, name, i, j),
                "id": f"check-{key(exercise, name, i, j)}".replace(".", "-"),
                "label": _("{name}, row {row}, column {column}").format(name=name, row=i + 1, column=j + 1),
                "text": text,
                "error": sheet.errors.get((name, i, j), ""),
                "is_wrong": (name, i, j) in sheet.wrong,
            }
            for j, text in enumerate(row)
        ]
        for i, row in enumerate(sheet.cells[name])
    ]
    empty, cells = sheet.empty(name), sum(map(len, sheet.cells[name]))
    left = ngettext("{empty} cell is empty", "{empty} cells are empty", empty).format(empty=empty)
    return {
        "name": name,
        "shape": times(exercise.shapes[name]),
        "rows": rows,
        "verdict": verdicts.get(name),
        "left": left if 0 < empty < cells else "",
        "errors": [cell for row in rows for cell in row if cell["error"]],
    }
