"""What came of an assignment: grades, regrades, and what failed on our side."""

from typing import Any

from django.db.models import Prefetch
from django.http import Http404, HttpResponse
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api import idempotency, parsers, preferences
from api.errors import Problem
from api.grading import authoring, bodies, reports, representation, schema
from api.grading.access import Access, GradingView
from api.grading.assignments import CURSOR
from api.openapi import PREFER, problems
from api.pagination import newest_first
from api.views import AnyAccept
from kernels.spec.problems import show
from workers.grading import scoring
from workers.grading.models import Assignment, Incident, ProblemVersion, Regrade, Submission

TAGS = ["grades"]
COLUMNS = (
    "user_ref", "score", "max_score", "status", "verdict", "submitted_at", "is_late", "submissions",
    "submission", "external_id",
)  # fmt: skip


def grade_rows(assignment: Assignment) -> list[dict[str, Any]]:
    """One row for each student who handed anything in, by `user_ref`.

    Without a verdict there is no score, which is not 0.
    """
    fields = (
        "id", "user_ref", "external_id", "status", "verdict", "score", "max_score", "submitted_at", "number",
        "is_late",
    )  # fmt: skip
    found = list(Submission.objects.filter(assignment=assignment).only(*fields))
    many: dict[str, int] = {}
    for submission in found:
        many[submission.user_ref] = many.get(submission.user_ref, 0) + 1
    chosen = scoring.counting(assignment, found)
    return [
        {
            "user_ref": user_ref,
            "score": each.score,
            "max_score": each.max_score or assignment.total_points,
            "status": each.status,
            "verdict": each.verdict,
            "submitted_at": each.submitted_at,
            "is_late": each.is_late,
            "submissions": many[user_ref],
            "submission": each.id,
            "external_id": each.external_id,
        }
        for user_ref, each in sorted(chosen.items())
    ]


class StaffView(GradingView):
    def find_mine(self, assignment_id: str) -> Access:
        access = self.find_assignment(assignment_id)
        access.require_staff()
        return access


class GradesView(StaffView):
    content_negotiation_class = AnyAccept

    @extend_schema(
        operation_id="get_grades",
        summary="Grades",
        description="A row for each student: the best or the last submission, as the assignment has it.",
        tags=TAGS,
        parameters=[OpenApiParameter("format", str, enum=("json", "csv"), description="Default: json.")],
        responses={
            (200, "application/json"): schema.Grades,
            (200, "text/csv"): OpenApiResponse(str, f"Columns: {', '.join(COLUMNS)}."),
            **problems(400, 401, 403, 404, 429),
        },
    )
    def get(self, request: Request, assignment_id: str) -> HttpResponse:
        assignment = self.find_mine(assignment_id).assignment
        wanted = request.query_params.get("format", "json")
        if wanted not in ("json", "csv"):
            raise Problem(400, f"format must be json or csv, not {show(wanted)}.")
        rows = grade_rows(assignment)
        if wanted == "csv":
            name = f"{assignment.id}-grades-{timezone.now():%Y-%m-%d}.csv"
            headers: dict[str, Any] = {"Content-Disposition": f'attachment; filename="{name}"'}
            text = reports.to_csv(COLUMNS, rows)
            return HttpResponse(text, content_type="text/csv; charset=utf-8", headers=headers)
        head = {"assignment": assignment.id, "score_policy": assignment.score_policy}
        return Response({**head, "results": rows})


class RegradesView(StaffView):
    @extend_schema(
        operation_id="list_regrades",
        summary="Regrades",
        description="The newest first.",
        tags=TAGS,
        parameters=CURSOR,
        responses={200: schema.RegradePage, **problems(400, 401, 403, 404, 429)},
    )
    def get(self, request: Request, assignment_id: str) -> Response:
        regrades = self.find_mine(assignment_id).assignment.regrades
        rows = regrades.select_related("problem_version").defer(ProblemVersion.BODY_OF)
        return newest_first(self, rows, representation.regrade)

    @extend_schema(
        operation_id="regrade",
        summary="Judge submissions again",
        description=(
            "By the assignment's version of the problem or by another one, which is then the assignment's. "
            "`dry_run` changes nothing and says for each student what would. What is replaced is kept in "
            "`earlier` of each submission."
        ),
        tags=TAGS,
        parameters=[PREFER],
        request={"application/json": schema.RegradeRequest},
        responses={
            200: OpenApiResponse(schema.Regrade, "It ended while the client waited."),
            202: OpenApiResponse(schema.Regrade, "Queued; see `Location` and `Retry-After`."),
            **problems(400, 401, 403, 404, 409, 413, 415, 422, 429, 503),
        },
    )
    def post(self, request: Request, assignment_id: str) -> Response:
        assignment = self.find_mine(assignment_id).assignment
        seconds = self.seconds_to_wait()
        body = parsers.json_body(request)
        key = self.checked_key(parsers.body_digest(request))
        new = bodies.regrade(body)
        version = authoring.version_to_regrade_by(assignment, new)

        def start() -> Regrade:
            return authoring.regrade(assignment, new, version)

        row, replayed = idempotency.once(key, _again, start)
        waited = preferences.wait_for(row, seconds)
        return answer(row, request, waited=seconds if waited else None, replayed=replayed)


def _again(regrade_id: str) -> Regrade | None:
    rows = Regrade.objects.select_related("problem_version").defer(ProblemVersion.BODY_OF)
    return rows.filter(pk=regrade_id).first()


def answer(row: Regrade, request: Request, *, waited: int | None, replayed: bool = False) -> Response:
    headers = {} if row.is_terminal else {"Retry-After": "1"}
    where = {"assignment_id": row.assignment_id, "regrade_id": row.id}
    headers["Location"] = representation.address(request._request, "regrade", **where)
    if waited is not None:
        headers["Preference-Applied"] = f"wait={waited}"
    if replayed:
        headers |= idempotency.REPLAYED
    status = 200 if row.is_terminal else 202
    return Response(representation.regrade(row), status=status, headers=headers)


class RegradeView(StaffView):
    @extend_schema(
        operation_id="get_regrade",
        summary="A regrade",
        description="With the difference for each student whose scores change.",
        tags=TAGS,
        parameters=[PREFER],
        responses={200: schema.Regrade, **problems(400, 401, 403, 404, 429)},
    )
    def get(self, request: Request, assignment_id: str, regrade_id: str) -> Response:
        assignment = self.find_mine(assignment_id).assignment
        row = _again(regrade_id)
        if row is None or row.assignment_id != assignment.id:
            raise Http404
        preferences.wait_for(row, self.seconds_to_wait())
        headers = {} if row.is_terminal else {"Retry-After": "1"}
        return Response(representation.regrade(row), headers=headers)


class IncidentsView(StaffView):
    @extend_schema(
        operation_id="list_incidents",
        summary="What failed on our side",
        description="With the submissions that it touched; each of them was graded again, or cost no try.",
        tags=TAGS,
        parameters=CURSOR,
        responses={200: schema.IncidentPage, **problems(400, 401, 403, 404, 429)},
    )
    def get(self, request: Request, assignment_id: str) -> Response:
        assignment = self.find_mine(assignment_id).assignment
        touching = Incident.submissions.through.objects.filter(submission__assignment=assignment)
        rows = Incident.objects.filter(pk__in=touching.values("incident"))
        mine = Submission.objects.filter(assignment=assignment).only("user_ref", "status", "assignment_id")
        found = rows.prefetch_related(Prefetch("submissions", mine))
        return newest_first(self, found, representation.incident)
