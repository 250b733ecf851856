"""What the Celery processes do: carry out a run, and keep the table clean."""

import logging
import secrets
import signal
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from billiard.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError
from celery import Task, shared_task
from celery.signals import beat_embedded_init, task_failure, worker_process_init
from django.conf import settings

from workers import health, runs, sweeps
from workers.celery import RUN_TASK
from workers.grading import incidents, submissions, webhooks, work
from workers.heart import Abandoned, Heart
from workers.models import Kind, Run, Status
from workers.processes import follow_parent
from workers.release import release
from workers.signals import housekeeping

if TYPE_CHECKING:
    from kernels.compiling import Compiled

log = logging.getLogger(__name__)


@shared_task(name=RUN_TASK, bind=True)
def carry_out(self: Task[..., None], run_id: str) -> None:
    """Claim a run, compute it, and write down how it ended."""
    run = runs.claim(run_id, self.request.id or "")
    if run is None:
        log.info("run %s: not claimed (taken, canceled or gone)", run_id)
        _go_on_past(run_id)
        return
    started = time.monotonic()
    try:
        _compute(run)
    except Abandoned:
        log.info("run %s: abandoned on attempt %d", run.id, run.attempt)
    except SoftTimeLimitExceeded:
        runs.too_long(run)
    except Exception:
        incident = secrets.token_hex(4)
        log.exception("run %s: failed, incident %s", run.id, incident)
        detail = f"Something went wrong on our side. Quote incident {incident} when you report it."
        runs.fail(run, Status.FAILED, runs.problem("Internal error", detail, fault="platform"))
    log.info("run %s: %s in %.3f s", run.id, run.engine, time.monotonic() - started)
    _go_on(run)


def _go_on_past(run_id: str) -> None:
    """A point that was canceled before anybody began it has the next one after it all the same."""
    run = Run.objects.filter(pk=run_id).first()
    if run and run.is_terminal:
        _go_on(run)


def _go_on(run: Run) -> None:
    """After a point of a sweep comes the next one."""
    if run.sweep_id:
        try:
            sweeps.point_ended(run)
        except Exception:  # the run has ended all the same, and the reaper goes on
            log.exception("sweep %s: could not go on after run %s", run.sweep_id, run.id)


def _compute(run: Run) -> None:
    if run.kind == Kind.COMPILE:
        _compile(run)
    else:
        _execute(run)


def _heart(run: Run) -> Heart:
    return Heart(f"run {run.id}", partial(runs.beat, run), partial(runs.announce_running, run))


def _execute(run: Run) -> None:
    # Imported here: the worker's parent process, like the web, never loads torch.
    from kernels.execute import CannotRunError, DeadlineExceeded, OutOfMemoryError, execute

    deadline = time.monotonic() + run.budget_seconds
    try:
        with _heart(run) as heart:
            spec, arrays = runs.load(run)
            outcome = execute(spec, arrays, deadline=deadline)
            heart.no_more_interruptions()
            runs.finish(
                run,
                inputs=outcome.inputs,
                results=outcome.arrays,
                input_info=outcome.input_info,
                result={
                    "numerics": outcome.numerics,
                    "comparison": outcome.comparison,
                    "findings": outcome.findings,
                    "timing": outcome.timing,
                    "memory": outcome.memory,
                    "traffic": outcome.traffic,
                    "cost": outcome.cost,
                    "notes": outcome.notes,
                },
                environment={**outcome.environment, **release()},
            )
    except DeadlineExceeded:
        runs.too_long(run)
    except CannotRunError as error:
        runs.fail(run, Status.FAILED, runs.problem("Cannot be run here", str(error), fault="user"))
    except (MemoryError, OutOfMemoryError):
        detail = "The worker ran out of memory. Use shorter lengths, fewer heads or a smaller batch."
        runs.fail(run, Status.FAILED, runs.problem("Out of memory", detail, fault="user"))


def _compile(run: Run) -> None:
    from kernels.compiled_cache import CompiledCache
    from kernels.compiling import CannotCompileError, compile_spec, environment

    spec, _ = runs.load(run)
    cache = CompiledCache(settings.DATA_DIR / "compiled")
    try:
        with _heart(run) as heart:
            compiled = {target: compile_spec(spec, target, cache) for target in run.targets}
            heart.no_more_interruptions()
            runs.finish_compile(
                run,
                texts=_texts(compiled),
                result={
                    "targets": {
                        target: {**main.to_dict(), "others": [other.to_dict() for other in others]}
                        for target, (main, *others) in compiled.items()
                    }
                },
                environment=environment(spec),
            )
    except CannotCompileError as error:
        runs.fail(run, Status.FAILED, runs.problem("Cannot be compiled", str(error), fault="user"))


def _texts(compiled: "Mapping[str, Sequence[Compiled]]") -> dict[str, str]:
    """Every stage by name: sm_90.ptx of the engine's main kernel, sm_90.flash_scores.ptx of another."""
    return {
        f"{target}.{stage}" if kernel is kernels[0] else f"{target}.{kernel.kernel}.{stage}": text
        for target, kernels in compiled.items()
        for kernel in kernels
        for stage, text in kernel.texts.items()
    }


@task_failure.connect
def settle_lost_run(
    sender: Any = None, task_id: str = "", exception: object = None, args: tuple[Any, ...] = (), **_: object
) -> None:
    """The child that had the run was killed (in the parent process: the child can say nothing).

    Only the attempt that this delivery claimed is settled: the run may be in other hands by now.
    Not tried again: a child that died, rather than a whole worker, most likely died of its input.
    """
    if sender is None or sender.name != RUN_TASK:
        return
    run = Run.objects.filter(pk=args[0], status=Status.RUNNING, task_id=task_id).first()
    if run is None:
        return
    if isinstance(exception, TimeLimitExceeded):
        runs.too_long(run)
    elif isinstance(exception, WorkerLostError):
        runs.worker_lost(run, retry=False)


@beat_embedded_init.connect
@worker_process_init.connect
def die_with_worker(**kwargs: object) -> None:
    """A child whose worker was killed would run on with nobody to enforce its limits; the clock of the
    maintenance worker, beside that of the next one."""
    follow_parent(signal.SIGKILL)


@worker_process_init.connect
def warm_up(**kwargs: object) -> None:
    """Load torch and the kernels in each child before its first run, on the queues that compute."""
    if health.served_queues() & health.COMPUTING:
        from kernels.execute import warm

        warm()
        health.Warmth.tell_parent()


@shared_task(name="workers.reap")
def reap() -> None:
    settled: dict[str, int] = {}
    for reaper in (runs.reap, sweeps.reap, incidents.reap, work.reap):
        try:
            settled |= reaper()
        except Exception:  # the others have their own to settle
            log.exception("reaper: %s failed", reaper.__module__)
    if any(settled.values()):
        log.warning("reaper: %s", {what: count for what, count in settled.items() if count})


@shared_task(name="workers.expire")
def expire() -> None:
    housekeeping.send(sender=None)
    runs_expired, deliveries = runs.expire(), webhooks.expire()
    submissions.expire_batches()
    sweeps.expire()
    if runs_expired or deliveries:
        log.info("expired %d runs, %d deliveries", runs_expired, deliveries)
