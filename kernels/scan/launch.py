"""Run the selective scan on tensors: memory, grid, tile sizes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kernels.engines import version_of
from kernels.flash.arguments import Shape, rows, strides
from kernels.flash.device import Launch, launch
from kernels.flash.interpreter import INTERPRETED
from kernels.integers import ceil_div
from kernels.linear.inputs import Result, State
from kernels.linear.launch import KERNEL_VERSION as LINEAR_VERSION
from kernels.linear.launch import parallel, readable
from kernels.scan.duality import as_linear, as_scanned, state_as_linear
from kernels.scan.inputs import Scanned, SelectiveScan
from kernels.scan.interpreter import whole_slices
from kernels.scan.kernel import Rates, scan_chunks, scan_steps
from kernels.scan.tiling import Tiling, choose_tiling

KERNEL_VERSION = version_of(Path(__file__).parent, ("kernel.py",), LINEAR_VERSION)
ARRAYS = ("x", "delta", "a", "b", "c", "skip")


def chunked(given: SelectiveScan, state: torch.Tensor | None = None, *, chunk: int | None = None) -> Scanned:
    """``recurrence.chunked`` on tensors, each chunk a parallel prefix: y has the dtype of x, the state is
    float32.

    ``chunk``: a power of two; of the length or more, and the whole is one scan; None: what suits. Raises
    ValueError for a chunk that no tile can have.
    """
    return _run("scan_chunks", given, state, chunk)


def recurrent(given: SelectiveScan, state: torch.Tensor | None = None) -> Scanned:
    """``recurrence.recurrent`` on tensors: y has the dtype of x, the state is float32."""
    return _run("scan_steps", given, state, 1)


def quadratic(given: SelectiveScan, state: torch.Tensor | None = None) -> Scanned:
    """``recurrence.quadratic`` on tensors, by the masked attention that ``duality.py`` makes of a scan: y has
    the dtype of x, and there is no state after it.

    All of it in float32, whatever the inputs: TF32 would not hold Δ x. Raises ValueError for a scan with more
    than one rate or one step to a head.
    """
    given.check_state(state)
    present = {name: getattr(given, name) for name in ARRAYS}
    full = replace(given, **{name: x.float() for name, x in present.items() if x is not None})
    out = parallel(as_linear(full), state_as_linear(state))
    return Scanned(as_scanned(full, Result(out, State(None))).y.to(given.x.dtype), None)


def _run(kernel: str, given: SelectiveScan, state: torch.Tensor | None, chunk: int | None) -> Scanned:
    given.check_state(state)
    at = {name: readable(getattr(given, name)) for name in ARRAYS if getattr(given, name) is not None}
    if state is not None:
        at["start"] = state.float().contiguous()
    batch, heads, _, p, states = given.sizes
    at["y"] = torch.empty_like(at["x"])
    at["last"] = torch.empty((batch, heads, p, states), dtype=torch.float32, device=given.x.device)
    tiling = choose_tiling(given.sizes, chunk=chunk, interpreted=INTERPRETED)
    with whole_slices() if INTERPRETED else nullcontext():
        launch(*scan_launch(kernel, given, at, tiling))
    return Scanned(at["y"].to(given.x.dtype), at["last"])


def scan_launch(kernel: str, given: SelectiveScan, at: Mapping[str, Any], tiling: Tiling) -> Launch:
    """``kernel`` on ``given``, of which only shapes are looked at. ``at``: pointers to its arrays, to y and
    last and, where there is a state before, to start."""
    batch, heads, n, p, states = given.sizes
    by_head, by_channel, by_state = strides(given.a.shape)
    state_shape: Shape = (batch, heads, p, states)
    arguments = {
        "X": rows(at["x"], given.x.shape),
        "DELTA": rows(at["delta"], given.delta.shape),
        "A": Rates(at["a"], by_head, by_channel, by_state),
        "B": rows(at["b"], given.b.shape),
        "C": rows(at["c"], given.c.shape),
        "p_skip": at.get("skip"),
        "START": rows(at["start"], state_shape) if "start" in at else None,
        "LAST": rows(at["last"], state_shape),
        "Y": rows(at["y"], given.x.shape),
        "num_heads": heads,
        "group": heads // given.b.shape[1],
        "length": n,
        "P": p,
        "N": states,
        "BLOCK_P": tiling.block_p,
        "BLOCK_N": tiling.block_n,
        "PER_CHANNEL": given.delta.shape[3] != 1,
    }
    grid = (batch * heads, ceil_div(p, tiling.block_p))
    if kernel == "scan_steps":
        return Launch(kernel, scan_steps, arguments, grid)
    return Launch(kernel, scan_chunks, arguments | {"BLOCK_T": tiling.block_t}, grid)
