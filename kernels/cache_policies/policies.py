"""Who is evicted from a KV cache when a token comes in.

* ``Full``: nobody. The cache grows with the text.
* ``Sliding``: the oldest, beyond ``window`` tokens. Models that were trained so read no others (Beltagy et
  al. 2020, *Longformer*, arXiv 2004.05150; Jiang et al. 2023, *Mistral 7B*, arXiv 2310.06825); others break
  when the first tokens go.
* ``Streaming``: the oldest but for the first ``sinks`` tokens, on which many heads put the weight that they
  have no use for (Xiao et al. 2023, *Efficient Streaming Language Models with Attention Sinks*, ICLR 2024,
  arXiv 2309.17453; 4 sinks there). With RoPE a token's position is its place *in the cache*, not in the text:
  keys are kept unrotated and turned at each step, so that no distance is larger than the cache. This reads
  endless texts; it does not remember them.
* ``HeavyHitters``: of all but the ``recent`` newest, the one with the least attention so far, in sums of its
  weights over the queries since it came; each head its own (Zhang et al. 2023, *H2O: Heavy-Hitter Oracle*,
  NeurIPS, arXiv 2306.14048, algorithm 1, with half of the budget for the recent ones). Query heads that share
  a key head add their weights. What is evicted never comes back, whatever later queries want of it.

A token that comes in counts from then on: eviction is before attention, so that a query sees ``budget``
tokens at most, itself among them. (H2O evicts after it, and sees one more.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from kernels.arrays import Array

TEXT, CACHE = "text", "cache"  # what a position counts


class Policy(Protocol):
    """Decides, for each key head of each batch row, which tokens stay; as many in all of them."""

    positions: ClassVar[str]  # TEXT or CACHE, unless a caller says otherwise
    mass_bytes: ClassVar[int]  # what it must know of each token of a head beside its key and value

    @property
    def budget(self) -> int | None:
        """The most tokens that a head ever holds; None: no limit."""
        ...

    def survivors(self, mass: Array) -> Array:
        """Of the c tokens held, in order of the text and the newest one included, the places of those that
        stay, ascending: [b, h, c'], or [c'] where all heads keep the same. ``mass`` [b, h, c]: how much
        attention each has had so far."""
        ...


def _at_least(name: str, value: int, least: int, meaning: str) -> None:
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}: {meaning}")


@dataclass(frozen=True)
class Full:
    """Evicts nobody."""

    positions: ClassVar[str] = TEXT
    mass_bytes: ClassVar[int] = 0

    @property
    def budget(self) -> None:
        """No limit."""
        return None

    def survivors(self, mass: Array) -> Array:
        """All."""
        return np.arange(mass.shape[2])


@dataclass(frozen=True)
class Sliding:
    """Keeps the newest ``window`` tokens."""

    window: int
    positions: ClassVar[str] = TEXT
    mass_bytes: ClassVar[int] = 0

    def __post_init__(self) -> None:
        _at_least("window", self.window, 1, "it counts the newest token too")

    @property
    def budget(self) -> int:
        """The window."""
        return self.window

    def survivors(self, mass: Array) -> Array:
        """The last ones."""
        return np.arange(max(mass.shape[2] - self.window, 0), mass.shape[2])


@dataclass(frozen=True)
class Streaming:
    """Keeps the first ``sinks`` tokens and the newest ``window``."""

    window: int
    sinks: int = 4
    positions: ClassVar[str] = CACHE
    mass_bytes: ClassVar[int] = 0

    def __post_init__(self) -> None:
        _at_least("window", self.window, 1, "it counts the newest token too")
        _at_least("sinks", self.sinks, 0, "it counts the first tokens that stay; 0 is a sliding window")

    @property
    def budget(self) -> int:
        """Sinks and window."""
        return self.sinks + self.window

    def survivors(self, mass: Array) -> Array:
        """The first and the last ones; they may be the same."""
        places = np.arange(mass.shape[2])
        return places[(places < self.sinks) | (places >= len(places) - self.window)]


@dataclass(frozen=True)
class HeavyHitters:
    """Keeps the newest ``recent`` tokens, half of the ``budget`` unless given, and of the others those with
    the most attention so far."""

    budget: int
    recent: int | None = None
    positions: ClassVar[str] = TEXT
    mass_bytes: ClassVar[int] = 4  # a float32

    def __post_init__(self) -> None:
        _at_least("budget", self.budget, 1, "it counts the newest token too")
        _at_least("recent", self.newest, 1, "it counts the newest token too")
        if self.newest > self.budget:
            raise ValueError(f"recent must be at most the budget of {self.budget}, not {self.recent}")

    @property
    def newest(self) -> int:
        """How many are safe because they are new."""
        return max(self.budget // 2, 1) if self.recent is None else self.recent

    def survivors(self, mass: Array) -> Array:
        """Of equal masses the newer stays."""
        c = mass.shape[2]
        if c <= self.budget:
            return np.arange(c)
        older = c - self.newest
        heaviest = np.argsort(mass[:, :, :older], axis=2, kind="stable")[:, :, c - self.budget :]
        recent = np.broadcast_to(np.arange(older, c), (*mass.shape[:2], self.newest))
        return np.concatenate([np.sort(heaviest, axis=2), recent], axis=2)
