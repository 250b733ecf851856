"""How much a caller without a token may use: counted in Redis, atomically."""

import logging
import math
from dataclasses import dataclass

import redis
from django.conf import settings

from workers.broker import PREFIX, connection

log = logging.getLogger(__name__)

# All counters are checked before any is raised, so that a refused run is not charged. A counter
# lives for one window from its first use.
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
return {0, 0}
"""
# A window that ended meanwhile has nothing to give back to, and must not be begun again.
REFUND = """
for i = 1, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 1 then redis.call('INCRBYFLOAT', KEYS[i], -ARGV[i]) end
end
"""


@dataclass(frozen=True)
class Quota:
    name: str
    unit: str
    limit: float
    window_seconds: int


class QuotaExceeded(Exception):
    """The caller used up a quota. `retry_after` is in whole seconds."""

    def __init__(self, quota: Quota, retry_after: int) -> None:
        self.quota = quota
        self.retry_after = retry_after
        self.limit = quota.limit
        self.detail = (
            f"Without a token an address may use {quota.limit:g} {quota.unit} per "
            f"{quota.window_seconds} s. Try again in {retry_after} s, or send a token."
        )
        super().__init__(self.detail)


def quotas() -> list[Quota]:
    return [
        Quota("runs", "runs", settings.ANONYMOUS_RUNS_PER_MINUTE, 60),
        Quota("seconds", "seconds of predicted worker time", settings.ANONYMOUS_SECONDS_PER_HOUR, 3600),
    ]


def charge(caller: str, seconds: float) -> None:
    """Charge one run of `seconds` predicted worker time to `caller`.

    Raises QuotaExceeded, charging nothing. Without Redis nothing is charged: the queue is down
    with it, and what is submitted meanwhile is bounded by the queue's own limit.
    """
    limits = quotas()
    keys, amounts = _keys(caller), _amounts(seconds)
    arguments = [x for q in limits for x in (amounts[q.name], q.limit, q.window_seconds)]
    try:
        refused, milliseconds = connection().eval(CHARGE, len(keys), *keys, *arguments)
    except redis.RedisError as error:
        log.warning("quota of %s not counted: %s", caller, error)
        return
    if refused:
        retry_after = max(1, math.ceil(milliseconds / 1000))
        raise QuotaExceeded(limits[refused - 1], retry_after)


def refund(caller: str, seconds: float) -> None:
    """Take back a charge whose run was not recorded after all."""
    keys = _keys(caller)
    try:
        connection().eval(REFUND, len(keys), *keys, *_amounts(seconds).values())
    except redis.RedisError as error:
        log.warning("quota of %s not refunded: %s", caller, error)


def _keys(caller: str) -> list[str]:
    return [f"{PREFIX}quota:{quota.name}:{caller}" for quota in quotas()]


def _amounts(seconds: float) -> dict[str, float]:
    """What one run uses of each quota, in their order."""
    return {"runs": 1.0, "seconds": round(seconds, 3)}
