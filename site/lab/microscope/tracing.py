"""A run computed once more by the flash kernel in small tiles, with a trace of what it holds after each."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from django.utils.translation import gettext as _

from api.callers import Caller
from kernels.flash.tiles import choose_tiles
from kernels.integers import ceil_div
from kernels.refusals import refused
from kernels.registry import ENGINES, SOFTMAX
from kernels.spec import FieldProblem, Options, RunSpec
from kernels.spec.declared import with_defaults
from kernels.spec.model import ParsedRun, Timing
from kernels.spec.results import TRACE
from workers import artifacts, limits, runs
from workers.models import Run

ENGINE = "flash"
MOST_TILES = 64  # of keys, where there is a choice
# (block_m, block_n): the first in which a run has few enough tiles, and is admitted.
TILES = ((16, 16), (32, 32), (64, 64), (128, 64), (256, 128), (512, 256))


def has_trace(run: Run) -> bool:
    return set(TRACE) <= set(run.array_info)


@dataclass(frozen=True)
class Offer:
    """The traced run that would be submitted; without one, why there is none."""

    spec: RunSpec | None
    problems: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()  # what will not be as in the run, in words


def offer(run: Run, spec: RunSpec, caller: Caller) -> Offer:
    """What a trace of `run` would be."""
    engine = ENGINES.get(run.engine)
    if engine is None or engine.computes != SOFTMAX:
        return Offer(
            None,
            (
                _("Its engine computes no softmax attention, so there is no online softmax to watch."),
                _("Run the same q, k and v on engine flash."),
            ),
        )
    if not spec.kv_len or not spec.q_len:
        return Offer(None, (_("It has no queries or no keys."),))
    candidates = [as_traced(spec, tiles) for tiles in TILES]
    if problems := refused(candidates[0]):
        return Offer(None, tuple(said(problems)))
    few = [
        one
        for one in candidates
        if ceil_div(spec.kv_len, choose_tiles(one, interpreted=True)[1]) <= MOST_TILES
    ]
    why: list[str] = []
    for one in few or candidates[-1:]:
        try:
            limits.admit(one, caller.budget_seconds)
        except limits.Refused as refusal:
            why = list(said(refusal.problems))
        else:
            return Offer(one, changes=tuple(changes(spec, one)))
    return Offer(None, tuple(why))


def as_traced(spec: RunSpec, tiles: tuple[int, int]) -> RunSpec:
    """The same attention to the same inputs, by the flash kernel in such tiles, once, in the interpreter."""
    options = Options(
        block_m=tiles[0], block_n=tiles[1], kv_dtype=spec.options.kv_dtype, kv_scale=spec.options.kv_scale
    )
    flash = ENGINES[ENGINE]
    return replace(
        spec,
        engine=ENGINE,
        device="cpu",
        dtype=spec.dtype if spec.dtype in flash.dtypes else "float32",
        inputs={name: given for name, given in spec.inputs.items() if name != "dout"},
        returns=("out", "lse", *TRACE),
        options=with_defaults(options, flash.options),
        timing=Timing(warmup=0, iters=1),
    )


def said(problems: Iterable[FieldProblem]) -> Iterator[str]:
    return (problem.detail for problem in problems)


def changes(spec: RunSpec, traced: RunSpec) -> Iterator[str]:
    """In words, what differs."""
    if spec.engine != traced.engine:
        yield _("engine flash in the place of {engine}").format(engine=spec.engine)
    if spec.dtype != traced.dtype:
        yield _("{new} in the place of {old}, which the kernel does not have").format(
            new=traced.dtype, old=spec.dtype
        )
    yield _("tiles of {m} queries and {n} keys").format(m=traced.options.block_m, n=traced.options.block_n)


def submit(run: Run, spec: RunSpec, caller: Caller) -> Run:
    """Queue the traced run, of nobody, as every run of a page is. Raises what `workers.runs.submit` does."""
    sent = {name: array for name, array in artifacts.load_submitted(run).items() if name in spec.inputs}
    return runs.submit(
        ParsedRun(spec, sent),
        owner=caller.owner,
        caller=caller.address,
        budget_seconds=caller.budget_seconds,
    )
