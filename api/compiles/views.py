"""/api/v1/compiles: a run's kernel, compiled for GPUs that need not be there."""

from typing import Any

from django.http import HttpRequest
from django.urls import reverse
from drf_spectacular.utils import OpenApiExample, OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api.compiles import schema
from api.openapi import PREFER, problems
from api.runs.representation import envelope
from api.runs.submission import submit_compile_body
from api.runs.views import ArtifactView, RunDetailView, RunView
from workers.models import Kind, Run, Status

TAGS = ["compiles"]


def represent(run: Run, request: HttpRequest) -> dict[str, Any]:
    return {
        **envelope(run, request),
        "targets": run.targets,
        "result": run.result if run.status == Status.SUCCEEDED else None,
    }


class CompileMixin:
    """A compilation is a row like a run's; what differs is its kind and how it is shown."""

    kind = Kind.COMPILE

    def document(self, run: Run, request: HttpRequest) -> dict[str, Any]:
        return represent(run, request)

    def address(self, run: Run) -> str:
        return reverse("api:compile", kwargs={"run_id": run.id})


class CompilesView(CompileMixin, RunView):
    @extend_schema(
        operation_id="submit_compile",
        summary="Compile a kernel",
        description="Registers, spills, shared memory, occupancy, instructions, and every stage of the code.",
        tags=TAGS,
        parameters=[PREFER],
        request={"application/json": schema.CompileRequest},
        examples=[OpenApiExample("Causal, float16, two GPUs", schema.EXAMPLE, request_only=True)],
        responses={
            200: OpenApiResponse(schema.Compile, "It ended while the client waited."),
            202: OpenApiResponse(schema.Compile, "Queued; see `Location` and `Retry-After`."),
            **problems(400, 401, 409, 413, 415, 422, 429, 503),
        },
    )
    def post(self, request: Request) -> Response:
        return self.submit(request, submit_compile_body)


class CompileDetailView(CompileMixin, RunDetailView):
    @extend_schema(
        operation_id="get_compile",
        summary="A compilation",
        tags=TAGS,
        parameters=[PREFER],
        responses={200: schema.Compile, **problems(400, 401, 404)},
    )
    def get(self, request: Request, run_id: str) -> Response:
        return super().get(request, run_id)

    @extend_schema(
        operation_id="cancel_compile",
        summary="Cancel a compilation",
        tags=TAGS,
        responses={200: schema.Compile, **problems(401, 404, 409)},
    )
    def delete(self, request: Request, run_id: str) -> Response:
        return super().delete(request, run_id)


class CompileArtifactView(CompileMixin, ArtifactView):
    @extend_schema(
        operation_id="get_compile_artifact",
        summary="A stage of the code",
        description="`sm_90.ttir`, `.ttgir`, `.llir`, `.ptx`, `.sass` of the engine's main kernel, for each "
        "target; `sm_90.flash_scores.ptx` and the like of its other kernels.",
        tags=TAGS,
        responses={(200, "text/plain"): str, **problems(401, 404)},
    )
    def get(self, request: Request, run_id: str, name: str) -> Any:
        return super().get(request, run_id, name)
