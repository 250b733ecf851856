"""/api/v1/problems: what may be asked, its versions, and what they let pass."""

from typing import Any

from django.http import Http404, HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api import idempotency, parsers, preferences
from api.errors import Problem
from api.grading import arrays, representation, schema
from api.grading.access import GradingView
from api.grading.assignments import CURSOR
from api.models import AUTHOR
from api.openapi import PREFER, problems
from api.pagination import NewestFirst
from api.views import AnyAccept
from kernels.grading.cases import seeds_of_number
from kernels.grading.problem import parse_problem
from kernels.limits import MAX_SEED
from kernels.spec.problems import show
from workers.grading import judging
from workers.grading import problems as rows
from workers.grading.models import Check, ProblemVersion, WorkStatus
from workers.grading.models import Problem as Row

TAGS = ["problems"]
# A matrix takes a second or two; who asks to publish wants its answer, and says if they will not wait for it.
PUBLISH_SECONDS = 30
VERSION = OpenApiParameter("version", int, description="Default: the latest that you may see.")


class ProblemView(GradingView):
    """What the views of problems share."""

    def find(self, slug: str) -> Row:
        found = rows.find(slug, self.caller.owner)
        if found is None:
            raise Http404
        return found

    def version(self, slug: str) -> ProblemVersion:
        """The version that the request names, or the latest."""
        problem = self.find(slug)
        number = self.number("version", 1, 2**31 - 1)
        version = rows.version_of(problem, self.caller.owner, number)
        if version is None:
            raise Http404
        return version

    def number(self, name: str, low: int, high: int) -> int | None:
        """An integer of the query; None where there is none."""
        text = self.request.query_params.get(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= 20 and low <= int(text) <= high):
            raise Problem(400, f"{name} must be a whole number from {low} to {high}, not {show(text)}.")
        return int(text)

    def document(self, version: ProblemVersion) -> dict[str, Any]:
        (document,) = representation.problems([version], self.caller.owner, full=True)
        return document


class ProblemsView(ProblemView):
    @extend_schema(
        operation_id="list_problems",
        summary="Problems",
        description="Those that are published and your own, each in the latest version that you may see.",
        tags=TAGS,
        parameters=[*CURSOR, OpenApiParameter("mine", bool, description="Only your own.")],
        responses={200: schema.ProblemPage, **problems(400, 401, 429)},
    )
    def get(self, request: Request) -> Response:
        owner = self.caller.owner
        found = rows.visible_to(owner)
        if request.query_params.get("mine", "false") not in ("false", "0", ""):
            found = found.filter(owner=owner) if owner else found.none()
        pages = NewestFirst()
        page: list[Row] = pages.paginate_queryset(found, request, view=self) or []
        latest = rows.latest_of(page, owner)
        return pages.get_paginated_response(representation.problems(latest, owner, full=False))

    @extend_schema(
        operation_id="author_problem",
        summary="Author a problem",
        description=(
            "With a slug that you used before it is a new version of that problem; with nothing changed, the "
            "version that is there (200). Nobody else sees it until it is published."
        ),
        tags=TAGS,
        request={"application/json": schema.ProblemRequest},
        examples=[OpenApiExample("Causal attention", schema.PROBLEM_EXAMPLE, request_only=True)],
        responses={
            200: OpenApiResponse(schema.Problem, "This very version is there already."),
            201: schema.Problem,
            **problems(400, 401, 403, 409, 413, 415, 422, 429, 503),
        },
    )
    def post(self, request: Request) -> Response:
        self.require(AUTHOR)
        body = parsers.json_body(request)
        key = self.checked_key(parsers.body_digest(request))
        problem = parse_problem(body)
        is_new = False

        def make() -> ProblemVersion:
            nonlocal is_new
            version, is_new = rows.save(self.caller.owner, problem)
            return version

        version, replayed = idempotency.once(key, _again, make)
        headers = {
            "Location": representation.address(request._request, "problem", slug=version.problem.slug),
            **(idempotency.REPLAYED if replayed else {}),
        }
        return Response(self.document(version), status=201 if is_new or replayed else 200, headers=headers)


