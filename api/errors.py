"""Every error of the API as one RFC 9457 problem document.

Raise `Problem` where a view knows what went wrong; everything else that can be raised below /api/
is translated here. `handler400` … `handler500` have Django's signatures, for the errors that occur
before a view is found or after it returned.
"""

import json
import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from django.core import exceptions as django_errors
from django.core.exceptions import SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from django.http.request import UnreadablePostError
from rest_framework import exceptions as drf_errors

from api.strict_json import Malformed, escape
from kernels.spec import FieldProblem, SpecError
from workers.limits import Refused
from workers.quotas import QuotaExceeded
from workers.runs import AlreadyFinished, QueueFull

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:attention-lab:problem:"

# kind -> title. A kind is the last part of `type`, stable for programs; "" is RFC 9457's about:blank,
# whose title is the status phrase.
TITLES = {
    "malformed": "The request cannot be read",
    "not-computable": "The request can be read but not computed",
    "too-large": "The request is too large",
    "too-expensive": "The run would cost more than is allowed",
    "quota-exceeded": "The quota is used up",
    "queue-full": "Too many runs are waiting",
    "bad-token": "The token is not valid",
    "already-finished": "The run has finished",
    "submission-limit": "The student has no submission left",
    "external-id-taken": "The external_id names another submission",
    "stale-inputs": "The answers are to inputs that are no longer asked for",
    "not-open": "The assignment is not open",
    "not-graded": "There is no verdict",
    "mutants-survive": "Wrong answers would pass",
    "idempotency-in-flight": "The first request with this Idempotency-Key is still in progress",
    "idempotency-mismatch": "The Idempotency-Key was used for another request",
    "internal": "Something failed on our side",
    "unavailable": "The service cannot answer just now",
}
KIND_OF_STATUS = {400: "malformed", 413: "too-large", 422: "not-computable"}


class Problem(Exception):
    """An answer other than success. `errors` names the fields at fault, if fields are."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        kind: str = "",
        errors: Iterable[FieldProblem] = (),
        headers: Mapping[str, str] | None = None,
        **members: Any,
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.kind = status, detail, kind or KIND_OF_STATUS.get(status, "")
        self.errors = list(errors)
        self.headers = dict(headers or {})
        self.members = members

    def document(self, instance: str) -> dict[str, Any]:
        titled = {
            "type": TYPE_PREFIX + self.kind if self.kind else "about:blank",
            "title": TITLES[self.kind] if self.kind else HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "instance": instance,
        }
        errors = [{"pointer": e.pointer, "code": e.code, "detail": e.detail} for e in self.errors]
        return {**titled, **({"errors": errors} if errors else {}), **self.members}


def respond(request: HttpRequest, problem: Problem) -> HttpResponse:
    """The problem as a response. Never negotiated: a client that cannot read it still gets its status."""
    # ASCII only, so that whatever a client sent can be quoted back to it.
    body = json.dumps(problem.document(request.path), allow_nan=False)
    response = HttpResponse(body, status=problem.status, content_type=MEDIA_TYPE, headers=problem.headers)
    response["Cache-Control"] = "no-store"
    return response


def problem_response(request: HttpRequest, status: int, detail: str, **options: Any) -> HttpResponse:
    return respond(request, Problem(status, detail, **options))


def exception_handler(exception: Exception, context: Mapping[str, Any]) -> HttpResponse:
    """DRF's hook: whatever a view raised, as a problem."""
    request = context["request"]
    problem = translate(exception, request.path)
    if isinstance(exception, drf_errors.MethodNotAllowed):
        problem.detail += f" Allowed here: {', '.join(context['view'].allowed_methods)}."
    return respond(request._request, problem)


