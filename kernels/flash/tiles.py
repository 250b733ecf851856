"""How large a tile of queries and of keys the flash kernel works on. Arithmetic only: no torch, no triton.

On a GPU a tile of Q, K and V must fit in the shared memory of one multiprocessor (about 100 to 227 KB) and
its scores in the registers, so tiles are 16 to 128. The interpreter runs one numpy call per operation and
tile, so that the number of tiles is what costs: there tiles are as large as Triton allows.
"""

from __future__ import annotations

from kernels.spec.model import RunSpec

MIN_DIM = 16  # tl.dot multiplies nothing narrower
INTERPRETER_BLOCK = 1024  # 1024 × 1024 scores: Triton's largest tile


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def padded_dim(dim: int) -> int:
    """Width of a tile that holds rows of ``dim`` numbers."""
    return max(MIN_DIM, next_power_of_two(dim))


def choose_tiles(spec: RunSpec, *, interpreted: bool) -> tuple[int, int]:
    """(block_m, block_n): as asked for in the options, else what suits the machine."""
    block_m, block_n = default_tiles(
        spec.q_len, spec.kv_len, max(spec.head_dim, spec.v_head_dim), spec.dtype, interpreted=interpreted
    )
    asked_m, asked_n = spec.options.block_m, spec.options.block_n
    if asked_m and not asked_n:
        block_n = min(block_n, INTERPRETER_BLOCK**2 // asked_m)
    if asked_n and not asked_m:
        block_m = min(block_m, INTERPRETER_BLOCK**2 // asked_n)
    return asked_m or block_m, asked_n or block_n


def default_tiles(q_len: int, kv_len: int, dim: int, dtype: str, *, interpreted: bool) -> tuple[int, int]:
    """The tile sizes used when none were asked for; never larger than the lengths need."""
    if interpreted:
        largest_m = largest_n = INTERPRETER_BLOCK
    elif dtype == "float32":
        largest_m, largest_n = (32, 32) if padded_dim(dim) <= 128 else (16, 16)
    else:
        largest_m, largest_n = (128, 64) if padded_dim(dim) <= 128 else (64, 32)
    fit_m, fit_n = (max(MIN_DIM, next_power_of_two(length)) for length in (q_len, kv_len))
    return min(largest_m, fit_m), min(largest_n, fit_n)
