"""The flash kernel in the interpreter: time, memory traffic and peak memory, against what they should be.

    python -m tests.benchmarks.bench_flash

All in one run on one machine, so that the ratios mean something. Times are CPU seconds of one thread, the
least of several: what a clock shows on a machine that does nothing else. Exits with 1 when a threshold is
missed.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

os.environ["TRITON_INTERPRET"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import torch

from kernels.arrays import generate
from kernels.flash.arguments import terms, vector
from kernels.flash.interpreter import counted_traffic
from kernels.flash.launch import forward
from kernels.flash.logits import Terms
from kernels.flash.tiles import choose_tiling
from kernels.measure import PeakMemory
from kernels.operands import Operands
from kernels.registry import ENGINES
from kernels.spec import RunSpec, parse_run
from kernels.traffic import modelled_traffic

SHAPE = (1, 8, 1024, 64)
TEXTBOOK = (128, 64)
MIN_RATIO, MAX_SECONDS, MAX_CAUSAL, MIN_TRAFFIC = 8.0, 0.4, 0.65, 5.0
LENGTHS = (1024, 2048, 4096, 8192)
Tiles = tuple[int, int]


def place(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(array))


def bound(n: int, tiles: Tiles, *, causal: bool, skip: bool = True) -> Terms:
    """What the kernel must know of n queries and n keys; without ``skip`` of a causal mask only where each
    token stands, so that no tile can be left out."""
    absent = {field.name: None for field in dataclasses.fields(Operands)}
    empty, places = np.broadcast_to(np.float32(0), (1, 1, n, 1)), np.arange(n, dtype=np.int32)[None]
    given = Operands(
        **absent | {
            "q": empty, "k": empty, "v": empty, "scale": SHAPE[3] ** -0.5, "softcap": 0.0,
            "q_positions": places, "kv_positions": places, "right": 0 if causal else None,
        }
    )  # fmt: skip
    found = terms(given, tiles, place)
    if skip:
        return found
    where = vector(places, place)
    return found._replace(p_offset=None, q_positions=where, kv_positions=where)


def inputs(heads: int, n: int) -> list[torch.Tensor]:
    return [place(generate(name, 1, (1, heads, n, SHAPE[3]), "normal", "float32")) for name in "qkv"]


def chosen(n: int, target: str | None = None, dtype: str = "float32", *, causal: bool = True) -> Tiles:
    """The tiles that a run has, on a GPU or (target None) here."""
    return choose_tiling(spec("flash", n, dtype, causal=causal), target)[:2]


def spec(engine: str, n: int, dtype: str, *, causal: bool) -> RunSpec:
    seeded = {"seed": 1, "shape": [1, 1, n, SHAPE[3]]}
    body = {"engine": engine, "dtype": dtype, "inputs": dict.fromkeys("qkv", seeded)}
    return parse_run({**body, "attention": {"is_causal": causal}}).spec


def least(repeats: int, *calls: Callable[[], object]) -> list[float]:
    """Seconds of the fastest of several runs of each, taken in turn: those least disturbed by whatever else
    the machine does."""
    seconds = [math.inf] * len(calls)
    for _ in range(repeats):
        for number, call in enumerate(calls):
            start = time.process_time()
            call()
            seconds[number] = min(seconds[number], time.process_time() - start)
    return seconds


# -- time ----------------------------------------------------------------------------------------------------


def textbook() -> Iterator[tuple[str, bool]]:
    """Our tiles against the schedule of a textbook: tiles as on a GPU, none of them skipped."""
    heads, n = SHAPE[1:3]
    q, k, v = inputs(heads, n)
    tiles = chosen(n)
    ours, theirs = bound(n, tiles, causal=True), bound(n, TEXTBOOK, causal=True, skip=False)
    right = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    for given, size in ((ours, tiles), (theirs, TEXTBOOK)):
        torch.testing.assert_close(forward(q, k, v, given, tiles=size)["out"], right)
    (fast,) = least(9, lambda: forward(q, k, v, ours, tiles=tiles))
    (slow,) = least(2, lambda: forward(q, k, v, theirs, tiles=TEXTBOOK))
    (torch_seconds,) = least(
        9, lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    )
    print(f"causal float32 {SHAPE} (torch's SDPA: {torch_seconds:.3f} s)")
    yield f"tiles {tiles[0]} × {tiles[1]}: {fast:.3f} s, {MAX_SECONDS:g} allowed", fast <= MAX_SECONDS
    ratio = slow / fast
    yield (
        (
            f"{ratio:.1f} × faster than {TEXTBOOK[0]} × {TEXTBOOK[1]} with none skipped ({slow:.2f} s), "
            f"{MIN_RATIO:g} wanted"
        ),
        ratio >= MIN_RATIO,
    )


def causal_share(n: int, tiles: Tiles, heads: int) -> tuple[str, bool]:
    """What causal masking saves: of t × t tiles t (t + 1) / 2 are computed, and t of those masked."""
    q, k, v = inputs(heads, n)
    halves = [bound(n, tiles, causal=causal) for causal in (True, False)]
    seconds = least(5, *(lambda b=b: forward(q, k, v, b, tiles=tiles) for b in halves))  # type: ignore[misc]
    count, share = n // tiles[0], seconds[0] / seconds[1]
    of_tiles = (count + 1) / (2 * count)
    text = f"{count} × {count} tiles of {tiles[0]}: causal costs {share:.3f} of full, {MAX_CAUSAL:g} allowed"
    return f"{text} ({of_tiles:.3f} of the tiles)", share <= MAX_CAUSAL


# -- traffic -------------------------------------------------------------------------------------------------


def read_by(n: int, tiles: Tiles, item: int, *, causal: bool) -> int:
    """Bytes: Q once, K and V once for each tile of queries, up to the last tile that it can see."""
    seen = [min(n, -(-min(n, first + tiles[0]) // tiles[1]) * tiles[1]) for first in range(0, n, tiles[0])]
    rows = sum(seen) if causal else n * len(seen)
    return item * SHAPE[3] * (n + 2 * rows) + (4 * len(seen) if causal else 0)  # and where its queries stand


def traffic(n: int, tiles: Tiles, dtype: str, *, causal: bool) -> Iterator[tuple[str, bool]]:
    """Counted, against the closed form, and at 4096 against what eager moves at the least: the score and the
    weight matrix written and read once each."""
    item = {"float32": 4, "float16": 2}[dtype]
    q, k, v = (x.to(getattr(torch, dtype)) for x in inputs(1, n))
    with counted_traffic() as counted:
        forward(q, k, v, bound(n, tiles, causal=causal), tiles=tiles)
    read, written = read_by(n, tiles, item, causal=causal), n * SHAPE[3] * item + 4 * n
    what = f"{'causal' if causal else 'full'} {dtype} {n} × {SHAPE[3]}, tiles of {tiles[0]} × {tiles[1]}"
    figures = (
        f"{counted.bytes_read:,} bytes read ({read:,} by the closed form), {counted.bytes_written:,} written"
    )
    yield f"{what}: {figures}", (counted.bytes_read, counted.bytes_written) == (read, written)
    if n >= 4096:
        model = modelled_traffic(spec("eager", n, dtype, causal=causal))
        eager, flash = (
            model["bytes_read"] + model["bytes_written"],
            counted.bytes_read + counted.bytes_written,
        )
        text = f"eager moves {eager:,} (a model), {eager / flash:.1f} × as many, {MIN_TRAFFIC:g} wanted"
        yield f"  {text}", eager >= MIN_TRAFFIC * flash


# -- memory --------------------------------------------------------------------------------------------------

PEAK = "import sys; from tests.benchmarks.bench_flash import peak; peak(sys.argv[1], *map(int, sys.argv[2:]))"
HEADS = {"flash": 8, "eager": 1}  # so many that what grows is more than a tile; eager's grow fast enough


def peak(engine: str, heads: int, n: int) -> None:
    """Print the peak of one call of an engine above what the process held before it, in bytes."""
    small = spec(engine, 16, "float32", causal=True)
    module = importlib.import_module(ENGINES[engine].module)
    for shape in ((1, heads, 16, SHAPE[3]), (1, heads, n, SHAPE[3])):  # the first: whatever is made once
        described = {name: dataclasses.replace(given, shape=shape) for name, given in small.inputs.items()}
        arrays = {name: generate(name, 1, shape, "normal", "float32") for name in described}
        memory = PeakMemory("cpu")
        prepared = module.prepare(dataclasses.replace(small, inputs=described), arrays, "cpu")
        prepared.collect(prepared.compute())
        print(memory.peak_bytes())


def peaks(engine: str) -> list[int]:
    """Each in a process of its own, where freed arrays leave at once and are not used again unseen."""
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    commands = [[sys.executable, "-c", PEAK, engine, str(HEADS[engine]), str(n)] for n in LENGTHS]
    said = [subprocess.run(c, env=env, capture_output=True, text=True, check=True) for c in commands]
    return [int(one.stdout.split()[-1]) for one in said]


def memory() -> Iterator[tuple[str, bool]]:
    """From one doubling of the length to the next, a + b·n grows twice as much, and a + b·n² four times."""
    for engine, times in (("flash", 2), ("eager", 4)):
        found = peaks(engine)
        growth = np.diff(found)[-1] / np.diff(found)[-2]
        listed = ", ".join(f"{n}: {p / 2**20:.0f}" for n, p in zip(LENGTHS, found, strict=True))
        text = f"peak of {engine}, {HEADS[engine]} heads, MiB {listed}"
        holds = 0.75 * times <= growth <= 1.25 * times
        yield f"{text}; the last step {growth:.2f} × the one before, {times} wanted", holds


def main() -> int:
    torch.set_num_threads(1)
    missed = 0
    parts = [
        textbook(),
        (causal_share(n, (t, t), h) for n, t, h in ((4096, 1024, 1), (8192, 1024, 1), (4096, 512, 1))),
        *(
            traffic(1024, tiles, "float32", causal=c)
            for tiles in (chosen(1024), TEXTBOOK)
            for c in (True, False)
        ),
        *(traffic(4096, chosen(4096, causal=c), "float32", causal=c) for c in (True, False)),
        *(
            traffic(4096, chosen(4096, "sm_80", "float16", causal=c), "float16", causal=c)
            for c in (True, False)
        ),
        memory(),
    ]
    for part in parts:
        for text, holds in part:
            missed += not holds
            print(f"  {'ok  ' if holds else 'FAIL'} {text}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
