"""The life of a run, as plain functions. Views and tasks are thin over these.

    submit -> queued -> claim -> running -> finish | fail -> terminal
                  \\-> cancel              \\-> reap (its worker went silent)

Each change of status is one conditional UPDATE: of two that try, one wins, and the other sees that
it changed nothing.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import redis
from django.conf import settings
from django.db import transaction
from django.db.models import F, Max, Q
from django.utils import timezone

from kernels.spec import ParsedRun, RunSpec
from workers import artifacts, broker, events, health, limits, quotas
from workers.celery import RUN_TASK, app
from workers.models import ACTIVE, Kind, Run, Status

log = logging.getLogger(__name__)

EXPIRE_AT_ONCE = 10_000


class QueueFull(Exception):
    """Too many runs wait already. `retry_after` is in whole seconds."""

    def __init__(self, retry_after: int) -> None:
        self.retry_after = retry_after
        super().__init__(f"The queue is full. Try again in {retry_after} s.")


class AlreadyFinished(Exception):
    """The run has ended, so it cannot be canceled."""


# --- For callers -----------------------------------------------------------------------------


def submit(parsed: ParsedRun, *, owner: str, caller: str, budget_seconds: int) -> Run:
    """`prepare` and `record` in one."""
    run = prepare(parsed, owner=owner, caller=caller, budget_seconds=budget_seconds)
    record(run)
    return run


def prepare(parsed: ParsedRun, *, owner: str, caller: str, budget_seconds: int) -> Run:
    """Admit and charge a run and store what was sent with it; the row is still to be recorded.

    Whatever waits for something else than the database happens here, so that `record` holds its
    write lock for an insert and no longer. `owner` is opaque ("" for anonymous), `caller` a digest
    of the address, which is charged when there is no owner. Raises limits.Refused, QueueFull or
    quotas.QuotaExceeded, having written and charged nothing.
    """
    cost = limits.admit(parsed.spec, budget_seconds)
    run = new(parsed.spec, limits.queue_for(parsed.spec), owner, caller, budget_seconds)
    run.predicted_seconds = cost.predicted_seconds
    _enter(run)
    artifacts.save_submitted(run, parsed.arrays)
    return run


def prepare_compile(
    spec: RunSpec, targets: Sequence[str], *, owner: str, caller: str, budget_seconds: int
) -> Run:
    """Like `prepare`, but the kernel of `spec` is compiled for each of `targets` instead of being run.

    Only the shapes of the inputs matter, so none are kept.
    """
    limits.admit_compile(spec, targets)
    run = new(spec, "compile", owner, caller, budget_seconds)
    run.kind, run.targets = Kind.COMPILE, list(targets)
    run.predicted_seconds = limits.COMPILE_SECONDS * len(targets)
    _enter(run)
    return run


def record(run: Run) -> None:
    """Write the row, and queue the run when the surrounding transaction commits."""
    try:
        with transaction.atomic():
            run.save(force_insert=True)
            transaction.on_commit(lambda: send(run), robust=True)
    except BaseException:
        discard(run)
        raise


def discard(run: Run) -> None:
    """Forget a prepared run that was not recorded, and give back what it was charged."""
    artifacts.delete(run.id)
    if not run.owner:
        quotas.refund(run.caller, run.predicted_seconds)


def get(run_id: str) -> Run:
    """The run, or Run.DoesNotExist."""
    return Run.objects.get(pk=run_id)


def ahead(run: Run) -> int:
    """How many queued runs of the same queue go before this one."""
    if run.status != Status.QUEUED:
        return 0
    waiting = Run.objects.filter(queue=run.queue, status=Status.QUEUED)
    if run.queued_at is None:  # a point of a sweep: what is there, and its own before it
        mine = Q(sweep=run.sweep_id, position__lt=run.position)
        return waiting.filter(Q(queued_at__isnull=False) | mine).count()
    earlier = Q(queued_at=run.queued_at, created_at__lt=run.created_at)
    return waiting.filter(Q(queued_at__lt=run.queued_at) | earlier).count()


def cancel(run_id: str) -> Run:
    """End a queued or running run; a worker that has it stops at its next heartbeat.

    Canceling twice is the same as once. Raises Run.DoesNotExist, or AlreadyFinished.
    """
    changed = _end(Run.objects.filter(pk=run_id, status__in=ACTIVE), Status.CANCELED)
    run = get(run_id)
    if changed:
        events.announce(run_id, Status.CANCELED)
    elif run.status != Status.CANCELED:
        raise AlreadyFinished(f"The run is {run.status}; only a queued or running run can be canceled.")
    return run


# --- For workers -----------------------------------------------------------------------------


def claim(run_id: str, task_id: str = "") -> Run | None:
    """Take a queued run for the delivery `task_id`; None when somebody else has it, or nobody wants it."""
    now = timezone.now()
    taken = Run.objects.filter(pk=run_id, status=Status.QUEUED).update(
        status=Status.RUNNING, attempt=F("attempt") + 1, task_id=task_id, started_at=now, heartbeat_at=now
    )
    if not taken:
        return None
    return get(run_id)


def announce_running(run: Run) -> None:
    """Tell who watches that the run is being computed. Not part of `claim`: most runs have ended before
    anybody could see it, and waking the watchers twice would cost more than they do."""
    events.announce(run.id, Status.RUNNING)


def beat(run: Run) -> bool:
    """Say that this attempt is alive; False when it is no longer wanted."""
    return bool(_mine(run).update(heartbeat_at=timezone.now()))


def load(run: Run) -> tuple[RunSpec, dict[str, np.ndarray]]:
    """What a worker needs to carry out the run."""
    return RunSpec.from_dict(run.spec), artifacts.load_submitted(run)


def finish(
    run: Run,
    *,
    inputs: Mapping[str, np.ndarray],
    results: Mapping[str, np.ndarray],
    input_info: dict[str, Any],
    result: dict[str, Any],
    environment: dict[str, Any],
) -> bool:
    """Store a result; False (and nothing visible) when this attempt no longer counts."""
    inline = artifacts.save_outcome(run, inputs, results)
    array_info = {name: {"shape": list(a.shape), "dtype": a.dtype.name} for name, a in results.items()}
    return _end_and_announce(
        run,
        Status.SUCCEEDED,
        input_info=input_info,
        array_info=array_info,
        result=result,
        environment=environment,
        **inline,
    )


def finish_compile(
    run: Run, *, texts: Mapping[str, str], result: dict[str, Any], environment: dict[str, Any]
) -> bool:
    """Store what a compilation found and the texts of its stages (sm_90.ptx, ...); False as for `finish`."""
    artifacts.save_texts(run, texts)
    text_info = {name: {"characters": len(text)} for name, text in texts.items()}
    return _end_and_announce(
        run, Status.SUCCEEDED, array_info=text_info, result=result, environment=environment
    )


def fail(run: Run, status: Status, error: dict[str, Any]) -> bool:
    """End this attempt without a result. `error` is a problem object with `fault` user or platform."""
    return _end_and_announce(run, status, error=error)


def problem(title: str, detail: str, *, fault: str) -> dict[str, Any]:
    """The `error` of a run: an RFC 9457 problem that also says whose fault it was, "user" or "platform"."""
    status = 422 if fault == "user" else 500
    return {"type": "about:blank", "title": title, "status": status, "detail": detail, "fault": fault}


# --- For the maintenance worker --------------------------------------------------------------


def reap() -> dict[str, int]:
    """Settle every run that nobody works on any more; returns how many were settled, by what was done."""
    now = timezone.now()
    silent = now - timedelta(seconds=settings.HEARTBEAT_TIMEOUT)
    too_old = now - timedelta(seconds=settings.RUN_MAX_AGE)
    running = Run.objects.filter(status=Status.RUNNING)
    queued = Run.objects.filter(status=Status.QUEUED)
    return {
        "worker lost": sum(map(worker_lost, running.filter(heartbeat_at__lt=silent))),
        "timed out": sum(map(too_long, running.filter(started_at__lt=too_old))),
        "never taken": sum(map(_never_taken, queued.filter(_abandoned(now)))),
        "queued again": sum(map(_requeue_lost, settings.QUEUES)),
    }


def worker_lost(run: Run, *, retry: bool = True) -> bool:
    """The worker of this attempt is gone: queue the run again once, if anybody is there to take it."""
    if retry and run.attempt < settings.MAX_ATTEMPTS and health.has_worker(run.queue):
        now = timezone.now()
        again = bool(
            _mine(run).update(status=Status.QUEUED, queued_at=now, started_at=None, heartbeat_at=None)
        )
        if again:
            log.warning("run %s: worker lost on attempt %d, queued again", run.id, run.attempt)
            send(run)
        return again
    detail = "The worker process that ran this stopped without an answer. Submitting it again may succeed."
    return fail(run, Status.FAILED, problem("Worker lost", detail, fault="platform"))


def too_long(run: Run) -> bool:
    """The run used up its time."""
    detail = (
        f"The run did not end within its budget of {run.budget_seconds} s of worker time. "
        "Use shorter lengths, fewer heads or fewer timing iterations."
    )
    return fail(run, Status.TIMED_OUT, problem("Out of time", detail, fault="user"))


def expire() -> int:
    """Delete runs past their retention, and files that belong to no run; returns how many."""
    expired = Run.objects.filter(expires_at__lt=timezone.now()).exclude(status__in=ACTIVE)
    gone = list(expired.values_list("pk", flat=True)[:EXPIRE_AT_ONCE])
    for run_ids in batched(gone, 500):
        Run.objects.filter(pk__in=run_ids).delete()
    strays = _stray_files()
    for run_id in {*gone, *strays}:
        artifacts.delete(run_id)
    return len({*gone, *strays})


def _stray_files() -> list[str]:
    """Ids with files but no row: a submission was rolled back, or a deletion was cut short.

    Files are written before their row is committed, so only old ones count.
    """
    strays: list[str] = []
    for run_ids in batched(artifacts.stored_run_ids(), 500):
        known = set(Run.objects.filter(pk__in=run_ids).values_list("pk", flat=True))
        strays += [run_id for run_id in run_ids if run_id not in known]
    settled = timezone.now() - timedelta(hours=1)
    return [run_id for run_id in strays if (artifacts.last_written(run_id) or settled) <= settled]


# --- Inside ----------------------------------------------------------------------------------


def batched(ids: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """`ids` in pieces that fit one query (itertools has this from Python 3.12)."""
    return (ids[start : start + size] for start in range(0, len(ids), size))


def _mine(run: Run) -> Any:
    """The row, as long as this attempt is the one that counts."""
    return Run.objects.filter(pk=run.pk, status=Status.RUNNING, attempt=run.attempt)


def _end(rows: Any, status: Status, **fields: Any) -> bool:
    return bool(rows.update(status=status, finished_at=timezone.now(), **fields))


def _end_and_announce(run: Run, status: Status, **fields: Any) -> bool:
    ended = _end(_mine(run), status, **fields)
    if ended:
        events.announce(run.id, status)
    return ended


def send(run: Run) -> None:
    """Send the id to the broker. If that fails the row is still queued, and the reaper sends it again."""
    soft = run.budget_seconds + settings.RUN_SOFT_LIMIT_MARGIN
    hard = run.budget_seconds + settings.RUN_HARD_LIMIT_MARGIN
    app.send_task(RUN_TASK, (run.id,), queue=run.queue, soft_time_limit=soft, time_limit=hard)


def new(spec: RunSpec, queue: str, owner: str, caller: str, budget_seconds: int) -> Run:
    now = timezone.now()
    days = settings.RETENTION_DAYS_TOKEN if owner else settings.RETENTION_DAYS_ANONYMOUS
    return Run(
        owner=owner,
        caller=caller,
        engine=spec.engine,
        queue=queue,
        budget_seconds=budget_seconds,
        created_at=now,
        queued_at=now,
        expires_at=now + timedelta(days=days),
        spec=spec.to_dict(),
    )


def _enter(run: Run) -> None:
    """A place in the queue, paid for."""
    refuse_when_full(run.queue)
    if not run.owner:
        quotas.charge(run.caller, run.predicted_seconds)


def refuse_when_full(queue: str) -> None:
    try:
        waiting = broker.waiting(queue)
    except redis.RedisError:  # what cannot be sent piles up in the table
        waiting = Run.objects.filter(queue=queue, status=Status.QUEUED, queued_at__isnull=False).count()
    if waiting >= settings.MAX_QUEUED:
        raise QueueFull(retry_after=30)


def _abandoned(now: datetime) -> Q:
    """What no worker took for long. A point of a sweep waits for those before it, and is given up when it was
    its turn for so long, or when the sweep does not get on at all."""
    age, sweep_age = timedelta(seconds=settings.QUEUE_MAX_AGE), timedelta(seconds=settings.SWEEP_MAX_AGE)
    single = Q(sweep__isnull=True, created_at__lt=now - age)
    return single | Q(sweep__isnull=False, queued_at__lt=now - age) | Q(created_at__lt=now - sweep_age)


def _never_taken(run: Run) -> bool:
    detail = "No worker took this run in time. Submitting it again later may succeed."
    rows = Run.objects.filter(pk=run.pk, status=Status.QUEUED)
    ended = _end(rows, Status.FAILED, error=problem("Never started", detail, fault="platform"))
    if ended:
        events.announce(run.id, Status.FAILED)
    return ended


def _requeue_lost(queue: str) -> int:
    """Send again the queued runs whose message is gone.

    A message is taken for lost when its row still waits although the broker's queue is empty, or
    although a run that was sent later is being computed. If it was not lost after all, the second
    delivery finds nothing to claim.
    """
    now = timezone.now()
    settled = now - timedelta(seconds=settings.HEARTBEAT_TIMEOUT)
    lost = Run.objects.filter(queue=queue, status=Status.QUEUED, queued_at__lt=settled)
    if broker.waiting(queue):
        running = Run.objects.filter(queue=queue, status=Status.RUNNING)
        newest = running.aggregate(newest=Max("queued_at"))["newest"]
        lost = lost.filter(queued_at__lt=newest) if newest else lost.none()
    again = list(lost.order_by("created_at")[:1000])
    for ids in batched([run.pk for run in again], 500):
        Run.objects.filter(pk__in=ids).update(queued_at=now)
    for run in again:
        send(run)
    return len(again)
