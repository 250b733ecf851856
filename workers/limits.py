"""Admission: what a run would cost, held against what it may, before anything is queued."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.conf import settings

from kernels.estimate import Estimate, estimate
from kernels.flash.tiles import tile_problems
from kernels.mla.forms import latent_tile_problems
from kernels.registry import ENGINES
from kernels.spec import FieldProblem, RunSpec

# Of one target, for the quota: every kernel that a run launches. Measured on one core 1 s for a forward pass
# in the tiles of the table, 3 to 5 s with matrices and gradients, 8 s in the largest tiles that are admitted.
COMPILE_SECONDS = 10


class Refused(Exception):
    """A well-formed run that this service will not do; `problems` says why and what would fit."""

    def __init__(self, problems: list[FieldProblem]) -> None:
        self.problems = problems
        super().__init__("; ".join(problem.detail for problem in problems))


@dataclass(frozen=True)
class Limit:
    """One ceiling: `measure` reads a cost off an estimate, `unit` formats it for people."""

    name: str
    code: str
    ceiling: float
    measure: Callable[[Estimate], float]
    unit: Callable[[float], str]


def limits(budget_seconds: float) -> list[Limit]:
    return [
        Limit("worker time", "too-slow", budget_seconds, lambda e: e.predicted_seconds, _seconds),
        Limit(
            "worker memory", "too-much-memory", settings.MAX_RUN_BYTES, lambda e: e.predicted_bytes, _bytes
        ),
        Limit(
            "numbers returned",
            "too-much-output",
            settings.MAX_RESULT_ELEMENTS,
            lambda e: e.output_elements,
            lambda n: f"{n:,.0f}",
        ),
    ]


def admit(spec: RunSpec, budget_seconds: float) -> Estimate:
    """The estimate of `spec`, or Refused with one problem per exceeded limit."""
    cost = estimate(spec)
    problems = [
        FieldProblem(
            "/inputs/c_kv" if spec.is_latent else "/inputs/q", limit.code, _refusal(spec, limit, cost)
        )
        for limit in limits(budget_seconds)
        if limit.measure(cost) > limit.ceiling
    ]
    if problems:
        raise Refused(problems)
    return cost


def admit_compile(spec: RunSpec, targets: Sequence[str]) -> None:
    """Refused when the kernel of `spec` cannot be compiled: only Triton engines are, if there is a worker,
    and with tiles that the targets can hold."""
    if "compile" not in settings.QUEUES:
        raise Refused([FieldProblem("/targets", "no-compiler", "this deployment has no compile worker.")])
    if not ENGINES[spec.engine].is_triton:
        compiled = ", ".join(name for name, engine in ENGINES.items() if engine.is_triton)
        detail = f"engine {spec.engine} has no kernel of ours to compile; use {compiled}."
        raise Refused([FieldProblem("/engine", "not-compiled", detail)])
    problems = (latent_tile_problems if spec.engine == "mla" else tile_problems)(spec, targets)
    if problems:
        raise Refused(problems)


def queue_for(spec: RunSpec) -> str:
    """The queue that carries `spec`; Refused when its device has no worker here."""
    has_gpu = "gpu" in settings.QUEUES
    if spec.device == "cuda" and not has_gpu:
        detail = 'device "cuda" has no worker in this deployment; use "auto" or "cpu".'
        raise Refused([FieldProblem("/device", "no-such-device", detail)])
    can_use_it = "cuda" in ENGINES[spec.engine].devices
    return "gpu" if has_gpu and can_use_it and spec.device != "cpu" else "cpu"


def _refusal(spec: RunSpec, limit: Limit, cost: Estimate) -> str:
    needed, allowed = limit.unit(limit.measure(cost)), limit.unit(limit.ceiling)
    largest = _largest_length(spec, limit)
    remedy = (
        f"With these settings lengths up to {largest:,} fit."
        if largest
        else "No length fits with these settings: lower the batch, the heads or timing.iters."
    )
    return f"{limit.name}: about {needed} needed, {allowed} allowed. {remedy}"


def _largest_length(spec: RunSpec, limit: Limit) -> int:
    """The largest max(q_len, kv_len) within `limit`, the ratio of the two kept; 0 if none."""
    longest = max(spec.q_len, spec.kv_len)
    low, high = 0, longest  # `low` fits (0 stands for none), `high` does not
    while high - low > 1:
        middle = (low + high) // 2
        fits = limit.measure(estimate(_scaled(spec, middle, longest))) <= limit.ceiling
        low, high = (middle, high) if fits else (low, middle)
    return low


def _scaled(spec: RunSpec, part: int, whole: int) -> RunSpec:
    """`spec` with the lengths of q, k and v (or of what stands for them) multiplied by `part` / `whole` (at
    least 1), at the default positions: a list of positions fits one length only, and costs the same whatever
    it says."""
    inputs = dict(spec.inputs)
    for name in ("q_nope", "q_rope", "c_kv", "k_rope") if spec.is_latent else ("q", "k", "v"):
        shape = inputs[name].shape
        length = max(1, shape[-2] * part // whole)
        inputs[name] = dataclasses.replace(inputs[name], shape=(*shape[:-2], length, shape[-1]))
    attention = dataclasses.replace(spec.attention, q_positions=None, kv_positions=None)
    return dataclasses.replace(spec, inputs=inputs, attention=attention)


def _seconds(value: float) -> str:
    return f"{value:,.1f} s"


def _bytes(value: float) -> str:
    return f"{value / 1024**2:,.0f} MiB"
