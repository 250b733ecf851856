"""Admission: what a run would cost, held against what it may, before anything is queued."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.conf import settings

from kernels.estimate import Estimate, estimate
from kernels.registry import ENGINES
from kernels.spec import FieldProblem, RunSpec
from kernels.spec.shorter import shortened
from kernels.tiles import tile_problems

# Of one target, for the quota: every kernel that a run launches. Measured, in seconds of one core: 2 for a
# forward pass in the tiles of the table, 3 to 7 with matrices and gradients, 7 in the largest tiles admitted.
COMPILE_SECONDS = 10


class Refused(Exception):
    """A well-formed run that this service will not do; `problems` says why and what would fit."""

    def __init__(self, problems: list[FieldProblem]) -> None:
        self.problems = problems
        super().__init__("; ".join(problem.detail for problem in problems))


@dataclass(frozen=True)
class Limit:
    """One ceiling: `measure` reads a cost off an estimate, `unit` formats it for people, `remedy` says what
    lowers it beside shorter inputs."""

    name: str
    code: str
    ceiling: float
    measure: Callable[[Estimate], float]
    unit: Callable[[float], str]
    remedy: str

    def is_exceeded(self, cost: Estimate) -> bool:
        return self.measure(cost) > self.ceiling


def limits(budget_seconds: float) -> list[Limit]:
    return [
        Limit(
            "worker time",
            "too-slow",
            budget_seconds,
            lambda e: e.predicted_seconds,
            lambda n: f"{n:,.1f} s",
            "lower the batch, the heads, the dims, timing.iters or the numbers in options",
        ),
        Limit(
            "worker memory",
            "too-much-memory",
            settings.MAX_RUN_BYTES,
            lambda e: e.predicted_bytes,
            lambda n: f"{n / 1024**2:,.0f} MiB",
            "lower the batch, the heads or the dims, or name fewer pages",
        ),
        Limit(
            "numbers returned",
            "too-much-output",
            settings.MAX_RESULT_ELEMENTS,
            lambda e: e.output_elements,
            lambda n: f"{n:,.0f}",
            "lower the batch or the heads, or leave a result out",
        ),
    ]


def admit(spec: RunSpec, budget_seconds: float) -> Estimate:
    """The estimate of `spec`, or Refused with one problem per exceeded limit."""
    cost, all_limits = estimate(spec), limits(budget_seconds)
    exceeded = [limit for limit in all_limits if limit.is_exceeded(cost)]
    if not exceeded:
        return cost
    fitting = _longest_that_fits(spec, all_limits)
    decides = spec.family.decides["k" if spec.is_latent else "q"]
    raise Refused(
        [FieldProblem(f"/inputs/{decides}", limit.code, _refusal(limit, cost, fitting)) for limit in exceeded]
    )


def admit_compile(spec: RunSpec, targets: Sequence[str]) -> None:
    """Refused when the kernels of `spec` cannot be compiled: only Triton engines are, if there is a worker,
    and with tiles that the targets can hold."""
    if "compile" not in settings.QUEUES:
        raise Refused([FieldProblem("/targets", "no-compiler", "this deployment has no compile worker.")])
    if not ENGINES[spec.engine].is_triton:
        compiled = ", ".join(name for name, engine in ENGINES.items() if engine.is_triton)
        detail = f"engine {spec.engine} has no kernel of ours to compile; use {compiled}."
        raise Refused([FieldProblem("/engine", "not-compiled", detail)])
    problems = tile_problems(spec, targets)
    if problems:
        raise Refused(problems)


def queue_for(spec: RunSpec) -> str:
    """The queue that carries `spec`; Refused when its device has no worker here."""
    has_gpu = "gpu" in settings.QUEUES
    if spec.device == "cuda" and not has_gpu:
        detail = 'device "cuda" has no worker in this deployment; use "auto" or "cpu".'
        raise Refused([FieldProblem("/device", "no-such-device", detail)])
    can_use_it = "cuda" in ENGINES[spec.engine].devices
    return "gpu" if has_gpu and can_use_it and spec.device != "cpu" and not spec.is_traced else "cpu"


def _refusal(limit: Limit, cost: Estimate, fitting: RunSpec | None) -> str:
    needed, allowed = limit.unit(limit.measure(cost)), limit.unit(limit.ceiling)
    if fitting is None:
        remedy = f"No length fits with these settings: {limit.remedy}."
    else:
        q_len, kv_len = fitting.q_len, fitting.kv_len
        both = f" (q_len {q_len:,} with kv_len {kv_len:,})" if q_len != kv_len else ""
        remedy = f"With these settings lengths up to {max(q_len, kv_len):,} fit{both}."
    return f"{limit.name}: about {needed} needed, {allowed} allowed. {remedy}"


def _longest_that_fits(spec: RunSpec, all_limits: Sequence[Limit]) -> RunSpec | None:
    """`spec` with the longest q and k that no limit refuses, the ratio of their lengths kept."""
    longest = max(spec.q_len, spec.kv_len)
    low, high, fitting = 0, longest, None  # `high` does not fit
    while high - low > 1:
        middle = (low + high) // 2
        shorter = shortened(spec, middle, longest)
        cost = estimate(shorter)
        if any(limit.is_exceeded(cost) for limit in all_limits):
            high = middle
        else:
            low, fitting = middle, shorter
    return fitting
