"""How each kernel is cut into tiles on each GPU, kept as data: ``tuned.csv``, one line per configuration.

A line says what it holds for: kernel, target, dtype, width (of keys or of values, whichever is larger, padded
to a power of two) and terms of the logit; then the tiles, warps and stages that are launched; then what the
compiler made of them: registers, spills, shared memory, how many blocks fit on a multiprocessor, tensor-core
instructions. The figures are exact and need no GPU. How fast a line is was not measured, and nothing in the
table says so.

The lines are found by compiling (``python -m tests.support.tune``), by this rule. A candidate is acceptable
when for every kind of logit in its class it uses no stack and spills nothing, its 16-bit products are
tensor-core instructions, those of a warpgroup on sm_90, and a block fits. Of the acceptable ones take those
with, in this order,

1. eight resident warps to a multiprocessor, two for each of its schedulers, so that one can compute its
   softmax while another waits for its product;
2. the most queries in a tile: twice the queries halve how often K and V are read;
3. two resident blocks: the warps of one block wait for each other at each tile of keys, blocks do not;
4. the most keys in a tile: fewer maxima to correct, fewer barriers;
5. the most resident warps, then the most stages of loads in flight, then the fewest registers.

Data only: no torch, no triton.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kernels.spec.model import RunSpec

TABLE = Path(__file__).with_name("tuned.csv")

# Classes of logits by what computing them takes; each needs registers that the one before does not.
TERMS = {
    "none": "every query sees every key",
    "causal": "causal, nothing else",
    "arithmetic": "windows, softcap, ALiBi, sinks, lengths, positions: what a few numbers per row say",
    "matrix": "masks, biases and patterns: a number for each score",
}


class Tiling(NamedTuple):
    """How a kernel is launched. The interpreter knows only tiles."""

    block_m: int  # queries to a tile
    block_n: int  # keys to a tile
    num_warps: int = 4
    num_stages: int = 3  # tiles of K and V that are loaded or waited for at a time


Tiles = Tiling | tuple[int, int]  # (block_m, block_n) alone, where warps and stages are nobody's business


@dataclass(frozen=True)
class Tuned:
    """One line of the table: what it holds for, what is launched, and what that compiles to."""

    kernel: str
    target: str
    dtype: str
    dim: int
    terms: str
    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    registers: int  # per thread
    stack_bytes: int  # per thread
    spills_bytes: int  # per thread
    shared_bytes: int  # per block
    tmem_bytes: int  # per block
    blocks_per_sm: int
    occupancy: float
    mma: int  # tensor-core instructions of each generation that stand in the code
    wgmma: int
    tcgen05: int

    @property
    def key(self) -> tuple[str, str, str, int, str]:
        """What the line holds for."""
        return self.kernel, self.target, self.dtype, self.dim, self.terms

    @property
    def tiling(self) -> Tiling:
        """What is launched."""
        return Tiling(self.block_m, self.block_n, self.num_warps, self.num_stages)


def tuned(kernel: str, target: str, dtype: str, dim: int, terms: str) -> Tiling | None:
    """The tiling of a shipped configuration; None for one that is not in the table."""
    line = table().get((kernel, target, dtype, dim, terms))
    return None if line is None else line.tiling


@cache
def table() -> dict[tuple[str, str, str, int, str], Tuned]:
    """Every line, by what it holds for."""
    with TABLE.open(newline="") as file:
        lines = [_parsed(row) for row in csv.DictReader(file)]
    return {line.key: line for line in lines}


def write_table(lines: list[Tuned]) -> None:
    """Replace the table."""
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in fields(Tuned))
        writer.writerows([getattr(line, field.name) for field in fields(Tuned)] for line in lines)


def _parsed(row: dict[str, str]) -> Tuned:
    """Numbers from text, by the types of the fields."""
    read = {"str": str, "int": int, "float": float}
    values: dict[str, Any] = {field.name: read[str(field.type)](row[field.name]) for field in fields(Tuned)}
    return Tuned(**values)


def terms_of(spec: RunSpec) -> str:
    """The class of logits (a key of TERMS) that a spec asks for."""
    attention = spec.attention
    if "attn_mask" in spec.inputs or attention.pattern is not None:
        return "matrix"
    listed = any(isinstance(p, tuple) for p in (attention.q_positions, attention.kv_positions))
    lengths = "q_lens" in spec.inputs or "kv_lens" in spec.inputs
    windowed = attention.sides not in ((None, None), (None, 0))
    others = (attention.softcap, attention.alibi_slopes is not None, attention.sinks is not None)
    if listed or lengths or windowed or any(others):
        return "arithmetic"
    return "causal" if attention.sides == (None, 0) else "none"
