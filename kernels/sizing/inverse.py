"""The questions the other way round: how long, how many at once, on which GPU.

What a model takes never shrinks when there is more to do, so the largest that fits is found by halving. An
answer of ``limit`` means that even that much fits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kernels.sizing.gpus import Gpu, gpus
from kernels.sizing.layers import Model
from kernels.sizing.memory import Workload, per_gpu_bytes

MAX_LEN = 10**9
MAX_BATCH = 10**6
COUNTS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Fit:
    """How one kind of GPU does: the fewest of them that hold the model, if so many ever do."""

    gpu: Gpu
    count: int | None
    per_gpu: int  # bytes on each of `count`, or of the most that were tried


def largest(fits: Callable[[int], bool], limit: int) -> int:
    """The largest number up to ``limit`` that fits, 0 if none does. What fits must not depend on luck: if a
    number fits, all smaller ones do."""
    if fits(limit):
        return limit
    low, high = 0, limit  # low fits or is 0, high does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def longest(model: Model, load: Workload, budget: int, limit: int = MAX_LEN) -> int:
    """The most tokens that each sequence of ``load`` may have within ``budget`` bytes of a GPU."""
    return largest(lambda length: per_gpu_bytes(model, replace(load, length=length)) <= budget, limit)


def most_sequences(model: Model, load: Workload, budget: int, limit: int = MAX_BATCH) -> int:
    """The largest batch of ``load`` within ``budget`` bytes of a GPU."""
    return largest(lambda batch: per_gpu_bytes(model, replace(load, batch=batch)) <= budget, limit)


def divides(model: Model, count: int) -> bool:
    """Whether ``count`` GPUs can share the heads: each takes as many."""
    return all(heads % count == 0 for heads in model.attention_heads)


def which_fit(model: Model, load: Workload) -> tuple[Fit, ...]:
    """Every GPU of the table, and the fewest of it that hold ``load``."""
    counts = [count for count in COUNTS if divides(model, count)]
    taken = {count: per_gpu_bytes(model, replace(load, gpus=count)) for count in counts}
    found = []
    for gpu in gpus().values():
        enough = next((count for count in counts if taken[count] <= gpu.memory_bytes), None)
        found.append(Fit(gpu, enough, taken[enough or counts[-1]]))
    return tuple(found)
