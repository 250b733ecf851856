"""A submission as its student (or, to staff, as staff) reads it: words, figures, and the worst cells.

Made of the document that REST gives (`api.grading.feedback`), so that a page never shows what it would not.
"""

import math
from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy
from django.utils.translation import ngettext

from api.grading import feedback
from classroom import words
from classroom.students import opening
from kernels.grading.model import Problem
from lab import units
from lab.heatmap import number
from workers.grading.models import State, Submission

# In the order of their columns: PostgreSQL keeps no order of keys.
AXES = {
    "batch": lazy("batch"),
    "head": lazy("head"),
    "query": lazy("query"),
    "key": lazy("key"),
    "dim": lazy("dim"),
    "sequence": lazy("sequence"),
    "block": lazy("block"),
    "run": lazy("run"),
    "draft": lazy("draft"),
    "token": lazy("token"),
    "copy": lazy("copy"),
    "place": lazy("place"),
    "side": lazy("side"),
}


def page(submission: Submission, problem: Problem, *, as_staff: bool = False) -> dict[str, Any]:
    view = feedback.view_of(submission, as_staff=as_staff)
    document = feedback.represent(submission, view, as_staff=as_staff)
    return {
        **summary(submission, document),
        **judged(document, problem),
        "level": document["feedback"],
        "is_waiting": not submission.is_terminal,
        "error": (submission.error or {}).get("detail", "") if submission.status == State.ERROR else "",
        "earlier": [
            {**each, "words": words.state("graded", each["verdict"]), "points": words.points(each["score"])}
            for each in document["earlier"]
        ],
    }


def summary(submission: Submission, document: Mapping[str, Any]) -> dict[str, Any]:
    """A submission as a row of a list."""
    verdict = document["verdict"]
    is_shown = submission.status != State.GRADED or verdict is not None
    return {
        "id": submission.id,
        "number": submission.number,
        "user_ref": submission.user_ref,
        "submitted_at": submission.submitted_at,
        "is_late": submission.is_late,
        "deduction": round(100 * submission.deduction),
        "counts": submission.counts_towards_limit,
        "status": submission.status,
        "look": words.look(submission.status, verdict) if is_shown else "queued",
        "words": words.state(submission.status, verdict) if is_shown else _("graded; not shown yet"),
        "points": words.points(document["score"]) if document["score"] is not None else "",
        "max_points": words.points(document["max_score"]),
    }


def judged(document: Mapping[str, Any], problem: Problem) -> dict[str, Any]:
    """What a judge found, of a submission or of answers that are kept nowhere."""
    verdict = document["verdict"]
    return {
        "verdict": verdict,
        "headline": words.VERDICTS.get(verdict or "", ""),
        "reason": words.REASONS.get(document["reason"] or "", ""),
        "diagnosis": words.diagnosis(document["hypotheses"]),
        "notes": [words.note(text) for text in document["notes"]],
        "tests": _first_failure_open([test_page(test, problem) for test in document["tests"]]),
    }


def _first_failure_open(tests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    first = next((test for test in tests if not (test["is_hidden"] or test["passed"])), None)
    return [{**test, "is_open": test is first} for test in tests]


def test_page(test: Mapping[str, Any], problem: Problem) -> dict[str, Any]:
    data = test["extra_data"]
    case_name = data.get("case") or test["name"].rpartition(": ")[0]
    numerics = data.get("numerics") or {}
    return {
        "title": words.case_name(case_name),
        "answer": data.get("answer") or test["name"].rpartition(": ")[2],
        "case": case_name,
        "is_hidden": test["status"] is None,
        "visibility": words.VISIBILITIES.get(test["visibility"], ""),
        "passed": test["status"] == "passed",
        "points": words.points(test["score"]),
        "max_points": words.points(test["max_score"]),
        "output": words.typeset(test["output"]),
        "diagnosis": words.diagnosis(data.get("hypotheses") or []),
        "figures": figures(numerics),
        "worst": worst(numerics) if test["status"] == "failed" else None,
        "lab": opening.place(problem, case_name, numerics) if test["status"] == "failed" else None,
    }


def figures(numerics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What there is to say in numbers; of integers there is no more than how many are wrong."""
    if not numerics:
        return []
    wrong = ngettext("{wrong} of {total} number", "{wrong} of {total} numbers", numerics["total"])
    rows = [(_("wrong"), wrong.format(wrong=f"{numerics['mismatched']:,}", total=f"{numerics['total']:,}"))]
    if numerics["dtype"] == "int64":
        return rows
    allowed = _brief(numerics["atol"])
    if numerics.get("rtol"):
        allowed += " + " + _("{share} of each").format(share=_brief(numerics["rtol"]))
    return [
        *rows,
        (_("largest error"), _brief(numerics["max_abs_err"])),
        (_("allowed, as {dtype}").format(dtype=numerics["dtype"]), allowed),
        (_("what a right one errs by"), _brief(numerics["reference_err"])),
    ]


def worst(numerics: Mapping[str, Any]) -> dict[str, Any] | None:
    """The cells that are furthest off, as a table."""
    cells = numerics.get("worst") or []
    if not cells:
        return None
    axes = [axis for axis in AXES if axis in cells[0]["index"] and _varies(axis, cells)]
    return {
        "axes": [AXES[axis] for axis in axes],
        "rows": [
            {
                "index": [cell["index"][axis] for axis in axes],
                **{name: _shown(cell[name], cell["abs_err"]) for name in ("actual", "expected")},
                **{name: _brief(cell[name]) for name in ("abs_err", "allowed")},
            }
            for cell in cells
        ],
    }


def _varies(axis: str, cells: Any) -> bool:
    """Whether an axis is worth a column: the batch and the head of a single one are not."""
    return axis not in ("batch", "head") or any(cell["index"][axis] for cell in cells)


def _brief(value: Any) -> str:
    return units.significant(float(value), 2) if isinstance(value, int | float) else str(value)


def _shown(value: Any, off: Any) -> str:
    """With as many digits as it takes to see that it is `off`."""
    if not isinstance(value, int | float):
        return str(value).replace("-", "−")
    is_close = isinstance(off, int | float) and 0 < off < 1e-3
    return words.typeset(number(float(value), min(9, 1 - math.floor(math.log10(off))) if is_close else 4))
