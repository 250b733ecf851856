"""What the graders do."""

import logging
import time
from functools import partial
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError
from celery import Task, shared_task
from celery.signals import task_failure
from django.conf import settings

from workers.celery import CHECK_TASK, GRADE_TASK, REGRADE_TASK
from workers.grading import incidents, judging, problems, regrades, sending, submissions, webhooks, work
from workers.grading.models import Assignment, Check, ProblemVersion, Regrade, State, Submission
from workers.heart import Abandoned, Heart

log = logging.getLogger(__name__)


@shared_task(name=GRADE_TASK, bind=True)
def grade(self: Task[..., None], assignment_id: str) -> None:
    """Grade what is queued of an assignment until nothing is left, or its turn is over."""
    sending.taken(assignment_id)
    rows = Assignment.objects.select_related("problem_version").defer(ProblemVersion.BODY_OF)
    assignment = rows.filter(pk=assignment_id).first()
    if assignment is None:
        return
    until = time.monotonic() + settings.GRADE_TURN
    at_most = judging.at_once(assignment.problem_version)
    while claimed := submissions.claim(assignment, self.request.id or "", at_most):
        if len(claimed.submissions) == at_most:
            sending.ask_for_help(assignment_id)
        in_time = _carry_out(claimed)
        if not in_time or time.monotonic() > until:
            sending.send_again(assignment_id)
            return


def _carry_out(claimed: submissions.Claim) -> bool:
    """Judge what was claimed; False when time ran out.

    What fails is an incident, and each submission of it is tried once more, alone.
    """
    started = time.monotonic()
    try:
        with Heart(f"claim {claimed.id}", partial(submissions.beat, claimed)) as heart:
            judged = judging.judge(claimed)
            heart.no_more_interruptions()
            stored = submissions.finish(claimed, judged)
    except Abandoned:
        log.info("claim %s: abandoned", claimed.id)
    except SoftTimeLimitExceeded:
        incidents.lost(claimed.rows, incidents.OUT_OF_TIME)
        return False
    except Exception:
        log.exception("claim %s: failed", claimed.id)
        incidents.lost(claimed.rows, incidents.JUDGE_FAILED)
    else:
        took = time.monotonic() - started
        log.info("assignment %s: %d graded in %.3f s", claimed.assignment.id, stored, took)
    return True


@shared_task(name=CHECK_TASK, bind=True)
def check(self: Task[..., None], check_id: str) -> None:
    """Compute the mutant matrix of a version."""
    taken = work.claim(Check, check_id, self.request.id or "")
    if taken:
        _do(taken, problems.compute_matrix)


@shared_task(name=REGRADE_TASK, bind=True)
def regrade(self: Task[..., None], regrade_id: str) -> None:
    """Judge the submissions of an assignment again."""
    taken = work.claim(Regrade, regrade_id, self.request.id or "")
    if taken:
        _do(taken, regrades.carry_out)


def _do(taken: Any, carry_out: Any) -> None:
    try:
        with Heart(str(taken), partial(work.beat, taken)) as heart:
            carry_out(taken, heart.no_more_interruptions)
    except Abandoned:
        log.info("%s: abandoned", taken)
    except SoftTimeLimitExceeded:
        work.lost(taken, "Computing this took longer than a grader may take.")
    except Exception:
        log.exception("%s: failed", taken)
        work.lost(taken, "The grader failed on this.")


@task_failure.connect
def settle_lost_work(
    sender: Any = None, task_id: str = "", exception: object = None, args: tuple[Any, ...] = (), **_: object
) -> None:
    """The child that had the work was killed (in the parent process: the child can say nothing). Only what
    this very delivery had claimed is settled."""
    if sender is None or not isinstance(exception, TimeLimitExceeded | WorkerLostError):
        return
    if sender.name == GRADE_TASK:
        kind = incidents.OUT_OF_TIME if isinstance(exception, TimeLimitExceeded) else incidents.WORKER_LOST
        rows = Submission.objects.filter(assignment=args[0], status=State.GRADING, task_id=task_id)
        incidents.lost(rows, kind)
        sending.send_again(args[0])
    elif sender.name == CHECK_TASK:
        work.child_lost(Check, args[0], task_id)
    elif sender.name == REGRADE_TASK:
        work.child_lost(Regrade, args[0], task_id)


@shared_task(name="workers.deliver")
def deliver() -> None:
    """Send the webhooks that are due (in the maintenance worker)."""
    ended = webhooks.deliver()
    if ended:
        log.info("webhooks: %s", dict(ended))
