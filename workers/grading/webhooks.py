"""Who is told of what: events, signatures and tries, as the Standard Webhooks say.

A delivery is a row, written in the transaction that makes its event true. The maintenance worker sends it,
with the same `webhook-id` at each try, so that a receiver can tell a repetition. Any answer other than 2xx is
a failure and is tried again, for about three days.
"""

import base64
import hashlib
import hmac
import json
import logging
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import redis
from django.db.models import F, Q, QuerySet, Window
from django.db.models.functions import RowNumber
from django.utils import timezone
from django.utils.crypto import salted_hmac

from workers.broker import PREFIX, connection
from workers.grading import outgoing
from workers.grading.models import Assignment, Delivery, DeliveryStatus, State, Submission, WebhookEndpoint

log = logging.getLogger(__name__)

GRADED, ERROR, REGRADED = "submission.graded", "submission.error", "assignment.regraded"
EVENTS = (GRADED, ERROR, REGRADED)
SECRET_PREFIX = "whsec_"  # noqa: S105 (marks what the text is)

# Seconds until the next try, after each that failed; then it is given up.
RETRIES = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
JITTER = 0.2
GONE = 410  # the receiver wants no more of them
LOGGED = 20  # tries

AT_ONCE = 8
OF_ONE_ENDPOINT = 4  # in a round: one that hangs must not hold up the others
LEASE = timedelta(seconds=60)  # a try that has not said how it ended by then died on the way
ROUND_SECONDS = 20.0
KEPT = timedelta(days=30)


def secret_of(endpoint: WebhookEndpoint) -> str:
    """The signing secret as Standard Webhooks write it."""
    return SECRET_PREFIX + base64.b64encode(_key(endpoint)).decode()


def _key(endpoint: WebhookEndpoint) -> bytes:
    text = f"{endpoint.id}:{endpoint.nonce}"
    return salted_hmac("workers.grading.webhooks", text, algorithm="sha256").digest()


def signature(key: bytes, message_id: str, timestamp: int, body: str) -> str:
    """`v1,` and the HMAC-SHA256 of `id.timestamp.body` in base64."""
    mac = hmac.new(key, f"{message_id}.{timestamp}.{body}".encode(), hashlib.sha256)
    return f"v1,{base64.b64encode(mac.digest()).decode()}"


# --- Events ----------------------------------------------------------------------------------


def note_submissions(submissions: Sequence[Submission]) -> None:
    """Have the endpoints told that these have ended (in the transaction that says so)."""
    _note(
        (
            submission.assignment,
            GRADED if submission.status == State.GRADED else ERROR,
            {
                "submission": submission.id,
                "assignment": submission.assignment_id,
                "external_id": submission.external_id,
                "user_ref": submission.user_ref,
                "status": submission.status,
                "verdict": submission.verdict,
                "score": submission.score,
                "max_score": submission.max_score,
            },
        )
        for submission in submissions
    )


def note_regrade(assignment: Assignment, data: dict[str, Any]) -> None:
    _note([(assignment, REGRADED, data)])


def _note(happened: Iterable[tuple[Assignment, str, dict[str, Any]]]) -> None:
    happened = list(happened)
    endpoints = WebhookEndpoint.objects.filter(
        Q(assignment__isnull=True) | Q(assignment__in={assignment.id for assignment, _, _ in happened}),
        owner__in={assignment.owner for assignment, _, _ in happened},
        disabled_at__isnull=True,
    )
    now = timezone.now()
    Delivery.objects.bulk_create(
        Delivery(
            endpoint=endpoint,
            event=event,
            payload=json.dumps({"type": event, "timestamp": now.isoformat(), "data": data}),
            created_at=now,
            next_try_at=now,
        )
        for endpoint in (list(endpoints) if happened else [])
        for assignment, event, data in happened
        if endpoint.owner == assignment.owner
        and endpoint.assignment_id in (None, assignment.id)
        and event in endpoint.events
    )


# --- Tries -----------------------------------------------------------------------------------


def replay(delivery: Delivery) -> None:
    """Try again, from the beginning, whatever became of it."""
    Delivery.objects.filter(pk=delivery.pk).update(
        status=DeliveryStatus.PENDING, tries=0, next_try_at=timezone.now()
    )
    delivery.refresh_from_db()


