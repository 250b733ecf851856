"""Signs of life of a computation, and the only way to stop one half-way."""

import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

from django.conf import settings
from django.db import connection

log = logging.getLogger(__name__)

VISIBLE_SECONDS = 0.1  # what ends sooner is never seen running
DEAF_SECONDS = 5.0  # how long a computation may take to hear that nobody wants it


class Abandoned(BaseException):
    """Raised in the middle of a computation whose row was canceled or given to another worker.

    A BaseException, so that no `except Exception` on the way mistakes it for a failure.
    """


class Heart:
    """Beats for `name` from a thread while the computation has the main one.

    `beat` says that this attempt is alive, and answers whether it still counts; when it does not, the main
    thread is interrupted with Abandoned through a signal (the only way into a long computation). `seen` is
    called once, if the computation lasts long enough to be watched.
    """

    def __init__(self, name: str, beat: Callable[[], bool], seen: Callable[[], None] | None = None) -> None:
        self.name, self.beat, self.seen = name, beat, seen
        self.stopped = threading.Event()
        self.interruptible = True
        self.thread = threading.Thread(target=self._beat, name=f"heart-{name}", daemon=True)

    def __enter__(self) -> Self:
        self.previous = signal.signal(signal.SIGUSR2, self._interrupt)
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.interruptible = False
        self.stopped.set()
        self.thread.join()
        signal.signal(signal.SIGUSR2, self.previous)

    def no_more_interruptions(self) -> None:
        """Beat on, but let what comes now (storing the result) end in peace."""
        self.interruptible = False

    def _beat(self) -> None:
        if self.seen and not self.stopped.wait(VISIBLE_SECONDS):
            self.seen()
        while not self.stopped.wait(settings.HEARTBEAT_SECONDS):
            try:
                wanted = self.beat()
            except Exception:
                log.exception("%s: a heartbeat could not be written", self.name)
                continue
            finally:
                connection.close()  # this thread's own
            if not wanted:
                self._stop_process()
                return

    def _stop_process(self) -> None:
        """Interrupt the computation; one that hears no signal (a compiler, a long product) takes its
        process with it, which the worker replaces."""
        if self.interruptible:
            os.kill(os.getpid(), signal.SIGUSR2)
            if not self.stopped.wait(DEAF_SECONDS):
                log.warning("%s: did not stop when told to; ending its process", self.name)
                os.kill(os.getpid(), signal.SIGKILL)

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        if self.interruptible:
            raise Abandoned
