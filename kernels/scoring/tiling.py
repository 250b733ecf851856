"""How large the tiles of scores are. Arithmetic only: no torch, no triton."""

from __future__ import annotations

from kernels.flash.tiles import INTERPRETER_BLOCK, INTERPRETER_SCORES, padded_dim
from kernels.integers import next_power_of_two
from kernels.limits import MIN_BLOCK
from kernels.tuning import Tiling

# By dtype, and by the width of keys or of values, whichever are wider. Found by compiling for every target,
# without masks and windows and with all of them at once: a thread spills 16 bytes at most.
ON_A_GPU = {
    "float16": {64: Tiling(64, 32, 4, 2), 128: Tiling(64, 32, 4, 2), 256: Tiling(32, 32, 4, 2)},
    "float32": {64: Tiling(32, 16, 4, 2), 128: Tiling(16, 16, 4, 2), 256: Tiling(16, 16, 4, 2)},
}
# Scores that take other tiles: additive loads no vectors, cosine holds those of keys, and concat of both.
OTHERS = {
    ("additive", "float32"): {64: Tiling(32, 32, 4, 2), 128: Tiling(32, 16, 4, 2)},
    ("cosine", "float16"): {128: Tiling(64, 32, 8, 2), 256: Tiling(32, 32, 8, 2)},
    ("cosine", "float32"): {128: Tiling(16, 16, 8, 2), 256: Tiling(16, 16, 8, 2)},
    ("concat", "float16"): {128: Tiling(32, 32, 4, 2), 256: Tiling(16, 16, 4, 2)},
}


def choose_tiling(
    score: str, widths: tuple[int, int], lengths: tuple[int, int], dtype: str, *, interpreted: bool
) -> Tiling:
    """For keys and values of such ``widths``, and so many queries and keys (``lengths``): what suits the
    machine, no larger than the lengths need."""
    if interpreted:
        best = Tiling(INTERPRETER_BLOCK, INTERPRETER_SCORES // INTERPRETER_BLOCK)
    else:
        kind = "float32" if dtype == "float32" else "float16"
        table = ON_A_GPU[kind] | OTHERS.get((score, kind), {})
        wide = padded_dim(max(widths))
        best = next((tiling for width, tiling in table.items() if wide <= width), table[256])
    fit_m, fit_n = (max(MIN_BLOCK, next_power_of_two(length)) for length in lengths)
    return best._replace(block_m=min(best.block_m, fit_m), block_n=min(best.block_n, fit_n))
