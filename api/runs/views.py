"""/api/v1/runs: thin views over workers.runs."""

from collections.abc import Callable
from typing import Any

from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.urls import reverse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import (
    OpenApiParameter,
    OpenApiResponse,
    extend_schema,
)
from rest_framework.request import Request
from rest_framework.response import Response

from api import idempotency, parsers, preferences
from api.computing import Busy
from api.errors import Problem
from api.models import RUNS
from api.openapi import PREFER, problems
from api.pagination import newest_first
from api.runs import downloads, schema
from api.runs.examples import EXAMPLES
from api.runs.representation import represent
from api.runs.submission import Submission, submit_body
from api.views import AnyAccept, ApiView
from workers import artifacts, runs
from workers.models import Kind, Run

RETRY_AFTER = "1"  # seconds; what a run typically takes
TAGS = ["runs"]


class RunView(ApiView):
    """What the views of one run share. A row of another `kind` does not exist for them."""

    kind = Kind.RUN
    scope = RUNS

    def document(self, run: Run, request: HttpRequest) -> dict[str, Any]:
        return represent(run, request)

    def address(self, run: Run) -> str:
        return reverse("api:run", kwargs={"run_id": run.id})

    def find(self, run_id: str) -> Run:
        """The run, if the caller may see it; otherwise it does not exist."""
        try:
            run = runs.get(run_id)
        except Run.DoesNotExist:
            raise Http404 from None
        if run.kind != self.kind or not self.caller.may_see(run.owner):
            raise Http404
        return run

    def answer(self, run: Run, status: int, *, waited: int | None = None, replayed: bool = False) -> Response:
        headers = {}
        if not run.is_terminal:
            headers["Retry-After"] = RETRY_AFTER
        if waited is not None:
            headers["Preference-Applied"] = f"wait={waited}"
        if replayed:
            headers |= idempotency.REPLAYED
        if self.request.method == "POST":
            headers["Location"] = self.request.build_absolute_uri(self.address(run))
        return Response(self.document(run, self.request._request), status=status, headers=headers)

    def submit(self, request: Request, submit_body: Callable[..., Submission]) -> Response:
        """Submit the body, and wait for the end as long as the client asked to."""
        seconds = self.seconds_to_wait()
        body = parsers.json_body(request)
        key = self.idempotency_key(parsers.body_digest(request))
        submission = submit_body(body, caller=self.caller, key=key)
        waited = preferences.wait_for(submission.run, seconds)
        status = 200 if waited and submission.run.is_terminal else 202
        return self.answer(
            submission.run, status, waited=seconds if waited else None, replayed=submission.replayed
        )


class RunsView(RunView):
    @extend_schema(
        operation_id="list_runs",
        summary="My runs",
        description="Those of the token, newest first; nothing without a token. Arrays are links here.",
        tags=TAGS,
        parameters=[
            OpenApiParameter("cursor", str, description="From `next` or `previous`."),
            OpenApiParameter("limit", int, description="Runs per page, at most 100."),
        ],
        responses={200: schema.RunPage, **problems(400, 401)},
    )
    def get(self, request: Request) -> Response:
        mine = (
            Run.objects.none()
            if self.caller.is_anonymous
            else Run.objects.filter(owner=self.caller.owner, kind=Kind.RUN).defer(*artifacts.INLINE_FIELDS)
        )
        return newest_first(self, mine, lambda run: represent(run, request, full=False))

    @extend_schema(
        operation_id="submit_run",
        summary="Submit a run",
        description=(
            "Whatever is wrong with it is told before anything is queued. Without a token small runs are "
            "possible, within a quota of the address."
        ),
        tags=TAGS,
        parameters=[PREFER],
        request={"application/json": schema.RunRequest},
        examples=EXAMPLES,
        responses={
            200: OpenApiResponse(schema.Run, "It ended while the client waited."),
            202: OpenApiResponse(schema.Run, "Queued; see `Location` and `Retry-After`."),
            **problems(400, 401, 409, 413, 415, 422, 429, 503),
        },
    )
    def post(self, request: Request) -> Response:
        return self.submit(request, submit_body)


class RunDetailView(RunView):
    @extend_schema(
        operation_id="get_run",
        summary="A run",
        description="A token's runs exist for that token only; any other run for whoever knows its id.",
        tags=TAGS,
        parameters=[PREFER],
        responses={200: schema.Run, **problems(400, 401, 404)},
    )
    def get(self, request: Request, run_id: str) -> Response:
        seconds = self.seconds_to_wait()
        run = self.find(run_id)
        waited = preferences.wait_for(run, seconds)
        return self.answer(run, 200, waited=seconds if waited else None)

    @extend_schema(
        operation_id="cancel_run",
        summary="Cancel a run",
        description="Queued or running, it ends as `canceled`; a finished one is left as it is (409).",
        tags=TAGS,
        responses={200: schema.Run, **problems(401, 404, 409)},
    )
    def delete(self, request: Request, run_id: str) -> Response:
        self.find(run_id)
        return self.answer(runs.cancel(run_id), 200)


class ArtifactView(RunView):
    content_negotiation_class = AnyAccept

    @extend_schema(
        operation_id="get_artifact",
        summary="A file of a run",
        description=(
            "`out.npy` …, `result.npz`, `result.safetensors`, `inputs.npz`, `inputs.safetensors`; `run.npz` "
            "and `run.safetensors` hold both, with the spec. `out.csv` … has a line for each number."
        ),
        tags=TAGS,
        parameters=[
            OpenApiParameter(axis, int, description="Of a .csv: this one alone, as a matrix without names.")
            for axis in ("batch", "head")
        ],
        responses={
            (200, "application/octet-stream"): OpenApiTypes.BINARY,
            (200, "text/csv"): OpenApiResponse(str, "Of a .csv; every number reads back exactly."),
            **problems(401, 404, 422, 429),
        },
    )
    def get(self, request: Request, run_id: str, name: str) -> HttpResponseBase:
        run = self.find(run_id)
        try:
            return downloads.download(request._request, run, name, self.caller)
        except KeyError:
            raise Problem(404, self._why_not(run, name)) from None
        except Busy as busy:
            headers = {"Retry-After": str(busy.retry_after)}
            raise Problem(429, busy.detail, kind="quota-exceeded", headers=headers) from None

    @staticmethod
    def _why_not(run: Run, name: str) -> str:
        if not run.is_terminal:
            return f"The run is {run.status}; its files are there when it has succeeded."
        there = ", ".join(downloads.names(run)) or "none"
        return f"This run has no file {name[:60]!r}; it has: {there}."
