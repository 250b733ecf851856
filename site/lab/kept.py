"""What was computed lately, so that all pictures of a page share one computation."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from django.utils.translation import gettext as _

from api import preferences
from api.computing import Busy

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

WAIT_SECONDS = 10


class Kept(Generic[K, V]):
    """The latest few. Each is computed once at a time; nobody waits for another, nor for what is there."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.found: OrderedDict[K, V] = OrderedDict()
        self.turns: WeakValueDictionary[K, threading.Lock] = WeakValueDictionary()  # of who computes or waits
        self.lock = threading.Lock()  # of both

    def get(self, key: K, compute: Callable[[], V | None]) -> V | None:
        """What is kept, or what `compute` gives; None is not kept. Raises Busy where too many wait."""
        if (there := self.found.get(key)) is not None:
            return there
        with self.lock:
            turn = self.turns.setdefault(key, threading.Lock())
        with taken(turn):
            if (there := self.found.get(key)) is None and (there := compute()) is not None:
                self.keep(key, there)
            return there

    def keep(self, key: K, value: V) -> None:
        with self.lock:
            self.found[key] = value
            while len(self.found) > self.most:
                self.found.popitem(last=False)


@contextmanager
def taken(turn: threading.Lock) -> Iterator[None]:
    """One's turn, at once or after the others'. A request that waits holds a thread, so few may, and not for
    long. Raises Busy."""
    if not turn.acquire(blocking=False):
        with preferences.place_to_wait() as admitted:
            if not (admitted and turn.acquire(timeout=WAIT_SECONDS)):
                raise Busy(_("This is being computed for others already. Try again in a moment."), 1)
    try:
        yield
    finally:
        turn.release()
