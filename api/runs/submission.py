"""From a request body to a queued run; REST and the lab's form both come through here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from django.conf import settings
from django.db import transaction

from api import idempotency
from api.callers import Caller
from api.uploads import store
from kernels.spec import parse_run
from kernels.targets import parse_targets
from workers import runs
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

    def prepare() -> Run:
        parsed = parse_run(body, load_upload=store.loader(caller))
        return runs.prepare(
            parsed, owner=caller.owner, caller=caller.address, budget_seconds=caller.budget_seconds
        )

    return _once(key, prepare)


def submit_compile_body(body: object, *, caller: Caller, key: idempotency.Key | None = None) -> Submission:
    """Like `submit_body`, for a run body that also names `targets`."""

    def prepare() -> Run:
        rest = dict(body) if isinstance(body, Mapping) else body
        targets = rest.pop("targets", None) if isinstance(rest, dict) else None
        spec = parse_run(rest, load_upload=store.loader(caller)).spec
        return runs.prepare_compile(
            spec,
            parse_targets(targets),
            owner=caller.owner,
            caller=caller.address,
            budget_seconds=settings.RUN_BUDGET_TOKEN,
        )

    return _once(key, prepare)


def _once(key: idempotency.Key | None, prepare: Callable[[], Run]) -> Submission:
    """Record the run that `prepare` checks and pays for, or find what the same key submitted before.

    Key and run become visible together, or neither does.
    """
    if key and (earlier := _earlier(key)):
        return earlier
    run = prepare()
    if key is None:
        runs.record(run)
        return Submission(run)
    try:
        with transaction.atomic():
            idempotency.reserve(key)
            runs.record(run)
            idempotency.complete(key, run.id)
    except idempotency.Taken:  # by the same request, sent twice at the same moment
        runs.discard(run)
        return _earlier(key) or _once(key, prepare)
    return Submission(run)


def _earlier(key: idempotency.Key) -> Submission | None:
    run_id = idempotency.find(key)
    if run_id is None:
        return None
    try:
        return Submission(runs.get(run_id), replayed=True)
    except Run.DoesNotExist:  # deleted meanwhile: nothing left to show again
        idempotency.forget(key)
        return None
