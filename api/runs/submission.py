"""From a request body to a queued run; REST and the lab's form both come through here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from django.conf import settings
from django.core.exceptions import ObjectDoesNotExist
from django.db import transaction

from api import idempotency
from api.callers import Caller
from api.uploads import store
from kernels.spec import parse_run
from kernels.targets import parse_targets
from workers import runs
from workers.models import Run

Made = TypeVar("Made", bound=idempotency.Row)


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

    return Submission(*once(key, prepare, runs))


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

    return Submission(*once(key, prepare, runs))


class Life(Protocol[Made]):
    """What `workers.runs` and `workers.sweeps` do with a row that was prepared."""

    def record(self, row: Made, /) -> None: ...

    def discard(self, row: Made, /) -> None: ...

    def get(self, row_id: str, /) -> Made: ...


def once(key: idempotency.Key | None, prepare: Callable[[], Made], life: Life[Made]) -> tuple[Made, bool]:
    """Record what `prepare` checks and pays for, or find what the same key submitted before; and whether it
    did.

    Key and row become visible together, or neither does.
    """
    if key and (earlier := _earlier(key, life)):
        return earlier, True
    row = prepare()
    if key is None:
        life.record(row)
        return row, False
    try:
        with transaction.atomic():
            idempotency.reserve(key)
            life.record(row)
            idempotency.complete(key, row.pk)
    except idempotency.Taken:  # by the same request, sent twice at the same moment
        life.discard(row)
        return once(key, prepare, life)
    return row, False


def _earlier(key: idempotency.Key, life: Life[Made]) -> Made | None:
    row_id = idempotency.find(key)
    if row_id is None:
        return None
    try:
        return life.get(row_id)
    except ObjectDoesNotExist:  # deleted meanwhile: nothing left to show again
        idempotency.forget(key)
        return None
