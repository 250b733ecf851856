"""POSTs that are pure functions of their body, computed by the web process while the client waits.

So that nobody keeps everybody else waiting, a caller has a quota of processor time, and a process computes
few at once. Nothing is stored but the Idempotency-Key: the same body gives the same answer by itself.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from rest_framework.request import Request
from rest_framework.response import Response

from api import idempotency, parsers
from api.errors import Problem
from api.views import ApiView
from workers import quotas

# What a new key costs its caller beside what is computed: a row that is kept for a day.
KEY_SECONDS = 0.05

# Threads that compute take turns at one interpreter: more of them at once would end no sooner, and the pages
# would wait for each. (A number that cannot be is told by api.checks.)
_places = threading.BoundedSemaphore(max(0, settings.MAX_COMPUTING))


class MeteredView(ApiView):
    """A POST is charged to its caller by the processor time that it takes."""

    quota: quotas.Quota | None = None  # that the request is charged to, once it is admitted
    surcharge = 0.0  # seconds

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Charge what all of it takes, rendering included, of this thread's processor time: a client that
        sends slowly pays no more for it.
        """
        began = time.thread_time()
        response = super().dispatch(request, *args, **kwargs)
        if self.quota:
            if isinstance(response, Response):
                response.render()
            spent = time.thread_time() - began + self.surcharge
            quotas.spend(self.quota, self.caller.scope, spent)
        return response

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if request.method == "POST":  # refused before its body is read
            quota = quotas.computing(anonymous=self.caller.is_anonymous)
            if quotas.enter(quota, self.caller.scope):
                self.quota = quota


class PureView(MeteredView):
    """A handler gives `answer` the function of the body that it stands for."""

    def answer(self, request: Request, compute: Callable[[Any], Any]) -> Response:
        """What `compute` makes of the JSON body."""
        body = parsers.json_body(request)
        key = self.idempotency_key(parsers.body_digest(request))
        replayed = key is not None and idempotency.find(key) is not None
        with place():
            document = compute(body)
        if key and not replayed:
            self.surcharge = KEY_SECONDS
            idempotency.note(key)
        return Response(document, headers=idempotency.REPLAYED if replayed else None)


@contextmanager
def place() -> Iterator[None]:
    """One of the places for computing, after the body is there: who sends slowly takes none."""
    if not _places.acquire(blocking=False):
        raise Problem(
            503,
            f"{settings.MAX_COMPUTING} estimates, simulations or verdicts are being computed already, as "
            "many as may be at once. Try again in a second.",
            kind="unavailable",
            headers={"Retry-After": "1"},
        )
    try:
        yield
    finally:
        _places.release()
