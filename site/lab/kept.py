"""What was computed lately, so that all pictures of a page share one computation."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(Generic[K, V]):
    """The latest few; one is computed at a time, and nobody waits for what is there."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.found: OrderedDict[K, V] = OrderedDict()
        self.lock = threading.Lock()

    def get(self, key: K, compute: Callable[[], V | None]) -> V | None:
        """What is kept, or what `compute` gives; None is not kept."""
        if (there := self.found.get(key)) is not None:
            return there
        with self.lock:
            if (there := self.found.get(key)) is None and (there := compute()) is not None:
                self.found[key] = there
                while len(self.found) > self.most:
                    self.found.popitem(last=False)
            return there
