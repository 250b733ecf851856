"""Engine ``scan``: from a spec to a selective scan (``kernels.scan``), and how right its result is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from kernels.arrays import Array
from kernels.bounds import most
from kernels.engines import CannotRunError, Checkpoint, Kernels, Place, Prepared
from kernels.engines.tensors import TORCH_DTYPES, to_numpy
from kernels.flash.device import Memory, require_triton, working_dtype
from kernels.linear import tiling as linear_tiling
from kernels.linear.arguments import Bound
from kernels.linear.findings import memory_of_the_past
from kernels.recurrent import chunk_of_scan, is_dual
from kernels.recurrent_pricing import REFERENCE_NUMBERS
from kernels.registry import option
from kernels.scan import launch
from kernels.scan.bounds import error_bounds
from kernels.scan.duality import as_linear
from kernels.scan.inputs import SelectiveScan
from kernels.scan.launch import ARRAYS, KERNEL_VERSION, scan_launch
from kernels.scan.recurrence import chunked
from kernels.scan.tiling import Tiling, choose_tiling
from kernels.spec.model import RunSpec
from kernels.spec.values import ROUNDED

__all__ = ["KERNEL_VERSION", "expected", "kernels_of", "prepare"]

REFERENCE_CHUNK = 64


def prepare(spec: RunSpec, arrays: Mapping[str, Array], device: str) -> Prepared:
    """Move the inputs to ``device`` and bind them; raises CannotRunError where no kernel can run."""
    require_triton(device, spec.engine)
    place, (dtype, notes) = Memory(device), working_dtype(spec)
    given, state = selective_scan(spec, arrays)
    bound = replace(given, **_placed(given, place, dtype))
    start = None if state is None else place(state, "float32")
    _tiling(spec, given, interpreted=place.target is None)

    def compute() -> Mapping[str, Any]:
        if option(spec, "form") == "recurrent":
            y, last = launch.recurrent(bound, start)
        elif is_dual(spec):
            y, last = launch.quadratic(bound, start)
        else:
            y, last = launch.chunked(bound, start, chunk=chunk_of_scan(spec))
        results = {"out": y.to(TORCH_DTYPES[spec.dtype]), "state": last}
        return {name: array for name, array in results.items() if array is not None}

    def findings(raw: Mapping[str, Any], checkpoint: Checkpoint) -> dict[str, Any]:
        return dict(memory_of_the_past(spec))

    return Prepared(compute, to_numpy, notes, findings)


def kernels_of(spec: RunSpec, arrays: Mapping[str, Array], place: Place) -> Kernels:
    """See ``kernels.engines``."""
    given, state = selective_scan(spec, arrays)
    if is_dual(spec):
        yield from _dual_kernels(given, state, place)
        return
    at = _placed(given, place, spec.dtype)
    at |= {"y": at["x"], "last": place(given.delta, "float32")}
    if state is not None:
        at["start"] = at["last"]
    kernel = "scan_steps" if option(spec, "form") == "recurrent" else "scan_chunks"
    tiling = _tiling(spec, given, interpreted=place.target is None)
    yield scan_launch(kernel, given, at, tiling)[:3]


def _dual_kernels(given: SelectiveScan, state: Array | None, place: Place) -> Kernels:
    """Those of ``launch.quadratic``, which are float32 throughout."""
    dual = as_linear(given)
    at = {name: place(getattr(dual, name), "float32") for name in ("q", "k", "v", "log_decay")}
    at["out"] = at["v"]
    if state is not None:
        at["start_s"] = at["v"]
    interpreted = place.target is None
    tiling = linear_tiling.choose_tiling(dual.sizes, "float32", chunk=None, interpreted=interpreted)
    yield from (one[:3] for one in Bound(dual, at, tiling).launches("parallel"))


def expected(
    spec: RunSpec, arrays: Mapping[str, Array], wanted: tuple[str, ...], checkpoint: Callable[[], None]
) -> tuple[dict[str, Array], dict[str, float]]:
    """The ``wanted`` results in float64, and how far from them rounding may take a kernel's."""
    given, state = selective_scan(spec, arrays)
    batch, heads, n, p, states = given.sizes
    results = {"out": np.zeros((batch, heads, n, p)), "state": np.zeros((batch, heads, p, states))}
    bounds = dict.fromkeys(results, 0.0)
    step = max(1, REFERENCE_NUMBERS // max(1, n * states))
    for b, h, first in np.ndindex(batch, heads, -(-p // step)):
        checkpoint()
        channels = slice(first * step, (first + 1) * step)
        row = _part(given, b, h, channels)
        start = None if state is None else state[b : b + 1, h : h + 1, channels]
        with np.errstate(over="ignore", invalid="ignore"):  # with positive rates a state grows without bound
            y, last = chunked(row, start, chunk=REFERENCE_CHUNK)
            found = error_bounds(row, start, spec.dtype)
        results["out"][b, h, :, channels], results["state"][b, h, channels] = y[0, 0], last[0, 0]
        for name, off in zip(bounds, found, strict=True):
            bounds[name] = max(bounds[name], most(off))
    return {name: results[name] for name in wanted}, {name: bounds[name] for name in wanted}


def selective_scan(spec: RunSpec, arrays: Mapping[str, Array]) -> tuple[SelectiveScan, Array | None]:
    """What a spec asks for, in arrays, and the state to start from."""
    skip = arrays["d_skip"][0, :, :, 0] if "d_skip" in arrays else None
    given = SelectiveScan(arrays["x"], arrays["delta"], arrays["a"][0], arrays["b"], arrays["c"], skip=skip)
    return given, arrays.get("initial_state")


def _placed(given: SelectiveScan, place: Place, dtype: str) -> dict[str, Any]:
    present = {name: getattr(given, name) for name in ARRAYS}
    return {
        name: place(array, dtype if name in ROUNDED else "float32")
        for name, array in present.items()
        if array is not None
    }


def _tiling(spec: RunSpec, given: SelectiveScan, *, interpreted: bool) -> Tiling:
    """Raises CannotRunError for a chunk that does not fit the machine."""
    try:
        return choose_tiling(given.sizes, chunk=chunk_of_scan(spec), interpreted=interpreted)
    except ValueError as error:
        detail = f"form {option(spec, 'form')} does not suit this machine: {error}; use form chunked"
        raise CannotRunError(detail) from error


def _part(given: SelectiveScan, b: int, h: int, channels: slice) -> SelectiveScan:
    """Some channels of one head; what all of them share stays one."""
    group = h * given.b.shape[1] // given.sizes.heads
    wide = channels if given.delta.shape[3] != 1 else slice(None)
    rates = channels if given.a.shape[1] != 1 else slice(None)
    return SelectiveScan(
        x=given.x[b : b + 1, h : h + 1, :, channels],
        delta=given.delta[b : b + 1, h : h + 1, :, wide],
        a=given.a[h : h + 1, rates],
        b=given.b[b : b + 1, group : group + 1],
        c=given.c[b : b + 1, group : group + 1],
        skip=None if given.skip is None else given.skip[h : h + 1, channels],
    )
