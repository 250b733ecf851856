"""How each kernel is cut into tiles on each GPU, kept as data: ``tuned.csv``, one line per configuration.

A line says what it holds for: kernel, target, dtype, width (of keys or of values, whichever is larger, padded
to a power of two) and kind (of logits and of cache); then the tiles, warps and stages that are launched; then
what the compiler made of them: registers, spills, shared memory, how many blocks fit on a multiprocessor,
tensor-core instructions. The figures are exact and need no GPU. How fast a line is was not measured, and
nothing in the table says so. bfloat16 has the lines of float16, and compiles to the same figures.

The lines are found by compiling (``make compiled``), by this rule. A candidate is acceptable when for every
example of its kind it uses no stack and spills nothing, its 16-bit products are tensor-core instructions, its
float32 products are none, and a block fits. Of the acceptable ones take those with, in this order,

1. eight resident warps to a multiprocessor, two for each of its schedulers, so that one can compute its
   softmax while another waits for its product;
2. 32 keys to a tile: with fewer, barriers and corrections outweigh the products;
3. the most queries in a tile: twice the queries halve how often K and V are read;
4. the most keys in a tile, up to 64;
5. two resident blocks: the warps of one block wait for each other at each tile of keys, blocks do not;
6. the most keys in a tile;
7. the most resident warps, then the most stages of loads in flight, then the fewest registers.

In decoding keys come before queries, for there are few queries and all time goes to reading keys. But for the
plain forward pass only tiles that leave each thread room for addresses and factors are candidates, and the
first that is acceptable is taken. Where none is, the one that spills least is, and its line shows it.

Data only: no torch, no triton.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kernels.spec.model import RunSpec

TABLE = Path(__file__).with_name("tuned.csv")

# What a kernel reads and makes of it, by the registers that it takes.
KINDS = {
    "none": "every query sees every key",
    "causal": "causal, nothing else",
    "arithmetic": "windows, softcap, ALiBi, sinks, lengths, positions: what a few numbers per row say",
    "matrix": "masks, biases and patterns: a number for each score",
    "paged": "keys and values in pages, whatever the logits",
    "coded": "keys and values decoded from int8 or fp8, in pages or not, whatever the logits",
    "any": "whatever there is, all of it at once",
}
# The kinds that each kernel has lines for. What is not worth lines of its own has those of what takes more.
KERNELS = {
    "flash_forward": ("none", "causal", "arithmetic", "matrix", "paged", "coded"),
    "flash_scores": ("any",),
    "flash_backward_keys": ("any",),
    "flash_backward_queries": ("any",),
    "decode_split": ("arithmetic", "any"),
    "latent_attention": ("any",),
}


PLAIN = ("none", "causal", "arithmetic", "matrix")  # of the forward pass over keys and values in a row
NARROWEST = 64  # for which all else has lines, which narrower rows take too


class Tiling(NamedTuple):
    """How a kernel is launched. The interpreter knows only tiles."""

    block_m: int  # queries to a tile
    block_n: int  # keys to a tile
    num_warps: int = 4
    num_stages: int = 3  # tiles of K and V that are loaded or waited for at a time


Tiles = Tiling | tuple[int, int]  # (block_m, block_n) alone, where warps and stages are nobody's business


class Key(NamedTuple):
    """What a line of the table holds for."""

    kernel: str
    target: str
    dtype: str  # "float16" or "float32"
    dim: int
    kind: str


@dataclass(frozen=True)
class Tuned:
    """One line of the table: what it holds for, what is launched, and what that compiles to."""

    kernel: str
    target: str
    dtype: str
    dim: int
    kind: str
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
    def key(self) -> Key:
        """What the line holds for."""
        return Key(self.kernel, self.target, self.dtype, self.dim, self.kind)

    @property
    def tiling(self) -> Tiling:
        """What is launched."""
        return Tiling(self.block_m, self.block_n, self.num_warps, self.num_stages)


def tuned(kernel: str, target: str, dim: int, spec: RunSpec) -> Tiling | None:
    """The tiling of ``kernel`` for ``spec``, whose padded rows are ``dim`` wide; None if that is too wide."""
    dtype, kind = "float32" if spec.dtype == "float32" else "float16", kind_of(kernel, spec)
    line = table().get(Key(kernel, target, dtype, max(dim, widths(kernel, kind)[0]), kind))
    return None if line is None else line.tiling


def widths(kernel: str, kind: str) -> tuple[int, ...]:
    """Of padded rows, for which the table has lines."""
    narrow = (16, 32) if kernel == "flash_forward" and kind in PLAIN else ()
    return (*narrow, NARROWEST, 128, 256, *((512,) if kernel == "latent_attention" else ()))


@cache
def table() -> dict[Key, Tuned]:
    """Every line, by what it holds for."""
    with TABLE.open(newline="") as file:
        lines = [_parsed(row) for row in csv.DictReader(file)]
    return {line.key: line for line in lines}


def write_table(lines: Iterable[Tuned]) -> None:
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


def kind_of(kernel: str, spec: RunSpec) -> str:
    """The kind (a key of KINDS) whose line ``kernel`` takes for ``spec``."""
    logits = _kind_of_logits(spec)
    enough = ["matrix", "any"] if logits == "matrix" else [logits, "arithmetic", "any"]
    if spec.engine == "paged":
        enough = ["paged", *enough]
    if spec.options.kv_dtype is not None:
        enough = ["coded", "any"]
    return next(kind for kind in enough if kind in KERNELS[kernel])


def _kind_of_logits(spec: RunSpec) -> str:
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
