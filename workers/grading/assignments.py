"""What an assignment is at a moment, and whose inputs are whose."""

import hashlib
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from django.db.models import Count, Max
from django.utils import timezone

from workers.grading.models import SEED_BYTES, Assignment, ProblemVersion

FULL, SCORES, VERDICT, NOTHING = "full", "scores", "verdict", "none"
FEEDBACK_LEVELS = (FULL, SCORES, VERDICT, NOTHING)
# While one may still hand in, after the last try, after the last due date, and for those who teach.
FEEDBACK_SITUATIONS = ("normal", "past_limit", "after_due", "staff")


class Phase(Enum):
    UNRELEASED = "not released"
    OPEN = "open"
    CLOSED = "closed"


class NotOpen(Exception):
    """Nothing can be handed in now; `phase` says why."""

    def __init__(self, assignment: Assignment, phase: Phase) -> None:
        self.phase = phase
        if phase == Phase.UNRELEASED:
            super().__init__(f"The assignment opens at {assignment.release_date:%Y-%m-%dT%H:%M:%SZ}.")
        else:
            super().__init__(f"The assignment closed at {assignment.last_due_date:%Y-%m-%dT%H:%M:%SZ}.")


def create(owner: str, version: ProblemVersion, **fields: Any) -> Assignment:
    """A new assignment of a published version, with a seed that nobody has seen."""
    seed = secrets.token_bytes(SEED_BYTES)
    return Assignment.objects.create(
        owner=owner,
        problem_version=version,
        seed=seed,
        seed_commitment_sha256=hashlib.sha256(seed).hexdigest(),
        **fields,
    )


def phase(assignment: Assignment, now: datetime) -> Phase:
    if assignment.release_date and now < assignment.release_date:
        return Phase.UNRELEASED
    if assignment.last_due_date and now > assignment.last_due_date:
        return Phase.CLOSED
    return Phase.OPEN


def require_open(assignment: Assignment, at: datetime) -> None:
    """Raises NotOpen unless something can be handed in at this moment."""
    found = phase(assignment, at)
    if found != Phase.OPEN:
        raise NotOpen(assignment, found)


def revealed_seed(assignment: Assignment) -> str | None:
    """The seed in hex, once nobody can hand in any more."""
    closed = phase(assignment, timezone.now()) == Phase.CLOSED
    return bytes(assignment.seed).hex() if closed else None


@dataclass(frozen=True)
class Tries:
    """A student's: how many there are (None: any number), how many were used of them, and from when there is
    another one where none is left (None: never)."""

    most: int | None
    used: int
    next_at: datetime | None = None

    @property
    def left(self) -> int | None:
        return None if self.most is None else max(0, self.most - self.used)


def tries(assignment: Assignment, user_ref: str, now: datetime) -> Tries:
    """Those of a student at a moment; what was given back does not count."""
    counted = assignment.submissions.filter(user_ref=user_ref, counts_towards_limit=True)
    most, window = assignment.limit_count, assignment.limit_window_s
    if most is None:
        return Tries(None, counted.count())
    if window:
        counted = counted.filter(submitted_at__gt=now - timedelta(seconds=window))
    times = list(counted.order_by("submitted_at").values_list("submitted_at", flat=True))
    next_at = None
    if window and most and len(times) >= most:
        next_at = times[len(times) - most] + timedelta(seconds=window)
    return Tries(most, len(times), next_at)


def out_of_tries(assignment: Assignment, user_refs: Collection[str], now: datetime) -> set[str]:
    """Those of some students who have no try left at a moment, in one query however many they are."""
    if assignment.limit_count is None:
        return set()
    counted = assignment.submissions.filter(user_ref__in=user_refs, counts_towards_limit=True)
    if assignment.limit_window_s:
        counted = counted.filter(submitted_at__gt=now - timedelta(seconds=assignment.limit_window_s))
    used = counted.order_by().values("user_ref").annotate(used=Count("pk"))
    return set(used.filter(used__gte=assignment.limit_count).values_list("user_ref", flat=True))


def next_number(assignment: Assignment, user_ref: str) -> int:
    """Which try of the student the next submission is (a try that was given back counts no more)."""
    counted = assignment.submissions.filter(user_ref=user_ref, counts_towards_limit=True)
    return (counted.aggregate(last=Max("number"))["last"] or 0) + 1
