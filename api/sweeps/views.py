"""/api/v1/sweeps: a run with some of its fields varied."""

from functools import partial

from django.http import Http404, HttpResponse
from django.urls import reverse
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api import idempotency, parsers, preferences
from api.errors import Problem
from api.models import RUNS
from api.openapi import PREFER, problems
from api.pagination import newest_first
from api.pure import MeteredView
from api.sweeps import representation, schema
from api.sweeps.submission import submit_sweep_body
from api.views import AnyAccept
from kernels.spec.problems import show
from workers import sweeps
from workers.models import Sweep

RETRY_AFTER = "2"  # seconds
TAGS = ["sweeps"]


class SweepView(MeteredView):
    """What the views of sweeps share. Parsing and pricing many points takes the web process some time."""

    scope = RUNS

    def find(self, sweep_id: str) -> Sweep:
        """The sweep, if the caller may see it; otherwise it does not exist."""
        try:
            sweep = sweeps.get(sweep_id)
        except Sweep.DoesNotExist:
            raise Http404 from None
        if not self.caller.may_see(sweep.owner):
            raise Http404
        return sweep

    def answer(self, sweep: Sweep, seconds: int | None = None, **headers: str) -> Response:
        """The sweep, when it has ended or as long as the client asked to wait."""
        waited = preferences.wait_for(sweep, seconds)
        document = representation.represent(sweep, self.request._request)
        ended = document["status"] != Sweep.RUNNING
        if not ended:
            headers["Retry-After"] = RETRY_AFTER
        if waited:
            headers["Preference-Applied"] = f"wait={seconds}"
        status = 202 if self.request.method == "POST" and not (ended and waited) else 200
        return Response(document, status=status, headers=headers)


class SweepsView(SweepView):
    @extend_schema(
        operation_id="list_sweeps",
        summary="My sweeps",
        description="Those of the token, newest first, without their points; nothing without a token.",
        tags=TAGS,
        parameters=[
            OpenApiParameter("cursor", str, description="From `next` or `previous`."),
            OpenApiParameter("limit", int, description="Sweeps per page, at most 100."),
        ],
        responses={200: schema.SweepPage, **problems(400, 401)},
    )
    def get(self, request: Request) -> Response:
        caller = self.caller
        mine = Sweep.objects.none() if caller.is_anonymous else Sweep.objects.filter(owner=caller.owner)
        represent = partial(representation.represent_in_list, request=request._request)
        return newest_first(self, sweeps.with_progress(mine), represent)

    @extend_schema(
        operation_id="submit_sweep",
        summary="Submit a sweep",
        description=(
            "Every point is checked and priced before any is queued; each is a run as any other. One that is "
            "refused refuses the sweep, unless `skip_refused` says to leave it out. Few points are under way "
            "at once, the small ones first, and one that fails does not stop the rest."
        ),
        tags=TAGS,
        parameters=[PREFER],
        request={"application/json": schema.SweepRequest},
        examples=[OpenApiExample("Two engines, three lengths", schema.EXAMPLE, request_only=True)],
        responses={
            200: OpenApiResponse(schema.SweepDocument, "Every point ended while the client waited."),
            202: OpenApiResponse(schema.SweepDocument, "Queued; see `Location` and `Retry-After`."),
            **problems(400, 401, 409, 413, 415, 422, 429, 503),
        },
    )
    def post(self, request: Request) -> Response:
        seconds = self.seconds_to_wait()
        body = parsers.json_body(request)
        key = self.idempotency_key(parsers.body_digest(request))
        sweep, replayed = submit_sweep_body(body, caller=self.caller, key=key)
        address = reverse("api:sweep", kwargs={"sweep_id": sweep.id})
        headers = {"Location": request.build_absolute_uri(address)}
        return self.answer(sweep, seconds, **headers, **(idempotency.REPLAYED if replayed else {}))


class SweepDetailView(SweepView):
    @extend_schema(
        operation_id="get_sweep",
        summary="A sweep",
        description="A token's sweeps exist for that token only; any other for whoever knows its id.",
        tags=TAGS,
        parameters=[PREFER],
        responses={200: schema.SweepDocument, **problems(400, 401, 404)},
    )
    def get(self, request: Request, sweep_id: str) -> Response:
        seconds = self.seconds_to_wait()
        return self.answer(self.find(sweep_id), seconds)

    @extend_schema(
        operation_id="cancel_sweep",
        summary="Cancel a sweep",
        description="Queued and running points end as `canceled`, finished ones stay; 409 if all are.",
        tags=TAGS,
        responses={200: schema.SweepDocument, **problems(401, 404, 409)},
    )
    def delete(self, request: Request, sweep_id: str) -> Response:
        self.find(sweep_id)
        return self.answer(sweeps.cancel(sweep_id))


class SweepResultsView(SweepView):
    content_negotiation_class = AnyAccept

    @extend_schema(
        operation_id="get_sweep_results",
        summary="The figures of a sweep as a table",
        description="A row for each point: what varied, its run and status, and its figures once it has any.",
        tags=TAGS,
        parameters=[OpenApiParameter("format", str, enum=("json", "csv"), description="Default: json.")],
        responses={
            (200, "application/json"): schema.SweepResults,
            (200, "text/csv"): OpenApiResponse(str, "The same, with a line of names first."),
            **problems(400, 401, 404),
        },
    )
    def get(self, request: Request, sweep_id: str) -> HttpResponse:
        sweep = self.find(sweep_id)
        wanted = request.query_params.get("format", "json")
        if wanted not in ("json", "csv"):
            raise Problem(400, f"format must be json or csv, not {show(wanted)}.")
        if wanted == "csv":
            return representation.csv_response(sweep)
        columns, rows = representation.columns(sweep), representation.rows(sweep)
        return Response({"sweep": sweep.id, "columns": columns, "results": rows})
