"""What the service offers and how it is: engines, health, and the documentation of the API."""

from functools import cache
from typing import Any

from django.conf import settings
from django.http import HttpResponse
from django.urls import reverse
from django.utils.log import log_response
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiJsonRenderer, OpenApiJsonRenderer2, OpenApiYamlRenderer
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularSwaggerSplitView
from rest_framework.request import Request
from rest_framework.response import Response

from api import preferences, strict_json
from api.catalog import schema
from api.errors import Problem, respond
from api.grading import bodies
from api.openapi import problems
from api.runs.representation import MAX_INLINE_ELEMENTS
from api.uploads import arrayfiles, store
from api.views import ApiView
from kernels.grading.case import MAX_NUMBERS, MAX_PAIRS
from kernels.grading.problem import MAX_CASES
from kernels.registry import ENGINES
from kernels.spec import MAX_ELEMENTS
from kernels.sweeps.points import MAX_POINTS, MAX_SENT
from workers import health
from workers.grading.models import USER_REF_LENGTH

TAGS = ["catalog"]


def limits() -> dict[str, Any]:
    """Every limit that a caller can run into, in force in this process."""
    return {
        "body_bytes": settings.MAX_BODY_BYTES,
        "json_depth": strict_json.MAX_DEPTH,
        "input_elements": MAX_ELEMENTS,
        "result_elements": settings.MAX_RESULT_ELEMENTS,
        "inline_elements": MAX_INLINE_ELEMENTS,
        "run_bytes": settings.MAX_RUN_BYTES,
        "run_seconds": {"anonymous": settings.RUN_BUDGET_ANONYMOUS, "token": settings.RUN_BUDGET_TOKEN},
        "queued_runs": settings.MAX_QUEUED,
        "sweep": {
            "points": MAX_POINTS,
            "points_at_once": settings.SWEEP_POINTS_AT_ONCE,
            "sent_elements": MAX_SENT,
        },
        "wait_seconds": preferences.MAX_WAIT,
        "anonymous_runs_per_minute": settings.ANONYMOUS_RUNS_PER_MINUTE,
        "anonymous_seconds_per_hour": settings.ANONYMOUS_SECONDS_PER_HOUR,
        "computing_seconds_per_minute": {
            "anonymous": settings.ANONYMOUS_COMPUTING_SECONDS_PER_MINUTE,
            "token": settings.TOKEN_COMPUTING_SECONDS_PER_MINUTE,
        },
        "computing_at_once": settings.MAX_COMPUTING,
        "retention_days": {
            "anonymous": settings.RETENTION_DAYS_ANONYMOUS,
            "token": settings.RETENTION_DAYS_TOKEN,
        },
        "grading": grading_limits(),
        "uploads": {
            "arrays": arrayfiles.MAX_MEMBERS,
            "expanded_bytes": arrayfiles.MAX_EXPANDED_BYTES,
            "kept_hours": store.KEPT.total_seconds() / 3600,
            "anonymous_bytes": store.ANONYMOUS_BYTES,
        },
    }


def grading_limits() -> dict[str, Any]:
    return {
        "cases": MAX_CASES,
        "pairs_of_a_case": MAX_PAIRS,
        "numbers_of_a_submission": MAX_NUMBERS,
        "batch": bodies.MAX_BATCH,
        "user_ref_characters": USER_REF_LENGTH,
        "queued_submissions": settings.MAX_QUEUED_SUBMISSIONS,
        "requests_per_minute": {
            "address": settings.GRADING_REQUESTS_PER_MINUTE,
            "token": settings.TOKEN_GRADING_REQUESTS_PER_MINUTE,
        },
        "submissions_per_minute": {
            "key": settings.SUBMISSIONS_PER_MINUTE,
            "token": settings.TOKEN_SUBMISSIONS_PER_MINUTE,
        },
    }


class IndexView(ApiView):
    @extend_schema(
        operation_id="index",
        summary="Where everything is",
        description="The addresses to start from.",
        tags=TAGS,
        responses={200: schema.Index, **problems(401)},
    )
    def get(self, request: Request) -> Response:
        return Response({name: request.build_absolute_uri(reverse(f"api:{name}")) for name in schema.INDEX})


class EnginesView(ApiView):
    @extend_schema(
        operation_id="list_engines",
        summary="The engines, and the limits in force",
        description="What each engine can be asked for, and every limit that a request can run into.",
        tags=TAGS,
        responses={200: schema.Catalog, **problems(401)},
    )
    def get(self, request: Request) -> Response:
        return Response({"engines": [engine.describe() for engine in ENGINES.values()], "limits": limits()})


class LivenessView(ApiView):
    authentication_classes = ()

    @extend_schema(
        operation_id="healthz",
        summary="Is the web process alive?",
        description="Touches neither database nor broker.",
        tags=TAGS,
        responses={200: schema.Liveness},
    )
    def get(self, request: Request) -> Response:
        return Response({"status": "ok"})


class ReadinessView(ApiView):
    authentication_classes = ()

    @extend_schema(
        operation_id="readyz",
        summary="Can runs be submitted and carried out?",
        description="200 only when database, broker and a worker for each configured queue answer.",
        tags=TAGS,
        responses={200: schema.Readiness, **problems(503)},
    )
    def get(self, request: Request) -> HttpResponse:
        state = health.check()
        if state["ready"]:
            return Response(state)
        return self._not_ready(request, state)

    def _not_ready(self, request: Request, state: dict[str, Any]) -> HttpResponse:
        parts = {"database": state["database"], "broker": state["broker"]}
        parts |= {f"{queue} worker": up for queue, up in state["queues"].items()}
        silent = ", ".join(part for part, up in parts.items() if not up)
        detail = f"No answer from: {silent}."
        problem = Problem(503, detail, kind="unavailable", headers={"Retry-After": "2"}, **state)
        response = respond(request._request, problem)
        # An answer, given many times while everything starts; Django would log each as an error of ours.
        log_response("Not ready: %s", detail, response=response, request=request._request, level="debug")
        return response


@cache
def document() -> dict[str, Any]:
    """The OpenAPI document; the same for everybody, so made once per process."""
    generator = SchemaGenerator()  # type: ignore[no-untyped-call]
    return dict(generator.get_schema(request=None, public=True))  # type: ignore[no-untyped-call]


class SchemaView(ApiView):
    renderer_classes = (OpenApiJsonRenderer2, OpenApiJsonRenderer, OpenApiYamlRenderer)

    @extend_schema(exclude=True)
    def get(self, request: Request) -> Response:
        return Response(document())


class DocsView(SpectacularSwaggerSplitView):
    """Swagger UI from our own files, without inline scripts, as the content security policy asks."""

    url_name = "api:schema"
    template_name = "api/docs.html"
    template_name_js = "api/docs.js"
