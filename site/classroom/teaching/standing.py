"""How an assignment stands: who has handed in what, how the scores spread, and which mistakes are common."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from django.db.models import Count

from classroom import words
from workers.grading.models import Assignment, State, Verdict

BINS = 10


def counts(assignment: Assignment, grades: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Figures of the whole; `grades` are the rows of `api.grading.grades.grade_rows`."""
    by_state = dict(assignment.submissions.order_by().values_list("status").annotate(count=Count("pk")))
    scores = [row["score"] for row in grades if row["score"] is not None]
    return {
        "students": len(grades),
        "submissions": sum(by_state.values()),
        "waiting": by_state.get(State.QUEUED, 0) + by_state.get(State.GRADING, 0),
        "errors": by_state.get(State.ERROR, 0),
        "right": sum(row["verdict"] == Verdict.ACCEPTED for row in grades),
        "median": words.points(statistics.median(scores)) if scores else "–",
        "mean": words.points(statistics.fmean(scores)) if scores else "–",
        "total": words.points(assignment.total_points),
    }


def progress(grades: Iterable[dict[str, Any]]) -> list[tuple[str, str, int]]:
    """(kind, words, students): those that are right, partly right, wrong, and without a verdict yet."""
    found = Counter(_kind(row) for row in grades)
    return [(kind, str(words.PROGRESS[kind]), found[kind]) for kind in words.PROGRESS]


def _kind(row: dict[str, Any]) -> str:
    if row["score"] is None:
        return "waiting"
    if row["verdict"] == Verdict.ACCEPTED:
        return "right"
    return "partly" if row["score"] > 0 else "wrong"


def distribution(grades: Iterable[dict[str, Any]], total: float) -> list[tuple[str, int]]:
    """(share of the points, students) for tenths of them; who has all is in the last."""
    found = Counter(
        min(BINS - 1, int(BINS * row["score"] / total)) for row in grades if row["score"] is not None
    )
    step = 100 // BINS
    return [(f"{step * n}–{step * (n + 1)} %", found[n]) for n in range(BINS)]


def mistakes(assignment: Assignment) -> list[dict[str, Any]]:
    """Each mistake that was found: how many students made it, and whose last submission still has it. The
    most common first."""
    made: dict[str, set[str]] = defaultdict(set)
    last: dict[str, set[str]] = {}
    graded = assignment.submissions.filter(status=State.GRADED).order_by("submitted_at", "number")
    for user_ref, hypotheses in graded.values_list("user_ref", "result__hypotheses"):
        codes = best_codes(hypotheses or [])
        last[user_ref] = codes
        for code in codes:
            made[code].add(user_ref)
    still = Counter(code for codes in last.values() for code in codes)
    found = [
        {
            "code": code,
            "words": words.mistake(code),
            "hint": words.hint(code),
            "made": len(students),
            "still": still[code],
        }
        for code, students in made.items()
    ]
    return sorted(found, key=lambda each: (-each["made"], -each["still"], each["code"]))


def best_codes(hypotheses: Sequence[dict[str, Any]]) -> set[str]:
    """The mistake that fits best: two codes where two mistakes were made at once."""
    return {each["code"] for each in hypotheses if each["residual"] == hypotheses[0]["residual"]}
