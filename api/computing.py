"""What a page has the web process compute at once: charged and bounded as REST's pure functions are."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from api import pure
from api.callers import Caller
from api.errors import Problem
from workers import quotas


class Busy(Exception):
    """It cannot be computed now; `retry_after` is in whole seconds."""

    def __init__(self, detail: str, retry_after: int) -> None:
        super().__init__(detail)
        self.detail, self.retry_after = detail, retry_after


def charged(pieces: Iterable[bytes], caller: Caller) -> Iterator[bytes]:
    """`pieces`, charged to `caller` for what it takes to make them: waiting for a slow client costs nothing.
    Raises Busy at once, or never."""
    quota = quotas.computing(anonymous=caller.is_anonymous)
    try:
        counted = quotas.enter(quota, caller.scope)
    except quotas.QuotaExceeded as error:
        raise Busy(error.detail, error.retry_after) from None
    return _metered(iter(pieces), lambda spent: quotas.spend(quota, caller.scope, spent) if counted else None)


def _metered(pieces: Iterator[bytes], spend: Callable[[float], None]) -> Iterator[bytes]:
    spent = 0.0
    try:
        while True:
            began = time.thread_time()
            piece = next(pieces, None)
            spent += time.thread_time() - began
            if piece is None:
                return
            yield piece
    finally:  # also when the client went away
        spend(spent)


@contextmanager
def computing(caller: Caller) -> Iterator[None]:
    """Compute inside, charged to `caller`. Raises Busy, with nothing computed."""
    quota = quotas.computing(anonymous=caller.is_anonymous)
    try:
        counted = quotas.enter(quota, caller.scope)
    except quotas.QuotaExceeded as error:
        raise Busy(error.detail, error.retry_after) from None
    with ExitStack() as stack:
        try:
            stack.enter_context(pure.place())
        except Problem as error:
            raise Busy(error.detail, 1) from None
        began = time.thread_time()
        try:
            yield
        finally:
            if counted:
                quotas.spend(quota, caller.scope, time.thread_time() - began)
