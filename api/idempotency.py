"""`Idempotency-Key`: a POST that is sent again has its effect once; where it has none, a key still means one
request.

A key belongs to its caller (token or address) and is kept for a day. The unique constraint on
(scope, key) decides between requests that arrive at the same time.
"""

import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from django.db import IntegrityError, transaction
from django.utils import timezone

from api.callers import Caller
from api.errors import Problem
from api.models import IdempotencyKey

KEPT = datetime.timedelta(days=1)
# A request that has not said what it made for this long has died on the way.
GIVEN_UP = datetime.timedelta(minutes=2)
# In the place of a resource, of a request that makes none.
NOTHING = "nothing"
REPLAYED = {"Idempotent-Replayed": "true"}


class Row(Protocol):
    pk: Any


Made = TypeVar("Made", bound=Row)


class Taken(Exception):
    """Another request holds the key; look again with `find`."""


@dataclass(frozen=True)
class Key:
    """One caller's key for one request; `fingerprint` is a digest of the body."""

    scope: str
    key: str
    endpoint: str
    fingerprint: str


def key_of(header: str, caller: Caller, endpoint: str, fingerprint: str) -> Key | None:
    """The key in the header, if there is one. One that cannot be a key is a 400."""
    if not header:
        return None
    if not re.fullmatch(r"[\x21-\x7e](?:[\x20-\x7e]{0,253}[\x21-\x7e])?", header):
        raise Problem(400, "Idempotency-Key must be 1 to 255 visible ASCII characters.")
    return Key(caller.scope, header, endpoint, fingerprint)


def find(key: Key) -> str | None:
    """The resource that this request made before; None when it is new. A Problem when it must not go on."""
    row = IdempotencyKey.objects.filter(scope=key.scope, key=key.key).first()
    if row is None:
        return None
    now = timezone.now()
    if row.created_at < now - KEPT or (not row.resource and row.created_at < now - GIVEN_UP):
        forget(key)
        return None
    if (row.endpoint, row.fingerprint) != (key.endpoint, key.fingerprint):
        raise Problem(
            422,
            "This Idempotency-Key came before with another body or for another address. "
            "Send a new key with a new request, the same body with the same key.",
            kind="idempotency-mismatch",
        )
    if not row.resource:
        raise Problem(
            409,
            "The first request with this Idempotency-Key is still being carried out; ask again in a second.",
            kind="idempotency-in-flight",
            headers={"Retry-After": "1"},
        )
    return row.resource


def reserve(key: Key, resource: str = "") -> None:
    """Take the key. Raises Taken when another request was first.

    Inside a transaction a second request waits here until the first one commits or rolls back.
    """
    expire()
    try:
        with transaction.atomic():
            IdempotencyKey.objects.create(
                scope=key.scope,
                key=key.key,
                endpoint=key.endpoint,
                fingerprint=key.fingerprint,
                resource=resource,
            )
    except IntegrityError:
        raise Taken from None


def once(key: Key | None, again: Callable[[str], Made | None], make: Callable[[], Made]) -> tuple[Made, bool]:
    """What `make` makes, or made when this request came before; and whether it did.

    `make` runs in one transaction with the key, so it is to do nothing slow. `again` finds, by its `pk`, what
    was made; None: it is gone, and is made anew.
    """
    if key is None:
        return make(), False
    for _ in range(3):  # whoever was first may fail and give the key back while we look
        resource = find(key)
        if resource is not None:
            earlier = again(resource)
            if earlier is not None:
                return earlier, True
            forget(key)
        try:
            with transaction.atomic():
                reserve(key)
                made = make()
                complete(key, str(made.pk))
        except Taken:
            continue
        return made, False
    raise Problem(409, "Other requests use this Idempotency-Key just now.", kind="idempotency-in-flight")


def note(key: Key) -> None:
    """Keep the key of a request that made nothing. A Problem when another request took it meanwhile."""
    try:
        reserve(key, NOTHING)
    except Taken:  # by the same request, which is as good, or by another, which `find` tells
        find(key)


def complete(key: Key, resource: str) -> None:
    IdempotencyKey.objects.filter(scope=key.scope, key=key.key).update(resource=resource)


def forget(key: Key) -> None:
    IdempotencyKey.objects.filter(scope=key.scope, key=key.key).delete()


def expire() -> int:
    """Delete keys that are past their day; returns how many."""
    return IdempotencyKey.objects.filter(created_at__lt=timezone.now() - KEPT).delete()[0]
