"""Attention over the first keys alone, tile of keys by tile: what an online softmax must hold on its way, in
closed form, float64, and how far rounding may take a kernel from it.

With S the keys up to the end of a tile that a query may see (and its sink, a key of value 0):

    m = max_S s        l = Σ_S exp(s − m)        O = Σ_S exp(s − m)·v        factor = exp(m before − m)

The bounds are those of ``kernels.bounds``, whose names these are. A logit errs by ε_j, m therefore by no more
than ε, the largest of S, and the exponent of a term by ε_j + ε; each tile so far multiplied it by a rounded
factor, 4a. So with γ_j = exp(ε_j + ε) − 1 and after t tiles

    |l′ − l| ≤ Σ_S p_j (γ_j + λ√|S|·a + 4a·t),    |O′ − O| ≤ Σ_S p_j (γ_j + u + λ√|S|·a + 4a·t)·|v_j|,

plus what underflows, and what a quantised cache adds to values; never more than twice |S| and twice Σ|v_j|.
"""

from __future__ import annotations

import math

import numpy as np

from kernels.arrays import Array
from kernels.bounds import LAMBDA, Bounds, most, rounded_up
from kernels.engines.reference import Head
from kernels.flash.schedule import SKIPPED, schedule
from kernels.flash.tiles import choose_tiles
from kernels.operands import Operands
from kernels.spec.model import RunSpec


class Prefixes:
    """The results that ``spec.results.TRACE`` names, as they must be; ``observe`` every head of the
    reference, then read ``results`` (float64, and the schedule uint8) and ask ``found``."""

    def __init__(self, spec: RunSpec, given: Operands, bounds: Bounds) -> None:
        block_m, self.block_n = choose_tiles(spec, interpreted=True)
        self.bounds = bounds
        n, e = given.q.shape[2], given.v.shape[3]
        tiles = schedule(given, (block_m, self.block_n))[:, :, np.arange(n) // block_m]
        if given.q_lens is not None:
            beyond = np.arange(n) >= given.q_lens[:, None]
            tiles.swapaxes(1, 2)[beyond] = SKIPPED
        self.results = {
            "trace_tiles": tiles,
            "trace_max": np.full(tiles.shape, -np.inf),
            "trace_sum": np.zeros(tiles.shape),
            "trace_rescale": np.ones(tiles.shape),
            "trace_out": np.zeros((*tiles.shape, e)),
        }
        self.largest = dict.fromkeys(self.results, 0.0)

    def observe(self, head: Head) -> None:
        """Take one head of the reference into account."""
        with np.errstate(over="ignore", invalid="ignore"):
            _, logit = self.bounds.logits(head)
            before, slip_before = np.full(len(head.q), head.sink), np.zeros(len(head.q))
            for tile in range(self.results["trace_tiles"].shape[3]):
                before, slip_before = self._after(head, logit, tile, before, slip_before)

    def found(self) -> dict[str, float]:
        """The bound of each result."""
        return {name: rounded_up(bound) for name, bound in self.largest.items()}

    def _after(
        self, head: Head, logit: Array, tile: int, before: Array, slip_before: Array
    ) -> tuple[Array, Array]:
        """Note what holds after a tile; m [n], and the bound of its error."""
        n, end = len(head.q), min((tile + 1) * self.block_n, len(head.k))
        masked, v = head.results["masked_scores"][:, :end], head.v[:end]
        m = masked.max(1, initial=head.sink)
        finite = np.where(np.isneginf(m), 0.0, m)
        weights, sink = np.exp(masked - finite[:, None]), np.exp(head.sink - finite)
        is_taken = self.results["trace_tiles"][head.b, head.h, :n, tile] != SKIPPED
        factor = np.where(is_taken, np.exp(before - finite), 1.0)
        found = {"max": m, "sum": weights.sum(1) + sink, "rescale": factor, "out": weights @ v}
        for name, x in found.items():
            self.results[f"trace_{name}"][head.b, head.h, :n, tile] = x

        a, u, tiny, lost = self.bounds.kept, self.bounds.unit, self.bounds.tiny, self.bounds.lost
        slip = np.where(np.isneginf(masked), 0.0, logit[:, :end]).max(1, initial=0.0)
        moved = weights * np.expm1(np.where(weights == 0.0, 0.0, logit[:, :end] + slip[:, None]))
        distance = np.where(sink == 0.0, 0.0, finite - head.sink)
        moved_sink = sink * np.expm1(slip + 3 * a * distance + 4 * a)
        sums = LAMBDA * math.sqrt(end + 1) * a + 4 * a * (tile + 1)
        shrunk = np.where(is_taken & (factor != 0.0), finite - before, 0.0)
        sizes, decoded = np.abs(v), 0.0
        if self.bounds.off is not None:
            off = self.bounds.off[1][head.b, head.kv, :end]
            sizes, decoded = sizes + off, (weights + moved) @ off
        by_values = (moved + (sums + u) * weights) @ sizes + decoded + lost * (sizes.sum(0) + 1.0)
        for name, bound in {
            "max": slip,
            "sum": np.fmin(moved.sum(1) + moved_sink + sums * found["sum"] + tiny * end, 2.0 * (end + 1)),
            "rescale": np.fmin(factor * np.expm1(slip + slip_before + 3 * a * shrunk + 4 * a) + tiny, 1.0)
            * is_taken,
            "out": np.fmin(by_values, 2 * sizes.sum(0) + lost),
        }.items():
            self.largest[f"trace_{name}"] = max(self.largest[f"trace_{name}"], most(bound))
        return m, slip
