"""What is late follows the due date: when it moves, what was handed in before is reckoned anew."""

from collections import defaultdict

from django.db import transaction
from django.db.models import F

from workers.grading import scoring, sending
from workers.grading.models import Assignment, State, Submission

AT_ONCE = 500  # scores in one UPDATE


def reckon_anew(assignment: Assignment) -> None:
    """Say of each submission whether it is late by the due date as it is now, and what that costs it.

    To be called in the transaction that moved the date and holds the assignment's row, so that nothing is
    handed in meanwhile. What a grader has at this moment goes back to the queue, and loses no attempt by it:
    the grader would store the score of before.
    """
    ids = _mark(assignment)
    mine = assignment.submissions.filter(pk__in=ids).order_by()
    given_back = mine.filter(status=State.GRADING).update(
        status=State.QUEUED, claim="", attempt=F("attempt") - 1, started_at=None, heartbeat_at=None
    )
    if given_back:
        transaction.on_commit(lambda: sending.send_again(assignment.id), robust=True)
    graded = mine.filter(status=State.GRADED).only("result", "deduction", "assignment_id")
    scored = [
        Submission(pk=each.pk, score=scoring.points(assignment, each.result or {}, each.deduction)[0])
        for each in graded.iterator(AT_ONCE)
    ]
    Submission.objects.bulk_update(scored, ["score"], batch_size=AT_ONCE)


def _mark(assignment: Assignment) -> list[str]:
    """Write down what is late now; the ids of those for which that is new."""
    changed: dict[tuple[bool, float], list[str]] = defaultdict(list)
    known = assignment.submissions.order_by().values_list("pk", "submitted_at", "is_late", "deduction")
    for pk, at, *before in known:
        now = scoring.is_late(assignment, at), scoring.deduction(assignment, at)
        if now != tuple(before):
            changed[now].append(pk)
    for (is_late, deduction), ids in changed.items():
        assignment.submissions.filter(pk__in=ids).update(is_late=is_late, deduction=deduction)
    return [pk for ids in changed.values() for pk in ids]
