"""A submission as JSON: how much of its verdict is shown to whom, and when.

Two things hide: the assignment's `feedback` says how much of a verdict a student reads at all, and a case's
`visibility` from when its numbers are shown. Whoever teaches asks for everything with `?view=staff`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils import timezone

from kernels.grading.report import Judgement
from workers.grading import assignments
from workers.grading.assignments import FULL, NOTHING, SCORES, Phase
from workers.grading.models import Assignment, State, Submission

LISTS = ("tests", "hypotheses", "notes")  # of a judgement
INTERNAL_ERROR = "internal_error"
NO_VERDICT: dict[str, Any] = {
    "verdict": None,
    "reason": None,
    "score": None,
    "max_score": None,
    "tests": [],
    "numerics": None,
    "hypotheses": [],
    "notes": [],
}


@dataclass(frozen=True)
class View:
    """What is shown: a level of feedback, and the visibilities whose numbers are."""

    level: str
    visible: frozenset[str]

    @classmethod
    def of_staff(cls, assignment: Assignment) -> "View":
        everything = frozenset({"visible", "hidden", "after_due_date", "after_published"})
        return cls(assignment.feedback.get("staff", FULL), everything)

    @classmethod
    def of_student(cls, assignment: Assignment, now: datetime, *, has_tries: bool) -> "View":
        closed = assignments.phase(assignment, now) == Phase.CLOSED
        situation = "after_due" if closed else "normal" if has_tries else "past_limit"
        visible = {"visible"}
        if closed:
            visible.add("after_due_date")
        if assignment.grades_published_at and assignment.grades_published_at <= now:
            visible.add("after_published")
        return cls(assignment.feedback.get(situation, FULL), frozenset(visible))


READER = View(FULL, frozenset({"visible"}))  # of a problem without an assignment


def view_of(submission: Submission, *, as_staff: bool) -> View:
    return _views(submission.assignment, {submission.user_ref}, as_staff=as_staff)[submission.user_ref]


def _views(assignment: Assignment, user_refs: Collection[str], *, as_staff: bool) -> dict[str, View]:
    """What is shown of the submissions of each student."""
    if as_staff:
        return dict.fromkeys(user_refs, View.of_staff(assignment))
    now = timezone.now()
    matters = assignment.feedback.get("past_limit") != assignment.feedback.get("normal")
    without = assignments.out_of_tries(assignment, user_refs, now) if matters else set()
    return {
        user_ref: View.of_student(assignment, now, has_tries=user_ref not in without)
        for user_ref in user_refs
    }


def represent_all(
    assignment: Assignment, submissions: Sequence[Submission], *, as_staff: bool
) -> list[dict[str, Any]]:
    """Submissions of one assignment, in their order; of however many students, in one query at most."""
    views = _views(assignment, {each.user_ref for each in submissions}, as_staff=as_staff)
    for each in submissions:
        each.assignment = assignment
    return [represent(each, views[each.user_ref], as_staff=as_staff) for each in submissions]


def represent(submission: Submission, view: View, *, as_staff: bool) -> dict[str, Any]:
    """The submission of the contract."""
    return {
        "id": submission.id,
        "assignment": submission.assignment_id,
        "external_id": submission.external_id,
        "user_ref": submission.user_ref,
        "attempt": submission.number,
        "problem_version": submission.problem_version.number,
        "submitted_at": submission.submitted_at,
        "is_late": submission.is_late,
        "deduction": submission.deduction,
        "status": submission.status,
        "counts_towards_limit": submission.counts_towards_limit,
        "finished_at": submission.finished_at,
        **_verdict(submission, view),
        "feedback": view.level,
        "fault": submission.fault or None,
        "error": submission.error,
        "earlier": submission.earlier if as_staff else [],
    }


def _verdict(submission: Submission, view: View) -> dict[str, Any]:
    if submission.status == State.ERROR:
        return {**NO_VERDICT, "verdict": INTERNAL_ERROR}
    if submission.status != State.GRADED or view.level == NOTHING:
        return NO_VERDICT
    shown = judgement(submission.result or {}, view)
    return {**shown, "score": submission.score, "max_score": submission.max_score}


def judgement(result: Mapping[str, Any], view: View) -> dict[str, Any]:
    """What a judge found, as far as `view` has it."""
    whole = Judgement(**{**result, **{name: tuple(result[name]) for name in LISTS}})
    shown = whole.seen_by(view.visible).to_dict()
    if view.level == FULL:
        return {**shown, "tests": [_test(test, view) for test in result["tests"]]}
    kept = {name: shown[name] for name in ("verdict", "score", "max_score")}
    if view.level == SCORES:
        kept["tests"] = [_test(test, view) for test in result["tests"]]
    return {**NO_VERDICT, **kept}


def _test(test: Mapping[str, Any], view: View) -> dict[str, Any]:
    if test["visibility"] not in view.visible:
        kept = {name: test[name] for name in ("name", "number", "max_score", "visibility") if name in test}
        return {
            **kept,
            "score": None,
            "status": None,
            "output": "",
            "output_format": "text",
            "tags": [],
            "extra_data": {},
        }
    if view.level == SCORES:
        return {**test, "output": "", "tags": [], "extra_data": {}}
    return dict(test)
