"""The Redis that carries run ids, wakes waiting requests and counts quotas."""

from functools import cache

import redis
from django.conf import settings

PREFIX = "attention-lab:"


@cache
def connection() -> "redis.Redis":
    """One thread-safe client per process, answering with text."""
    return redis.Redis.from_url(
        settings.REDIS_URL,
        decode_responses=True,
        socket_timeout=5,
        socket_connect_timeout=2,
        health_check_interval=30,
    )


def celery_url(url: str) -> str:
    """The same address as kombu spells it (it has its own scheme for unix sockets)."""
    return url.replace("unix://", "redis+socket://", 1) if url.startswith("unix://") else url


def waiting(queue: str) -> int:
    """How many messages of `queue` no worker has taken yet."""
    return int(connection().llen(f"{PREFIX}{queue}"))