def translate(exception: Exception, path: str) -> Problem:  # noqa: PLR0911, PLR0912 (a table, read top down)
    """The problem that tells of `exception`; anything unforeseen is logged and becomes a 500."""
    match exception:
        case Problem():
            return exception
        case SpecError():
            return _spec_problem(exception)
        case Malformed():
            field = FieldProblem(exception.pointer, exception.code, exception.detail, 400)
            return Problem(400, exception.detail, errors=[field])
        case Refused():
            return Problem(422, _first(exception.problems), kind="too-expensive", errors=exception.problems)
        case QuotaExceeded():
            return _quota_problem(exception)
        case QueueFull():
            return Problem(503, str(exception), kind="queue-full", headers=_retry(exception.retry_after))
        case AlreadyFinished():
            return Problem(409, str(exception), kind="already-finished")
        case drf_errors.APIException():
            return _drf_problem(exception)
        case Http404():
            return Problem(404, f"There is nothing at {path}.")
        case django_errors.PermissionDenied():
            return Problem(403, "You may not do this.")
        case django_errors.RequestDataTooBig():
            return Problem(413, "The form fields are too large.")
        case SuspiciousOperation() | django_errors.BadRequest() | UnreadablePostError():
            return Problem(400, "The request could not be read.")
        case OperationalError() | InterfaceError():
            log.exception("the database did not answer for %s", path)
            return Problem(
                503, "The database does not answer just now.", kind="unavailable", headers=_retry(2)
            )
        case _:
            return _incident(exception, path)


def _spec_problem(error: SpecError) -> Problem:
    return Problem(error.status, _first(error.problems), errors=error.problems)


def _first(problems: Sequence[FieldProblem]) -> str:
    """One sentence for people: the first problem, and how many more there are."""
    first = problems[0]
    where = f"{first.pointer}: " if first.pointer else ""
    more = f" ({len(problems) - 1} more under `errors`)" if len(problems) > 1 else ""
    return f"{where}{first.detail}{more}"


def _quota_problem(error: QuotaExceeded) -> Problem:
    quota = error.quota
    headers = {
        **_retry(error.retry_after),
        "RateLimit-Policy": f'"{quota.name}";q={int(quota.limit)};w={quota.window_seconds}',
        "RateLimit": f'"{quota.name}";r=0;t={error.retry_after}',
    }
    return Problem(429, error.detail, kind="quota-exceeded", headers=headers)


def _retry(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, round(seconds)))}


def _drf_problem(error: drf_errors.APIException) -> Problem:
    headers = {}
    if challenge := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = challenge
    if isinstance(error, drf_errors.ValidationError):
        fields = list(_flatten(error.detail, ""))
        return Problem(400, _first(fields), errors=fields, headers=headers)
    kind = "bad-token" if isinstance(error, drf_errors.AuthenticationFailed) else ""
    return Problem(error.status_code, str(error.detail), kind=kind, headers=headers)


def _flatten(detail: Any, pointer: str) -> Iterable[FieldProblem]:
    if isinstance(detail, Mapping):
        for name, inner in detail.items():
            below = "" if name == "non_field_errors" else f"/{escape(str(name))}"
            yield from _flatten(inner, pointer + below)
    elif isinstance(detail, Sequence) and not isinstance(detail, str):
        for inner in detail:
            yield from _flatten(inner, pointer)
    else:
        yield FieldProblem(pointer, getattr(detail, "code", "invalid"), str(detail), 400)


def _incident(exception: Exception | None, path: str) -> Problem:
    incident = uuid.uuid4().hex[:12]
    log.error("incident %s at %s", incident, path, exc_info=exception)
    detail = f"It is logged as incident {incident}; the same request may work later."
    return Problem(500, detail, kind="internal", incident=incident)


# --- Django's own handlers -------------------------------------------------------------------


def is_api(request: HttpRequest) -> bool:
    """Whether an error on this request must be a problem document rather than a page."""
    return request.path.startswith("/api/")


def handler400(request: HttpRequest, exception: Exception) -> HttpResponse:
    if isinstance(exception, django_errors.DisallowedHost):
        return problem_response(request, 400, "This service does not answer under that host name.")
    return respond(request, translate(exception, request.path))


def handler403(request: HttpRequest, exception: Exception) -> HttpResponse:
    return problem_response(request, 403, "You may not do this.")


def handler404(request: HttpRequest, exception: Exception) -> HttpResponse:
    return problem_response(request, 404, f"There is nothing at {request.path}.")


def handler500(request: HttpRequest) -> HttpResponse:
    # Django has logged the exception by now; this line ties the log to what the client was told.
    return respond(request, _incident(None, request.path))
