"""In which tiles the kernels of the selective scan are launched. No torch."""

from __future__ import annotations

from typing import NamedTuple

from kernels.integers import next_power_of_two
from kernels.scan.inputs import Sizes

LONGEST_CHUNK = 64
TILE_NUMBERS = 2048  # of the states of a chunk, all of which a program holds at once
INTERPRETED_NUMBERS = 2**18


class Tiling(NamedTuple):
    """Tokens, channels and numbers of a state (all) to a tile."""

    block_t: int
    block_p: int
    block_n: int


def choose_tiling(sizes: Sizes, *, chunk: int | None, interpreted: bool) -> Tiling:
    """Tiles whose states fit on chip. Raises ValueError for a chunk that no tile can have."""
    block_n, most = next_power_of_two(sizes.states), INTERPRETED_NUMBERS if interpreted else TILE_NUMBERS
    longest = max(1, most // block_n)
    if chunk is not None and (chunk != next_power_of_two(chunk) or not 1 <= chunk <= longest):
        raise ValueError(
            f"chunk must be a power of two from 1 to {longest} with {sizes.states} states, not {chunk}"
        )
    block_t = chunk or min(LONGEST_CHUNK, max(1, longest // 4))
    block_p = min(next_power_of_two(sizes.p), max(1, most // (block_t * block_n)))
    return Tiling(block_t, block_p, block_n)
