"""The life of a sweep. Its points are runs, and live as runs do (`workers.runs`).

    admit each -> prepare -> record -> a point is sent, when it has ended the next -> all have ended
                                   \\-> cancel

A point is queued from the beginning, but sent to the broker (`queued_at`) when it is its turn: of the sweeps
of one caller a few points are under way at once (settings.SWEEP_POINTS_AT_ONCE), so that others wait for
those at most. The worker that ended one sends the next; where none did, the reaper.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Count, Q, QuerySet
from django.utils import timezone

from kernels.estimate import Estimate
from kernels.spec import FieldProblem, ParsedRun
from workers import artifacts, events, limits, quotas, runs
from workers.models import ACTIVE, Run, Status, Sweep

WAITING = Q(status__in=ACTIVE, queued_at__isnull=True)  # for its turn
UNDER_WAY = Q(status__in=ACTIVE, queued_at__isnull=False)


@dataclass(frozen=True)
class Point:
    """A run that was admitted, and the values that make it a point."""

    values: Mapping[str, Any]
    parsed: ParsedRun
    queue: str
    cost: Estimate

    @property
    def predicted_seconds(self) -> float:
        return self.cost.predicted_seconds


# --- For callers -----------------------------------------------------------------------------


def admit(values: Mapping[str, Any], parsed: ParsedRun, budget_seconds: int) -> Point:
    """The point, priced. Raises limits.Refused."""
    cost = limits.admit(parsed.spec, budget_seconds)
    return Point(values, parsed, limits.queue_for(parsed.spec), cost)


def prepare(
    points: Iterable[Point],
    *,
    body: Mapping[str, Any],
    vary: Mapping[str, Sequence[Any]],
    refused: Sequence[Any] = (),
    owner: str,
    caller: str,
    budget_seconds: int,
) -> Sweep:
    """Charge a sweep, store what was sent with its points, and put them in order, the small ones first; its
    rows are still to be recorded.

    Raises limits.Refused when it is more than any window of a quota has, runs.QueueFull or
    quotas.QuotaExceeded, having written and charged nothing.
    """
    ordered = sorted(points, key=lambda point: point.predicted_seconds)
    refuse_too_much(ordered, owner)
    for queue in {point.queue for point in ordered}:
        runs.refuse_when_full(queue)
    if Run.objects.filter(WAITING, sweep__isnull=False).count() >= settings.MAX_QUEUED:
        raise runs.QueueFull(retry_after=60)
    drafts = [_draft(point, owner, caller, budget_seconds) for point in ordered]
    sweep = Sweep(
        owner=owner,
        caller=caller,
        created_at=drafts[0].created_at,
        expires_at=drafts[0].expires_at,
        body=body,
        vary=vary,
        values=[point.values for point in ordered],
        refused=refused,
    )
    for position, draft in enumerate(drafts):
        draft.sweep, draft.position = sweep, position
        draft.created_at, draft.expires_at = sweep.created_at, sweep.expires_at
    sweep.drafts = drafts
    if not owner:
        quotas.charge(caller, *_amounts(drafts))
    for point, draft in zip(ordered, drafts, strict=True):
        artifacts.save_submitted(draft, point.parsed.arrays)
    return sweep


def refuse_too_much(points: Sequence[Point], owner: str) -> None:
    """What is more than a whole window has will not fit tomorrow either. Raises limits.Refused."""
    if owner:
        return
    needed = quotas.amounts(sum(point.predicted_seconds for point in points), len(points))
    problems = [
        FieldProblem(
            "/vary",
            "too-much-at-once",
            f"the points are {amount:,.0f} {quota.unit} together, but without a token an address may use "
            f"{quota.limit:g} per {quota.window_seconds} s: vary less, or {quota.remedy}",
        )
        for quota, amount in zip(quotas.quotas(), needed, strict=True)
        if amount > quota.limit
    ]
    if problems:
        raise limits.Refused(problems)


def record(sweep: Sweep) -> None:
    """Write the rows, and send the first points when the surrounding transaction commits."""
    try:
        with transaction.atomic():
            sweep.save(force_insert=True)
            Run.objects.bulk_create(sweep.drafts)
            transaction.on_commit(lambda: go_on(sweep.owner, sweep.caller), robust=True)
    except BaseException:
        discard(sweep)
        raise


def discard(sweep: Sweep) -> None:
    """Forget a prepared sweep that was not recorded, and give back what it was charged."""
    for draft in sweep.drafts:
        artifacts.delete(draft.id)
    if not sweep.owner:
        quotas.refund(sweep.caller, *_amounts(sweep.drafts))


def get(sweep_id: str) -> Sweep:
    """The sweep, or Sweep.DoesNotExist."""
    return Sweep.objects.get(pk=sweep_id)


def points(sweep: Sweep) -> list[Run]:
    """Its runs in order, without their arrays."""
    return list(sweep.points.defer(*artifacts.INLINE_FIELDS).order_by("position"))


def with_progress(sweeps: QuerySet[Sweep]) -> QuerySet[Sweep]:
    """The same with `active`: how many points have not ended."""
    return sweeps.annotate(active=Count("points", filter=Q(points__status__in=ACTIVE)))


def ahead(sweep: Sweep, following: Run) -> int:
    """How many go before the point that comes next: others that are queued; and, where it still waits for its
    turn, points of earlier sweeps of the same caller."""
    if following.queued_at is not None:
        return runs.ahead(following)
    earlier = Q(created_at=sweep.created_at, sweep__lt=sweep.id) | Q(created_at__lt=sweep.created_at)
    return _points_of(sweep.owner, sweep.caller).filter(earlier, status__in=ACTIVE).count()


def cancel(sweep_id: str) -> Sweep:
    """End every point that has not ended; the results of the others stay.

    What never had its turn is given back. Canceling twice is the same as once. Raises Sweep.DoesNotExist,
    or runs.AlreadyFinished.
    """
    now = timezone.now()
    with transaction.atomic():
        active = list(Run.objects.select_for_update().filter(sweep=sweep_id, status__in=ACTIVE))
        ids = [point.pk for point in active]
        Run.objects.filter(pk__in=ids).update(status=Status.CANCELED, finished_at=now)
        if active:
            Sweep.objects.filter(pk=sweep_id).update(canceled_at=now)
    sweep = get(sweep_id)
    if active:
        never = [point for point in active if point.queued_at is None]
        if never and not sweep.owner:
            quotas.refund(sweep.caller, *_amounts(never))
        ended = [(run_id, str(Status.CANCELED)) for run_id in ids]
        events.announce_all([*ended, (sweep.id, Sweep.CANCELED)])
    elif sweep.status == Sweep.FINISHED:
        raise runs.AlreadyFinished("Every point of the sweep has ended; there is nothing left to cancel.")
    return sweep


# --- For workers -----------------------------------------------------------------------------


def point_ended(run: Run) -> None:
    """Send what comes after a point; tell who waits when it was the last."""
    go_on(run.owner, run.caller)
    if run.sweep and run.sweep.is_terminal:
        events.announce(run.sweep.id, run.sweep.status)


def go_on(owner: str, caller: str) -> int:
    """Send the next points of a caller, as many as may be under way at once; returns how many.

    Two that do so at the same moment may send one too many, but none twice.
    """
    mine = _points_of(owner, caller)
    free = settings.SWEEP_POINTS_AT_ONCE - mine.filter(UNDER_WAY).count()
    following = mine.filter(WAITING).order_by("created_at", "sweep_id", "position")
    return sum(map(_send, following[: max(0, free)]))


# --- For the maintenance worker --------------------------------------------------------------


def reap() -> dict[str, int]:
    """Go on with every sweep whose last point ended without a worker that could."""
    waiting = Run.objects.filter(WAITING, sweep__isnull=False).order_by().values_list("owner", "caller")
    callers = {(owner, "" if owner else caller) for owner, caller in waiting.distinct()}
    return {"points sent": sum(go_on(owner, caller) for owner, caller in callers)}


def expire() -> int:
    """Delete sweeps past their retention, when their points are gone; returns how many."""
    gone = Sweep.objects.filter(expires_at__lt=timezone.now(), points__isnull=True)
    return gone.delete()[0]


# --- Inside ----------------------------------------------------------------------------------


def _points_of(owner: str, caller: str) -> QuerySet[Run]:
    """Those of all sweeps of one caller."""
    mine = Run.objects.filter(sweep__isnull=False, owner=owner)
    return mine if owner else mine.filter(caller=caller)


def _draft(point: Point, owner: str, caller: str, budget_seconds: int) -> Run:
    draft = runs.new(point.parsed.spec, point.queue, owner, caller, budget_seconds)
    draft.predicted_seconds, draft.queued_at = point.predicted_seconds, None
    return draft


def _amounts(drafts: Sequence[Run]) -> tuple[float, int]:
    return sum(draft.predicted_seconds for draft in drafts), len(drafts)


def _send(run: Run) -> bool:
    now = timezone.now()
    mine = Run.objects.filter(WAITING, pk=run.pk).update(queued_at=now)
    if mine:
        runs.send(run)
    return bool(mine)
