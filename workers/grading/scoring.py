"""From what a judge found to points: how they are scaled, what lateness costs, which submission counts."""

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from workers.grading.models import Assignment, ScorePolicy, State, Submission

DAY = 86_400
NO_POLICY = {"type": "none"}
LATE_POLICIES = ("none", "fixed", "per_day")


def is_late(assignment: Assignment, submitted_at: datetime) -> bool:
    return assignment.due_date is not None and submitted_at > assignment.due_date


def deduction(assignment: Assignment, submitted_at: datetime) -> float:
    """The fraction of the score that is lost for lateness, 0 … 1."""
    due, policy = assignment.due_date, {**NO_POLICY, **assignment.late_policy}
    if due is None or submitted_at <= due or policy["type"] == "none":
        return 0.0
    days = 1 if policy["type"] == "fixed" else math.ceil((submitted_at - due).total_seconds() / DAY)
    return min(1.0, days * float(policy["fraction"]))


def points(assignment: Assignment, judged: Mapping[str, Any], deducted: float) -> tuple[float, float]:
    """(score, max_score) in points of the assignment, of a judgement as JSON. ValueError: it is none."""
    score, most = float(judged["score"]), float(judged["max_score"])
    if not (math.isfinite(most) and most > 0 and 0 <= score <= most):
        raise ValueError(f"a judge gave {score} of {most} points")
    total = assignment.total_points
    return min(total, total * (score / most) * (1.0 - deducted)), total


def counting(assignment: Assignment, submissions: Iterable[Submission]) -> dict[str, Submission]:
    """{user_ref: the submission that counts}: of those graded the best or the last, else the last at all."""
    chosen: dict[str, Submission] = {}
    for submission in sorted(submissions, key=lambda each: (each.submitted_at, each.number, each.id)):
        best = chosen.get(submission.user_ref)
        if best is None or _replaces(assignment, submission, best):
            chosen[submission.user_ref] = submission
    return chosen


def _replaces(assignment: Assignment, later: Submission, chosen: Submission) -> bool:
    if State.GRADED not in (later.status, chosen.status):
        return True
    if later.status != State.GRADED or chosen.status != State.GRADED:
        return later.status == State.GRADED
    if assignment.score_policy == ScorePolicy.LAST:
        return True
    return (later.score or 0.0) > (chosen.score or 0.0)
