"""The life of a submission, as plain functions.

    record -> queued -> claim -> grading -> finish -> graded
                 \\-> cancel         \\-> incidents.lost -> queued again, or error -> record -> queued again

Each change of status is one conditional UPDATE. A grader claims many at once and judges them together.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F, Max, QuerySet
from django.utils import timezone

from workers import events
from workers.grading import assignments, scoring, sending, webhooks
from workers.grading.models import (
    WAITING,
    Answers,
    Assignment,
    ProblemVersion,
    State,
    Submission,
    SubmissionBatch,
)
from workers.models import new_id
from workers.runs import AlreadyFinished, QueueFull

log = logging.getLogger(__name__)

# More at once would save nothing, and a grader that dies would lose them all.
MOST_AT_ONCE = 128
MOST_BYTES = 2**26  # of answers; a judge holds each a few times over
BATCH_KEPT = timedelta(days=2)
LATER_SECONDS = 86_400  # when to ask again where there is no window: not soon
AGAIN = (
    "status", "attempt", "claim", "created_at", "queued_at", "started_at", "heartbeat_at", "finished_at",
    "counts_towards_limit", "error", "fault",
)  # fmt: skip


Item = TypeVar("Item")


class Refusal(Exception):
    """A submission that was not recorded, and cost its student nothing."""


class OverLimit(Refusal):
    """The student has no try left. `retry_after` is in whole seconds."""

    def __init__(self, assignment: Assignment, retry_after: int) -> None:
        self.retry_after = retry_after
        per = f" in {assignment.limit_window_s} s" if assignment.limit_window_s else ""
        super().__init__(
            f"A student may hand in {assignment.limit_count} submissions{per}, and this would be one more. "
            "Nothing was recorded."
        )


class Conflict(Refusal):
    """The external_id came before with something else."""

    def __init__(self, external_id: str, submission_id: str) -> None:
        super().__init__(
            f"external_id {external_id!r} is submission {submission_id}, which has other answers or another "
            "user_ref. Send a new external_id with new answers."
        )


class StaleInputs(Refusal):
    """The answers are to inputs that another submission answered meanwhile."""

    def __init__(self, sent: int, expected: int) -> None:
        super().__init__(
            f"These are answers to the inputs of attempt {sent}, and the next is {expected}. "
            "Fetch the inputs again and answer those."
        )


@dataclass(frozen=True)
class Draft:
    """A submission that was read and is still to be recorded; `content` as `answers.pack` makes it."""

    user_ref: str
    content: bytes
    fingerprint: str
    external_id: str | None = None
    submitted_at: datetime | None = None  # null: now
    number: int | None = None  # which attempt's inputs it answers; null: the next


@dataclass(frozen=True)
class Claim:
    """Submissions of one assignment that one grader has."""

    id: str
    assignment: Assignment
    submissions: Sequence[Submission]
    answers: Mapping[str, bytes]  # by submission id

    @property
    def rows(self) -> "QuerySet[Submission]":
        """Those that are still this grader's."""
        return Submission.objects.filter(claim=self.id, status=State.GRADING)


# --- For callers -----------------------------------------------------------------------------


def record(assignment_id: str, drafts: Sequence[Draft]) -> list[Submission | Refusal]:
    """Write each draft down and queue it, or say why not; in their order. All in one transaction.

    A draft whose external_id is known with the same content is the submission that it was then; one that we
    failed to grade is queued again. Raises Assignment.DoesNotExist, or QueueFull.
    """
    with transaction.atomic():
        # Holds up other submissions to the assignment (of SQLite, every writer), so that no two can both
        # be a student's last; not those who only refer to it.
        assignment = Assignment.objects.select_for_update(no_key=True).get(pk=assignment_id)
        _refuse_when_full()
        ledger = _Ledger(assignment, drafts)
        entered = [ledger.enter(draft) for draft in drafts]
        Submission.objects.bulk_create(ledger.new)
        Answers.objects.bulk_create(ledger.answers)
        Submission.objects.bulk_update(ledger.again, AGAIN)
        if ledger.new or ledger.again:
            transaction.on_commit(lambda: sending.send(assignment_id), robust=True)
    return entered


