"""How long and how much: the time of one call, and the peak memory of a block with the method it was read by.

Memory traffic is counted by ``kernels.flash.interpreter`` or modelled by ``kernels.traffic``.
"""

from __future__ import annotations

import ctypes
import re
import resource
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")

# How a peak was read, as a result says it.
ALLOCATOR = "peak of what torch had allocated on the GPU, above what it held before the run"
HIGH_WATER = "peak memory of the worker process, above what it held before the run"
HIGHEST_EVER = "peak memory of the worker process, above its highest before the run"


class PeakMemory:
    """The highest memory use since construction, above the level at construction.

    On a GPU: torch's allocator. On Linux: the kernel's high-water mark of resident memory (VmHWM), reset to
    the present level by writing 5 to /proc/self/clear_refs. Elsewhere, or where that is forbidden:
    ru_maxrss, which never goes down, so that a run smaller than an earlier one of the same process reads 0.
    Memory that the process has freed goes back to the system first, as far as the C library can: what is
    reused unseen would be missing from the figure, which is a lower bound.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        if device == "cuda":
            import torch

            _l2_cover(torch.cuda.current_device())  # before, so that it is not part of the peak
            torch.cuda.reset_peak_memory_stats()
            self.before, self.method = torch.cuda.memory_allocated(), ALLOCATOR
            return
        _give_back_freed_memory()
        try:
            CLEAR_REFS.write_text("5")
            self.before, self.method = _status_bytes("VmRSS"), HIGH_WATER
        except (OSError, LookupError):
            self.before, self.method = _max_rss(), HIGHEST_EVER

    def peak_bytes(self) -> int:
        """Bytes above the level at construction, now."""
        if self.device == "cuda":
            import torch

            return max(0, torch.cuda.max_memory_allocated() - self.before)
        after = _status_bytes("VmHWM") if self.method == HIGH_WATER else _max_rss()
        return max(0, after - self.before)


def _give_back_freed_memory() -> None:
    """glibc keeps freed memory for later; no other C library has ``malloc_trim``."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _status_bytes(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise LookupError(field)
    return int(found.group(1)) * 1024


def _max_rss() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def timed(compute: Callable[[], Any], device: str) -> tuple[Any, int]:
    """What ``compute()`` returns, and the nanoseconds it took.

    On a GPU between two CUDA events, its second-level cache emptied before: one call after another on the
    same inputs would find them there, as no call in earnest does. Emptying it also gives the host time to
    send the work, so that its overhead is not measured.
    """
    if device == "cuda":
        import torch

        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        _l2_cover(torch.cuda.current_device()).zero_()
        start.record()
        result = compute()
        end.record()
        torch.cuda.synchronize()
        return result, round(start.elapsed_time(end) * 1e6)
    begin = time.perf_counter_ns()
    result = compute()
    return result, time.perf_counter_ns() - begin


@cache
def _l2_cover(index: int) -> Any:
    """Memory of GPU ``index`` that takes up its second-level cache twice over."""
    import torch

    size = 2 * int(torch.cuda.get_device_properties(index).L2_cache_size)
    return torch.empty(size, dtype=torch.uint8, device=f"cuda:{index}")


def summarise(samples_ns: list[int]) -> dict[str, Any]:
    """samples_ns, median_ns, p10_ns, p90_ns (linear interpolation)."""
    p10, median, p90 = (round(float(x)) for x in np.percentile(samples_ns, [10, 50, 90]))
    return {"samples_ns": samples_ns, "median_ns": median, "p10_ns": p10, "p90_ns": p90}
