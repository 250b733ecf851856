"""How the forward kernel walks over the tiles of one head: which it visits, in which order, and what that is
in pairs, operations and bytes; and how evenly the work falls on programs. In numpy: no torch, no triton.

``schedule.py`` says which tiles are skipped, masked or full; here that is counted.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from kernels.arrays import Array
from kernels.flash.schedule import SKIPPED, schedule
from kernels.operands import Operands
from kernels.tuning import Tiles

STRIP = 1 << 20  # pairs that are looked at at a time


@dataclass(frozen=True)
class Walk:
    """One head of one batch row: n queries and m keys, the padding of a ragged batch included."""

    kinds: Array  # [⌈n / block_m⌉, ⌈m / block_n⌉] uint8, of ``schedule``
    block_m: int
    block_n: int
    n: int
    m: int
    pairs: int  # of a query and a key that it may see

    @property
    def visits(self) -> Array:
        """[visited, 2]: tile of queries and tile of keys, in the order in which they are visited."""
        return np.argwhere(self.kinds != SKIPPED)

    @property
    def visited(self) -> int:
        """Tiles that are loaded and computed."""
        return int(np.count_nonzero(self.kinds))

    @property
    def work(self) -> Array:
        """[tiles of queries]: how many tiles of keys each program visits."""
        return np.asarray(np.count_nonzero(self.kinds, axis=1))

    @property
    def keys_loaded(self) -> int:
        """Rows of K, and of V, that all programs read together."""
        widths = np.minimum(self.block_n, self.m - np.arange(self.kinds.shape[1]) * self.block_n)
        return int(np.count_nonzero(self.kinds, axis=0) @ widths)

    @property
    def pairs_computed(self) -> int:
        """Whole tiles, whatever is masked in them or pads them."""
        return self.visited * self.block_m * self.block_n

    def count(self, kind: int) -> int:
        """Tiles of a kind."""
        return int(np.count_nonzero(self.kinds == kind))


def walk(given: Operands, tiles: Tiles, batch: int, head: int) -> Walk:
    """Of one query head of one batch row; ``given`` need say no more than ``schedule.deciding`` does.
    IndexError where there is no such head."""
    one = of_head(given, batch, head)
    n, m = one.q.shape[2], one.k.shape[2]
    return Walk(schedule(one, tiles)[0, 0], tiles[0], tiles[1], n, m, visible_pairs(one))


def of_head(given: Operands, batch: int, head: int) -> Operands:
    """The operands of one query head of one batch row, both axes kept, and the lengths too."""
    if not (0 <= batch < given.q.shape[0] and 0 <= head < given.q.shape[1]):
        raise IndexError(f"no head {head} of batch row {batch} in {given.q.shape[:2]}")
    kv = head // given.group

    def row(array: Array | None) -> Array | None:
        return None if array is None else array[batch % len(array)][None]

    def pairs(array: Array | None) -> Array | None:
        return None if array is None else array[batch % len(array), head % array.shape[1]][None, None]

    return replace(
        given,
        q=given.q[batch : batch + 1, head : head + 1],
        k=given.k[batch : batch + 1, kv : kv + 1],
        v=given.v[batch : batch + 1, kv : kv + 1],
        q_positions=given.q_positions[batch % len(given.q_positions)][None],
        kv_positions=given.kv_positions[batch % len(given.kv_positions)][None],
        slopes=None
        if given.slopes is None
        else given.slopes[batch % len(given.slopes)][None, head : head + 1],
        sinks=None if given.sinks is None else given.sinks[head : head + 1],
        mask=pairs(given.mask),
        bias=pairs(given.bias),
        q_lens=row(given.q_lens),
        kv_lens=row(given.kv_lens),
        latents=None,
    )


def visible_pairs(one: Operands) -> int:
    """How many pairs of a query and a key it may see there are in ``of_head``."""
    n = one.q.shape[2] if one.q_lens is None else int(one.q_lens[0])
    m = one.k.shape[2] if one.kv_lens is None else int(one.kv_lens[0])
    queries, keys = one.q_positions[0, :n], one.kv_positions[0, :m]
    if one.mask is None and one.bias is None and bool((np.diff(keys) > 0).all()):
        low = 0 if one.left is None else np.searchsorted(keys, queries - one.left, "left")
        high = m if one.right is None else np.searchsorted(keys, queries + one.right, "right")
        return int(np.maximum(np.broadcast_to(high - low, (n,)), 0).sum())
    height, total = max(1, STRIP // max(m, 1)), 0
    for start in range(0, n, height):
        rows = slice(start, min(start + height, n))
        seen = np.ones((rows.stop - rows.start, m), np.bool_)
        distance = keys[None, :] - queries[rows, None]
        seen &= True if one.left is None else distance >= -one.left
        seen &= True if one.right is None else distance <= one.right
        for array, is_seen in ((one.mask, lambda x: x), (one.bias, lambda x: ~np.isneginf(x))):
            if array is not None:
                full = np.broadcast_to(array[0, 0], (one.q.shape[2], one.k.shape[2]))
                seen &= is_seen(full[rows, :m])
        total += int(seen.sum())
    return total


def finish_time(work: Iterable[int], places: int) -> int:
    """When the last program ends, in tiles, where ``places`` programs run at a time and each that ends is
    followed by the next in order."""
    busy = [0] * places
    for tiles in work:
        heapq.heapreplace(busy, busy[0] + int(tiles))
    return max(busy)
