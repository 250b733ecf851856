"""From a request body to a sweep of queued runs."""

import math
from collections.abc import Mapping
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
            asked = parse_sweep(body)
            points, refused = _admitted(asked, caller)
        return sweeps.prepare(
            points,
            body=_storable(_described(asked.body, points[0].parsed)),
            vary=_storable(asked.vary),
            refused=_storable(refused),
            owner=caller.owner,
            caller=caller.address,
            budget_seconds=caller.budget_seconds,
        )

    return once(key, prepare, sweeps)


def _admitted(asked: SweepRequest, caller: Caller) -> tuple[list[sweeps.Point], list[dict[str, Any]]]:
    """The points that can be run, at least one, and those that are left out because the caller said so."""
    points: list[sweeps.Point] = []
    found: dict[int, tuple[FieldProblem, ...]] = {}
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
    readable = all(problem.status != MALFORMED for problems in found.values() for problem in problems)
    if found and not (asked.skip_refused and points and readable):
        problems = blame(asked, found)
        raise Refused(problems) if too_costly == found.keys() else SpecError(problems)
    return points, [
        {"values": asked.points[index].values, "errors": [_error(problem) for problem in problems]}
        for index, problems in found.items()
    ]


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
