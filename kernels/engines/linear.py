"""Engine ``linear``: from a spec to a linear recurrence (``kernels.linear``), and how right its result is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from kernels.arrays import Array
from kernels.bounds import most
from kernels.engines import CannotRunError, Checkpoint, Kernels, Place, Prepared
from kernels.engines.tensors import TORCH_DTYPES, to_numpy
from kernels.flash.device import Memory, require_triton, working_dtype
from kernels.linear import launch
from kernels.linear.arguments import Bound
from kernels.linear.bounds import error_bounds
from kernels.linear.comparison import Exact
from kernels.linear.findings import mean_ranks, memory_of_the_past
from kernels.linear.inputs import Recurrence, Result, State
from kernels.linear.launch import KERNEL_VERSION
from kernels.linear.recurrence import chunked, recurrent
from kernels.linear.tiling import Tiling, choose_tiling
from kernels.recurrent import is_normalised, is_ranked
from kernels.registry import option
from kernels.spec.model import RunSpec
from kernels.spec.values import ROUNDED

__all__ = ["KERNEL_VERSION", "expected", "kernels_of", "prepare"]

TOKENS = ("q", "k", "v", "log_decay", "beta")
FEATURES = {"elu1": "elu", "identity": None}
REFERENCE_CHUNK = 64


def prepare(spec: RunSpec, arrays: Mapping[str, Array], device: str) -> Prepared:
    """Move the inputs to ``device`` and bind them; raises CannotRunError where no kernel can run."""
    require_triton(device, spec.engine)
    place, (dtype, notes) = Memory(device), working_dtype(spec)
    given, state = recurrence(spec, arrays)
    tensors: dict[str, Any] = {
        name: place(getattr(given, name), dtype if name in ROUNDED else "float32")
        for name in TOKENS
        if getattr(given, name) is not None
    }
    bound = replace(given, **tensors)
    start = State(*(x if x is None else place(x, "float32") for x in state)) if state else None
    form, chunk = option(spec, "form"), option(spec, "chunk_size")
    _tiling(given, dtype, chunk, interpreted=place.target is None)

    def compute() -> Mapping[str, Any]:
        if form == "parallel":
            result = Result(launch.parallel(bound, start), State(None))
        elif form == "recurrent":
            result = launch.recurrent(bound, start)
        else:
            result = launch.chunked(bound, start, chunk=chunk)
        return _named(result._replace(out=result.out.to(TORCH_DTYPES[spec.dtype])))

    def findings(raw: Mapping[str, Any], checkpoint: Checkpoint) -> dict[str, Any]:
        return {**memory_of_the_past(spec), "ranks": _ranks(spec, given, checkpoint)}

    return Prepared(compute, to_numpy, notes, findings)


def kernels_of(spec: RunSpec, arrays: Mapping[str, Array], place: Place) -> Kernels:
    """See ``kernels.engines``."""
    given, state = recurrence(spec, arrays)
    at = {
        name: place(getattr(given, name), spec.dtype if name in ROUNDED else "float32")
        for name in TOKENS
        if getattr(given, name) is not None
    }
    full = place(given.v, "float32")
    if state is not None:
        at |= {"start_s": full} | ({} if state.z is None else {"start_z": full})
    interpreted = place.target is None
    tiling = _tiling(given, spec.dtype, option(spec, "chunk_size"), interpreted=interpreted)
    bound, form = Bound(given, at, tiling), option(spec, "form")
    at |= {name: at["q"] if name == "out" else full for name in bound.written(form)}
    yield from (one[:3] for one in bound.launches(form))


def expected(
    spec: RunSpec, arrays: Mapping[str, Array], wanted: tuple[str, ...], checkpoint: Callable[[], None]
) -> tuple[dict[str, Array], dict[str, float]]:
    """The ``wanted`` results in float64, and how far from them rounding may take a kernel's.

    A state head of a row at a time, since each takes matrices of all pairs.
    """
    given, state = recurrence(spec, arrays)
    sizes = given.sizes
    shapes = {
        "out": (sizes.batch, sizes.heads, sizes.q_len, sizes.e),
        "state": (sizes.batch, sizes.state_heads, sizes.d, sizes.e),
        "normaliser": (sizes.batch, sizes.state_heads, sizes.d),
    }
    results = {name: np.zeros(shapes[name]) for name in wanted}
    bounds = dict.fromkeys(wanted, 0.0)
    group = sizes.heads // sizes.state_heads
    for b, h in np.ndindex(sizes.batch, sizes.state_heads):
        checkpoint()
        row, start = _head(given, b, h), _state_of(state, b, h)
        with np.errstate(over="ignore", invalid="ignore"):  # a state may grow without bound
            # The delta rule token by token, which has an answer where a triangular system has overflowed.
            found = _named(
                recurrent(row, start) if row.beta is not None else chunked(row, start, chunk=REFERENCE_CHUNK)
            )
            off = _largest_bounds(row, start, spec.dtype)
        for name in wanted:
            where = slice(h * group, (h + 1) * group) if name == "out" else slice(h, h + 1)
            results[name][b, where] = found[name][0]
            bounds[name] = max(bounds[name], off.get(name, math.inf))
    return results, bounds


def _ranks(spec: RunSpec, given: Recurrence, checkpoint: Checkpoint) -> dict[str, float] | None:
    """Of the weights, where no state came from before and they are few enough to be taken apart."""
    if not is_ranked(spec):
        return None
    rows = (_head(given, b, h) for b, h in np.ndindex(given.sizes.batch, given.sizes.state_heads))
    pairs = ((Exact(row.q, row.k, row.v, spec.scale, causal=row.causal), row) for row in rows)
    return mean_ranks(pairs, checkpoint)


def _largest_bounds(row: Recurrence, start: State | None, dtype: str) -> dict[str, float]:
    """By name; none where the state has grown beyond float64."""
    try:
        bounds = _named(error_bounds(row, start, dtype))
    except np.linalg.LinAlgError:
        return {}
    return {name: most(bound) for name, bound in bounds.items()}


def recurrence(spec: RunSpec, arrays: Mapping[str, Array]) -> tuple[Recurrence, State | None]:
    """What a spec asks for, in arrays, and the state to start from."""
    given = Recurrence(
        arrays["q"],
        arrays["k"],
        arrays["v"],
        log_decay=arrays.get("log_decay"),
        beta=arrays.get("beta"),
        scale=spec.scale,
        features=FEATURES[option(spec, "feature_map")],
        normalised=is_normalised(spec),
        causal=spec.attention.is_causal,
    )
    if "initial_state" not in arrays:
        return given, None
    normaliser = arrays.get("initial_normaliser")
    return given, State(arrays["initial_state"], None if normaliser is None else normaliser[..., 0])


def _tiling(given: Recurrence, dtype: str, chunk: int | None, *, interpreted: bool) -> Tiling:
    """Raises CannotRunError for a chunk that does not fit the machine."""
    try:
        return choose_tiling(given.sizes, dtype, chunk=chunk, interpreted=interpreted)
    except ValueError as error:
        raise CannotRunError(f"chunk_size does not suit this machine: {error}") from error


def _named(result: Result) -> dict[str, Any]:
    named = {"out": result.out, "state": result.state.s, "normaliser": result.state.z}
    return {name: array for name, array in named.items() if array is not None}


def _head(given: Recurrence, b: int, h: int) -> Recurrence:
    """One state head with the query heads that read it."""
    group = given.sizes.heads // given.sizes.state_heads
    parts: dict[str, Any] = {
        name: getattr(given, name)[b : b + 1, h : h + 1]
        for name in TOKENS
        if name != "q" and getattr(given, name) is not None
    }
    return replace(given, q=given.q[b : b + 1, h * group : (h + 1) * group], **parts)


def _state_of(state: State | None, b: int, h: int) -> State | None:
    if state is None:
        return None
    return State(*(None if array is None else array[b : b + 1, h : h + 1] for array in state))
