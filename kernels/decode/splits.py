"""How many splits a decoding step has and how large its tiles are. Arithmetic only: no torch, no triton."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.flash.tiles import largest_tiling, padded_dim, warps_for
from kernels.integers import ceil_div, next_power_of_two
from kernels.limits import MAX_BLOCK_ELEMENTS, MAX_DECODE_LEN, MIN_BLOCK
from kernels.spec.attention import MAX_SPLITS
from kernels.spec.model import RunSpec
from kernels.tuning import Tiling

RESIDENT = 2  # programs that share a multiprocessor: enough that one loads while the other computes
OVERHEAD_TILES = 1  # what a program costs beside its tiles, in tiles: Q, a pipeline to fill, its state
MERGE_ELEMENTS = 4096  # of a tile of states on a GPU: 32 float32 in each thread of a program


def is_decoding(spec: RunSpec, engine: str) -> bool:
    """Whether the decode kernels do the work of ``engine``, for a few queries."""
    return engine == "decode" or (engine == "paged" and spec.q_len <= MAX_DECODE_LEN)


@dataclass(frozen=True)
class Plan:
    """How one decoding step is cut up."""

    tiling: Tiling  # block_m in rows: the queries of all heads that share a key head, as far as they fit
    num_splits: int


def make_plan(spec: RunSpec, *, target: str | None, multiprocessors: int | None) -> Plan:
    """The options of ``spec``, else what suits ``target`` (a key of TARGETS) with so many multiprocessors;
    both None: the interpreter.

    A split is a whole number of tiles. Splits beyond the number of tiles would be empty and are not made.
    """
    tiling, asked_splits = tilings(spec, target)["decode_split"], spec.options.num_splits
    if asked_splits is None:
        programs = spec.batch * spec.num_kv_heads * ceil_div(rows_per_kv_head(spec), tiling.block_m)
        splits = choose_splits(programs, ceil_div(visible_span(spec), tiling.block_n), multiprocessors)
    else:
        splits = max(1, min(asked_splits, ceil_div(spec.kv_len, tiling.block_n)))
    return Plan(tiling, splits)


def tilings(spec: RunSpec, target: str | None) -> dict[str, Tiling]:
    """How each kernel that works on tiles of queries and keys is launched for ``spec``, by its name."""
    return {"decode_split": decode_tiling(spec, target)}


def decode_tiling(spec: RunSpec, target: str | None) -> Tiling:
    """As many keys as are asked for, else as suit ``target`` (a key of TARGETS; None: the interpreter); no
    more rows than there are. Where ``num_splits`` is given and ``block_n`` is not, tiles are no longer than a
    split."""
    best = largest_tiling(spec, target, "decode_split")
    asked_n, asked_splits = spec.options.block_n, spec.options.num_splits
    longest = spec.kv_len if asked_splits is None else ceil_div(spec.kv_len, asked_splits)
    fit_m, fit_n = (max(MIN_BLOCK, next_power_of_two(size)) for size in (rows_per_kv_head(spec), longest))
    block_m, block_n = min(fit_m, best.block_m), asked_n or min(fit_n, best.block_n)
    if target is None or (block_m, block_n) == best[:2]:
        return best._replace(block_m=block_m, block_n=block_n)
    warps = warps_for(block_m, block_n, max(spec.head_dim, spec.v_head_dim), spec.dtype)
    return Tiling(block_m, block_n, warps, best.num_stages)


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
        return ceil_div(programs * splits, slots) * (ceil_div(tiles, splits) + OVERHEAD_TILES)

    return min(range(1, max(1, min(tiles, MAX_SPLITS)) + 1), key=time)


def merge_tile(rows: int, num_splits: int, v_dim: int, *, interpreted: bool) -> tuple[int, int]:
    """(block_rows, block_splits) of the merge kernel: on a GPU a row to each program, as many of its splits
    at a time as registers hold; in the interpreter as few programs as Triton's largest tile allows."""
    width = padded_dim(v_dim)
    largest = MAX_BLOCK_ELEMENTS if interpreted else MERGE_ELEMENTS
    block_splits = min(next_power_of_two(num_splits), largest // width)
    block_rows = min(next_power_of_two(rows), largest // (width * block_splits)) if interpreted else 1
    return max(block_rows, 1), block_splits