def deliver() -> Counter[str]:
    """Send what is due, for a while; how many were delivered, and how many were not. One process at a time:
    the reaper must not wait until every receiver has answered."""
    try:
        if not connection().set(f"{PREFIX}delivering", 1, nx=True, ex=int(ROUND_SECONDS) * 3):
            return Counter()
    except redis.RedisError as error:
        log.warning("webhooks: %s", error)
        return Counter()
    try:
        return _deliver_until(time.monotonic() + ROUND_SECONDS)
    finally:
        connection().delete(f"{PREFIX}delivering")


def _deliver_until(end: float) -> Counter[str]:
    ended: Counter[str] = Counter()
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="webhook") as pool:
        while time.monotonic() < end and (taken := _take()):
            for delivery, entry in zip(taken, pool.map(_try, taken), strict=True):
                ended[_settle(delivery, entry)] += 1
    return ended


def _take() -> list[Delivery]:
    """Deliveries that are due; leased, so that another process leaves them alone."""
    now = timezone.now()
    due = Delivery.objects.filter(next_try_at__lte=now)
    taken: list[Delivery] = []
    for delivery in due.filter(pk__in=_fair_share(due)).select_related("endpoint"):
        mine = Delivery.objects.filter(pk=delivery.pk, next_try_at=delivery.next_try_at)
        if mine.update(next_try_at=now + LEASE, tries=F("tries") + 1):
            delivery.next_try_at, delivery.tries = now + LEASE, delivery.tries + 1
            taken.append(delivery)
    return taken


def _fair_share(due: "QuerySet[Delivery]") -> list[str]:
    """Few to each endpoint, and one owner's after another's by lot: however much is due to one of them, at
    however many endpoints, and for however long, the others' are seen."""
    place = Window(RowNumber(), partition_by=F("endpoint"), order_by=("next_try_at", "pk"))
    few = due.order_by().annotate(place=place).filter(place__lte=OF_ONE_ENDPOINT)
    turns = Counter[str]()
    found = []
    for pk, owner in few.order_by("place", "next_try_at").values_list("pk", "endpoint__owner"):
        turns[owner] += 1
        found.append((turns[owner], random.random(), pk))  # noqa: S311 (no secret)
    return [pk for _turn, _lot, pk in sorted(found)[:AT_ONCE]]


def _try(delivery: Delivery) -> dict[str, Any]:
    """One try: the entry of the log. No database here, this is a thread."""
    stamp, started = int(time.time()), time.monotonic()
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "attention-lab-webhooks/1",
        "webhook-id": delivery.id,
        "webhook-timestamp": str(stamp),
        "webhook-signature": signature(_key(delivery.endpoint), delivery.id, stamp, delivery.payload),
    }
    status, error = None, ""
    try:
        status = outgoing.post(delivery.endpoint.url, delivery.payload.encode(), headers)
    except (outgoing.BadAddress, outgoing.Unreachable) as failure:
        error = str(failure)
    except Exception:  # one receiver that is odd in a way nobody thought of must not end the round of all
        log.exception("webhook %s", delivery.id)
        error = "The try failed on our side."
    took = round(1000 * (time.monotonic() - started))
    return {"at": timezone.now().isoformat(), "status": status, "error": error, "ms": took}


def _settle(delivery: Delivery, entry: dict[str, Any]) -> str:
    """Write down how a try ended, and when the next one is; in a word."""
    now, status = timezone.now(), entry["status"] or 0
    fields: dict[str, Any] = {"status": DeliveryStatus.FAILED, "next_try_at": None}
    if 200 <= status < 300:
        fields["status"] = DeliveryStatus.DELIVERED
    elif status == GONE:
        WebhookEndpoint.objects.filter(pk=delivery.endpoint_id).update(disabled_at=now)
        others = Delivery.objects.filter(endpoint=delivery.endpoint_id, status=DeliveryStatus.PENDING)
        others.exclude(pk=delivery.pk).update(status=DeliveryStatus.FAILED, next_try_at=None)
    elif delivery.tries <= len(RETRIES):
        wait = RETRIES[delivery.tries - 1] * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 (no secret)
        fields = {"status": DeliveryStatus.PENDING, "next_try_at": now + timedelta(seconds=wait)}
    fields["log"] = [*delivery.log, entry][-LOGGED:]
    # A replay that came meanwhile set another time, and goes on.
    Delivery.objects.filter(pk=delivery.pk, next_try_at=delivery.next_try_at).update(**fields)
    return str(fields["status"])


def expire() -> int:
    """Delete deliveries that ended long ago; returns how many."""
    old = Delivery.objects.filter(created_at__lt=timezone.now() - KEPT)
    return int(old.exclude(status=DeliveryStatus.PENDING).delete()[0])