class _Ledger:
    """What the students of some drafts have handed in already, kept up to date while drafts are entered."""

    def __init__(self, assignment: Assignment, drafts: Sequence[Draft]) -> None:
        self.assignment = assignment
        self.now = timezone.now()
        self.new: list[Submission] = []
        self.again: list[Submission] = []
        self.answers: list[Answers] = []
        external_ids = [draft.external_id for draft in drafts if draft.external_id is not None]
        before = assignment.submissions.filter(external_id__in=external_ids) if external_ids else ()
        self.by_external_id = {submission.external_id: submission for submission in before}
        counted = assignment.submissions.filter(
            user_ref__in={draft.user_ref for draft in drafts}, counts_towards_limit=True
        )
        self.last_number: dict[str, int] = defaultdict(int)
        last = counted.order_by().values_list("user_ref").annotate(last=Max("number"))
        self.last_number.update(dict(last))
        self.times: dict[str, list[datetime]] = defaultdict(list)
        if assignment.limit_count is not None:
            for user_ref, at in counted.values_list("user_ref", "submitted_at"):
                self.times[user_ref].append(at)

    def enter(self, draft: Draft) -> Submission | Refusal:
        try:
            return self._earlier(draft) or self._new(draft)
        except Refusal as refusal:
            return refusal
        except assignments.NotOpen as error:
            closed = Refusal(str(error))
            closed.__cause__ = error
            return closed

    def _earlier(self, draft: Draft) -> Submission | None:
        earlier = self.by_external_id.get(draft.external_id) if draft.external_id is not None else None
        if earlier is None:
            return None
        if (earlier.fingerprint, earlier.user_ref) != (draft.fingerprint, draft.user_ref):
            raise Conflict(draft.external_id or "", earlier.id)
        return self._again(earlier) if earlier.status == State.ERROR else earlier

    def _again(self, earlier: Submission) -> Submission:
        """What we failed to grade, queued as it was handed in: in time then, to the inputs of then. The try
        that it gave back may be used by now, and then there is none for it."""
        self._check_limit(earlier.user_ref, earlier.submitted_at)
        earlier.status, earlier.counts_towards_limit = State.QUEUED, True
        earlier.attempt = 1  # so that it is taken alone: it may be what graders are lost with
        earlier.created_at = earlier.queued_at = self.now  # a day to be taken in, from now on
        earlier.started_at = earlier.heartbeat_at = earlier.finished_at = earlier.error = None
        earlier.claim = earlier.fault = ""
        self._count(earlier)
        self.again.append(earlier)
        return earlier

    def _new(self, draft: Draft) -> Submission:
        at = draft.submitted_at or self.now
        assignments.require_open(self.assignment, at)
        number = self.last_number[draft.user_ref] + 1
        if draft.number is not None and draft.number != number:
            raise StaleInputs(draft.number, number)
        self._check_limit(draft.user_ref, at)
        submission = Submission(
            assignment=self.assignment,
            problem_version_id=self.assignment.problem_version_id,
            external_id=draft.external_id,
            user_ref=draft.user_ref,
            number=number,
            fingerprint=draft.fingerprint,
            size=len(draft.content),
            submitted_at=at,
            is_late=scoring.is_late(self.assignment, at),
            deduction=scoring.deduction(self.assignment, at),
            queued_at=self.now,
        )
        self._count(submission)
        if draft.external_id is not None:
            self.by_external_id[draft.external_id] = submission
        self.new.append(submission)
        self.answers.append(Answers(submission=submission, content=draft.content))
        return submission

    def _count(self, submission: Submission) -> None:
        user_ref = submission.user_ref
        self.last_number[user_ref] = max(self.last_number[user_ref], submission.number)
        self.times[user_ref].append(submission.submitted_at)

    def _check_limit(self, user_ref: str, at: datetime) -> None:
        most, window = self.assignment.limit_count, self.assignment.limit_window_s
        if most is None:
            return
        span = timedelta(seconds=window) if window else timedelta.max
        used = sorted(time for time in self.times[user_ref] if abs(at - time) < span)
        if len(used) < most:
            return
        wait = LATER_SECONDS
        if window and most:
            wait = int((used[len(used) - most] + timedelta(seconds=window) - at).total_seconds()) + 1
        raise OverLimit(self.assignment, max(1, wait))


def _refuse_when_full() -> None:
    waiting = Submission.objects.filter(status=State.QUEUED).order_by()
    if waiting[settings.MAX_QUEUED_SUBMISSIONS - 1 : settings.MAX_QUEUED_SUBMISSIONS].exists():
        raise QueueFull(retry_after=30)


def cancel(submission_id: str) -> Submission:
    """End a submission that has no verdict yet, and give the student the try back.

    Canceling twice is the same as once. Raises Submission.DoesNotExist, or AlreadyFinished.
    """
    now = timezone.now()
    changed = Submission.objects.filter(pk=submission_id, status__in=WAITING).update(
        status=State.CANCELED, finished_at=now, counts_towards_limit=False
    )
    submission = Submission.objects.select_related("assignment").get(pk=submission_id)
    if changed:
        events.announce(submission_id, State.CANCELED)
    elif submission.status != State.CANCELED:
        raise AlreadyFinished(
            f"The submission is {submission.status}; only one that is queued or being graded can be canceled."
        )
    return submission


def wait_for_all(ids: Sequence[str], seconds: float) -> dict[str, str]:
    """{id: status} of submissions once all have ended, at the latest after `seconds`."""
    until = timezone.now() + timedelta(seconds=seconds)
    while True:
        found = dict(Submission.objects.filter(pk__in=ids).values_list("pk", "status"))
        going_on = [each for each in ids if found.get(each) in WAITING]
        left = (until - timezone.now()).total_seconds()
        if not going_on or left <= 0:
            return found
        events.wait(Submission.objects.get(pk=going_on[-1]), left)


