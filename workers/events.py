"""Waking whoever waits for a run, or for another row that workers bring to an end.

Each change of status is appended to a short Redis stream of the row. A reader that starts from the
beginning of the stream can never miss the change it waits for, however late it comes, and any
number of readers may wait at once. The row stays the truth: when Redis is away, or forgot, the
row is read now and then instead.
"""

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Protocol

import redis

from workers.broker import PREFIX, connection

log = logging.getLogger(__name__)

STREAM_SECONDS = 900  # a stream outlives every wait by far
BLOCK_SECONDS = 2.0  # below the client's socket timeout; the row is read again after each


class Awaited(Protocol):
    """A row whose status workers change."""

    ACTIVE: ClassVar[Sequence[str]]  # the statuses from which it goes on
    CHANGING: ClassVar[Sequence[str]]  # the fields that may differ when it does
    id: Any

    @property
    def status(self) -> Any: ...

    @property
    def is_terminal(self) -> bool: ...

    def refresh_from_db(self, *, fields: Any) -> None: ...


def _key(row_id: str) -> str:
    return f"{PREFIX}events:{row_id}"


def announce(row_id: str, status: str) -> None:
    """Tell the waiters; nobody waiting, or no Redis, is no reason to fail."""
    announce_all([(row_id, status)])


def announce_all(changes: Iterable[tuple[str, str]]) -> None:
    """`announce` each (id, status), in one exchange with Redis."""
    changes = list(changes)
    try:
        with connection().pipeline(transaction=False) as pipe:
            for row_id, status in changes:
                pipe.xadd(_key(row_id), {"status": status}, maxlen=20)
                pipe.expire(_key(row_id), STREAM_SECONDS)
            pipe.execute()
    except redis.RedisError as error:
        log.warning("could not announce %s: %s", changes[:3], error)


def wait(row: Awaited, seconds: float, *, for_any_change: bool = False) -> None:
    """Block until `row` is terminal, or `seconds` have passed; refreshes `row`.

    With `for_any_change`, also return when the status differs from the one in `row`.
    """
    deadline = time.monotonic() + seconds
    known, last_id = row.status, "0"
    while not row.is_terminal and not (for_any_change and row.status != known):
        left = deadline - time.monotonic()
        if left <= 0:
            return
        entries = _entries_after(row.id, last_id, min(left, BLOCK_SECONDS))
        last_id = entries[-1][0] if entries else last_id
        if not entries or for_any_change or any(fields["status"] not in row.ACTIVE for _, fields in entries):
            row.refresh_from_db(fields=row.CHANGING)


def _entries_after(row_id: str, last_id: str, seconds: float) -> list[tuple[str, dict[str, str]]]:
    """The entries of the row's stream after `last_id`, waiting up to `seconds` for the first."""
    try:
        streams: Any = connection().xread({_key(row_id): last_id}, block=max(1, int(seconds * 1000)))
    except redis.RedisError as error:
        log.warning("%s: waiting without Redis: %s", row_id, error)
        time.sleep(min(seconds, 0.5))
        return []
    return streams[0][1] if streams else []
