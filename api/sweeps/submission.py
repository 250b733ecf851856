"""From a request body to a sweep of queued runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from api import idempotency
from api.callers import Caller
from api.pure import place
from api.runs.submission import once
from api.uploads import store
from kernels.spec import FieldProblem, ParsedRun, SpecError, parse_run
from kernels.spec.problems import MALFORMED, TOO_LARGE
from kernels.sweeps.points import MAX_SENT, SweepRequest, blame, parse_sweep, too_much
from workers import sweeps
from workers.limits import Refused
from workers.models import Sweep


@dataclass(frozen=True)
class Examined:
    """A sweep of which every point was parsed and priced; `refused`: what is wrong with others, by number."""

    asked: SweepRequest
    points: Sequence[sweeps.Point]
    refused: Mapping[int, Sequence[FieldProblem]]
    are_too_costly: bool  # all of the refused, and nothing else is wrong with them

    @property
    def can_go_on(self) -> bool:
        """Whether the points that can be run are to be, without the others."""
        readable = all(p.status != MALFORMED for problems in self.refused.values() for p in problems)
        return not self.refused or bool(self.asked.skip_refused and self.points and readable)

    def problems(self) -> list[FieldProblem]:
        """What is wrong with it, told of the body of the sweep; nothing where it can go on."""
        return [] if self.can_go_on else blame(self.asked, self.refused)


def submit_sweep_body(
    body: object, *, caller: Caller, key: idempotency.Key | None = None
) -> tuple[Sweep, bool]:
    """Validate `body`, charge the caller and queue the points; and whether the same key did before.

    Every point is parsed and priced before anything is charged or written. Raises kernels.spec.SpecError or
    workers.limits.Refused with pointers into the body of the sweep, workers.quotas.QuotaExceeded,
    workers.runs.QueueFull, or api.errors.Problem for the key or where too much is computed already.
    """

    def prepare() -> Sweep:
        with place():
            examined = examine(body, caller)
        return _prepared(examined, caller)

    return once(key, prepare, sweeps)


def submit_examined(examined: Examined, caller: Caller) -> Sweep:
    """Charge the caller and queue the points. Raises as `submit_sweep_body`."""
    return once(None, lambda: _prepared(examined, caller), sweeps)[0]


def examine(body: object, caller: Caller) -> Examined:
    """Parse and price every point. Raises kernels.spec.SpecError where `body` is no sweep."""
    asked = parse_sweep(body)
    points: list[sweeps.Point] = []
    found: dict[int, Sequence[FieldProblem]] = {}
    too_costly, sent, load_upload = set(), 0, store.loader(caller)
    for index, point in enumerate(asked.points):
        try:
            parsed = parse_run(point.body, load_upload=load_upload)
            points.append(sweeps.admit(point.values, parsed, caller.budget_seconds))
        except Refused as error:
            found[index] = tuple(error.problems)
            too_costly.add(index)
        except SpecError as error:
            found[index] = error.problems
        else:
            sent += sum(array.size for array in parsed.arrays.values())
        if sent > MAX_SENT:  # in uploads: of what is in the body parse_sweep has told
            raise SpecError([FieldProblem("", "too-large", too_much(len(asked.points)), TOO_LARGE)])
    return Examined(asked, points, found, too_costly == found.keys())


def _prepared(examined: Examined, caller: Caller) -> Sweep:
    problems = examined.problems()
    if problems:
        raise Refused(problems) if examined.are_too_costly else SpecError(problems)
    asked, points = examined.asked, examined.points
    refused = [
        {"values": asked.points[index].values, "errors": [_error(problem) for problem in found]}
        for index, found in examined.refused.items()
    ]
    return sweeps.prepare(
        points,
        body=_storable(_described(asked.body, points[0].parsed)),
        vary=_storable(asked.vary),
        refused=_storable(refused),
        owner=caller.owner,
        caller=caller.address,
        budget_seconds=caller.budget_seconds,
    )


def _error(problem: FieldProblem) -> dict[str, str]:
    return {"pointer": problem.pointer, "code": problem.code, "detail": problem.detail}


def _storable(value: Any) -> Any:
    """The value as JSON has it: a number beyond float64 (1e999) was read as an infinity."""
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, Mapping):
        return {name: _storable(inner) for name, inner in value.items()}
    return [_storable(inner) for inner in value] if isinstance(value, list) else value


def _described(body: Mapping[str, Any], parsed: ParsedRun) -> dict[str, Any]:
    """The body as it is kept: arrays that were sent are described, not contained."""
    inputs = parsed.spec.to_dict()["inputs"]
    sent = {name: inputs[name] for name in parsed.arrays}
    return {**body, "inputs": {**body["inputs"], **sent}}
