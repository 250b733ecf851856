"""How much a caller may use: counted in Redis, atomically."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import redis
from django.conf import settings

from workers.broker import PREFIX, connection

log = logging.getLogger(__name__)

# All counters are checked before any is raised, so that a refused run is not charged. A counter
# lives for one window from its first use. A limit of "inf" refuses nothing. Answers {which was refused (0:
# none), milliseconds until its window ends} or {0, the same of the first, what is used of it}.
CHARGE = """
for i = 1, #KEYS do
  local used = tonumber(redis.call('GET', KEYS[i]) or '0')
  if used + tonumber(ARGV[3 * i - 2]) > tonumber(ARGV[3 * i - 1]) then
    return {i, redis.call('PTTL', KEYS[i])}
  end
end
for i = 1, #KEYS do
  redis.call('INCRBYFLOAT', KEYS[i], ARGV[3 * i - 2])
  if redis.call('PTTL', KEYS[i]) < 0 then redis.call('EXPIRE', KEYS[i], ARGV[3 * i]) end
end
return {0, redis.call('PTTL', KEYS[1]), redis.call('GET', KEYS[1])}
"""
# A window that ended meanwhile has nothing to give back to, and must not be begun again.
REFUND = """
for i = 1, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 1 then redis.call('INCRBYFLOAT', KEYS[i], -ARGV[i]) end
end
"""


# Seconds: nobody knows what a computation takes before it is done, so this is charged when it begins. With it
# a quota of 0 lets nothing through.
ENTRANCE = 0.001


@dataclass(frozen=True)
class Quota:
    name: str
    unit: str
    limit: float
    window_seconds: int
    whose: str = "Without a token an address"
    remedy: str = "send a token"


class QuotaExceeded(Exception):
    """The caller used up a quota. `retry_after` is in whole seconds."""

    def __init__(self, quota: Quota, retry_after: int) -> None:
        self.quota = quota
        self.retry_after = retry_after
        self.limit = quota.limit
        self.detail = (
            f"{quota.whose} may use {quota.limit:g} {quota.unit} per {quota.window_seconds} s. "
            f"Try again in {retry_after} s, or {quota.remedy}."
        )
        super().__init__(self.detail)


def quotas() -> list[Quota]:
    """Of runs."""
    return [
        Quota("runs", "runs", settings.ANONYMOUS_RUNS_PER_MINUTE, 60),
        Quota("seconds", "seconds of predicted worker time", settings.ANONYMOUS_SECONDS_PER_HOUR, 3600),
    ]


def charge(caller: str, seconds: float, runs: int = 1) -> None:
    """Charge runs of `seconds` predicted worker time together to `caller`.

    Raises QuotaExceeded, charging nothing. Without Redis nothing is charged: the queue is down
    with it, and what is submitted meanwhile is bounded by the queue's own limit.
    """
    _count(caller, quotas(), amounts(seconds, runs))


def refund(caller: str, seconds: float, runs: int = 1) -> None:
    """Take back a charge whose runs were not recorded, or not begun, after all."""
    keys = _keys(caller, quotas())
    try:
        connection().eval(REFUND, len(keys), *keys, *amounts(seconds, runs))
    except redis.RedisError as error:
        log.warning("quota of %s not refunded: %s", caller, error)


def computing(*, anonymous: bool) -> Quota:
    """Of what the web process computes at once."""
    unit = "seconds of the web server's processor time"
    if anonymous:
        return Quota("computing", unit, settings.ANONYMOUS_COMPUTING_SECONDS_PER_MINUTE, 60)
    limit, remedy = settings.TOKEN_COMPUTING_SECONDS_PER_MINUTE, "ask for less at a time"
    return Quota("computing", unit, limit, 60, "A token", remedy)


def enter(quota: Quota, caller: str) -> bool:
    """Begin something that `spend` will charge to `caller`. Raises QuotaExceeded when nothing is left.

    Those that are under way at this moment are charged later, and may go beyond the limit together. Without
    Redis (False) nobody is refused: how many compute at once is then the only bound.
    """
    return _count(caller, [quota], [ENTRANCE]) is not None


def spend(quota: Quota, caller: str, seconds: float) -> None:
    """Charge what was used, however much is left."""
    _count(caller, [replace(quota, limit=math.inf)], [round(seconds, 4)])


@dataclass(frozen=True)
class Standing:
    """What is left of a quota, and for how many seconds."""

    quota: Quota
    remaining: int
    seconds: int


def grading(what: str, *, anonymous: bool) -> Quota:
    """Of the "requests" or the "submissions" of one caller in grading."""
    limits = {
        ("requests", True): settings.GRADING_REQUESTS_PER_MINUTE,
        ("requests", False): settings.TOKEN_GRADING_REQUESTS_PER_MINUTE,
        ("submissions", True): settings.SUBMISSIONS_PER_MINUTE,
        ("submissions", False): settings.TOKEN_SUBMISSIONS_PER_MINUTE,
    }
    whose = "Without a token one" if anonymous else "A token"
    return Quota(what, what, limits[what, anonymous], 60, whose, "send fewer at a time")


def take(quota: Quota, caller: str, amount: float = 1.0) -> Standing | None:
    """Charge `amount`; what is left then, or None without Redis. Raises QuotaExceeded, charging nothing."""
    counted = _count(caller, [quota], [amount])
    if counted is None:
        return None
    milliseconds, used = counted
    return Standing(quota, max(0, int(quota.limit - used)), max(1, math.ceil(milliseconds / 1000)))


def standing(quota: Quota, caller: str) -> Standing | None:
    """What is left, charging nothing; None without Redis."""
    key = _keys(caller, [quota])[0]
    try:
        used, milliseconds = connection().get(key), connection().pttl(key)
    except redis.RedisError as error:
        log.warning("quota of %s not read: %s", caller, error)
        return None
    seconds = math.ceil(milliseconds / 1000) if milliseconds > 0 else quota.window_seconds
    return Standing(quota, max(0, int(quota.limit - float(used or 0))), max(1, seconds))


def put_back(quota: Quota, caller: str, amount: float = 1.0) -> None:
    """Take back what `take` charged, where its window is still open."""
    try:
        connection().eval(REFUND, 1, *_keys(caller, [quota]), amount)
    except redis.RedisError as error:
        log.warning("quota of %s not put back: %s", caller, error)


def _count(caller: str, limits: Sequence[Quota], amounts: Sequence[float]) -> tuple[int, float] | None:
    """Charge all of `amounts`: (milliseconds left, used) of the first; None: nothing was counted. Raises
    QuotaExceeded, having charged none."""
    keys = _keys(caller, limits)
    arguments = [
        x for q, amount in zip(limits, amounts, strict=True) for x in (amount, q.limit, q.window_seconds)
    ]
    try:
        refused, milliseconds, *used = connection().eval(CHARGE, len(keys), *keys, *arguments)
    except redis.RedisError as error:
        log.warning("quota of %s not counted: %s", caller, error)
        return None
    if refused:
        retry_after = max(1, math.ceil(milliseconds / 1000))
        raise QuotaExceeded(limits[refused - 1], retry_after)
    return milliseconds, float(used[0])


def _keys(caller: str, limits: Sequence[Quota]) -> list[str]:
    return [f"{PREFIX}quota:{quota.name}:{caller}" for quota in limits]


def amounts(seconds: float, runs: int = 1) -> list[float]:
    """What runs use of each of `quotas`."""
    return [float(runs), round(seconds, 3)]
