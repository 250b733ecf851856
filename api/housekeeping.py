"""What the API keeps for a while only."""

from api import idempotency
from api.uploads import store


def expire() -> tuple[int, int]:
    """Delete uploads and idempotency keys past their time; returns how many of each."""
    return store.expire(), idempotency.expire()
