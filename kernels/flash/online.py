"""The online softmax of one row of scores, tile of keys by tile, in a number format of choice; the ways in
which it is got wrong; and how states of parts of a row are merged. In numpy: no torch, no triton.

The kernel that does this for many rows at once is ``softmax.py``, its merge ``kernels/decode/merge.py``. A
state is ``steps.State``: m, l and O, of which two products matter, l·exp(m) = Σ exp(s) and
O·exp(m) = Σ exp(s)·v. Whatever m is, they are sums over keys, so that states of
disjoint sets of keys add up to that of their union; m is there to keep the exponentials within the format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from kernels.arrays import Array
from kernels.flash.steps import State

# What is done otherwise than it should be:
MISTAKES = (
    "out",  # O is not rescaled when the maximum grows
    "sum",  # l is not
    "both",  # neither is
    "zero",  # the maximum starts at 0, so that it never falls below
    "infinite",  # −∞ is subtracted from −∞ where no key was seen yet
    "plain",  # nothing is subtracted
)


@dataclass(frozen=True)
class Tile:
    """Keys ``first`` … ``end`` − 1 were taken in."""

    first: int
    end: int
    largest: float  # of their scores; −∞ where all are masked
    rescale: float  # by what l and O should be multiplied
    before: State
    after: State


def one_pass(
    scores: Array, values: Array, block: int, *, dtype: str = "float64", mistake: str | None = None
) -> list[Tile]:
    """Scores [m], −∞ where a key is masked, and values [m, e], in tiles of ``block`` keys. Every number is
    rounded to ``dtype``, sums after each term. ValueError for an unknown ``mistake``."""
    if mistake not in (None, *MISTAKES):
        raise ValueError(f"mistake must be one of {', '.join(MISTAKES)}, not {mistake!r}")
    kind = np.dtype(dtype).type
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        s, v = scores.astype(kind), values.astype(kind)
        now = State(0.0 if mistake in ("zero", "plain") else -np.inf, 0.0, np.zeros(values.shape[1], kind))
        tiles = []
        for first in range(0, len(s), block):
            end = min(first + block, len(s))
            tile = _taken_in(now, s[first:end], v[first:end], mistake)
            tiles.append(Tile(first, end, float(s[first:end].max()), *tile))
            now = tiles[-1].after
    return tiles


def _taken_in(before: State, s: Array, v: Array, mistake: str | None) -> tuple[float, State, State]:
    """(rescale, before, after) of one tile."""
    kind = s.dtype.type
    m = before.m if mistake == "plain" else max(before.m, float(s.max()))
    taken = m if np.isfinite(m) or mistake == "infinite" else 0.0
    rescale = _exp(kind(before.m) - kind(taken))
    total, out = kind(before.l), before.o.astype(kind)
    if mistake not in ("sum", "both"):
        total = total * rescale
    if mistake not in ("out", "both"):
        out = out * rescale
    for weight, value in zip(_exp(s - kind(taken)), v, strict=True):
        total, out = total + weight, out + weight * value
    return float(rescale), before, State(m, float(total), out)


def _exp(x: Array) -> Array:
    """Rounded once to the format of ``x``, the same on every machine."""
    return np.exp(x.astype(np.float64)).astype(x.dtype)


def state_of(scores: Array, values: Array) -> State:
    """Of keys all at once, in float64: scores [m], values [m, e]."""
    m = float(scores.max(initial=-np.inf))
    weights = np.exp(scores - (m if np.isfinite(m) else 0.0))
    return State(m, float(weights.sum()), weights @ values)


def merge(one: State, other: State) -> State:
    """The state of the keys of both, which share none. The state of no key, (−∞, 0, 0), changes nothing."""
    m = max(one.m, other.m)
    if not np.isfinite(m):
        return one
    by, also_by = (float(np.exp(state.m - m)) for state in (one, other))
    return State(m, one.l * by + other.l * also_by, one.o * by + other.o * also_by)


def merge_all(states: Sequence[State]) -> State:
    """From the first to the last."""
    return reduce(merge, states)


def normalised(state: State) -> State:
    """The same, as a kernel hands it on: (LSE, 1, output)."""
    return State(state.lse, 1.0, state.out) if state.l else state
