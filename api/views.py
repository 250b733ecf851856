"""What every view of the API shares."""

from typing import Any, cast

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.views import APIView

from api import errors, idempotency, parsers
from api.callers import Caller, caller_of
from api.models import ApiToken


class ApiView(APIView):
    permission_classes = (AllowAny,)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        parsers.bound(request._request)

    @property
    def default_response_headers(self) -> dict[str, str]:
        return {**super().default_response_headers, "Cache-Control": "private, no-store"}

    @property
    def caller(self) -> Caller:
        return caller_of(self.request._request, cast("ApiToken | None", self.request.auth))

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
