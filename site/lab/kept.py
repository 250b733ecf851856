"""What was computed lately, so that all pictures of a page share one computation."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(Generic[K, V]):
    """The latest few. Each is computed once at a time; nobody waits for another, nor for what is there."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.found: OrderedDict[K, V] = OrderedDict()
        self.turns: WeakValueDictionary[K, threading.Lock] = WeakValueDictionary()  # of who computes or waits
        self.lock = threading.Lock()  # of both

    def get(self, key: K, compute: Callable[[], V | None]) -> V | None:
        """What is kept, or what `compute` gives; None is not kept."""
        if (there := self.found.get(key)) is not None:
            return there
        with self.lock:
            turn = self.turns.setdefault(key, threading.Lock())
        with turn:
            if (there := self.found.get(key)) is None and (there := compute()) is not None:
                self.keep(key, there)
            return there

    def keep(self, key: K, value: V) -> None:
        with self.lock:
            self.found[key] = value
            while len(self.found) > self.most:
                self.found.popitem(last=False)