def expire_batches() -> None:
    """Forget what batches were answered, once their Idempotency-Key is forgotten."""
    SubmissionBatch.objects.filter(created_at__lt=timezone.now() - BATCH_KEPT).delete()


# --- For graders -----------------------------------------------------------------------------


def claim(assignment: Assignment, task_id: str, at_most: int) -> Claim | None:
    """Take queued submissions, the oldest first; None when there are none.

    One that a grader was lost with before is taken alone, after the others: should it be the cause, it takes
    nothing else along.
    """
    claim_id = new_id()
    queued = Submission.objects.filter(assignment=assignment, status=State.QUEUED)
    if not queued.exists():  # so that looking takes no write lock
        return None
    _follow_regrades(assignment)
    fresh = queued.filter(attempt=0).order_by("queued_at", "submitted_at", "id")
    taken = _take(fresh, min(at_most, MOST_AT_ONCE), claim_id, task_id) or _take(
        queued.filter(attempt__gt=0).order_by("queued_at", "id"), 1, claim_id, task_id
    )
    if not taken:
        return None
    submissions = list(Submission.objects.filter(claim=claim_id).order_by("submitted_at", "number", "id"))
    for submission in submissions:
        submission.assignment = assignment
    answers = Answers.objects.filter(submission__claim=claim_id).values_list("submission_id", "content")
    return Claim(claim_id, assignment, submissions, {pk: bytes(content) for pk, content in answers})


def _follow_regrades(assignment: Assignment) -> None:
    """Have the version by which the assignment is judged now."""
    now = Assignment.objects.values_list("problem_version", flat=True).get(pk=assignment.pk)
    if now != assignment.problem_version_id:
        assignment.problem_version = ProblemVersion.objects.defer("body").get(pk=now)


def _take(rows: "QuerySet[Submission]", at_most: int, claim_id: str, task_id: str) -> int:
    if connection.features.has_select_for_update_skip_locked:
        rows = rows.select_for_update(skip_locked=True)
    now = timezone.now()
    with transaction.atomic():
        # Fetched rather than nested: PostgreSQL may ask a nested query, and its LIMIT, once for every row.
        ids = list(fitting(rows.values_list("pk", "size")[:at_most]))
        return Submission.objects.filter(pk__in=ids, status=State.QUEUED).update(
            status=State.GRADING,
            attempt=F("attempt") + 1,
            claim=claim_id,
            task_id=task_id,
            started_at=now,
            heartbeat_at=now,
        )


def fitting(sized: Iterable[tuple[Item, int]]) -> Iterator[Item]:
    """The first of some items with their sizes in bytes: as many as a grader holds at once, one at least."""
    left = MOST_BYTES
    for number, (item, size) in enumerate(sized):
        left -= size
        if number and left < 0:
            return
        yield item


def beat(claimed: Claim) -> bool:
    """Say that this grader is alive; False when nothing of its claim is wanted any more."""
    return bool(claimed.rows.update(heartbeat_at=timezone.now()))


def hold(rows: "QuerySet[Submission]") -> None:
    """Lock rows in one order, before they are changed in another: two who each have what the other wants next
    would otherwise be stopped by PostgreSQL. In a transaction; SQLite has one writer anyhow."""
    list(rows.select_for_update(no_key=True).order_by("pk").values_list("pk", flat=True))


@dataclass(frozen=True)
class Judged:
    """What a judge found of one submission."""

    submission: Submission
    result: dict[str, Any]  # kernels.grading.Judgement.to_dict()
    score: float
    max_score: float


def finish(claimed: Claim, judged: Sequence[Judged]) -> int:
    """Store verdicts; those of submissions that are no longer this grader's change nothing. Returns how many
    were stored: none where a regrade has set another version meanwhile, by which they are judged anew."""
    now = timezone.now()
    stored: list[Submission] = []
    with transaction.atomic():
        held = Assignment.objects.select_for_update(no_key=True).only("problem_version")
        if held.get(pk=claimed.assignment.pk).problem_version_id != claimed.assignment.problem_version_id:
            claimed.rows.update(
                status=State.QUEUED, attempt=F("attempt") - 1, claim="", started_at=None, heartbeat_at=None
            )
            return 0
        hold(claimed.rows)
        for each in judged:
            fields = {
                "status": State.GRADED,
                "finished_at": now,
                "problem_version_id": claimed.assignment.problem_version_id,
                "verdict": each.result["verdict"],
                "reason": each.result.get("reason") or "",
                "score": each.score,
                "max_score": each.max_score,
                "result": each.result,
            }
            if claimed.rows.filter(pk=each.submission.pk, attempt=each.submission.attempt).update(**fields):
                for name, value in fields.items():
                    setattr(each.submission, name, value)
                stored.append(each.submission)
        webhooks.note_submissions(stored)
    events.announce_all((submission.id, State.GRADED) for submission in stored)
    return len(stored)
