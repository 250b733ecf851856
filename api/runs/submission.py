"""From a request body to a queued run; REST and the lab's form both come through here."""

from collections.abc import Callable
from dataclasses import dataclass

from django.db import transaction

from api import idempotency
from api.callers import Caller
from api.uploads import store
from kernels.spec import ParsedRun, parse_run
from workers import limits, quotas, runs
from workers.models import Run


@dataclass(frozen=True)
class Submission:
    run: Run
    replayed: bool = False


def submit_body(body: object, *, caller: Caller, key: idempotency.Key | None = None) -> Submission:
    """Validate `body`, charge the caller and queue the run.

    Everything that is wrong is found before anything is charged or written. Raises
    kernels.spec.SpecError, workers.limits.Refused, workers.quotas.QuotaExceeded,
    workers.runs.QueueFull, or api.errors.Problem for the key.
    """
    if key and (earlier := _earlier(key)):
        return earlier
    parsed = parse_run(body, load_upload=store.loader(caller))
    if key is None:
        return Submission(_submit(parsed, caller))
    try:
        return Submission(_submit_once(key, lambda: _submit(parsed, caller)))
    except idempotency.Taken:
        return _earlier(key) or submit_body(body, caller=caller, key=key)


def _submit(parsed: ParsedRun, caller: Caller) -> Run:
    cost = limits.admit(parsed.spec, caller.budget_seconds)
    if caller.is_anonymous:
        quotas.charge(caller.address, cost.predicted_seconds)
    return runs.submit(
        parsed, owner=caller.owner, caller=caller.address, budget_seconds=caller.budget_seconds
    )


def _submit_once(key: idempotency.Key, submit: Callable[[], Run]) -> Run:
    """Key and run become visible together, or neither does."""
    with transaction.atomic():
        idempotency.reserve(key)
        run = submit()
        idempotency.complete(key, run.id)
    return run


def _earlier(key: idempotency.Key) -> Submission | None:
    run_id = idempotency.find(key)
    if run_id is None:
        return None
    try:
        return Submission(runs.get(run_id), replayed=True)
    except Run.DoesNotExist:  # deleted meanwhile: nothing left to show again
        idempotency.forget(key)
        return None
