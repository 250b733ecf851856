"""The run: one row per submitted computation, and the only truth about it."""

import secrets
from collections.abc import Sequence
from typing import ClassVar

from django.db import models
from django.db.models import Q

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
    queued_at = models.DateTimeField()  # last time its id was sent to the broker
    started_at = models.DateTimeField(null=True)
    heartbeat_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField()

    spec = models.JSONField()
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


import workers.grading.models  # noqa: E402, F401 (its rows belong to this app, and need what is above)