def _again(version_id: str) -> ProblemVersion | None:
    return ProblemVersion.objects.select_related("problem").filter(pk=version_id).first()


class ProblemDetailView(ProblemView):
    @extend_schema(
        operation_id="get_problem",
        summary="A problem",
        description="Its own author sees drafts; everybody else the published versions.",
        tags=TAGS,
        parameters=[VERSION],
        responses={200: schema.Problem, **problems(400, 401, 404, 429)},
    )
    def get(self, request: Request, slug: str) -> Response:
        return Response(self.document(self.version(slug)))


class InputsView(ProblemView):
    content_negotiation_class = AnyAccept

    @extend_schema(
        operation_id="get_problem_inputs",
        summary="Inputs of a problem, by a number",
        description=(
            "The same for everybody who asks with the same seed: to try a problem out, and for "
            "`POST /api/v1/grade` with that seed."
        ),
        tags=TAGS,
        parameters=[
            OpenApiParameter("seed", int, description="0 … 2⁶³−1; default 0."),
            VERSION,
            *arrays.PARAMETERS,
        ],
        responses={
            (200, "application/json"): schema.Inputs,
            (200, "application/octet-stream"): OpenApiTypes.BINARY,
            **problems(400, 401, 404, 429, 503),
        },
    )
    def get(self, request: Request, slug: str) -> HttpResponse:
        version = self.version(slug)
        seed = self.number("seed", 0, MAX_SEED) or 0
        problem = judging.problem_of(version)
        head = {"problem": version.problem.slug, "version": version.number, "seed": seed}
        stem = f"{version.problem.slug}-{seed}"
        with self.computing(arrays.numbers_of(problem)):
            return arrays.respond(request, head, problem, seeds_of_number(problem, seed), stem)


class PublishView(ProblemView):
    @extend_schema(
        operation_id="publish_problem",
        summary="Publish a problem",
        description=(
            "The mutant matrix of the version is computed by a grader, once, and waited for up to 30 s "
            "(`Prefer: wait=N` says otherwise; 202 when it is not there by then: ask again). While a wrong "
            "computation that students make would pass, or the right one in a dtype that is allowed would "
            "not, publication is refused (409), with the table under `mutants`."
        ),
        tags=TAGS,
        parameters=[PREFER, VERSION],
        request=None,
        responses={
            200: OpenApiResponse(schema.Problem, "Published."),
            202: OpenApiResponse(schema.Problem, "The matrix is still being computed; see `Retry-After`."),
            **problems(400, 401, 403, 404, 409, 422, 429, 503),
        },
    )
    def post(self, request: Request, slug: str) -> Response:
        self.require(AUTHOR)
        seconds = self.seconds_to_wait()
        version = self.version(slug)
        if version.problem.owner != self.caller.owner:
            raise Problem(403, "Only its author publishes a problem.")
        key = self.checked_key(f"publish {version.pk}")
        replayed = key is not None and idempotency.find(key) is not None
        check = rows.check_of(version)
        preferences.wait_for(check, PUBLISH_SECONDS if seconds is None else seconds)
        response = self._outcome(version, check)
        if key and not replayed:
            idempotency.note(key)
        if replayed:
            response["Idempotent-Replayed"] = "true"
        return response

    def _outcome(self, version: ProblemVersion, check: Check) -> Response:
        if not check.is_terminal:
            return Response(self.document(version), status=202, headers={"Retry-After": "1"})
        if check.status == WorkStatus.ERROR:
            detail = "The mutant matrix could not be computed, through no fault of the problem. Try again."
            raise Problem(503, detail, kind="unavailable", headers={"Retry-After": "5"})
        try:
            rows.publish(version, check.result or {})
        except rows.Survivors as error:
            raise Problem(409, str(error), kind="mutants-survive", mutants=check.result) from None
        return Response(self.document(version))
