"""The life of a mutant matrix and of a regrade: claimed by one grader, kept alive, stored, or given back.

Like a submission's, but alone: `queued -> claim -> running -> finish | fail`, each one conditional UPDATE.
"""

import logging
from datetime import timedelta
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

KINDS: tuple[type[Check] | type[Regrade], ...] = (Check, Regrade)
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
    settled = {"work lost": 0, "work sent again": 0}
    silent = timezone.now() - timedelta(seconds=settings.HEARTBEAT_TIMEOUT)
    for kind in KINDS:
        running = kind.objects.filter(status=WorkStatus.RUNNING, heartbeat_at__lt=silent)
        for work in running.defer("result")[:100]:
            settled["work lost"] += lost(work, "The process that computed this stopped without an answer.")
        queued = kind.objects.filter(status=WorkStatus.QUEUED, queued_at__lt=silent)
        for work in () if sending.would_pile_up() else queued.defer("result")[:100]:
            kind.objects.filter(pk=work.pk).update(queued_at=timezone.now())
            sending.send_work(work)
            settled["work sent again"] += 1
    return settled
