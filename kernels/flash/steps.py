"""One step of the online softmax, spelt out: what a traced kernel held of one query before and after a tile
of keys, beside the scores that the tile brought and beside the exact softmax over the keys so far.

The states are the kernel's own (``trace.py``); scores and what is exact are float64, from the inputs.
In numpy: no torch, no triton.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kernels.arrays import Array
from kernels.engines.reference import Head
from kernels.flash.schedule import SKIPPED


class State(NamedTuple):
    """What is remembered of the keys so far."""

    m: float  # the largest score; −inf before any key
    l: float  # noqa: E741  Σ exp(s − m)
    o: Array  # [e], Σ exp(s − m)·v

    @property
    def out(self) -> Array:
        """[e], the output if no other key came: 0 before any key."""
        return self.o / (self.l or 1.0)

    @property
    def lse(self) -> float:
        """m + ln l; −inf before any key."""
        return self.m + float(np.log(self.l)) if self.l else -np.inf


@dataclass(frozen=True)
class Step:
    """Keys ``first`` … ``end`` − 1 were skipped, or taken in."""

    tile: int
    first: int
    end: int
    kind: int  # of ``schedule``
    scores: Array  # [keys] float64, −inf where the query may not see the key
    values: Array  # [keys, e]
    before: State
    after: State
    rescale: float  # by what the kernel multiplied l and O
    exact: State  # over all keys up to ``end``

    @property
    def is_skipped(self) -> bool:
        """Whether no key of the tile was even loaded."""
        return self.kind == SKIPPED

    @property
    def largest(self) -> float:
        """Of the tile's scores; −inf where the query sees none of its keys."""
        return float(self.scores.max(initial=-np.inf))

    @property
    def raises(self) -> bool:
        """Whether the tile holds a score above all before it."""
        return not self.is_skipped and self.after.m > self.before.m

    @property
    def exponentials(self) -> Array:
        """[keys], exp(s − m) with the maximum after the tile."""
        return np.asarray(np.exp(self.scores - (self.after.m if np.isfinite(self.after.m) else 0.0)))

    @property
    def added_sum(self) -> float:
        """What the tile adds to l."""
        return 0.0 if self.is_skipped else float(self.exponentials.sum())

    @property
    def added_out(self) -> Array:
        """[e], what the tile adds to O."""
        return np.zeros(len(self.after.o)) if self.is_skipped else self.exponentials @ self.values

    def errors(self) -> dict[str, float]:
        """How far the kernel is from what is exact, by the letter of the state; of O/l the largest."""
        pairs = {"m": (self.after.m, self.exact.m), "l": (self.after.l, self.exact.l)}
        found = {name: 0.0 if one == other else abs(one - other) for name, (one, other) in pairs.items()}
        return found | {"out": float(np.abs(self.after.out - self.exact.out).max(initial=0.0))}


def step(row: Head, trace: Mapping[str, Array], tile: int, block_n: int) -> Step:
    """Of the one query of ``row``; ``trace`` has its results (``spec.results.TRACE``), [tiles] each and
    [tiles, e]. A tile may lie beyond the keys of a ragged batch: it has none then. IndexError where there is
    no such tile."""
    if not 0 <= tile < len(trace["trace_tiles"]):
        raise IndexError(f"no tile {tile} among {len(trace['trace_tiles'])}")
    masked = row.results["masked_scores"][0]
    first, end = (min(edge, len(masked)) for edge in (tile * block_n, (tile + 1) * block_n))
    return Step(
        tile=tile,
        first=first,
        end=end,
        kind=int(trace["trace_tiles"][tile]),
        scores=masked[first:end],
        values=row.v[first:end],
        before=_held(trace, tile - 1) if tile else start(row),
        after=_held(trace, tile),
        rescale=float(trace["trace_rescale"][tile]),
        exact=_exact(row, end),
    )


def start(row: Head) -> State:
    """Before any key: nothing, or the sink, a key already seen whose value is 0."""
    return State(row.sink, 1.0 if np.isfinite(row.sink) else 0.0, np.zeros(row.v.shape[1]))


def _held(trace: Mapping[str, Array], tile: int) -> State:
    m, total = (float(trace[name][tile]) for name in ("trace_max", "trace_sum"))
    return State(m, total, trace["trace_out"][tile].astype(np.float64))


def _exact(row: Head, end: int) -> State:
    """Over the first keys, all at once."""
    masked = row.results["masked_scores"][0, :end]
    m = float(masked.max(initial=row.sink))
    if not np.isfinite(m):
        return State(m, 0.0, np.zeros(row.v.shape[1]))
    weights = np.exp(masked - m)
    return State(m, float(weights.sum() + np.exp(row.sink - m)), weights @ row.v[:end])
