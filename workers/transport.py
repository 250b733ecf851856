"""kombu's Redis transport, which outlives the loss of its connection."""

from typing import Any

import redis
from kombu.transport import TRANSPORT_ALIASES
from kombu.transport.redis import Channel as RedisChannel
from kombu.transport.redis import Transport as RedisTransport


class Channel(RedisChannel):
    """A channel whose lost connection is an error of the connection, from which a worker recovers.

    kombu 5.7 lets a channel that was closed with its connection ask for a new pool (to put a message back,
    or to acknowledge one whose task ended later) and then looks up a host that is gone: an AttributeError,
    on which the worker gives up. With the error that it expects it connects anew; the message is delivered
    again, and finds in its row that the work was done.
    """

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        if self.connection is None or self.connection.client is None:
            raise redis.ConnectionError("the connection of this channel was lost")
        parameters: dict[str, Any] = super()._connparams(asynchronous=asynchronous)  # type: ignore[misc]
        return parameters


class Transport(RedisTransport):
    Channel = Channel


def use_for_redis() -> None:
    """Have every address of a Redis (with TLS and on a Unix socket too) served by this transport."""
    TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), f"{__name__}:{Transport.__name__}"))
