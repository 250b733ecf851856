"""What ``flash_forward`` holds after each tile of keys: recorded while Triton's interpreter runs it.

The kernel is not changed for it, nor computed again by other means: whoever listens to what the kernel calls
(``interpreter.overheard``) hears the online softmax step by step. On a GPU nobody can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernels.arrays import Array
from kernels.engines import CannotRunError
from kernels.flash import kernel
from kernels.flash.arguments import Shapes
from kernels.flash.interpreter import INTERPRETED, numbers, overheard, program
from kernels.flash.schedule import FULL, MASKED, SKIPPED
from kernels.integers import ceil_div
from kernels.tuning import Tiles

STATE = ("trace_max", "trace_sum", "trace_out")


def require_interpreter() -> None:
    """Raises CannotRunError where a kernel cannot be listened to."""
    if not INTERPRETED:
        raise CannotRunError(
            "a trace is recorded in Triton's interpreter, which is not on in this process: ask for device "
            "cpu where a process was started with TRITON_INTERPRET=1, or leave the trace out"
        )


def traced(
    launch: Callable[[], object], shapes: Shapes, tiles: Tiles, q_lens: Array | None
) -> dict[str, Array]:
    """The results that ``spec.results.TRACE`` names, where ``launch`` launches ``flash_forward`` once.

    trace_tiles [b, h, n, key tiles] uint8, as in ``schedule``; trace_max, trace_sum and trace_rescale
    likewise, and trace_out [b, h, n, key tiles, e], all float32: the state (m, l, O) of each query when its
    program is past the tile. A tile that is skipped leaves the state as it was, be it that of no key at all:
    −∞, 0 and 0, or with a sink its logit, 1 and 0; its factor is 1. A query beyond ``q_lens`` has seen
    nothing.
    """
    recorder = _Recorder(shapes, tiles)
    listeners = {"start": recorder.start, "step": recorder.step, "attend_tile": recorder.take}
    with overheard(kernel, listeners):
        launch()
    return recorder.finished(q_lens)


class _Recorder:
    """Writes down what it hears; heads and batch rows are one axis, as in the grid."""

    def __init__(self, shapes: Shapes, tiles: Tiles) -> None:
        (batch, heads, n, _), e = shapes.q, shapes.v[3]
        self.block_m, self.block_n = tiles[:2]
        self.axes = (batch, heads, n, ceil_div(shapes.k[2], self.block_n))
        by_tile = (batch * heads, *self.axes[2:])
        self.found: dict[str, Array] = {
            "trace_tiles": np.full(by_tile, SKIPPED, np.uint8),
            "trace_max": np.zeros(by_tile, np.float32),
            "trace_sum": np.zeros(by_tile, np.float32),
            "trace_rescale": np.ones(by_tile, np.float32),
            "trace_out": np.zeros((*by_tile, e), np.float32),
        }
        self.shrunk: Array = np.ones(0, np.float32)

    def start(self, given: Mapping[str, Any], state: Any) -> None:
        """``softmax.start``: a program begins."""
        self._hold(slice(0, 1), state)

    def step(self, given: Mapping[str, Any], returned: Any) -> None:
        """``softmax.step``, which ``attend_tile`` calls."""
        self.shrunk = numbers(returned[3])

    def take(self, given: Mapping[str, Any], state: Any) -> None:
        """``attend_tile``: the state has taken a tile of keys in."""
        tile = int(numbers(given["n_start"])) // self.block_n
        row, queries = self._rows()
        self.found["trace_tiles"][row, queries, tile] = MASKED if given["MASKED"] else FULL
        self.found["trace_rescale"][row, queries, tile] = self.shrunk[: queries.stop - queries.start]
        self._hold(slice(tile, tile + 1), state)

    def _rows(self) -> tuple[int, slice]:
        row, i_m, _ = program()
        first = i_m * self.block_m
        return row, slice(first, min(first + self.block_m, self.axes[2]))

    def _hold(self, tiles: slice, state: Any) -> None:
        row, queries = self._rows()
        b_m, b_l, b_o = map(numbers, state)
        for name, b_held in zip(STATE, (b_m[:, None], b_l[:, None], b_o[:, None]), strict=True):
            into = self.found[name][row, queries, tiles]
            # Without what pads a tile, be it queries or columns of values.
            into[...] = b_held[tuple(map(slice, (into.shape[0], 1, *into.shape[2:])))]

    def finished(self, q_lens: Array | None) -> dict[str, Array]:
        """All of it, with batch and heads apart."""
        is_skipped = self.found["trace_tiles"] == SKIPPED
        for tile in range(1, self.axes[3]):
            rows = is_skipped[:, :, tile]
            for name in STATE:
                held = self.found[name]
                held[:, :, tile][rows] = held[:, :, tile - 1][rows]
        found = {name: x.reshape(*self.axes, *x.shape[3:]) for name, x in self.found.items()}
        if q_lens is not None:
            nothing = {"trace_tiles": SKIPPED, "trace_max": -np.inf, "trace_rescale": 1}
            padding = np.arange(self.axes[2]) >= q_lens[:, None]
            for name, x in found.items():
                x.swapaxes(1, 2)[padding] = nothing.get(name, 0)
        return found
