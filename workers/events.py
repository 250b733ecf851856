"""Waking whoever waits for a run.

Each change of status is appended to a short Redis stream of the run. A reader that starts from the
beginning of the stream can never miss the change it waits for, however late it comes, and any
number of readers may wait at once. The row stays the truth: when Redis is away, or forgot, the
row is read now and then instead.
"""

import logging
import time
from typing import Any

import redis

from workers.broker import PREFIX, connection
from workers.models import ACTIVE, Run

log = logging.getLogger(__name__)

# What a worker or a reaper writes; the rest of a row stays as it was submitted.
CHANGING = (
    "status", "attempt", "started_at", "heartbeat_at", "finished_at",
    "input_info", "array_info", "result", "environment", "error",
    "inputs_inline", "result_inline",
)  # fmt: skip
STREAM_SECONDS = 900  # a stream outlives every wait by far
BLOCK_SECONDS = 2.0  # below the client's socket timeout; the row is read again after each


def _key(run_id: str) -> str:
    return f"{PREFIX}events:{run_id}"


def announce(run_id: str, status: str) -> None:
    """Tell the waiters; nobody waiting, or no Redis, is no reason to fail a run."""
    try:
        with connection().pipeline(transaction=False) as pipe:
            pipe.xadd(_key(run_id), {"status": status}, maxlen=20)
            pipe.expire(_key(run_id), STREAM_SECONDS)
            pipe.execute()
    except redis.RedisError as error:
        log.warning("run %s: could not announce %s: %s", run_id, status, error)


def wait(run: Run, seconds: float, *, for_any_change: bool = False) -> None:
    """Block until `run` is terminal, or `seconds` have passed; refreshes `run`.

    With `for_any_change`, also return when the status differs from the one in `run`.
    """
    deadline = time.monotonic() + seconds
    known, last_id = run.status, "0"
    while not run.is_terminal and not (for_any_change and run.status != known):
        left = deadline - time.monotonic()
        if left <= 0:
            return
        entries = _entries_after(run.id, last_id, min(left, BLOCK_SECONDS))
        last_id = entries[-1][0] if entries else last_id
        if not entries or for_any_change or any(fields["status"] not in ACTIVE for _, fields in entries):
            run.refresh_from_db(fields=CHANGING)


def _entries_after(run_id: str, last_id: str, seconds: float) -> list[tuple[str, dict[str, str]]]:
    """The entries of the run's stream after `last_id`, waiting up to `seconds` for the first."""
    try:
        streams: Any = connection().xread({_key(run_id): last_id}, block=max(1, int(seconds * 1000)))
    except redis.RedisError as error:
        log.warning("run %s: waiting without Redis: %s", run_id, error)
        time.sleep(min(seconds, 0.5))
        return []
    return streams[0][1] if streams else []
