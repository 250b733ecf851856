"""The rows of grading: what is asked, of whom, what was handed in, and what came of it.

Every write by a worker is conditional on the claim it holds (`claim`, new at each attempt), so that whoever
was given up for dead cannot write over what its successor wrote.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar

from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from workers.models import new_id

COURSE = ""  # the owner of the problems that come with the product
USER_REF_LENGTH = 128
SEED_BYTES = 32


class Problem(models.Model):
    """A name for what may be asked; what it says is in its versions. A slug is unique to its owner."""

    id = models.CharField(primary_key=True, max_length=32, default=new_id, editable=False)
    owner = models.CharField(max_length=64, blank=True)  # as of a run; COURSE: everybody's
    slug = models.CharField(max_length=64)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("slug", "created_at", "id")
        constraints = (models.UniqueConstraint(fields=("owner", "slug"), name="problem_slug"),)
        indexes = (models.Index(fields=("slug",), name="problem_by_slug"),)

    def __str__(self) -> str:
        return self.slug


class ProblemVersion(models.Model):
    """What a problem says, for good: only what its publication brings is ever written later."""

    problem = models.ForeignKey(Problem, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    body = models.JSONField()  # kernels.grading.Problem.to_dict()
    fingerprint = models.CharField(max_length=64)  # of the body: the same body makes no new version
    created_at = models.DateTimeField(default=timezone.now)
    published_at = models.DateTimeField(null=True)
    # Answers less precise than this are held to it (kernels.grading.mutants); "": to what the body says.
    least_dtype = models.CharField(max_length=16, default="", blank=True)

    class Meta:
        ordering = ("-number",)
        constraints = (models.UniqueConstraint(fields=("problem", "number"), name="version_number"),)

    # For rows that name a version and do not read it: a body may hold a million numbers.
    BODY_OF: ClassVar = "problem_version__body"

    def __str__(self) -> str:
        return f"{self.problem.slug} {self.number}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding and set(kwargs.get("update_fields") or ("body",)) != {"published_at"}:
            raise TypeError("a version never changes: save another one")
        super().save(*args, **kwargs)


class ScorePolicy(models.TextChoices):
    BEST = "best"
    LAST = "last"


class Assignment(models.Model):
    """A published version of a problem, given to students between two dates.

    `seed` decides the inputs of every student; its digest is known from the start, the seed itself when
    nothing can be handed in any more.
    """

    id = models.CharField(primary_key=True, max_length=32, default=new_id, editable=False)
    owner = models.CharField(max_length=64)
    problem_version = models.ForeignKey(ProblemVersion, on_delete=models.PROTECT, related_name="assignments")
    title = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    release_date = models.DateTimeField(null=True)
    due_date = models.DateTimeField(null=True)
    late_due_date = models.DateTimeField(null=True)
    late_policy = models.JSONField(default=dict)  # {type: none | fixed | per_day, fraction}
    total_points = models.FloatField()
    limit_count = models.PositiveIntegerField(null=True)  # submissions of a student …
    limit_window_s = models.PositiveIntegerField(null=True)  # … in so many seconds; null: ever
    score_policy = models.CharField(max_length=8, choices=ScorePolicy, default=ScorePolicy.BEST)
    feedback = models.JSONField(default=dict)  # {situation: how much of a verdict a student reads}
    seed = models.BinaryField(max_length=SEED_BYTES)
    seed_commitment_sha256 = models.CharField(max_length=64)
    grades_published_at = models.DateTimeField(null=True)  # from then on `after_published` is visible

    class Meta:
        ordering = ("-created_at", "id")
        indexes = (models.Index(fields=("owner", "-created_at", "id"), name="assignment_mine"),)
        constraints = (
            models.CheckConstraint(
                condition=Q(late_due_date__isnull=True)
                | Q(due_date__isnull=False, late_due_date__gte=F("due_date")),
                name="assignment_late_after_due",
            ),
            models.CheckConstraint(condition=Q(total_points__gt=0), name="assignment_points_positive"),
            models.CheckConstraint(
                condition=Q(limit_window_s__isnull=True) | Q(limit_count__isnull=False),
                name="assignment_window_has_count",
            ),
            models.CheckConstraint(
                condition=Q(score_policy__in=ScorePolicy.values), name="assignment_policy_known"
            ),
        )

    def __str__(self) -> str:
        return self.title or self.id

    @property
    def last_due_date(self) -> datetime | None:
        """After it nothing can be handed in; None: there is no such date."""
        return self.late_due_date or self.due_date


class StudentKey(models.Model):
    """Which key of a student is in force: the first, until it is revoked. Its text is a signature."""

    id = models.CharField(primary_key=True, max_length=32, default=new_id, editable=False)
    assignment = models.ForeignKey(Assignment, on_delete=models.CASCADE, related_name="keys")
    user_ref = models.CharField(max_length=USER_REF_LENGTH)
    generation = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(default=timezone.now)  # of this generation
    last_used_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-created_at", "id")
        constraints = (models.UniqueConstraint(fields=("assignment", "user_ref"), name="student_key"),)
        indexes = (models.Index(fields=("assignment", "-created_at", "id"), name="student_key_newest"),)

    def __str__(self) -> str:
        return f"key {self.generation} of {self.user_ref}"


class State(models.TextChoices):
    """Of a submission."""

    QUEUED = "queued"
    GRADING = "grading"
    GRADED = "graded"
    ERROR = "error"  # no verdict, through our fault
    CANCELED = "canceled"


class Verdict(models.TextChoices):
    ACCEPTED = "accepted"
    WRONG_ANSWER = "wrong_answer"
    REJECTED = "rejected"


PLATFORM = "platform"
WAITING = (State.QUEUED, State.GRADING)


class Submission(models.Model):
    """What a student handed in once, and what came of it. Its numbers are in `Answers`."""

    ACTIVE: ClassVar[Sequence[str]] = WAITING
    # What a grader or a reaper writes; the rest stays as it was handed in.
    CHANGING: ClassVar[Sequence[str]] = (
        "status", "attempt", "claim", "started_at", "heartbeat_at", "finished_at", "counts_towards_limit",
        "problem_version", "verdict", "reason", "score", "max_score", "result", "error", "fault", "earlier",
    )  # fmt: skip

    id = models.CharField(primary_key=True, max_length=32, default=new_id, editable=False)
    assignment = models.ForeignKey(Assignment, on_delete=models.CASCADE, related_name="submissions")
    problem_version = models.ForeignKey(ProblemVersion, on_delete=models.PROTECT, related_name="+")
    external_id = models.CharField(max_length=USER_REF_LENGTH, null=True)  # noqa: DJ001 (many may have none)
    user_ref = models.CharField(max_length=USER_REF_LENGTH)
    number = models.PositiveIntegerField()  # the student's first, second … : which inputs it answers
    fingerprint = models.CharField(max_length=64)
    size = models.PositiveIntegerField(default=0)  # bytes of its answers
    created_at = models.DateTimeField(default=timezone.now)
    submitted_at = models.DateTimeField()  # what counts; who hands in for others may say when it was
    is_late = models.BooleanField(default=False)
    deduction = models.FloatField(default=0)  # the fraction of the score that lateness costs
    counts_towards_limit = models.BooleanField(default=True)

    status = models.CharField(max_length=16, choices=State, default=State.QUEUED)
    attempt = models.PositiveSmallIntegerField(default=0)  # how often a grader took it
    claim = models.CharField(max_length=32, blank=True)  # of the grader, or the incident, that has it now
    task_id = models.CharField(max_length=64, blank=True)  # Celery's name of the delivery
    queued_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    heartbeat_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    verdict = models.CharField(max_length=16, choices=Verdict, null=True)  # noqa: DJ001 (null: not judged)
    reason = models.CharField(max_length=32, blank=True)
    score = models.FloatField(null=True)  # in points of the assignment, after what lateness costs
    max_score = models.FloatField(null=True)
    result = models.JSONField(null=True)  # kernels.grading.Judgement.to_dict()
    error = models.JSONField(null=True)  # a problem object
    fault = models.CharField(max_length=16, blank=True)  # of an error: PLATFORM
    earlier = models.JSONField(default=list)  # what a regrade replaced: [{verdict, score, …}]

    class Meta:
        ordering = ("-submitted_at", "id")
        indexes = (
            models.Index(fields=("assignment", "-submitted_at", "id"), name="submission_newest"),
            models.Index(fields=("assignment", "user_ref", "submitted_at"), name="submission_student"),
            models.Index(fields=("status", "assignment", "queued_at"), name="submission_waiting"),
            models.Index(fields=("claim",), name="submission_claim"),
        )
        constraints = (
            models.UniqueConstraint(fields=("assignment", "external_id"), name="submission_once"),
            models.CheckConstraint(condition=Q(status__in=State.values), name="submission_status_known"),
            models.CheckConstraint(
                condition=Q(verdict__isnull=True) | Q(verdict__in=Verdict.values),
                name="submission_verdict_known",
            ),
            models.CheckConstraint(
                condition=Q(
                    status=State.GRADED, verdict__isnull=False, score__isnull=False, max_score__isnull=False
                )
                | ~Q(status=State.GRADED) & Q(verdict__isnull=True, score__isnull=True),
                name="submission_graded_iff_verdict",
            ),
            models.CheckConstraint(
                condition=Q(score__isnull=True) | Q(score__gte=0, score__lte=F("max_score")),
                name="submission_score_in_range",
            ),
            models.CheckConstraint(
                condition=Q(status__in=WAITING, finished_at__isnull=True)
                | ~Q(status__in=WAITING) & Q(finished_at__isnull=False),
                name="submission_finished_iff_over",
            ),
            models.CheckConstraint(
                condition=~Q(status__in=(State.ERROR, State.CANCELED), counts_towards_limit=True),
                name="submission_lost_is_not_charged",
            ),
            models.CheckConstraint(
                condition=~Q(status=State.ERROR) | Q(fault=PLATFORM), name="submission_error_is_ours"
            ),
        )

    def __str__(self) -> str:
        return f"{self.id} ({self.status})"

    @property
    def is_terminal(self) -> bool:
        return self.status not in WAITING


class Answers(models.Model):
    """The arrays of a submission. Apart from it, since SQLite writes all of a row anew at each change."""

    submission = models.OneToOneField(
        Submission, on_delete=models.CASCADE, primary_key=True, related_name="answers"
    )
    content = models.BinaryField()  # see workers.grading.answers

    def __str__(self) -> str:
        return f"answers of {self.submission_id}"


class SubmissionBatch(models.Model):
    """What a batch with an Idempotency-Key was answered, to be answered again."""

    id = models.CharField(primary_key=True, max_length=32, default=new_id, editable=False)
    assignment = models.ForeignKey(Assignment, on_delete=models.CASCADE, related_name="+")
    results = models.JSONField()  # [{external_id, id, status, error?}], in the order of the batch
    created_at = models.DateTimeField(default=timezone.now, db_index=True)

    def __str__(self) -> str:
        return f"{len(self.results)} submissions"


class WorkStatus(models.TextChoices):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    ERROR = "error"


PENDING = (WorkStatus.QUEUED, WorkStatus.RUNNING)


class Work(models.Model):
    """Something else that the graders do: claimed, kept alive, given back and reaped like a submission."""

    ACTIVE: ClassVar[Sequence[str]] = PENDING
    CHANGING: ClassVar[Sequence[str]] = (
        "status", "attempt", "claim", "heartbeat_at", "finished_at", "result", "error",
    )  # fmt: skip

    id = models.CharField(primary_key=True, max_length=32, default=new_id, editable=False)
    status = models.CharField(max_length=16, choices=WorkStatus, default=WorkStatus.QUEUED)
    attempt = models.PositiveSmallIntegerField(default=0)
    claim = models.CharField(max_length=32, blank=True)
    task_id = models.CharField(max_length=64, blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    queued_at = models.DateTimeField(default=timezone.now)
    heartbeat_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    result = models.JSONField(null=True)
    error = models.JSONField(null=True)

    class Meta:
        abstract = True

    @property
    def is_terminal(self) -> bool:
        return self.status not in PENDING


class Check(Work):
    """The mutant matrix of a version: computed once, since neither ever changes."""

    version = models.OneToOneField(ProblemVersion, on_delete=models.CASCADE, related_name="check_work")

    class Meta:
        constraints = (
            models.CheckConstraint(condition=Q(status__in=WorkStatus.values), name="check_status_known"),
        )
        indexes = (models.Index(fields=("status", "queued_at"), name="check_waiting"),)

    def __str__(self) -> str:
        return f"mutants of {self.version_id} ({self.status})"


class RegradeScope(models.TextChoices):
    LATEST = "latest"
    BEST = "best"
    ALL = "all"


class RegradePolicy(models.TextChoices):
    REPLACE = "replace"
    MAX = "max"  # nobody loses points


class Regrade(Work):
    """Submissions judged again; `result` says for each student what changed, or (dry run) would."""

    assignment = models.ForeignKey(Assignment, on_delete=models.CASCADE, related_name="regrades")
    problem_version = models.ForeignKey(ProblemVersion, on_delete=models.PROTECT, related_name="+")
    scope = models.CharField(max_length=8, choices=RegradeScope, default=RegradeScope.ALL)
    policy = models.CharField(max_length=8, choices=RegradePolicy, default=RegradePolicy.REPLACE)
    dry_run = models.BooleanField(default=False)

    class Meta:
        ordering = ("-created_at", "id")
        indexes = (
            models.Index(fields=("assignment", "-created_at", "id"), name="regrade_newest"),
            models.Index(fields=("status", "queued_at"), name="regrade_waiting"),
        )
        constraints = (
            models.CheckConstraint(condition=Q(status__in=WorkStatus.values), name="regrade_status_known"),
            models.CheckConstraint(
                condition=Q(scope__in=RegradeScope.values, policy__in=RegradePolicy.values),
                name="regrade_choices_known",
            ),
        )

    def __str__(self) -> str:
        return f"regrade of {self.assignment_id} ({self.status})"


class Incident(models.Model):
    """Something that failed on our side, and the submissions it touched."""

    id = models.CharField(primary_key=True, max_length=32, default=new_id, editable=False)
    kind = models.CharField(max_length=32)  # worker-lost, out-of-time, judge-failed, never-taken
    detail = models.TextField()
    created_at = models.DateTimeField(default=timezone.now)
    submissions = models.ManyToManyField(Submission, related_name="incidents")

    class Meta:
        ordering = ("-created_at", "id")

    def __str__(self) -> str:
        return f"{self.kind} {self.created_at:%F %T}"


class WebhookEndpoint(models.Model):
    """An address that is told of events. Its secret is derived from SECRET_KEY and `nonce`, so that a copy of
    the database signs nothing."""

    id = models.CharField(primary_key=True, max_length=32, default=new_id, editable=False)
    owner = models.CharField(max_length=64)
    url = models.CharField(max_length=2000)
    events = models.JSONField(default=list)
    assignment = models.ForeignKey(Assignment, on_delete=models.CASCADE, null=True, related_name="+")
    nonce = models.CharField(max_length=32, default=new_id, editable=False)
    created_at = models.DateTimeField(default=timezone.now)
    disabled_at = models.DateTimeField(null=True)  # it answered 410 Gone

    class Meta:
        ordering = ("-created_at", "id")
        indexes = (models.Index(fields=("owner", "-created_at", "id"), name="webhook_mine"),)

    def __str__(self) -> str:
        return self.url


class DeliveryStatus(models.TextChoices):
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"  # after the last try


class Delivery(models.Model):
    """One event for one endpoint, and every try to deliver it."""

    id = models.CharField(primary_key=True, max_length=32, default=new_id, editable=False)
    endpoint = models.ForeignKey(WebhookEndpoint, on_delete=models.CASCADE, related_name="deliveries")
    event = models.CharField(max_length=64)
    payload = models.TextField()  # as it is sent and signed, byte for byte
    status = models.CharField(max_length=16, choices=DeliveryStatus, default=DeliveryStatus.PENDING)
    tries = models.PositiveSmallIntegerField(default=0)  # since it was made or replayed
    created_at = models.DateTimeField(default=timezone.now)
    next_try_at = models.DateTimeField(null=True)  # null: never again
    log = models.JSONField(default=list)  # [{at, status, error, ms}], the latest last

    class Meta:
        ordering = ("-created_at", "id")
        indexes = (
            models.Index(fields=("endpoint", "-created_at", "id"), name="delivery_newest"),
            models.Index(fields=("next_try_at",), name="delivery_due"),
        )
        constraints = (
            models.CheckConstraint(
                condition=Q(status__in=DeliveryStatus.values), name="delivery_status_known"
            ),
            models.CheckConstraint(
                condition=Q(status=DeliveryStatus.PENDING, next_try_at__isnull=False)
                | ~Q(status=DeliveryStatus.PENDING) & Q(next_try_at__isnull=True),
                name="delivery_pending_has_time",
            ),
        )

    def __str__(self) -> str:
        return f"{self.event} ({self.status})"
