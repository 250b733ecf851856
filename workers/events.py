"""Waking whoever waits for a run.

Each change of status is appended to a short Redis stream of the run. A reader that starts from the
beginning of the stream can never miss the change it waits for, however late it comes, and any
number of readers may wait at once. The row stays the truth: when Redis is away, or forgot, the
row is read now and then instead.
"""

import logging
import time

import redis

from workers.broker import PREFIX, connection
from workers.models import ACTIVE, Run

log = logging.getLogger(__name__)

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

    def settled() -> bool:
        return run.is_terminal or (for_any_change and run.status != known)

    while not settled() and (left := deadline - time.monotonic()) > 0:
        try:
            last_id = _read(run.id, known, last_id, min(left, BLOCK_SECONDS), for_any_change)
        except redis.RedisError as error:
            log.warning("run %s: waiting without Redis: %s", run.id, error)
            time.sleep(min(left, 0.5))
        run.refresh_from_db()


def _read(run_id: str, known: str, last_id: str, seconds: float, for_any_change: bool) -> str:
    """Read the stream until it tells of a change worth reading the row for, or time is up."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        block = max(1, int(left * 1000))
        streams = connection().xread({_key(run_id): last_id}, block=block)
        for _stream, entries in streams or []:
            for entry_id, fields in entries:
                last_id = entry_id
                status = fields["status"]
                if status not in ACTIVE or (for_any_change and status != known):
                    return last_id
    return last_id
