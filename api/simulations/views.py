"""/api/v1/simulations: how a server treats many requests, and what a memory of fixed size forgets, computed
at once and from the body alone."""

from collections.abc import Callable, Mapping
from typing import Any

from django.http import Http404
from django.urls import reverse
from drf_spectacular.utils import OpenApiExample, OpenApiResponse, extend_schema
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from api.errors import Problem
from api.openapi import Component, problems
from api.pure import PureView
from api.simulations import schema
from api.views import ApiView
from kernels.serving.events import to_csv
from kernels.simulators import SIMULATORS
from kernels.spec.problems import show

TAGS = ["simulations"]
FORMATS = ("json", "csv")


class EventsRenderer(BaseRenderer):
    """The event log of an answer as CSV, and nothing else of it."""

    media_type = "text/csv"
    format = "csv"
    charset = "utf-8"

    def render(
        self,
        data: Any,
        accepted_media_type: str | None = None,
        renderer_context: Mapping[str, Any] | None = None,
    ) -> str:
        return to_csv(data["events"])


def route_name(simulator: str) -> str:
    return f"simulate_{simulator.replace('-', '_')}"


class SimulationsView(ApiView):
    @extend_schema(
        operation_id="list_simulations",
        summary="The simulators",
        description="What each simulates, the most that it takes, and a body to begin with.",
        tags=TAGS,
        responses={200: schema.Simulations, **problems(401)},
    )
    def get(self, request: Request) -> Response:
        found = [
            {
                "name": each.name,
                "url": request.build_absolute_uri(reverse(f"api:{route_name(each.name)}")),
                "title": each.title,
                "summary": each.summary,
                "limits": each.limits,
                "example": each.example,
            }
            for each in SIMULATORS.values()
        ]
        return Response({"simulations": found})


class SimulationView(PureView):
    """A pure function of the body: nothing is stored, so that sending it again changes nothing."""

    simulator = ""
    renderer_classes = (JSONRenderer, EventsRenderer)

    def perform_content_negotiation(self, request: Request, force: bool = False) -> Any:
        try:
            return super().perform_content_negotiation(request, force)
        except Http404:  # of a ?format= that has no renderer
            wanted = show(request.query_params.get("format"))
            raise Problem(400, f"format must be {' or '.join(FORMATS)}, not {wanted}.") from None

    def simulate(self, request: Request) -> Response:
        response = self.answer(request, SIMULATORS[self.simulator].simulate)
        if request.accepted_renderer.format == "csv":
            response["Content-Disposition"] = f'attachment; filename="{self.simulator}-events.csv"'
        return response


def documented(
    name: str, body: type[Component], answer: type[Component]
) -> Callable[[Callable[..., Response]], Callable[..., Response]]:
    """What the OpenAPI document says of a simulator."""
    simulator = SIMULATORS[name]
    return extend_schema(
        operation_id=route_name(name),
        summary=simulator.title,
        description=f"{simulator.summary} The same body always gives the same answer, at once; `?format=csv` "
        "(or `Accept: text/csv`) gives its event log as a file.",
        tags=TAGS,
        request={"application/json": body},
        examples=[OpenApiExample("To begin with", simulator.example, request_only=True)],
        responses={
            (200, "application/json"): OpenApiResponse(answer, "Figures, timeline and events."),
            (200, "text/csv"): OpenApiResponse(str, "The events alone."),
            **problems(400, 401, 406, 413, 415, 422, 429, 503),
        },
    )


class PagedAllocatorView(SimulationView):
    simulator = "paged-allocator"

    @documented(simulator, schema.PagedRequest, schema.PagedAnswer)
    def post(self, request: Request) -> Response:
        return self.simulate(request)


class BatchingView(SimulationView):
    simulator = "batching"

    @documented(simulator, schema.BatchingRequest, schema.BatchingAnswer)
    def post(self, request: Request) -> Response:
        return self.simulate(request)


class SpeculativeView(SimulationView):
    simulator = "speculative"

    @documented(simulator, schema.SpeculativeRequest, schema.SpeculativeAnswer)
    def post(self, request: Request) -> Response:
        return self.simulate(request)


class PrefixCacheView(SimulationView):
    simulator = "prefix-cache"

    @documented(simulator, schema.PrefixRequest, schema.PrefixAnswer)
    def post(self, request: Request) -> Response:
        return self.simulate(request)


class RecallView(SimulationView):
    simulator = "recall"

    @documented(simulator, schema.RecallRequest, schema.RecallAnswer)
    def post(self, request: Request) -> Response:
        return self.simulate(request)
