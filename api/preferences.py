"""`Prefer: wait=N` (RFC 7240): how long a client will wait for the finished run."""

import logging
import re
import threading

from django.conf import settings

from api.errors import Problem
from workers import runs
from workers.models import Run

log = logging.getLogger(__name__)

MAX_WAIT = 60
# One preference: a name, perhaps a value (plain or quoted), perhaps parameters, which we do not use.
PREFERENCE = re.compile(
    r'\s*([!#$%&\'*+.^_`|~0-9A-Za-z-]+)\s*(?:=\s*("(?:[^"\\]|\\.)*"|[^\s,;"]*))?[^,]*(?:,|$)'
)

# A waiting request holds a web thread. The others must stay free for everybody else.
_waiting = threading.BoundedSemaphore(settings.MAX_WAITERS)


def wait_seconds(header: str) -> int | None:
    """The seconds of `wait=N`, at most 60; None without that preference. Nonsense is a 400.

    Unknown preferences are ignored, and of a repeated one the first counts, as RFC 7240 says.
    """
    for name, value in PREFERENCE.findall(header):
        if name.lower() == "wait":
            digits = value.strip('"')
            if not re.fullmatch(r"[0-9]{1,9}", digits):
                raise Problem(400, f"Prefer: wait must be whole seconds from 0 to {MAX_WAIT}, not {value!r}.")
            return min(int(digits), MAX_WAIT)
    return None


def wait_for(run: Run, seconds: int | None) -> bool:
    """Wait for `run` (refreshed in place) to end; whether the preference was honored.

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
        runs.wait(run, seconds)
    finally:
        _waiting.release()
    return True
