"""`Prefer: wait=N` (RFC 7240): how long a client will wait for the finished run; and the waiting itself."""

import logging
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from django.conf import settings

from api.errors import Problem
from workers import events
from workers.events import Awaited
from workers.grading import submissions

log = logging.getLogger(__name__)

MAX_WAIT = 60
MAX_HEADER = 512  # characters that are looked at; matching is quadratic in blanks
# One preference: a name, perhaps a value (plain or quoted), perhaps parameters, which we do not use.
PREFERENCE = re.compile(
    r'\s*([!#$%&\'*+.^_`|~0-9A-Za-z-]+)\s*(?:=\s*("(?:[^"\\]|\\.)*"|[^\s,;"]*))?[^,]*(?:,|$)'
)

# A waiting request holds a web thread. The others must stay free for everybody else, so there is one
# number for whatever waits in this process: REST and pages. (A negative one is told by api.checks.)
_waiting = threading.BoundedSemaphore(max(0, settings.MAX_WAITERS))


def wait_seconds(header: str) -> int | None:
    """The seconds of `wait=N`, at most 60; None without that preference. Nonsense is a 400.

    Unknown preferences are ignored, and of a repeated one the first counts, as RFC 7240 says.
    """
    for name, value in PREFERENCE.findall(header[:MAX_HEADER]):
        if name.lower() == "wait":
            digits = value.strip('"')
            if not re.fullmatch(r"[0-9]{1,9}", digits):
                raise Problem(400, f"Prefer: wait must be whole seconds from 0 to {MAX_WAIT}, not {value!r}.")
            return min(int(digits), MAX_WAIT)
    return None


def wait_for(row: Awaited, seconds: int | None, *, for_any_change: bool = False) -> bool:
    """Wait for `row` (refreshed in place) to end, or to change at all; whether the wish was honored.

    It is not when too many requests wait already: then the answer is the row as it is now.
    """
    if seconds is None:
        return False
    if row.is_terminal or seconds == 0:
        return True
    with place_to_wait() as admitted:
        if admitted:
            events.wait(row, seconds, for_any_change=for_any_change)
        return admitted


def wait_for_all(ids: Sequence[str], seconds: int) -> dict[str, str]:
    """{id: status} of submissions, once all have ended or the wish is fulfilled."""
    with place_to_wait() as admitted:
        return submissions.wait_for_all(ids, seconds if admitted else 0)


@contextmanager
def place_to_wait() -> Iterator[bool]:
    """Whether there is one."""
    admitted = _waiting.acquire(blocking=False)
    if not admitted:
        log.warning("too many requests wait already, answering at once")
    try:
        yield admitted
    finally:
        if admitted:
            _waiting.release()
