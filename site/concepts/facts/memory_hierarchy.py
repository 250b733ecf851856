"""Numbers of the page on memory, fast and slow."""

import math
from functools import partial

from concepts.facts import fact
from concepts.figures.memory_hierarchy import ITEM, RUN_LENGTH, TRAFFIC, USUAL_GPU, Moved
from kernels.flash.accesses import (
    matrix_bytes,
    matrix_traffic,
    saving,
    standard_transfers,
    tile_rows,
    tiled_transfers,
)
from kernels.integers import ceil_div
from kernels.sizing.gpus import gpus

A100 = gpus()[USUAL_GPU]
MIB = 1024**2


def opened(**changed: object) -> tuple[Moved, Moved]:
    """What the figure shows, one operation after another and in tiles."""
    return TRAFFIC.both(TRAFFIC.usual | changed)


@fact("memory-scores", ",.0f")
def scores() -> int:
    return matrix_bytes(4096, item=1)


@fact("memory-matrix", ".0f")
def matrix() -> float:
    """MiB."""
    return matrix_bytes(4096) / MIB


@fact("memory-four", ".0f")
def four() -> float:
    return matrix_traffic(4096) / MIB


@fact("memory-on-chip", ".2f")
def on_chip() -> float:
    """MiB of an A100."""
    return (A100.shared_bytes or 0) / MIB


def ridge(slug: str) -> float:
    """Operations to a byte at which a GPU is balanced."""
    return gpus()[slug].ridge


for name, slug in (("v100", "v100-sxm2-32"), ("a100", USUAL_GPU), ("h100", "h100-sxm")):
    fact(f"memory-ridge-{name}", ".0f")(partial(ridge, slug))


@fact("memory-standard", ".0f")
def standard() -> float:
    """MiB."""
    return opened()[0].bytes / MIB


@fact("memory-tiled", ".0f")
def tiled() -> float:
    return opened()[1].bytes / MIB


@fact("memory-less", ".1f")
def less() -> float:
    one, other = opened()
    return one.bytes / other.bytes


@fact("memory-less-128", ".1f")
def less_128() -> float:
    one, other = opened(d=128)
    return one.bytes / other.bytes


def microseconds(which: int, what: str) -> float:
    return 1e6 * float(getattr(opened()[which], f"{what}_seconds"))


fact("memory-standard-moving", ".0f")(partial(microseconds, 0, "memory"))
fact("memory-tiled-moving", ".0f")(partial(microseconds, 1, "memory"))
fact("memory-computing", ".0f")(partial(microseconds, 0, "compute"))


def intensity(which: int) -> float:
    return opened()[which].intensity


fact("memory-standard-intensity", ".0f")(partial(intensity, 0))
fact("memory-tiled-intensity", ".0f")(partial(intensity, 1))

for width in (64, 128):
    fact(f"memory-saving-{width}", ".1f")(partial(saving, width, 100 * 1024))


@fact("memory-once", ".0f")
def once() -> float:
    """MiB of queries, keys, values and outputs."""
    return 4 * 4096 * 64 * ITEM / MIB


@fact("memory-rows", ".0f")
def rows() -> int:
    """Of a tile, where d is 64 and 100 KB are on chip."""
    return tile_rows(64, 100 * 1024 / ITEM)


@fact("memory-passes", ".0f")
def passes() -> int:
    return ceil_div(4096, rows())


@fact("memory-fit", ".0f")
def fit() -> int:
    """Tokens of which the scores of a head fit on one multiprocessor."""
    return math.isqrt((A100.shared_kb_per_sm or 0) * 1024 // ITEM)


@fact("memory-run", ".0f")
def run() -> int:
    """Tokens at most, of those that the lab is given."""
    return RUN_LENGTH


# -- by hand: n = 8, d = 2, tiles of 4 rows ------------------------------------------------------------------


@fact("memory-hand-standard", ".0f")
def hand_standard() -> int:
    """Numbers."""
    return sum(standard_transfers(8, 2, item=1).values())


@fact("memory-hand-tiled", ".0f")
def hand_tiled() -> int:
    """Numbers, but for the log-sum-exp."""
    moved = tiled_transfers(8, 2, 4, item=1)
    return sum(moved.values()) - moved["LSE written"]


# -- what was measured (Dao et al. 2022, figure 2) -----------------------------------------------------------

MEASURED = {"gigabytes": (40.3, 4.4), "gflop": (66.6, 75.2)}  # standard, FlashAttention; forward and backward


@fact("memory-measured-less", ".1f")
def measured_less() -> float:
    before, after = MEASURED["gigabytes"]
    return before / after


@fact("memory-measured-more", ".0f")
def measured_more() -> float:
    """Per cent."""
    before, after = MEASURED["gflop"]
    return 100 * (after / before - 1)
