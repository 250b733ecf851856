"""How large a tile of queries and of keys the flash kernel works on. Arithmetic only: no torch, no triton.

On a GPU a tile of Q, K and V must fit in the shared memory of one multiprocessor (about 100 to 227 KB) and
its scores in the registers, so tiles are 16 to 128, which is in a table (``kernels.tuning``). The
interpreter runs one numpy call per operation and tile, so that the number of tiles is what costs: there tiles
are as large as Triton allows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import partial

from kernels.spec.model import RunSpec
from kernels.spec.problems import FieldProblem
from kernels.targets import TARGETS, WARP_SIZE
from kernels.tuning import Tiling, terms_of, tuned

MIN_DIM = 16  # tl.dot multiplies nothing narrower
INTERPRETER_BLOCK = 1024  # 1024 × 1024 scores: Triton's largest tile
# What is chosen there, 1024 × 512 for long sequences: 2 MiB of scores, which stay in a processor's cache. A
# fifth faster than twice as many; and a quarter as many take twice as long.
INTERPRETER_SCORES = 2**19
DEFAULT_TARGET = "sm_80"  # whose tiles are shown and estimated with, where no GPU is at hand
THREADS = 4 * WARP_SIZE  # of a program: four warps, Triton's default
# Keys to a tile of a quantised cache on a GPU. Codes are decoded in registers, for which the table has no
# lines: with 64 keys or more some formats spill tens of kilobytes for each thread.
CODED_BLOCK_N = 32
# For scores and output, of the 256 KiB of a multiprocessor: the rest is for queries, addresses and factors.
# Tiles beyond are spilled, and were compiled for up to 30 s.
MAX_REGISTER_BYTES = 160 * 1024
MAX_UNROLLED = 4096  # float32 multiply-adds of a thread: about 15 s of compiling on one core, growing faster


Excess = Callable[[str, int, int], str | None]  # (target, block_m, block_n) -> what a tile has too much of


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def padded_dim(dim: int) -> int:
    """Width of a tile that holds rows of ``dim`` numbers."""
    return max(MIN_DIM, next_power_of_two(dim))


def choose_tiling(spec: RunSpec, target: str | None, kernel: str = "flash_forward") -> Tiling:
    """How ``kernel`` is launched for ``spec`` on ``target``, a key of TARGETS; None: Triton's interpreter.

    Tiles as asked for in the options, else what suits the machine, never larger than the lengths need.
    """
    dim = max(spec.head_dim, spec.v_head_dim)
    best = largest_tiling(kernel, target, spec.dtype, dim, terms_of(spec))
    block_m, block_n = _within_lengths(best, spec.q_len, spec.kv_len, interpreted=target is None)
    if spec.options.kv_dtype is not None and target is not None:
        block_n = min(block_n, CODED_BLOCK_N)
    asked_m, asked_n = spec.options.block_m, spec.options.block_n
    if asked_m and not asked_n:
        block_n = min(block_n, INTERPRETER_BLOCK**2 // asked_m)
    if asked_n and not asked_m:
        block_m = min(block_m, INTERPRETER_BLOCK**2 // asked_n)
    block_m, block_n = asked_m or block_m, asked_n or block_n
    if (block_m, block_n) == best[:2]:
        return best
    return Tiling(block_m, block_n, warps_for(block_m, block_n, dim, spec.dtype), best.num_stages)


def _within_lengths(best: Tiling, q_len: int, kv_len: int, *, interpreted: bool) -> tuple[int, int]:
    """(block_m, block_n) of ``best``, or as much of them as the lengths need."""
    fit_m, fit_n = (max(MIN_DIM, next_power_of_two(length)) for length in (q_len, kv_len))
    block_m, block_n = min(best.block_m, fit_m), min(best.block_n, fit_n)
    return block_m, min(block_n, INTERPRETER_SCORES // block_m) if interpreted else block_n


def largest_tiling(kernel: str, target: str | None, dtype: str, dim: int, terms: str) -> Tiling:
    """What suits sequences of any length."""
    if target is None:
        return Tiling(INTERPRETER_BLOCK, INTERPRETER_BLOCK)
    best = tuned(kernel, target, dtype, padded_dim(dim), terms)
    if best is None:  # wider than any that is shipped
        return Tiling(MIN_DIM, MIN_DIM, num_stages=1)
    return best


def warps_for(block_m: int, block_n: int, dim: int, dtype: str) -> int:
    """Warps of a program whose tiles are not those of the table, 4 or 8: enough that scores and output of a
    tile take each thread 96 registers at most, or 48 in float32, whose factors are in registers too."""
    numbers = block_m * (block_n + padded_dim(dim)) * (2 if dtype == "float32" else 1)
    return 4 if numbers <= 4 * 96 * WARP_SIZE else 8


def choose_tiles(spec: RunSpec, *, interpreted: bool) -> tuple[int, int]:
    """(block_m, block_n) of the forward pass, in the interpreter or on DEFAULT_TARGET."""
    return choose_tiling(spec, None if interpreted else DEFAULT_TARGET)[:2]


def backward_tiles(spec: RunSpec, *, interpreted: bool) -> tuple[int, int]:
    """(block_m, block_n) of the backward pass: those of the forward pass, but on a GPU no larger than was
    found to compile without spills for sm_80 and sm_90 (float32 beyond 128 wide has some whatever the tiles).

    Beside K and V a program holds both their gradients. Tiles that were asked for are no exception: in large
    ones these kernels spilled kilobytes per thread, and took half a minute to compile.
    """
    block_m, block_n = choose_tiles(spec, interpreted=interpreted)
    if interpreted:
        return block_m, block_n
    width = padded_dim(max(spec.head_dim, spec.v_head_dim))
    if spec.dtype == "float32":
        largest_m, largest_n = (32, 32) if width <= 64 else (16, 16)
    else:
        largest_m, largest_n = (64 if width <= 128 else 32), (64 if width <= 64 else 32)
    return min(block_m, largest_m), min(block_n, largest_n)


def tile_problems(spec: RunSpec, targets: Iterable[str]) -> list[FieldProblem]:
    """Why the tiles of ``spec`` cannot be compiled for some of ``targets``; each names the largest that can.

    A tile far beyond the machine still compiles, after minutes, into a kernel that cannot be launched. The
    tiles chosen by default always pass.
    """
    found = (too_large(spec, choose_tiling(spec, one)[:2], [one], partial(_excess, spec)) for one in targets)
    return list(itertools.chain.from_iterable(found))


def too_large(
    spec: RunSpec, tiles: tuple[int, int], targets: Iterable[str], excess: Excess
) -> list[FieldProblem]:
    """``tile_problems`` of a kernel that is launched in ``tiles`` for ``spec``."""
    block_m, block_n = tiles
    pointer = "/options/block_m" if spec.options.block_m else "/options/block_n"
    problems = []
    for target in targets:
        why = excess(target, block_m, block_n)
        if why is not None:
            detail = f"tiles of {block_m} × {block_n} for {target}: {why}. {_remedy(tiles, target, excess)}"
            problems.append(FieldProblem(pointer, "tile-too-large", detail))
    return problems


def _excess(spec: RunSpec, target: str, block_m: int, block_n: int) -> str | None:
    """What a tile needs more of than a multiprocessor has, or than can be compiled; None where it fits."""
    item = 4 if spec.dtype == "float32" else 2
    width_qk, width_v = padded_dim(spec.head_dim), padded_dim(spec.v_head_dim)
    registers = 4 * block_m * (block_n + width_v)
    shared = item * (block_m * width_qk + block_n * (width_qk + width_v))  # without a second buffer
    multiplies = block_m * block_n * (width_qk + width_v) // THREADS
    return resource_excess(target, registers, shared, multiplies if spec.dtype == "float32" else 0)


def resource_excess(target: str, registers: int, shared: int, multiplies: int) -> str | None:
    """Which of what a tile needs is too much: bytes of registers, for scores and output; bytes of shared
    memory, for queries, keys and values; float32 multiply-adds of a thread."""
    most_shared = TARGETS[target].shared_bytes_per_block
    if registers > MAX_REGISTER_BYTES:
        return _needs("scores and output take", registers, MAX_REGISTER_BYTES, "of registers")
    if shared > most_shared:
        return _needs("Q, K and V take", shared, most_shared, "of shared memory")
    if multiplies > MAX_UNROLLED:
        return (
            f"each thread makes {multiplies:,} float32 multiply-adds, written out one by one; at most "
            f"{MAX_UNROLLED:,} are compiled"
        )
    return None


def _needs(what: str, needed: int, most: int, where: str) -> str:
    return f"{what} {needed // 1024} KiB {where}, and a multiprocessor has {most // 1024} KiB for them"


def _remedy(tiles: tuple[int, int], target: str, excess: Excess) -> str:
    """The largest tile within the one asked for that fits."""
    smaller = [
        (m, n)
        for m, n in itertools.product(*(_powers(block) for block in tiles))
        if excess(target, m, n) is None
    ]
    if not smaller:
        return "No smaller tile fits either: lower the dim, or leave this target out."
    m, n = max(smaller, key=lambda tile: (tile[0] * tile[1], tile[0]))
    return f"The largest that fits is block_m {m} with block_n {n}."


def _powers(largest: int) -> list[int]:
    """Powers of two from MIN_DIM to ``largest``."""
    return [1 << exponent for exponent in range(MIN_DIM.bit_length() - 1, largest.bit_length())]
