"""What every view of the API shares."""

from typing import Any, cast

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from rest_framework.exceptions import NotAuthenticated
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.views import APIView

from api import errors, idempotency, parsers, preferences
from api.callers import Caller, caller_of
from api.errors import Problem
from api.models import ApiToken


class ApiView(APIView):
    permission_classes = (AllowAny,)
    scope = ""  # that a token must have to be used here

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if self.scope and not self.caller.is_anonymous:
            self.require(self.scope)
        parsers.bound(request._request)

    @property
    def default_response_headers(self) -> dict[str, str]:
        return {**super().default_response_headers, "Cache-Control": "private, no-store"}

    @property
    def caller(self) -> Caller:
        return caller_of(self.request._request, cast("ApiToken | None", self.request.auth))

    def seconds_to_wait(self) -> int | None:
        """How long the client would wait for the end (Prefer: wait), in whole seconds."""
        return preferences.wait_seconds(self.request.headers.get("Prefer", ""))

    def require(self, scope: str) -> None:
        """Raises a Problem unless the request has a token with this scope."""
        if self.caller.is_anonymous:
            raise NotAuthenticated(f"This needs a token with the scope {scope}: `Authorization: Bearer …`.")
        if scope not in self.caller.scopes:
            has = ", ".join(sorted(self.caller.scopes)) or "none"
            raise Problem(403, f"This needs a token with the scope {scope}; this one has: {has}.")

    def idempotency_key(self, fingerprint: str) -> idempotency.Key | None:
        """The request's key, if it has one; `fingerprint` is a digest of what was sent."""
        header = self.request.headers.get("Idempotency-Key", "")
        endpoint = f"{self.request.method} {self.request.path}"
        return idempotency.key_of(header, self.caller, endpoint, fingerprint)


class AnyAccept(DefaultContentNegotiation):
    """For what has one representation only: the Accept header cannot ask for another."""

    def select_renderer(self, request: Any, renderers: Any, format_suffix: Any = None) -> Any:
        return renderers[0], renderers[0].media_type


@csrf_exempt
def not_found(request: HttpRequest) -> HttpResponse:
    """The last route: whatever else is below the API's address."""
    hint = f" Leave out the last slash: {request.path.rstrip('/')}." if request.path.endswith("/") else ""
    return errors.problem_response(request, 404, f"There is nothing at {request.path}.{hint}")
