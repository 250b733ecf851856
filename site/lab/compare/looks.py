"""One head of two runs, compared: what maps, lists and cells of a comparison are made of.

Scores and weights are computed again in float64 from the inputs that the runs have kept, as a close look is;
what both returned is compared as it was stored. A finished run never changes, so the latest are kept.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from django.http import HttpRequest
from django.utils.translation import gettext as _

from api.callers import caller_of
from api.computing import computing
from kernels import closeup, differences, error_sources
from kernels.differences import Difference, Differences
from kernels.error_sources import Split
from kernels.operands import Operands
from kernels.registry import ENGINES, SOFTMAX
from kernels.spec import RunSpec
from kernels.spec.families import PLAIN
from lab import arrays, units
from lab.compare.chosen import Chosen
from lab.heatmap import levels
from lab.kept import Kept
from lab.runs import closeups
from lab.runs.closeups import FREE, MOST
from lab.runs.heads import Head
from lab.runs.maps import CELLS, MASKED, NOT_A_NUMBER, PIXELS, TABLE, TOP, Map
from workers import artifacts
from workers.models import Run, Status

KEPT = 6  # pairs of heads, of the latest
RETURNED = "returned."  # before the name of what both engines returned
KINDS = "kinds"

Key = tuple[str, int, str, int, int, int]


@dataclass(frozen=True)
class Look:
    """One head of two runs. `heads` and `found` are of float64, None where there are no matrices to compare,
    and `why_not` says why."""

    heads: tuple[Operands, Operands] | None
    found: Differences | None
    maps: dict[str, Map]
    returned: dict[str, Difference]
    allowed: dict[str, float]  # of what was returned, what both bounds explain together
    splits: tuple[Split, Split] | None
    why_not: str = ""


_kept: Kept[Key, Look] = Kept(KEPT)


def look(first: Run, second: Run, batch: int, head: int, request: HttpRequest) -> Look:
    """Both heads. What costs much, and is not kept, is charged to the caller. Raises Busy."""
    specs = RunSpec.from_dict(first.spec), RunSpec.from_dict(second.spec)

    def compute() -> Look:
        if sum(closeups.work(spec) for spec in specs) <= FREE:
            return _look((first, second), specs, batch, head)
        with computing(caller_of(request)):
            return _look((first, second), specs, batch, head)

    key = (first.id, first.attempt, second.id, second.attempt, batch, head)
    return _kept.get(key, compute) or compute()


def can_look(chosen: Chosen, second: Run | None) -> bool:
    return second is not None and all(run.status == Status.SUCCEEDED for run in (chosen.first, second))


def _look(pair: tuple[Run, Run], specs: tuple[RunSpec, RunSpec], batch: int, head: int) -> Look:
    returned, allowed = _returned(pair, specs, batch, head)
    maps = {f"{RETURNED}{name}": _map(f"{RETURNED}{name}", one) for name, one in returned.items()}
    why_not = _why_not(specs, batch, head)
    inputs = [] if why_not else [artifacts.load_inputs(run) for run in pair]
    if not (why_not or all(inputs)):
        why_not = _(
            "The stored inputs of one of the runs are gone, so nothing can be computed from them again."
        )
    if why_not:
        return Look(None, None, maps, returned, allowed, None, why_not)
    one, other = (
        closeup.one_head(closeup.look(spec, given), batch, head)
        for spec, given in zip(specs, inputs, strict=True)
    )
    found = differences.compare(one, other, PIXELS)
    maps |= {name: _map(name, each) for name, each in found.of.items()}
    maps[KINDS] = _kinds(found)
    splits = _splits(pair, specs, inputs, (one, other), (batch, head))
    return Look((closeup.alone(one), closeup.alone(other)), found, maps, returned, allowed, splits)


def _why_not(specs: tuple[RunSpec, RunSpec], batch: int, head: int) -> str:
    """Why there are no matrices of both to be compared cell by cell; "" where there are."""
    for spec in specs:
        engine = ENGINES.get(spec.engine)
        if engine is None or engine.computes != SOFTMAX:
            what = engine.computes if engine else spec.engine
            return _(
                "Engine {engine} computes {what}: it has no scores and weights of softmax attention, so "
                "outputs are compared."
            ).format(engine=spec.engine, what=what)
    sizes = {
        _("queries"): [spec.q_len for spec in specs],
        _("keys"): [spec.kv_len for spec in specs],
        _("dimensions of the values"): [spec.v_head_dim for spec in specs],
    }
    for what, (one, other) in sizes.items():
        if one != other:
            return _(
                "The runs have {one} and {other} {what}: their matrices have no cells in common. Only what "
                "was measured is compared."
            ).format(one=units.whole(one), other=units.whole(other), what=what)
    if any(head >= spec.num_heads or batch >= spec.batch for spec in specs):
        return _("The second run has no head {head} in batch row {batch}.").format(head=head, batch=batch)
    if any(closeups.multiply_adds(spec) > MOST for spec in specs):
        return _("These heads are too large to be computed again on a page. What was returned is compared.")
    return ""


# --- What was returned ----------------------------------------------------------------------------


def _returned(
    pair: tuple[Run, Run], specs: tuple[RunSpec, RunSpec], batch: int, head: int
) -> tuple[dict[str, Difference], dict[str, float]]:
    """The results that both runs have, of one head, where they have it and the same shape there."""
    heads = [Head(run, spec, batch, head) for run, spec in zip(pair, specs, strict=True)]
    found: dict[str, Difference] = {}
    allowed: dict[str, float] = {}
    if any(batch >= spec.batch or head >= spec.num_heads for spec in specs):
        return found, allowed
    tables = [set(arrays.tables(run.array_info, spec)) for run, spec in zip(pair, specs, strict=True)]
    for name in dict.fromkeys(("out", *arrays.MAPS, *arrays.TABLES)):
        if name not in arrays.MAPS and not all(name in each for each in tables):
            continue
        one, other = (_matrix(each, name) for each in heads)
        if one is None or other is None or one.shape != other.shape or not one.size:
            continue
        allowed[name] = sum(_bound(run, name) for run in pair)
        found[name] = differences.of_arrays(one, other, PIXELS, allowed[name])
    return found, allowed


def _matrix(of: Head, name: str) -> np.ndarray | None:
    one = of.returned(name)
    return one[:, None] if one is not None and one.ndim == 1 else one


def _bound(run: Run, name: str) -> float:
    numerics: dict[str, Any] = (run.result or {}).get("numerics") or {}
    given = numerics if name == "out" else (numerics.get("arrays") or {}).get(name) or {}
    bound = given.get("bound", 0.0)
    return float(bound) if isinstance(bound, int | float) else 0.0


# --- Where errors come from -----------------------------------------------------------------------


def _splits(
    pair: tuple[Run, Run],
    specs: tuple[RunSpec, RunSpec],
    inputs: list[dict[str, np.ndarray]],
    heads: tuple[Operands, Operands],
    at: tuple[int, int],
) -> tuple[Split, Split] | None:
    """The errors of both outputs by where they arise, where the runs differ only in how they compute."""
    alike = specs[0].attention == specs[1].attention and all(spec.family is PLAIN for spec in specs)
    if not alike or all(spec.dtype == specs[0].dtype and spec.engine == specs[0].engine for spec in specs):
        return None
    found = []
    for run, spec, rounded, head in zip(pair, specs, inputs, heads, strict=True):
        returned = Head(run, spec, *at).returned("out")
        submitted = artifacts.load_submitted(run)
        known = all(given.seed is not None or name in submitted for name, given in spec.inputs.items())
        if returned is None or not known:
            return None
        sent = error_sources.as_sent(spec, submitted, rounded)
        exact = closeup.one_head(closeup.look(spec, sent), *at)
        found.append(error_sources.split(spec, exact, head, returned[: head.q.shape[2]]))
    return found[0], found[1]


# --- Pictures -------------------------------------------------------------------------------------


def _map(name: str, one: Difference) -> Map:
    """The difference as a picture: what only the second sees is at the top of the scale, what only the first
    sees at its bottom, and what neither sees is seen through."""
    values = one.picture
    largest = one.largest
    end = largest or 1.0
    drawn = np.where(np.isinf(values), np.copysign(end, values), values)
    drawn = np.where(np.isnan(values), -np.inf, drawn)
    is_listed = not values.size or max(one.rows, one.columns) <= CELLS
    blocks = closeup.blocks(values.shape, TABLE)
    return Map(
        name,
        "div",
        one.rows,
        one.columns,
        top=0,
        left=0,
        levels=levels(drawn, "div", end, steps=TOP, masked=MASKED, not_a_number=NOT_A_NUMBER).astype(
            np.uint8
        ),
        table=values if is_listed else differences.extreme(values, *blocks),
        largest=largest,
        has_masked=bool(np.isnan(values).any()),
        dtype=values.dtype,
        by_size=True,
    )


def _kinds(found: Differences) -> Map:
    """Which cells changed, and who sees them; its levels are the kinds themselves."""
    weights, kinds = found.of["weights"], found.kinds
    blocks = closeup.blocks(kinds.shape, TABLE)
    return Map(
        KINDS,
        "seq",
        weights.rows,
        weights.columns,
        top=0,
        left=0,
        levels=kinds,
        table=closeup.block_maximum(kinds, *blocks) if kinds.size else kinds,
        largest=0.0,
        has_masked=bool((kinds == differences.NEITHER).any()),
        dtype=kinds.dtype,
        by_size=False,
    )
