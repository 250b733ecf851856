"""The KV cache before paging: a sequence gets one run of slots when it begins, as long as it may ever need.

Two kinds of waste follow. *Internal*: slots reserved for tokens that have not come, or never will.
*External*: free slots in holes too short for anyone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise


class NoHole(Exception):
    """No run of free slots is long enough; ``free`` slots are free in all."""

    def __init__(self, needed: int, largest: int, free: int) -> None:
        self.needed, self.largest, self.free = needed, largest, free
        super().__init__(f"{needed} slots in a row are needed, the largest hole has {largest} of {free}")


@dataclass
class Run:
    """Slots ``start`` … ``start + reserved − 1``, the first ``length`` of them filled."""

    start: int
    reserved: int
    length: int


class ContiguousAllocator:
    """First fit: the first hole that is long enough."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.runs: dict[str, Run] = {}

    def allocate(self, name: str, tokens: int, reserve: int) -> None:
        """Begin a sequence of ``tokens`` in a run of ``reserve`` slots. Raises :class:`NoHole`."""
        holes = self.holes()
        start = next((start for start, size in holes if size >= reserve), None)
        if start is None:
            sizes = [size for _, size in holes]
            raise NoHole(reserve, max(sizes, default=0), sum(sizes))
        self.runs[name] = Run(start, reserve, tokens)

    def append(self, name: str, tokens: int) -> None:
        """Fill more of what was reserved."""
        self.runs[name].length += tokens

    def free(self, name: str) -> None:
        """End a sequence."""
        del self.runs[name]

    def holes(self) -> list[tuple[int, int]]:
        """Start and size of every run of free slots."""
        taken = sorted((run.start, run.start + run.reserved) for run in self.runs.values())
        edges = [(0, 0), *taken, (self.slots, self.slots)]
        return [(end, start - end) for (_, end), (start, _) in pairwise(edges) if start > end]

    def reserved(self) -> int:
        """Slots in runs."""
        return sum(run.reserved for run in self.runs.values())

    def filled(self) -> int:
        """Slots that hold a token."""
        return sum(run.length for run in self.runs.values())

    def external_fragmentation(self) -> float:
        """1 − largest hole / free slots: the share of free memory that the largest request cannot get."""
        sizes = [size for _, size in self.holes()]
        return 1 - max(sizes) / sum(sizes) if sizes else 0.0
