"""The life of a mutant matrix and of a regrade: claimed by one grader, kept alive, stored, or given back.

Like a submission's, but alone: `queued -> claim -> running -> finish | fail`, each one conditional UPDATE.
"""

import logging
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.conf import settings
from django.db.models import F, QuerySet
from django.utils import timezone

from workers import events
from workers.grading import sending
from workers.grading.models import Check, Regrade, Work, WorkStatus
from workers.models import new_id
from workers.runs import problem

log = logging.getLogger(__name__)

REAPED_AT_ONCE = 100
STOPPED = "The process that computed this stopped without an answer."
SomeWork = TypeVar("SomeWork", Check, Regrade)


def claim(kind: type[SomeWork], work_id: str, task_id: str) -> SomeWork | None:
    """Take queued work; None when somebody else has it, or nobody wants it."""
    claim_id = new_id()
    taken = kind.objects.filter(pk=work_id, status=WorkStatus.QUEUED).update(
        status=WorkStatus.RUNNING,
        attempt=F("attempt") + 1,
        claim=claim_id,
        task_id=task_id,
        heartbeat_at=timezone.now(),
    )
    return kind.objects.get(pk=work_id, claim=claim_id) if taken else None


def mine(work: SomeWork) -> "QuerySet[SomeWork]":
    """The row, as long as this claim is the one that counts."""
    return type(work).objects.filter(pk=work.pk, status=WorkStatus.RUNNING, claim=work.claim)


def beat(work: SomeWork) -> bool:
    return bool(mine(work).update(heartbeat_at=timezone.now()))


def finish(work: SomeWork, result: dict[str, Any]) -> bool:
    """Store what came of it; False when this claim no longer counts. Announced by the caller, after its
    transaction."""
    return bool(mine(work).update(status=WorkStatus.DONE, finished_at=timezone.now(), result=result))


def announce(work: Work) -> None:
    events.announce(work.pk, WorkStatus.DONE)


def lost(work: SomeWork, detail: str) -> bool:
    """The grader of this claim failed, or is gone: once more, or, the second time, an error."""
    if work.attempt < settings.MAX_ATTEMPTS:
        again = mine(work).update(
            status=WorkStatus.QUEUED, claim="", queued_at=timezone.now(), heartbeat_at=None
        )
        if again:
            log.warning("%s: %s Queued again", work, detail)
            sending.send_work(work)
        return bool(again)
    error = problem("Not computed", f"{detail} Asking again may succeed.", fault="platform")
    ended = mine(work).update(status=WorkStatus.ERROR, finished_at=timezone.now(), error=error)
    if ended:
        log.warning("%s: %s Given up", work, detail)
        events.announce(work.pk, WorkStatus.ERROR)
    return bool(ended)


def child_lost(kind: type[SomeWork], work_id: str, task_id: str) -> None:
    """The child that had it for the delivery `task_id` died."""
    for work in kind.objects.filter(pk=work_id, status=WorkStatus.RUNNING, task_id=task_id):
        lost(work, STOPPED)


def again(work: SomeWork) -> None:
    """Queue once more what ended in an error."""
    queued = (
        type(work)
        .objects.filter(pk=work.pk, status=WorkStatus.ERROR)
        .update(
            status=WorkStatus.QUEUED,
            attempt=0,
            claim="",
            queued_at=timezone.now(),
            finished_at=None,
            error=None,
        )
    )
    if queued:
        sending.send_work(work)
    work.refresh_from_db()


def reap() -> dict[str, int]:
    """Settle the work that no grader does any more; returns how much, by what was done."""
    return {
        "work lost": _settle_lost(Check) + _settle_lost(Regrade),
        "work sent again": _send_lost(Check) + _send_lost(Regrade),
    }


def _silent() -> datetime:
    return timezone.now() - timedelta(seconds=settings.HEARTBEAT_TIMEOUT)


def _settle_lost(kind: type[SomeWork]) -> int:
    running = kind.objects.filter(status=WorkStatus.RUNNING, heartbeat_at__lt=_silent())
    return sum(lost(work, STOPPED) for work in running.defer("result")[:REAPED_AT_ONCE])


def _send_lost(kind: type[SomeWork]) -> int:
    if sending.would_pile_up():
        return 0
    queued = list(kind.objects.filter(status=WorkStatus.QUEUED, queued_at__lt=_silent())[:REAPED_AT_ONCE])
    for work in queued:
        kind.objects.filter(pk=work.pk).update(queued_at=timezone.now())
        sending.send_work(work)
    return len(queued)
