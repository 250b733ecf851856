"""Is every part of the service there? Asked by /readyz and by the supervisor."""

import logging
from typing import Any

import redis
from celery import current_app
from celery.signals import heartbeat_sent
from django.conf import settings
from django.db import DatabaseError
from django.db import connection as database

from workers.broker import PREFIX, connection

log = logging.getLogger(__name__)


def _key(queue: str) -> str:
    return f"{PREFIX}alive:{queue}"


def alive_seconds() -> int:
    """How long a silent worker counts as alive: gone before the reaper asks who could take its run."""
    return max(3, settings.HEARTBEAT_TIMEOUT * 2 // 3)


@heartbeat_sent.connect
def report_alive(sender: Any, **kwargs: object) -> None:
    """Each worker's main process says which queues it serves; silence is taken for death."""
    try:
        with connection().pipeline(transaction=False) as pipe:
            for queue in current_app.amqp.queues.consume_from:
                pipe.set(_key(queue), sender.eventer.hostname, ex=alive_seconds())
            pipe.execute()
    except redis.RedisError as error:
        log.warning("could not report this worker alive: %s", error)


def has_worker(queue: str) -> bool:
    """Whether a worker of `queue` said it was alive lately (False without Redis)."""
    try:
        return bool(connection().exists(_key(queue)))
    except redis.RedisError:
        return False


def check() -> dict[str, Any]:
    """{"ready": bool, "database": bool, "broker": bool, "queues": {name: bool}}"""
    database_up, broker_up = _database_answers(), _broker_answers()
    queues = {name: broker_up and has_worker(name) for name in settings.QUEUES}
    return {
        "ready": database_up and broker_up and all(queues.values()),
        "database": database_up,
        "broker": broker_up,
        "queues": queues,
    }


def _database_answers() -> bool:
    try:
        with database.cursor() as cursor:
            cursor.execute("SELECT 1 FROM workers_run WHERE 1 = 0")
    except DatabaseError:
        return False
    return True


def _broker_answers() -> bool:
    try:
        return bool(connection().ping())
    except redis.RedisError:
        return False
