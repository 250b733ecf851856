"""What the API itself remembers: tokens, uploads, and which requests it has already carried out."""

import datetime
import secrets
import string
from collections.abc import Iterable
from typing import TYPE_CHECKING

from django.conf import settings
from django.db import models
from django.utils import timezone
from django.utils.crypto import constant_time_compare, salted_hmac

from workers.grading.models import Assignment
from workers.models import new_id

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser

ALPHABET = string.ascii_letters + string.digits
LOOKUP_LENGTH, SECRET_LENGTH = 12, 43  # 62^43 is about 2^256
TOKEN_PREFIX = "al"  # noqa: S105 (marks what the text is, for people and secret scanners)
LAST_USED_STEP = datetime.timedelta(minutes=1)

# What a token may do: submit runs, author problems and assignments, hand in answers.
RUNS, AUTHOR, SUBMIT = "runs", "author", "submit"
SCOPES = (RUNS, AUTHOR, SUBMIT)


def all_scopes() -> list[str]:
    return list(SCOPES)


def random_text(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))


class ApiToken(models.Model):
    """A bearer token `al_<lookup>_<secret>`: the row is found by `lookup` and holds a digest only.

    The digest is keyed with SECRET_KEY, so that a copy of the database alone proves no guess. Tokens of a
    user act for that user; one without acts for itself. One that is for an assignment hands in answers to it,
    and has nothing of whoever made it.
    """

    name = models.CharField(max_length=100)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, null=True, blank=True, related_name="api_tokens"
    )
    scopes = models.JSONField(default=all_scopes)
    assignment = models.ForeignKey(
        Assignment, on_delete=models.CASCADE, null=True, blank=True, related_name="tokens"
    )
    lookup = models.CharField(max_length=LOOKUP_LENGTH, unique=True, editable=False)
    digest = models.CharField(max_length=64, editable=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)

    # What DRF's and Django's own code ask of whoever is behind a request.
    is_authenticated = True
    is_anonymous = False

    def __str__(self) -> str:
        return f"{self.name} ({TOKEN_PREFIX}_{self.lookup}_…)"

    @property
    def owner(self) -> str:
        return f"token:{self.pk}" if self.user_id is None or self.assignment_id else owner_of(self.user_id)

    @classmethod
    def issue(
        cls,
        name: str,
        expires_at: datetime.datetime | None = None,
        *,
        user: "AbstractBaseUser | None" = None,
        scopes: Iterable[str] = SCOPES,
        assignment: Assignment | None = None,
    ) -> tuple["ApiToken", str]:
        """A new token and its text, which nobody can find out again. One for an assignment can but SUBMIT."""
        lookup, secret = random_text(LOOKUP_LENGTH), random_text(SECRET_LENGTH)
        granted = {SUBMIT} if assignment else set(scopes)
        token = cls.objects.create(
            name=name,
            lookup=lookup,
            digest=_digest(secret),
            expires_at=expires_at,
            user=user,
            scopes=[scope for scope in SCOPES if scope in granted],
            assignment=assignment,
        )
        return token, f"{TOKEN_PREFIX}_{lookup}_{secret}"

    @classmethod
    def verify(cls, text: str) -> "ApiToken | None":
        """The token with this text, if it is known, in force and not revoked."""
        prefix, _, rest = text.partition("_")
        lookup, _, secret = rest.partition("_")
        token = (
            cls.objects.filter(lookup=lookup).select_related("user").first()
            if prefix == TOKEN_PREFIX and lookup.isalnum()
            else None
        )
        # Compared in every case, so that the time tells nothing about which part was wrong.
        matches = constant_time_compare(token.digest if token else _digest(""), _digest(secret))
        return token if token and matches and token.in_force() else None

    def in_force(self) -> bool:
        expired = self.expires_at is not None and self.expires_at <= timezone.now()
        return self.revoked_at is None and not expired and (self.user is None or self.user.is_active)

    def touch(self) -> None:
        """Note the use, at most once a minute."""
        now = timezone.now()
        if self.last_used_at is None or now - self.last_used_at > LAST_USED_STEP:
            ApiToken.objects.filter(pk=self.pk).update(last_used_at=now)


def owner_of(user_id: int) -> str:
    """As rows have it: whose they are."""
    return f"user:{user_id}"


def _digest(secret: str) -> str:
    return salted_hmac("api.ApiToken", secret, algorithm="sha256").hexdigest()


class Upload(models.Model):
    """A file of arrays, kept as it was sent until it expires; `arrays` is what was found in it."""

    id = models.CharField(primary_key=True, max_length=32, default=new_id, editable=False)
    owner = models.CharField(max_length=64, blank=True)
    caller = models.CharField(max_length=64, blank=True)
    file_name = models.CharField(max_length=255)
    size = models.PositiveBigIntegerField()
    arrays = models.JSONField()  # [{name, shape, dtype}]
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(db_index=True)

    class Meta:
        indexes = (models.Index(fields=("caller", "expires_at"), name="upload_quota"),)

    def __str__(self) -> str:
        return f"{self.id} ({self.file_name})"

    @property
    def path(self) -> str:
        return f"uploads/{self.id}"


class IdempotencyKey(models.Model):
    """A POST that was, or is being, carried out; `resource` is "" for as long as it is under way."""

    scope = models.CharField(max_length=80)
    key = models.CharField(max_length=255)
    endpoint = models.CharField(max_length=200)
    fingerprint = models.CharField(max_length=64)
    resource = models.CharField(max_length=64, blank=True)
    created_at = models.DateTimeField(default=timezone.now, db_index=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("scope", "key"), name="idempotency_once"),)

    def __str__(self) -> str:
        return f"{self.endpoint} {self.key}"
