"""The run: one row per submitted computation, and the only truth about it; and the sweep, which is many."""

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from django.db import models
from django.db.models import Q

if TYPE_CHECKING:
    from django.db.models.fields.related_descriptors import RelatedManager

ID_ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"
ID_LENGTH = 22  # 31^22 is about 2^109: nobody guesses one


def new_id() -> str:
    """An unguessable id without look-alike characters, safe in a URL and in speech."""
    return "".join(secrets.choice(ID_ALPHABET) for _ in range(ID_LENGTH))


class Status(models.TextChoices):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELED = "canceled"


class Kind(models.TextChoices):
    RUN = "run"
    COMPILE = "compile"  # the kernel of a run, compiled for GPUs instead of being run


ACTIVE = (Status.QUEUED, Status.RUNNING)


class Sweep(models.Model):
    """A run with some of its fields varied; each point of it is a run (`points`, in the order of `position`).

    What becomes of it is what becomes of its points: there is no status of its own to disagree with theirs,
    but that it was canceled.
    """

    RUNNING, FINISHED, CANCELED = "running", "finished", "canceled"
    STATUSES = (RUNNING, FINISHED, CANCELED)
    ACTIVE: ClassVar[Sequence[str]] = (RUNNING,)
    CHANGING: ClassVar[Sequence[str]] = ("canceled_at",)

    id = models.CharField(primary_key=True, max_length=32, default=new_id, editable=False)
    owner = models.CharField(max_length=64, blank=True)
    caller = models.CharField(max_length=64, blank=True)
    created_at = models.DateTimeField()
    canceled_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField()

    body = models.JSONField()  # of a run, arrays that were sent described
    vary = models.JSONField()  # {field: values}
    values = models.JSONField()  # of each point by position: {field: value}
    refused = models.JSONField(default=list)  # points that were left out: [{values, errors}]

    drafts: Sequence["Run"] = ()  # its points, until they are recorded
    points: "RelatedManager[Run]"

    class Meta:
        ordering = ("-created_at", "id")
        indexes = (
            models.Index(fields=("owner", "-created_at", "id"), name="sweep_mine"),
            models.Index(fields=("expires_at",), name="sweep_expiry"),
        )

    def __str__(self) -> str:
        return f"{self.id} ({len(self.values)} points)"

    @property
    def status(self) -> str:
        return self.status_with(self.points.filter(status__in=ACTIVE).exists())

    def status_with(self, active: int) -> str:
        """The status of one of which so many points have not ended, for who has counted them already."""
        if self.canceled_at:
            return self.CANCELED
        return self.RUNNING if active else self.FINISHED

    @property
    def is_terminal(self) -> bool:
        return self.status != self.RUNNING


class Run(models.Model):
    """A submitted attention computation.

    `spec` is `kernels.spec.RunSpec.to_dict()`; arrays live in files (see `workers.artifacts`).
    Every write by a worker is conditional on `attempt`, so a worker that was given up for dead
    cannot overwrite what its successor wrote.
    """

    ACTIVE: ClassVar[Sequence[str]] = ACTIVE
    # What a worker or a reaper writes; the rest of a row stays as it was submitted.
    CHANGING: ClassVar[Sequence[str]] = (
        "status", "attempt", "started_at", "heartbeat_at", "finished_at",
        "input_info", "array_info", "result", "environment", "error",
        "inputs_inline", "result_inline",
    )  # fmt: skip

    id = models.CharField(primary_key=True, max_length=32, default=new_id, editable=False)
    owner = models.CharField(max_length=64, blank=True)  # "" is anonymous, else e.g. "token:12"
    caller = models.CharField(max_length=64, blank=True)  # digest of the address, for quotas
    kind = models.CharField(max_length=16, choices=Kind, default=Kind.RUN)
    engine = models.CharField(max_length=32)
    queue = models.CharField(max_length=32)
    status = models.CharField(max_length=16, choices=Status, default=Status.QUEUED)
    attempt = models.PositiveSmallIntegerField(default=0)
    task_id = models.CharField(max_length=64, blank=True)  # Celery's name of the delivery that was claimed
    budget_seconds = models.PositiveIntegerField()
    predicted_seconds = models.FloatField(default=0)  # what admission expected, and a quota was charged

    created_at = models.DateTimeField()
    queued_at = models.DateTimeField(null=True)  # last time its id was sent to the broker; null: not yet
    started_at = models.DateTimeField(null=True)
    heartbeat_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField()

    spec = models.JSONField()
    sweep = models.ForeignKey(Sweep, models.SET_NULL, null=True, related_name="points")
    position = models.PositiveSmallIntegerField(default=0)  # in its sweep
    targets = models.JSONField(default=list)  # the GPUs of a compile, e.g. ["sm_90"]
    input_info = models.JSONField(default=dict)  # {name: {shape, dtype, sha256}}
    array_info = models.JSONField(default=dict)  # {name: {shape, dtype}} of the results
    # Arrays, when they are small (see workers.artifacts); null: they are in a file, or there are none.
    submitted_inline = models.BinaryField(null=True)
    inputs_inline = models.BinaryField(null=True)
    result_inline = models.BinaryField(null=True)
    result = models.JSONField(null=True)
    environment = models.JSONField(null=True)
    error = models.JSONField(null=True)

    class Meta:
        ordering = ("-created_at", "id")
        indexes = (
            models.Index(fields=("owner", "-created_at", "id"), name="run_mine"),
            models.Index(
                fields=("queue", "status", "created_at"),
                condition=Q(status__in=ACTIVE),
                name="run_active",
            ),
            models.Index(fields=("expires_at",), name="run_expiry"),
            models.Index(
                fields=("owner", "caller", "status"), condition=Q(sweep__isnull=False), name="run_points"
            ),
        )
        constraints = (
            models.CheckConstraint(condition=Q(status__in=Status.values), name="run_status_known"),
            models.CheckConstraint(
                condition=Q(status__in=ACTIVE, finished_at__isnull=True)
                | ~Q(status__in=ACTIVE) & Q(finished_at__isnull=False),
                name="run_finished_iff_terminal",
            ),
        )

    def __str__(self) -> str:
        return f"{self.id} ({self.engine}, {self.status})"

    @property
    def is_terminal(self) -> bool:
        return self.status not in ACTIVE


import workers.grading.models  # noqa: E402 (its rows belong to this app, and need what is above)
import workers.search  # noqa: E402, F401 (likewise)
