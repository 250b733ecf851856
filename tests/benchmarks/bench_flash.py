"""The flash kernel in the interpreter: chosen tiles against GPU-like ones, torch's SDPA for context.

    python tests/benchmarks/bench_flash.py

All in one run on one machine, so that the ratios mean something; exits with 1 when a threshold is missed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from kernels.flash.launch import forward
from kernels.flash.tiles import default_tiles

SHAPE = (1, 8, 1024, 64)
GPU_TILES = (128, 64)
MIN_RATIO, MAX_SECONDS = 5.0, 0.6


def best_of(repeats: int, call: Callable[[], object]) -> float:
    """Seconds of the fastest of several calls: the one least disturbed by whatever else the machine does."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def main() -> int:
    torch.manual_seed(0)
    q, k, v = (torch.randn(SHAPE) for _ in range(3))
    chosen = default_tiles(SHAPE[2], SHAPE[2], SHAPE[3], "float32", interpreted=True)

    def flash(tiles: tuple[int, int]) -> torch.Tensor:
        return forward(q, k, v, scale=SHAPE[3] ** -0.5, is_causal=True, offset=0, tiles=tiles)["out"]

    def sdpa() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    difference = (flash(chosen) - sdpa()).abs().max().item()
    timings = {
        f"flash, chosen tiles {chosen[0]} x {chosen[1]}": best_of(7, lambda: flash(chosen)),
        f"flash, tiles {GPU_TILES[0]} x {GPU_TILES[1]}": best_of(2, lambda: flash(GPU_TILES)),
        "torch SDPA (context)": best_of(7, sdpa),
    }
    fast, slow, _ = timings.values()
    print(f"causal float32 {SHAPE}, in the interpreter, {torch.get_num_threads()} threads")
    for name, seconds in timings.items():
        print(f"  {name:36} {seconds:8.3f} s   {seconds / fast:7.2f} x")
    checks = {
        f"chosen tiles at least {MIN_RATIO:g} x faster: {slow / fast:.1f} x": slow / fast >= MIN_RATIO,
        f"chosen tiles at most {MAX_SECONDS:g} s: {fast:.3f} s": fast <= MAX_SECONDS,
        f"agrees with SDPA: {difference:.1e}": difference < 1e-5,
    }
    for text, holds in checks.items():
        print(f"  {'ok  ' if holds else 'FAIL'} {text}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
