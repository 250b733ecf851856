"""Is every part of the service there? Asked by /readyz and by the supervisor.

Each worker's main process says twice over which queues it serves: *alive* as soon as it listens, and
*ready* once a child of its pool has loaded what it computes with. Silence is taken for death.
"""

import logging
import os
import socket
from typing import Any

import redis
from celery import current_app
from celery.signals import heartbeat_sent
from django.conf import settings
from django.db import DatabaseError
from django.db import connection as database

from workers.broker import PREFIX, connection

log = logging.getLogger(__name__)

COMPUTING = frozenset({"cpu", "gpu"})  # the queues whose children load torch before their first run


def _key(what: str, queue: str) -> str:
    return f"{PREFIX}{what}:{queue}"


def alive_seconds() -> int:
    """How long a silent worker counts as alive: gone before the reaper asks who could take its run."""
    return max(3, settings.HEARTBEAT_TIMEOUT * 2 // 3)


def served_queues() -> set[str]:
    """The queues that this worker process takes messages from."""
    return set(current_app.amqp.queues.consume_from)


class Warmth:
    """Whether a child of this worker has warmed up. Told through Redis once, remembered here for good."""

    known = False

    @staticmethod
    def _key(pid: int) -> str:
        return f"{PREFIX}warm:{socket.gethostname()}:{pid}"

    @classmethod
    def tell_parent(cls) -> None:
        """In a child, when it is warm."""
        try:
            connection().set(cls._key(os.getppid()), 1, ex=3600)
        except redis.RedisError as error:
            log.warning("could not say that this process is warm: %s", error)

    @classmethod
    def of_this_worker(cls) -> bool:
        cls.known = (
            cls.known or not served_queues() & COMPUTING or bool(connection().exists(cls._key(os.getpid())))
        )
        return cls.known


@heartbeat_sent.connect
def report(sender: Any, **kwargs: object) -> None:
    """Say that this worker is there, at each of Celery's own heartbeats (2 s)."""
    try:
        states = ["alive", "ready"] if Warmth.of_this_worker() else ["alive"]
        with connection().pipeline(transaction=False) as pipe:
            for queue in served_queues():
                for state in states:
                    pipe.set(_key(state, queue), sender.eventer.hostname, ex=alive_seconds())
            pipe.execute()
    except redis.RedisError as error:
        log.warning("could not report this worker alive: %s", error)


def has_worker(queue: str) -> bool:
    """Whether a worker of `queue` said it was alive lately (False without Redis)."""
    return _said("alive", queue)


def _said(what: str, queue: str) -> bool:
    try:
        return bool(connection().exists(_key(what, queue)))
    except redis.RedisError:
        return False


def check() -> dict[str, Any]:
    """{"ready": bool, "database": bool, "broker": bool, "queues": {name: bool}}"""
    database_up, broker_up = _database_answers(), _broker_answers()
    queues = {name: broker_up and _said("ready", name) for name in settings.QUEUES}
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
