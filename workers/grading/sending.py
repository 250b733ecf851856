"""Telling the graders that there is something to do.

One message an assignment is enough, however many submissions wait: who takes it grades until none is left,
and sends another where they are more than one grader takes at a time, so that all who are free share them.
So a key in Redis says that a message is on its way; a grader removes it before it looks for work, and nothing
that comes later is overlooked. Without Redis, or when the key outlived its message, there is one message too
many or the reaper sends another.
"""

import logging

import redis
from django.conf import settings

from workers import broker, health
from workers.broker import PREFIX, connection
from workers.celery import CHECK_TASK, GRADE_QUEUE, GRADE_TASK, REGRADE_TASK, app
from workers.grading.models import Check, Regrade

log = logging.getLogger(__name__)

ON_ITS_WAY_SECONDS = 60


def send(assignment_id: str) -> None:
    """Have the queued submissions of an assignment graded."""
    if _first(assignment_id):
        send_again(assignment_id)


def send_again(assignment_id: str) -> None:
    """`send`, whether or not a message seems to be on its way."""
    try:
        _send(GRADE_TASK, assignment_id)
    except Exception:
        taken(assignment_id)  # the next submission tries again, or the reaper
        raise


def ask_for_help(assignment_id: str) -> None:
    """`send` by a grader who may leave some to another one, and can do without."""
    try:
        send(assignment_id)
    except Exception as error:
        log.warning("assignment %s: nobody was asked for help: %s", assignment_id, error)


def taken(assignment_id: str) -> None:
    """The message has arrived: what is submitted from now on needs another."""
    try:
        connection().delete(_key(assignment_id))
    except redis.RedisError as error:
        log.warning("assignment %s: %s", assignment_id, error)


def send_work(work: Check | Regrade) -> None:
    _send(CHECK_TASK if isinstance(work, Check) else REGRADE_TASK, work.pk)


def would_pile_up() -> bool:
    """Whether messages wait and no grader is there to take them: then more of them help nobody."""
    try:
        return broker.waiting(GRADE_QUEUE) > 0 and not health.has_worker(GRADE_QUEUE)
    except redis.RedisError:
        return True


def _first(assignment_id: str) -> bool:
    try:
        return bool(connection().set(_key(assignment_id), 1, nx=True, ex=ON_ITS_WAY_SECONDS))
    except redis.RedisError:
        return True


def _key(assignment_id: str) -> str:
    return f"{PREFIX}grade-sent:{assignment_id}"


def _send(task: str, row_id: str) -> None:
    most = settings.GRADE_BUDGET + settings.GRADE_TURN
    app.send_task(
        task,
        (row_id,),
        queue=GRADE_QUEUE,
        soft_time_limit=most + settings.GRADE_SOFT_LIMIT_MARGIN,
        time_limit=most + settings.GRADE_HARD_LIMIT_MARGIN,
    )
