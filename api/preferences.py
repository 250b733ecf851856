"""`Prefer: wait=N` (RFC 7240): how long a client will wait for the finished run; and the waiting itself."""

import logging
import re
import threading

from django.conf import settings

from api.errors import Problem
from workers import runs
from workers.models import Run

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


def wait_for(run: Run, seconds: int | None, *, for_any_change: bool = False) -> bool:
    """Wait for `run` (refreshed in place) to end, or to change at all; whether the wish was honored.

    It is not when too many requests wait already: then the answer is the run as it is now.
    """
    if seconds is None:
        return False
    if run.is_terminal or seconds == 0:
        return True
    if not _waiting.acquire(blocking=False):
        log.warning("run %s: too many requests wait already, answering at once", run.id)
        return False
    try:
        runs.wait(run, seconds, for_any_change=for_any_change)
    finally:
        _waiting.release()
    return True
