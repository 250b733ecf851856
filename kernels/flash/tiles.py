"""How large a tile of queries and of keys the flash kernels work on. Arithmetic only: no torch, no triton.

On a GPU a tile of Q, K and V must fit in the shared memory of one multiprocessor (about 100 to 227 KB) and
its scores in the registers, so tiles are 16 to 128, which is in a table (``kernels.tuning``). The
interpreter runs one numpy call per operation and tile, so that the number of tiles is what costs: there tiles
are as large as Triton allows.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.integers import next_power_of_two
from kernels.limits import MAX_BLOCK, MAX_BLOCK_ELEMENTS, MIN_BLOCK
from kernels.spec.model import Options, RunSpec
from kernels.spec.results import MATRICES
from kernels.targets import WARP_SIZE
from kernels.tuning import Tiling, tuned

INTERPRETER_BLOCK = MAX_BLOCK
# What is chosen there, 1024 × 512 for long sequences: 2 MiB of scores, which stay in a processor's cache. A
# fifth faster than twice as many; and a quarter as many take twice as long.
INTERPRETER_SCORES = 2**19
DEFAULT_TARGET = "sm_80"  # whose tiles are shown and estimated with, where no GPU is at hand
BACKWARD = ("flash_backward_keys", "flash_backward_queries")


def padded_dim(dim: int) -> int:
    """Width of a tile that holds rows of ``dim`` numbers."""
    return max(MIN_BLOCK, next_power_of_two(dim))


def tilings(spec: RunSpec, target: str | None) -> dict[str, Tiling]:
    """How each kernel that works on tiles of queries and keys is launched for ``spec``, by its name.

    ``target``: a key of TARGETS; None: Triton's interpreter. Both backward kernels have the tiles of one.
    """
    found = {"flash_forward": choose_tiling(spec, target)}
    if any(name in MATRICES for name in spec.returns):
        found["flash_scores"] = choose_tiling(spec, target, "flash_scores")
    if spec.differentiates:
        found |= dict.fromkeys(BACKWARD, choose_tiling(spec, target, BACKWARD[0]))
    return found


def choose_tiling(spec: RunSpec, target: str | None, kernel: str = "flash_forward") -> Tiling:
    """How ``kernel`` is launched for ``spec`` on ``target``, a key of TARGETS; None: Triton's interpreter.

    Tiles as asked for in the options, else what suits the machine, never larger than the lengths need. On a
    GPU those of the backward kernels are never larger than in the table: beside K and V a program holds both
    their gradients, and in large tiles it spilled kilobytes per thread and took half a minute to compile.
    """
    best = largest_tiling(spec, target, kernel)
    block_m, block_n = _within_lengths(best, spec.q_len, spec.kv_len, interpreted=target is None)
    asked_m, asked_n = spec.options.block_m, spec.options.block_n
    if kernel in BACKWARD and target is not None:
        block_m, block_n = min(block_m, asked_m or block_m), min(block_n, asked_n or block_n)
        return best._replace(block_m=block_m, block_n=block_n)
    block_m, block_n = as_asked(spec.options, block_m, block_n)
    if (block_m, block_n) == best[:2]:
        return launched_as_asked(best, spec)
    dim = max(spec.head_dim, spec.v_head_dim)
    warps = warps_for(block_m, block_n, dim, spec.dtype)
    return launched_as_asked(Tiling(block_m, block_n, warps, best.num_stages), spec)


def launched_as_asked(tiling: Tiling, spec: RunSpec) -> Tiling:
    """With the warps and the stages of the options, where they name some."""
    asked = {name: spec.options.more.get(name) for name in ("num_warps", "num_stages")}
    return tiling._replace(**{name: count for name, count in asked.items() if count is not None})


def _within_lengths(best: Tiling, q_len: int, kv_len: int, *, interpreted: bool) -> tuple[int, int]:
    """(block_m, block_n) of ``best``, or as much of them as the lengths need."""
    fit_m, fit_n = (max(MIN_BLOCK, next_power_of_two(length)) for length in (q_len, kv_len))
    block_m, block_n = min(best.block_m, fit_m), min(best.block_n, fit_n)
    return block_m, min(block_n, INTERPRETER_SCORES // block_m) if interpreted else block_n


def as_asked(options: Options, block_m: int, block_n: int) -> tuple[int, int]:
    """(block_m, block_n) as asked for in the options; where one of them is, the other no larger than together
    they may be."""
    asked_m, asked_n = options.block_m, options.block_n
    if asked_m and not asked_n:
        block_n = min(block_n, MAX_BLOCK_ELEMENTS // asked_m)
    if asked_n and not asked_m:
        block_m = min(block_m, MAX_BLOCK_ELEMENTS // asked_n)
    return asked_m or block_m, asked_n or block_n


def largest_tiling(spec: RunSpec, target: str | None, kernel: str) -> Tiling:
    """What suits sequences of any length."""
    if target is None:
        return Tiling(INTERPRETER_BLOCK, INTERPRETER_BLOCK)
    best = tuned(kernel, target, padded_dim(max(spec.head_dim, spec.v_head_dim)), spec)
    return best or Tiling(MIN_BLOCK, MIN_BLOCK, num_stages=1)  # wider than any that is shipped


def warps_for(block_m: int, block_n: int, dim: int, dtype: str) -> int:
    """Warps of a program whose tiles are not those of the table, 4 or 8: enough that scores and output of a
    tile take each thread 96 registers at most, or 48 in float32, whose factors are in registers too."""
    numbers = block_m * (block_n + padded_dim(dim)) * (2 if dtype == "float32" else 1)
    return 4 if numbers <= 4 * 96 * WARP_SIZE else 8


def choose_tiles(spec: RunSpec, *, interpreted: bool) -> tuple[int, int]:
    """(block_m, block_n) of the forward pass, in the interpreter or on DEFAULT_TARGET."""
    return choose_tiling(spec, None if interpreted else DEFAULT_TARGET)[:2]


@dataclass(frozen=True)
class Needs:
    """What one program of a kernel holds at once and does in each step, as far as its tiles decide it."""

    registers: int  # numbers of 32 bits: scores, weights, and what is summed up
    shared: int  # numbers of queries, keys and values, without a second buffer
    multiplies: int  # multiply-adds of a step


def needs(kernel: str, spec: RunSpec, tiling: Tiling) -> Needs:
    """Of one of the flash kernels, or of ``decode_split``, which does for few queries what ``flash_forward``
    does."""
    m, n = tiling[:2]
    d, e = padded_dim(spec.head_dim), padded_dim(spec.v_head_dim)
    if kernel == "flash_scores":
        return Needs(m * n, (m + n) * d, m * n * d)
    if kernel == "flash_backward_keys":  # weights and their gradients; dK and dV
        return Needs(2 * m * n + n * (d + e), (m + n) * (d + e), 2 * m * n * (d + e))
    if kernel == "flash_backward_queries":
        return Needs(2 * m * n + m * d, (m + n) * (d + e), m * n * (2 * d + e))
    return Needs(m * (n + e) + weight_registers(spec, tiling), m * d + n * (d + e), m * n * (d + e))


def weight_registers(spec: RunSpec, tiling: Tiling) -> int:
    """What the weights take as a factor of their product with values: two 16-bit numbers to a register, and
    all of a row in each warp that computes a part of it. A warp has 16 rows, as long as there are enough for
    all. (Float32 has no such factors.)"""
    if spec.dtype == "float32":
        return 0
    warps_to_a_row = max(1, tiling.num_warps * MIN_BLOCK // tiling.block_m)
    return tiling.block_m * tiling.block_n // 2 * warps_to_a_row
