"""In which tiles the kernels of a linear recurrence are launched. No torch."""

from __future__ import annotations

from typing import NamedTuple

from kernels.flash.tiles import padded_dim
from kernels.integers import next_power_of_two
from kernels.linear.inputs import Sizes

INTERPRETED_CHUNK = 64
LONGEST_CHUNKS = {"ieee": 32, "tf32": 64}  # on a GPU
LONGEST_INTERPRETED_CHUNK = 1024
STATE_NUMBERS = 4096  # of a state that a program keeps in registers


class Tiling(NamedTuple):
    """Tokens, columns of keys (all) and of values (some) to a tile; ``precision`` as in ``tiles.py``."""

    block_t: int
    block_d: int
    block_e: int
    precision: str
    num_warps: int = 4


def choose_tiling(sizes: Sizes, dtype: str, *, chunk: int | None, interpreted: bool) -> Tiling:
    """Tiles that a program can keep on chip, ``chunk`` tokens long or as long as suits.

    float32 is multiplied without tensor cores, every product written out by the compiler: shorter chunks.
    Raises ValueError for a chunk that no tile can have.
    """
    precision = "ieee" if dtype == "float32" else "tf32"
    longest = LONGEST_INTERPRETED_CHUNK if interpreted else LONGEST_CHUNKS[precision]
    if chunk is not None and (chunk != next_power_of_two(chunk) or not 16 <= chunk <= longest):
        raise ValueError(f"chunk must be a power of two from 16 to {longest}, not {chunk}")
    block_d, block_e = padded_dim(sizes.d), padded_dim(sizes.e)
    if interpreted:
        return Tiling(chunk or INTERPRETED_CHUNK, block_d, block_e, precision)
    block_e = min(block_e, 64 if precision == "tf32" else 32, max(16, STATE_NUMBERS // block_d))
    return Tiling(chunk or longest // 2, block_d, block_e, precision, 4 if block_d < 128 else 8)
