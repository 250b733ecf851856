"""How many splits a decoding step has and how large its tiles are. Arithmetic only: no torch, no triton."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.flash.tiles import INTERPRETER_BLOCK, MIN_DIM, next_power_of_two, padded_dim
from kernels.spec.attention import MAX_SPLITS
from kernels.spec.model import RunSpec

RESIDENT = 2  # programs that share a multiprocessor: enough that one loads while the other computes
OVERHEAD_TILES = 1  # what a program costs beside its tiles, in tiles: Q, a pipeline to fill, its state
MERGE_ELEMENTS = 4096  # of a tile of states on a GPU: 32 float32 in each thread of a program


@dataclass(frozen=True)
class Plan:
    """How one decoding step is cut up."""

    block_m: int  # rows per tile: the queries of all heads that share a key head, as far as they fit
    block_n: int  # keys per tile
    num_splits: int


def make_plan(spec: RunSpec, *, multiprocessors: int | None) -> Plan:
    """The options of ``spec``, else what suits a GPU with so many multiprocessors (None: the interpreter).

    A split is a whole number of tiles. Where ``num_splits`` is given and ``block_n`` is not, tiles are no
    longer than a split; splits beyond the number of tiles would be empty and are not made.
    """
    asked_n, asked_splits = spec.options.block_n, spec.options.num_splits
    rows, kv_len = rows_per_kv_head(spec), spec.kv_len
    largest_m, largest_n = largest_tile(spec, interpreted=multiprocessors is None)
    longest = kv_len if asked_splits is None else -(-kv_len // asked_splits)
    block_m, block_n = (max(MIN_DIM, next_power_of_two(length)) for length in (rows, longest))
    block_m, block_n = min(block_m, largest_m), asked_n or min(block_n, largest_n)
    if asked_splits is None:
        programs = spec.batch * spec.num_kv_heads * -(-rows // block_m)
        splits = choose_splits(programs, -(-visible_span(spec) // block_n), multiprocessors)
    else:
        splits = max(1, min(asked_splits, -(-kv_len // block_n)))
    return Plan(block_m, block_n, splits)


def largest_tile(spec: RunSpec, *, interpreted: bool) -> tuple[int, int]:
    """(block_m, block_n): on a GPU the largest that hardly spill a register (40 bytes at most), compiled for
    every target with every term of a logit but masks."""
    if interpreted:
        return INTERPRETER_BLOCK, INTERPRETER_BLOCK
    width = padded_dim(max(spec.head_dim, spec.v_head_dim))
    if spec.dtype == "float32":
        return 16, 16
    return (64 if width <= 64 else 32), (64 if width <= 128 else 32)


def rows_per_kv_head(spec: RunSpec) -> int:
    """Rows of queries that read the same keys: q_len of each head of a group."""
    return spec.num_heads // spec.num_kv_heads * spec.q_len if spec.num_kv_heads else 0


def visible_span(spec: RunSpec) -> int:
    """At most so many keys lie between the first and the last that a sequence's queries see."""
    attention = spec.attention
    left, right = attention.sides
    listed = isinstance(attention.q_positions, tuple) or isinstance(attention.kv_positions, tuple)
    if left is None or right is None or listed:
        return spec.kv_len
    return max(0, min(spec.kv_len, left + right + spec.q_len))


def choose_splits(programs: int, tiles: int, multiprocessors: int | None) -> int:
    """Into how many splits to cut ``tiles`` tiles of keys, where there are ``programs`` programs unsplit.

    A GPU runs RESIDENT programs per multiprocessor at a time. With s splits there are programs · s of them,
    in waves, and a wave lasts as long as its longest program:

        time(s) = ⌈programs · s / (RESIDENT · multiprocessors)⌉ · (⌈tiles / s⌉ + OVERHEAD_TILES)

    in units of one tile. The s with the least time is chosen, the smallest of several. The interpreter
    (``multiprocessors`` None) runs one program after another: one split.
    """
    if multiprocessors is None:
        return 1
    slots = RESIDENT * multiprocessors

    def time(splits: int) -> int:
        return -(-programs * splits // slots) * (-(-tiles // splits) + OVERHEAD_TILES)

    return min(range(1, max(1, min(tiles, MAX_SPLITS)) + 1), key=time)


def merge_tile(rows: int, num_splits: int, v_dim: int, *, interpreted: bool) -> tuple[int, int]:
    """(block_rows, block_splits) of the merge kernel: on a GPU a row to each program, as many of its splits
    at a time as registers hold; in the interpreter as few programs as Triton's largest tile allows."""
    width = padded_dim(v_dim)
    largest = INTERPRETER_BLOCK**2 if interpreted else MERGE_ELEMENTS
    block_splits = min(next_power_of_two(num_splits), largest // width)
    block_rows = min(next_power_of_two(rows), largest // (width * block_splits)) if interpreted else 1
    return max(block_rows, 1), block_splits
