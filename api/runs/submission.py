"""From a request body to a queued run; REST and the lab's form both come through here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from django.conf import settings
from django.db import transaction

from api import idempotency
from api.callers import Caller
from api.uploads import store
from kernels.spec import ParsedRun, RunSpec, parse_run
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

    def prepare() -> Callable[[], Run]:
        parsed = parse_run(body, load_upload=store.loader(caller))
        return lambda: _submit(parsed, caller)

    return _once(key, prepare)


def submit_compile_body(body: object, *, caller: Caller, key: idempotency.Key | None = None) -> Submission:
    """Like `submit_body`, for a run body that also names `targets`."""

    def prepare() -> Callable[[], Run]:
        rest = dict(body) if isinstance(body, Mapping) else body
        targets = rest.pop("targets", None) if isinstance(rest, dict) else None
        spec = parse_run(rest, load_upload=store.loader(caller)).spec
        wanted = parse_targets(targets)
        return lambda: _submit_compile(spec, wanted, caller)

    return _once(key, prepare)


def _submit(parsed: ParsedRun, caller: Caller) -> Run:
    return runs.submit(
        parsed, owner=caller.owner, caller=caller.address, budget_seconds=caller.budget_seconds
    )


def _submit_compile(spec: RunSpec, targets: Sequence[str], caller: Caller) -> Run:
    return runs.submit_compile(
        spec, targets, owner=caller.owner, caller=caller.address, budget_seconds=settings.RUN_BUDGET_TOKEN
    )


def _once(key: idempotency.Key | None, prepare: Callable[[], Callable[[], Run]]) -> Submission:
    """Submit what `prepare` has checked, or find what the same key submitted before.

    Key and run become visible together, or neither does.
    """
    if key is None:
        return Submission(prepare()())
    if earlier := _earlier(key):
        return earlier
    submit = prepare()
    try:
        with transaction.atomic():
            idempotency.reserve(key)
            run = submit()
            idempotency.complete(key, run.id)
    except idempotency.Taken:
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
