"""Run a spec: make its inputs, compute and measure, compare with float64. The one entry point of a worker.

Importing this module imports torch; the engine itself is imported when it is used.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kernels.arrays import Array, generate, plain, round_to_dtype, sha256
from kernels.bounds import Bounds
from kernels.comparison import compare_with_dense, compare_with_softmax
from kernels.engines import CannotRunError, Prepared
from kernels.engines.reference import Head, reference
from kernels.estimate import estimate
from kernels.layout import from_canonical, to_canonical
from kernels.measure import PeakMemory, summarise, timed
from kernels.numerics import compare, overflow_notes
from kernels.operands import operands
from kernels.prefixes import Prefixes
from kernels.quantise import CannotQuantiseError
from kernels.registry import ENGINES, SOFTMAX
from kernels.spec.model import InputSpec, RunSpec, Timing
from kernels.spec.results import TRACE
from kernels.spec.values import INTEGERS, ROUNDED
from kernels.tiles import advising
from kernels.traffic import modelled_traffic

OutOfMemoryError = torch.OutOfMemoryError  # of a GPU; on the CPU it is Python's MemoryError

__all__ = [
    "CannotRunError",
    "DeadlineExceeded",
    "OutOfMemoryError",
    "Outcome",
    "execute",
    "materialise",
    "warm",
]


TRITON_VERSION = importlib.metadata.version("triton")  # reads a file: once is enough


class DeadlineExceeded(Exception):
    """The deadline passed before the run was done."""


@dataclass(frozen=True)
class Outcome:
    """Everything a run produced; the dicts are JSON-ready, as the REST contract shows them."""

    arrays: dict[str, Array]  # the results asked for, with the rank of the input
    inputs: dict[str, Array]  # as the engine saw them, rounded to dtype, shaped as sent
    input_info: dict[str, dict[str, Any]]
    numerics: dict[str, Any]
    comparison: dict[str, Any] | None  # with exact attention, of what computes something else or less
    findings: dict[str, Any]  # what the engine found beside its arrays
    timing: dict[str, Any]
    memory: dict[str, Any]
    traffic: dict[str, Any]
    cost: dict[str, Any]
    environment: dict[str, Any]
    notes: list[str]


def execute(spec: RunSpec, arrays: Mapping[str, Array], *, deadline: float | None = None) -> Outcome:
    """Compute ``spec`` on ``arrays`` (inline and uploaded inputs; seeded ones are generated here).

    ``deadline`` is a value of ``time.monotonic()``; it is checked between iterations and between the heads of
    the reference, and DeadlineExceeded is raised when it has passed. Raises CannotRunError when this process
    lacks what the spec asks for (a GPU, or Triton's interpreter), or no cache can keep the numbers. What
    stops a kernel in the interpreter (a signal's exception, a lack of memory) is raised as it is.
    """
    with _unwrapped(), advising(spec.engine):
        try:
            return _execute(spec, arrays, deadline)
        except CannotQuantiseError as error:
            raise CannotRunError(str(error)) from error


@contextmanager
def _unwrapped() -> Iterator[None]:
    """Triton's interpreter wraps every Exception in one of its own, once for each function on the way."""
    try:
        yield
    except Exception as error:
        from triton.runtime.errors import InterpreterError

        cause: BaseException = error
        while isinstance(cause, InterpreterError) and cause.__cause__ is not None:
            cause = cause.__cause__
        if cause is error:
            raise
        raise cause from None


def _execute(spec: RunSpec, arrays: Mapping[str, Array], deadline: float | None) -> Outcome:
    def checkpoint() -> None:
        if deadline is not None and time.monotonic() > deadline:
            raise DeadlineExceeded("the time budget of the run is used up")

    started = time.perf_counter_ns()
    checkpoint()
    device = resolve_device(spec)
    inputs = materialise(spec, arrays)
    checkpoint()
    canonical = {name: to_canonical(spec, name, array) for name, array in inputs.items()}
    predicted = estimate(spec)

    memory = PeakMemory(device)
    prepared = _engine(spec).prepare(spec, canonical, device)
    raw, samples, traffic = _run(spec, prepared, device, checkpoint)
    peak = memory.peak_bytes()
    results = prepared.collect(raw)

    expected, bounds = _expected(spec, canonical, results, checkpoint)
    numerics = compare(spec, results, expected, bounds)
    method = _timing_method(spec, device)
    return Outcome(
        arrays={name: from_canonical(spec, name, results[name]) for name in spec.returns},
        inputs=inputs,
        input_info={name: _describe(spec, name, array) for name, array in inputs.items()},
        numerics=numerics,
        comparison=_comparison(spec, canonical, results, checkpoint),
        findings=plain(prepared.findings(raw, checkpoint)) if prepared.findings else {},
        timing={
            "method": method,
            "representative": method != "interpreter",
            "warmup": spec.timing.warmup,
            **summarise(samples),
            # The whole of it: inputs, warm-up, every execution and the comparison with float64.
            "worker_ns": time.perf_counter_ns() - started,
        },
        memory={"peak_bytes": peak, "method": memory.method, "predicted_bytes": predicted.engine_bytes},
        traffic=traffic,
        cost={
            "flops": predicted.flops,
            "bytes_min": predicted.bytes_min,
            "arithmetic_intensity": predicted.arithmetic_intensity,
        },
        environment=environment(spec, device),
        notes=[
            *prepared.notes,
            *_counting_notes(spec, method),
            *_input_notes(inputs),
            *overflow_notes(spec, results, expected),
        ],
    )


def materialise(spec: RunSpec, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Every input with its data, shaped as sent: q, k, v and the like rounded to the dtype, float masks to
    float32, lengths and block tables as int64."""
    inputs: dict[str, Array] = {}
    for name, given in spec.inputs.items():
        dtype = spec.dtype if name in ROUNDED else "float32"
        if given.seed is not None:
            inputs[name] = generate(name, given.seed, given.shape, given.distribution or "normal", dtype)
        elif name in INTEGERS:
            inputs[name] = arrays[name].astype(np.int64)
        elif arrays[name].dtype == np.bool_:
            inputs[name] = arrays[name]
        else:
            inputs[name] = round_to_dtype(arrays[name], dtype)
    return inputs


def resolve_device(spec: RunSpec) -> str:
    """``cpu`` or ``cuda``; ``auto`` takes the GPU where there is one that the engine can use."""
    interpreted = ENGINES[spec.engine].is_triton and _interpreter_is_on()
    usable = torch.cuda.is_available() and not interpreted
    if spec.device == "cuda" and not usable:
        reason = "Triton's interpreter is on in this process" if interpreted else "there is none here"
        raise CannotRunError(f"device cuda needs an NVIDIA GPU, but {reason}; ask for device cpu or auto")
    if spec.device == "auto":
        suits = "cuda" in ENGINES[spec.engine].devices and not spec.is_traced
        return "cuda" if usable and suits else "cpu"
    return spec.device


def environment(spec: RunSpec, device: str) -> dict[str, Any]:
    """What computed the run."""
    engine = ENGINES[spec.engine]
    described: dict[str, Any] = {
        "device": device,
        "gpu_name": torch.cuda.get_device_name() if device == "cuda" else None,
        "torch": torch.__version__,
        "triton": TRITON_VERSION,
        "kernel_version": None,
        "interpreter": engine.is_triton and device == "cpu",
        "numpy": np.__version__,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }
    if engine.is_triton:
        described["kernel_version"] = _engine(spec).KERNEL_VERSION
    return described


def warm() -> None:
    """Import every engine that this process can run and run one tiny job of each, so that none is slow later,
    and none is blamed for memory that a process takes once."""
    for name, engine in ENGINES.items():
        returns = tuple(result for result in ("out", "lse", "weights", "dq") if result in engine.returns)
        taken_by_default = engine.inputs_taken({})
        # Every axis is 2 long, and batch and heads are left out.
        arrays = {taken: np.ones([2] * len(engine.family.axes_of(taken, 2))) for taken in taken_by_default}
        if "dq" in returns:
            arrays["dout"] = np.ones((2, 2))
        inputs = {taken: InputSpec(array.shape, "float64", "inline") for taken, array in arrays.items()}
        with suppress(CannotRunError):
            execute(RunSpec(name, inputs, returns=returns, timing=Timing(0, 1)), arrays)


def _run(
    spec: RunSpec, prepared: Prepared, device: str, checkpoint: Callable[[], None]
) -> tuple[Mapping[str, Any], list[int], dict[str, Any]]:
    """Warm up, time, and count traffic during the very first call where the interpreter lets us: that of a
    warm-up, or without one the first sample, since a call more could double what the run takes."""
    counts = ENGINES[spec.engine].is_triton and device == "cpu"
    traffic: dict[str, Any] = {} if counts else modelled_traffic(spec)
    result: Mapping[str, Any] = {}
    samples: list[int] = []
    for number in range(spec.timing.warmup + spec.timing.iters):
        checkpoint()
        if counts and number == 0:
            with importlib.import_module("kernels.flash.interpreter").counted_traffic() as counted:
                result, nanoseconds = timed(prepared.compute, device)
            traffic = {
                "bytes_read": counted.bytes_read,
                "bytes_written": counted.bytes_written,
                "method": "interpreter",
            }
        else:
            result, nanoseconds = timed(prepared.compute, device)
        if number >= spec.timing.warmup:
            samples.append(nanoseconds)
    return result, samples, traffic


def _expected(
    spec: RunSpec, canonical: Mapping[str, Array], results: dict[str, Array], checkpoint: Callable[[], None]
) -> tuple[Mapping[str, Array], Mapping[str, float]]:
    """The results in float64, and how far from them rounding may have taken the engine's."""
    wanted = tuple(dict.fromkeys(("out", *spec.returns)))
    if ENGINES[spec.engine].is_double:
        return results, dict.fromkeys(wanted, 0.0)
    if ENGINES[spec.engine].computes != SOFTMAX:
        own: tuple[dict[str, Array], dict[str, float]] = _engine(spec).expected(
            spec, canonical, wanted, checkpoint
        )
        return own
    given = operands(spec, canonical, dtype=np.float64)
    bounds = Bounds(spec, given, canonical["dout"] if spec.differentiates else None)
    prefixes = Prefixes(spec, given, bounds) if spec.is_traced else None

    def observe(head: Head) -> None:
        bounds.observe(head)
        if prefixes is not None:
            prefixes.observe(head)

    in_float64 = tuple(name for name in wanted if name not in TRACE)
    expected = reference(spec, canonical, in_float64, checkpoint, observe=observe, given=given)
    found = bounds.found(canonical)
    return (expected, found) if prefixes is None else (expected | prefixes.results, found | prefixes.found())


def _comparison(
    spec: RunSpec, canonical: Mapping[str, Array], results: dict[str, Array], checkpoint: Callable[[], None]
) -> dict[str, Any] | None:
    compared = compare_with_dense if ENGINES[spec.engine].computes == SOFTMAX else compare_with_softmax
    return compared(spec, canonical, results["out"], checkpoint)


def _engine(spec: RunSpec) -> Any:
    """The module of the spec's engine: it has ``prepare``, where it is ours ``KERNEL_VERSION``, and
    ``expected`` where it computes anything but softmax attention."""
    return importlib.import_module(ENGINES[spec.engine].module)


def _interpreter_is_on() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0").lower() in {"1", "true", "on", "yes", "y"}


def _timing_method(spec: RunSpec, device: str) -> str:
    if device == "cuda":
        return "cuda_event"
    return "interpreter" if ENGINES[spec.engine].is_triton else "wall"


def _describe(spec: RunSpec, name: str, array: Array) -> dict[str, Any]:
    """Shape, dtype and digest of an input as the engine saw it; bfloat16 is digested as two bytes each."""
    dtype = spec.dtype if name in ROUNDED else str(array.dtype)
    given = spec.inputs[name]
    info: dict[str, Any] = {
        "shape": list(array.shape),
        "dtype": dtype,
        "sha256": sha256(array, dtype),
        "source": given.source,
    }
    if given.seed is not None:
        info |= {"seed": given.seed, "distribution": given.distribution}
    return info


def _counting_notes(spec: RunSpec, method: str) -> list[str]:
    """What the samples include beside the kernels."""
    if method == "interpreter" and spec.timing.warmup == 0:
        return ["The first sample includes the counting of memory traffic; a warm-up keeps it out of them."]
    return []


def _input_notes(inputs: Mapping[str, Array]) -> list[str]:
    """What a careful colleague would ask about the inputs."""
    mask = inputs.get("attn_mask")
    if mask is not None and mask.dtype != np.bool_ and mask.size and bool(np.isin(mask, (0.0, 1.0)).all()):
        return [
            "attn_mask holds only the numbers 0 and 1: they were added to the scores. "
            "For a mask of allowed keys send booleans."
        ]
    return []
