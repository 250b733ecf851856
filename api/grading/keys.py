"""A student's key: signed, so that it need not be kept anywhere. It opens one assignment for one student.

What is kept is how often it was made anew (`StudentKey`): with that the keys before it are nobody's.
"""

import datetime
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from django.core import signing
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from workers.grading.models import StudentKey

LAST_USED_STEP = datetime.timedelta(minutes=1)
FIRST = 1

_signer = signing.Signer(salt="api.grading.keys")


@dataclass(frozen=True)
class Student:
    """For whom a key was made, and which of theirs it is; its row, if it was read from one."""

    assignment: str
    user_ref: str
    generation: int = FIRST
    row: StudentKey | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> str:
        """The text of the key, safe in a URL."""
        later = [self.generation] if self.generation > FIRST else []
        return _signer.sign_object([self.assignment, self.user_ref, *later])

    @property
    def holder(self) -> str:
        """As the holder of quotas and of Idempotency-Keys, which are not as long as a name may be."""
        digest = hashlib.sha256(f"{self.assignment}:{self.user_ref}".encode()).hexdigest()
        return f"student:{digest[:32]}"


def read(text: str) -> Student | None:
    """Whose key it is; None: nobody's, or nobody's any more."""
    try:
        assignment, user_ref, *later = _signer.unsign_object(text)
    except (signing.BadSignature, ValueError, TypeError):
        return None
    row = StudentKey.objects.filter(assignment=assignment, user_ref=user_ref).first()
    generation = later[0] if later else FIRST
    if generation != (row.generation if row else FIRST):
        return None
    return Student(assignment, user_ref, generation, row)


def of(assignment: str, user_refs: Sequence[str]) -> list[Student]:
    """Who has which key now, in this order."""
    rows = StudentKey.objects.filter(assignment=assignment, user_ref__in=user_refs)
    generations = dict(rows.values_list("user_ref", "generation"))
    return [Student(assignment, user_ref, generations.get(user_ref, FIRST)) for user_ref in user_refs]


def make(assignment: str, user_refs: Sequence[str]) -> list[Student]:
    """The same, of keys that are given to somebody: noted, where they are not yet."""
    new = [StudentKey(assignment_id=assignment, user_ref=user_ref) for user_ref in user_refs]
    StudentKey.objects.bulk_create(new, ignore_conflicts=True)
    return of(assignment, user_refs)


def used(student: Student) -> None:
    """Note the use of a key that was read, at most once a minute. Its assignment is there."""
    now, row = timezone.now(), student.row
    if row is None:
        new = StudentKey(assignment_id=student.assignment, user_ref=student.user_ref, last_used_at=now)
        StudentKey.objects.bulk_create([new], ignore_conflicts=True)
    elif row.last_used_at is None or now - row.last_used_at > LAST_USED_STEP:
        StudentKey.objects.filter(pk=row.pk, generation=row.generation).update(last_used_at=now)


def revoke(assignment: str, user_ref: str) -> None:
    """From now on all keys of this student so far are nobody's; another one takes their place."""
    anew = {"generation": F("generation") + 1, "created_at": timezone.now(), "last_used_at": None}
    with transaction.atomic():
        row, _ = StudentKey.objects.get_or_create(assignment_id=assignment, user_ref=user_ref)
        StudentKey.objects.filter(pk=row.pk).update(**anew)
