"""What failed on our side, written down with the submissions that it touched, and made good.

A submission whose grader was lost goes back to the queue, its student's tries untouched. Lost a second time
it ends as an error, which is nobody's try either.
"""

import logging
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from workers import events
from workers.grading import sending, submissions, webhooks
from workers.grading.models import PLATFORM, Incident, State, Submission
from workers.runs import problem

log = logging.getLogger(__name__)

WORKER_LOST = "worker-lost"
OUT_OF_TIME = "out-of-time"
JUDGE_FAILED = "judge-failed"
NEVER_TAKEN = "never-taken"
REAPED_AT_ONCE = 500
DETAILS = {
    WORKER_LOST: "The process that graded this stopped without an answer.",
    OUT_OF_TIME: "Grading this took longer than a grader may take.",
    JUDGE_FAILED: "The grader failed on this.",
    NEVER_TAKEN: "No grader took this in time.",
}


def lost(rows: "QuerySet[Submission]", kind: str, *, last: bool = False) -> int:
    """Give `rows`, which a grader has or should have taken, back to the queue, or end those (with `last`:
    all) that were lost before; returns how many.

    Each is one conditional UPDATE: what its grader finished meanwhile is left alone.
    """
    now = timezone.now()
    incident = Incident(kind=kind, detail=DETAILS[kind], created_at=now)
    most = 0 if last else settings.MAX_ATTEMPTS
    with transaction.atomic():
        submissions.hold(rows)
        again = rows.filter(attempt__lt=most).update(
            status=State.QUEUED, claim=incident.id, queued_at=now, started_at=None, heartbeat_at=None
        )
        ended = rows.filter(attempt__gte=most).update(
            status=State.ERROR,
            claim=incident.id,
            finished_at=now,
            counts_towards_limit=False,
            fault=PLATFORM,
            error=problem("Not graded", f"{DETAILS[kind]} It is no try of yours.", fault=PLATFORM),
        )
        if not again + ended:
            return 0
        _record(incident)
    log.warning("incident %s, %s: %d submissions queued again, %d ended", incident.id, kind, again, ended)
    return again + ended


def _record(incident: Incident) -> None:
    touched = list(Submission.objects.filter(claim=incident.id).select_related("assignment"))
    incident.save(force_insert=True)
    Through = Incident.submissions.through  # noqa: N806 (a class)
    Through.objects.bulk_create(
        Through(incident_id=incident.id, submission_id=submission.id) for submission in touched
    )
    ended = [submission for submission in touched if submission.is_terminal]
    webhooks.note_submissions(ended)
    waiting = {submission.assignment_id for submission in touched if not submission.is_terminal}

    def tell() -> None:
        events.announce_all((submission.id, submission.status) for submission in ended)
        for assignment_id in waiting:
            sending.send_again(assignment_id)

    transaction.on_commit(tell, robust=True)


def reap() -> dict[str, int]:
    """Settle the submissions that no grader works on any more, and send again those whose message is gone;
    returns how many, by what was done."""
    now = timezone.now()
    silent = now - timedelta(seconds=settings.HEARTBEAT_TIMEOUT)
    abandoned = now - timedelta(seconds=settings.GRADE_MAX_AGE)
    queued = Submission.objects.filter(status=State.QUEUED)
    grading = Submission.objects.filter(status=State.GRADING, heartbeat_at__lt=silent)
    return {
        "graders lost": _settle(grading, WORKER_LOST),
        "submissions never taken": _settle(
            queued.filter(created_at__lt=abandoned, queued_at__lt=silent), NEVER_TAKEN, last=True
        ),
        "assignments sent again": _send_lost(queued.filter(queued_at__lt=silent), silent),
    }


def _settle(rows: "QuerySet[Submission]", kind: str, *, last: bool = False) -> int:
    """`lost`, for so many that one reaper stays short; the next one has the others."""
    ids = list(rows.order_by("queued_at").values_list("pk", flat=True)[:REAPED_AT_ONCE])
    return lost(rows.order_by().filter(pk__in=ids), kind, last=last) if ids else 0


def _send_lost(waiting: "QuerySet[Submission]", silent: datetime) -> int:
    """Send again the assignments whose submissions wait although no grader is at work on them.

    If a message was on its way after all, who takes it finds nothing to do. The rows' time is set anew, so
    that this is not done at every look.
    """
    if sending.would_pile_up():
        return 0
    at_work = Submission.objects.filter(status=State.GRADING, heartbeat_at__gte=silent)
    idle = waiting.exclude(assignment__in=at_work.values("assignment"))
    lost_ids = list(idle.order_by().values_list("assignment", flat=True).distinct()[:REAPED_AT_ONCE])
    for assignment_id in lost_ids:
        waiting.filter(assignment=assignment_id).update(queued_at=timezone.now())
        sending.send_again(assignment_id)
    return len(lost_ids)
