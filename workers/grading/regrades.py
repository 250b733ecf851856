"""Submissions judged again, after a problem was mended: first dry, with what would change for whom.

Everything is computed before anything is written, and written in one transaction with the end of the regrade:
a grader that dies on the way leaves every score as it was.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django.db import transaction
from django.utils import timezone

from workers.grading import judging, scoring, sending, webhooks, work
from workers.grading.models import (
    Assignment,
    ProblemVersion,
    Regrade,
    RegradePolicy,
    RegradeScope,
    ScorePolicy,
    State,
    Submission,
)
from workers.grading.submissions import Judged


def start(
    assignment: Assignment, version: ProblemVersion, *, scope: str, policy: str, dry_run: bool
) -> Regrade:
    """Queue a regrade by a version of the problem."""
    regrade = Regrade.objects.create(
        assignment=assignment, problem_version=version, scope=scope, policy=policy, dry_run=dry_run
    )
    transaction.on_commit(lambda: sending.send_work(regrade), robust=True)
    return regrade


def carry_out(regrade: Regrade, no_more_interruptions: Callable[[], None]) -> None:
    """Judge, compare, and (unless dry) replace.

    Compared is with the scores at the end, when nobody else can change them: another regrade may,
    and graders go on. What they graded meanwhile is judged, too, before anything is written.
    """
    assignment, version = regrade.assignment, regrade.problem_version
    judged: dict[str, Judged] = {}
    is_complete = is_stored = False
    while not is_complete:
        new = [each for each in _chosen(regrade, _graded(assignment)) if each.pk not in judged]
        judged |= {each.submission.pk: each for each in judging.judge_again(assignment, version, new)}
        no_more_interruptions()
        with transaction.atomic():
            Assignment.objects.select_for_update(no_key=True).get(pk=assignment.pk)
            graded = _graded(assignment)
            chosen = _chosen(regrade, graded)
            is_complete = all(each.pk in judged for each in chosen)
            if is_complete:
                found = [_as_it_is(assignment, judged[each.pk], each) for each in chosen]
                is_stored = _store(regrade, graded, found)
    if is_stored:
        work.announce(regrade)


def _as_it_is(assignment: Assignment, judged: Judged, now: Submission) -> Judged:
    """What was found, of the submission as it is now: what lateness costs it may have changed meanwhile."""
    score, most = scoring.points(assignment, judged.result, now.deduction)
    return Judged(now, judged.result, score, most)


def _graded(assignment: Assignment) -> list[Submission]:
    return list(assignment.submissions.filter(status=State.GRADED).defer("result"))


def _store(regrade: Regrade, graded: Sequence[Submission], judged: Sequence[Judged]) -> bool:
    """End the regrade with what changes, and (unless dry) change it; False: it is another grader's by now."""
    assignment = regrade.assignment
    kept = [each for each in judged if not _keeps_old(regrade, each)]
    changes = [each for each in kept if _differs(each)]
    result = {
        "judged": len(judged),
        "changed": len(changes),
        "problem_version": regrade.problem_version.number,
        "differences": _differences(assignment, graded, changes),
    }
    if not work.finish(regrade, result):
        return False
    if not regrade.dry_run:
        _replace(regrade, kept, changed={each.submission.pk for each in changes})
        webhooks.note_regrade(
            assignment, {"regrade": regrade.id, "assignment": assignment.id, "changed": len(changes)}
        )
    return True


def _chosen(regrade: Regrade, graded: Sequence[Submission]) -> list[Submission]:
    if regrade.scope == RegradeScope.ALL:
        return list(graded)
    by = Assignment(score_policy=ScorePolicy.BEST if regrade.scope == RegradeScope.BEST else ScorePolicy.LAST)
    return list(scoring.counting(by, graded).values())


def _keeps_old(regrade: Regrade, each: Judged) -> bool:
    return regrade.policy == RegradePolicy.MAX and each.score < (each.submission.score or 0.0)


def _differs(each: Judged) -> bool:
    old = each.submission
    new = (each.result["verdict"], each.result.get("reason") or "", each.score)
    return new != (old.verdict, old.reason, old.score)


def _differences(
    assignment: Assignment, graded: Iterable[Submission], changes: Iterable[Judged]
) -> list[dict[str, Any]]:
    """What changes for each student: the grade, and the submissions behind it."""
    graded = list(graded)
    before = {user_ref: each.score for user_ref, each in scoring.counting(assignment, graded).items()}
    by_student: dict[str, list[dict[str, Any]]] = defaultdict(list)
    new_scores = {}
    for each in changes:
        old = each.submission
        new_scores[old.pk] = each.score
        by_student[old.user_ref].append(
            {
                "id": old.id,
                "external_id": old.external_id,
                "before": {"verdict": old.verdict, "score": old.score},
                "after": {"verdict": each.result["verdict"], "score": each.score},
            }
        )
    later = [_scored(submission, new_scores.get(submission.pk, submission.score)) for submission in graded]
    after = {user_ref: each.score for user_ref, each in scoring.counting(assignment, later).items()}
    return [
        {"user_ref": user_ref, "before": before[user_ref], "after": after[user_ref], "submissions": changed}
        for user_ref, changed in sorted(by_student.items())
    ]


def _scored(submission: Submission, score: float | None) -> Submission:
    return Submission(
        id=submission.id,
        user_ref=submission.user_ref,
        submitted_at=submission.submitted_at,
        number=submission.number,
        status=submission.status,
        score=score,
    )


def _replace(regrade: Regrade, judged: Iterable[Judged], changed: set[str]) -> None:
    """Write the new verdicts; what they replace is kept in `earlier`."""
    now = timezone.now()
    for each in judged:
        old = each.submission
        fields: dict[str, Any] = {
            "problem_version": regrade.problem_version,
            "verdict": each.result["verdict"],
            "reason": each.result.get("reason") or "",
            "score": each.score,
            "max_score": each.max_score,
            "result": each.result,
        }
        if old.pk in changed:
            replaced = {
                "verdict": old.verdict,
                "reason": old.reason,
                "score": old.score,
                "max_score": old.max_score,
                "regrade": regrade.id,
                "replaced_at": now.isoformat(),
            }
            fields["earlier"] = [*old.earlier, replaced]
        Submission.objects.filter(pk=old.pk, status=State.GRADED).update(**fields)
    Assignment.objects.filter(pk=regrade.assignment_id).update(problem_version=regrade.problem_version)
