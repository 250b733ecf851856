"""/api/v1/assignments: problems given to students."""

import datetime
from typing import Any
from urllib.parse import quote

from django.http import Http404, HttpResponse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api import idempotency, parsers
from api.errors import Problem
from api.grading import arrays, authoring, bodies, keys, representation, schema
from api.grading.access import GradingView, checked_user_ref
from api.models import AUTHOR, ApiToken
from api.openapi import problems
from api.pagination import newest_first
from api.pure import PureView
from api.views import AnyAccept
from workers.grading import assignments, judging
from workers.grading.models import Assignment, ProblemVersion

TAGS = ["assignments"]
KEY = OpenApiParameter("key", str, description="A student's key, where there is no token.")
CURSOR = [
    OpenApiParameter("cursor", str, description="From `next` or `previous`."),
    OpenApiParameter("limit", int, description="Rows per page, at most 100."),
]


class AssignmentsView(GradingView):
    scope = AUTHOR

    @extend_schema(
        operation_id="list_assignments",
        summary="My assignments",
        description="The newest first. Needs a token with the scope author.",
        tags=TAGS,
        parameters=CURSOR,
        responses={200: schema.AssignmentPage, **problems(400, 401, 403, 429)},
    )
    def get(self, request: Request) -> Response:
        self.require(AUTHOR)
        rows = Assignment.objects.select_related("problem_version__problem").defer(ProblemVersion.BODY_OF)
        mine = rows.filter(owner=self.caller.owner)
        return newest_first(self, mine, representation.assignment)

    @extend_schema(
        operation_id="create_assignment",
        summary="Give a problem to students",
        description=(
            "Draws the secret seed from which every student's inputs follow. Its SHA-256 is told at once, "
            "the seed itself after the last due date, so that anybody can check that nobody was favoured."
        ),
        tags=TAGS,
        request={"application/json": schema.AssignmentRequest},
        responses={201: schema.Assignment, **problems(400, 401, 403, 409, 413, 415, 422, 429, 503)},
    )
    def post(self, request: Request) -> Response:
        self.require(AUTHOR)
        body = parsers.json_body(request)
        key = self.checked_key(parsers.body_digest(request))
        new = bodies.assignment(body)
        row, replayed = idempotency.once(key, self._again, lambda: authoring.assign(self.caller.owner, new))
        headers = {
            "Location": representation.address(request._request, "assignment", assignment_id=row.id),
            **(idempotency.REPLAYED if replayed else {}),
        }
        return Response(representation.assignment(row), status=201, headers=headers)

    def _again(self, assignment_id: str) -> Assignment | None:
        return Assignment.objects.filter(pk=assignment_id).first()


class AssignmentView(GradingView):
    @extend_schema(
        operation_id="get_assignment",
        summary="An assignment",
        description="For who teaches, and for who has a token or a key for it.",
        tags=TAGS,
        parameters=[KEY],
        responses={200: schema.Assignment, **problems(401, 404, 429)},
    )
    def get(self, request: Request, assignment_id: str) -> Response:
        return Response(representation.assignment(self.find_assignment(assignment_id).assignment))

    @extend_schema(
        operation_id="change_assignment",
        summary="Change dates, or publish grades",
        description=(
            "What was handed in before is late, and loses points for it, by the due date as it is now. Once "
            "its seed is known, an assignment cannot be opened again (409)."
        ),
        tags=TAGS,
        request={"application/json": schema.AssignmentChange},
        responses={200: schema.Assignment, **problems(400, 401, 403, 404, 409, 413, 415, 422, 429)},
    )
    def patch(self, request: Request, assignment_id: str) -> Response:
        access = self.find_assignment(assignment_id)
        access.require_staff()
        row = access.assignment
        authoring.change(row, parsers.json_body(request))
        return Response(representation.assignment(row))


class VariantView(GradingView):
    content_negotiation_class = AnyAccept

    @extend_schema(
        operation_id="get_variant",
        summary="The inputs of a student",
        description=(
            "The same every time, and different for every `user_ref`. Arrays are lists up to 65,536 numbers, "
            "else links; with `format` the whole is a file whose members are `<case>/q` …"
        ),
        tags=TAGS,
        parameters=[KEY, *arrays.PARAMETERS],
        responses={
            (200, "application/json"): OpenApiResponse(schema.Variant, "The arrays by case and name."),
            (200, "application/octet-stream"): OpenApiTypes.BINARY,
            **problems(400, 401, 403, 404, 409, 429, 503),
        },
    )
    def get(self, request: Request, assignment_id: str, user_ref: str) -> HttpResponse:
        access = self.find_assignment(assignment_id)
        if not access.may_act_for(user_ref):
            raise Http404
        checked_user_ref(user_ref)
        assignment = access.assignment
        if not access.is_staff and assignments.phase(assignment, timezone.now()) == UNRELEASED:
            raise Problem(409, str(assignments.NotOpen(assignment, UNRELEASED)), kind="not-open")
        number = assignments.next_number(assignment, user_ref)
        problem, seeds = judging.attempt_of(assignment, user_ref, number)
        head: dict[str, Any] = {
            "user_ref": user_ref,
            "problem": assignment.problem_version.problem.slug,
            "problem_version": assignment.problem_version.number,
            "attempt": number,
        }
        with self.computing(arrays.numbers_of(problem)):
            return arrays.respond(request, head, problem, seeds, f"{assignment.id}-inputs")


UNRELEASED = assignments.Phase.UNRELEASED


class TokensView(GradingView):
    @extend_schema(
        operation_id="create_submit_token",
        summary="A token that hands in",
        description=(
            "For this assignment only, for any student: what an autograder's harness holds. Shown this once."
        ),
        tags=TAGS,
        request={"application/json": schema.TokenRequest},
        responses={201: schema.Token, **problems(400, 401, 403, 404, 409, 413, 415, 422, 429, 503)},
    )
    def post(self, request: Request, assignment_id: str) -> Response:
        access = self.find_assignment(assignment_id)
        access.require_staff()
        body = parsers.json_body(request)
        key = self.checked_key(parsers.body_digest(request))
        new = bodies.token(body)
        if key and idempotency.find(key) is not None:
            raise Problem(409, "This request made its token already, which was shown that once.")
        days = new.expires_days
        expires_at = timezone.now() + datetime.timedelta(days=days) if days else None
        user = self.request.auth.user if isinstance(self.request.auth, ApiToken) else None
        token, text = ApiToken.issue(new.name, expires_at, user=user, assignment=access.assignment)
        if key:
            idempotency.note(key)
        document = {"name": token.name, "token": text, "scopes": token.scopes, "expires_at": expires_at}
        return Response(document, status=201)


class KeysView(PureView, GradingView):
    @extend_schema(
        operation_id="list_student_keys",
        summary="Whose keys were made",
        description="The newest first: since when each is in force, and when, to a minute, it was used.",
        tags=TAGS,
        parameters=CURSOR,
        responses={200: schema.StudentKeyPage, **problems(400, 401, 403, 404, 429)},
    )
    def get(self, request: Request, assignment_id: str) -> Response:
        access = self.find_assignment(assignment_id)
        access.require_staff()
        return newest_first(self, access.assignment.keys.all(), representation.student_key)

    @extend_schema(
        operation_id="student_keys",
        summary="The keys of students",
        description=(
            "A key acts for one student at this assignment, as `?key=…`: for a link to each. The same "
            "student has the same key until it is revoked; the key itself is not kept."
        ),
        tags=TAGS,
        request={"application/json": schema.KeysRequest},
        responses={200: schema.Keys, **problems(400, 401, 403, 404, 409, 413, 415, 422, 429, 503)},
    )
    def post(self, request: Request, assignment_id: str) -> Response:
        self.find_assignment(assignment_id).require_staff()
        return self.answer(request, lambda body: self._keys(assignment_id, bodies.user_refs(body)))

    def _keys(self, assignment_id: str, user_refs: list[str]) -> dict[str, Any]:
        where = {"assignment_id": assignment_id}
        submissions = representation.address(self.request._request, "submissions", **where)
        variants = representation.address(self.request._request, "variant", **where, user_ref="x")[:-1]
        found = []
        for student in keys.make(assignment_id, user_refs):
            key = student.key
            found.append(
                {
                    "user_ref": student.user_ref,
                    "key": key,
                    "variant": f"{variants}{quote(student.user_ref)}?key={key}",
                    "submissions": f"{submissions}?key={key}",
                }
            )
        return {"keys": found}


class KeyView(GradingView):
    @extend_schema(
        operation_id="revoke_student_key",
        summary="Revoke a student's key",
        description=(
            "From then on it is answered as one that nobody made. `POST …/keys` gives the one that takes its "
            "place."
        ),
        tags=TAGS,
        responses={204: None, **problems(400, 401, 403, 404, 429)},
    )
    def delete(self, request: Request, assignment_id: str, user_ref: str) -> Response:
        access = self.find_assignment(assignment_id)
        access.require_staff()
        keys.revoke(access.assignment.id, checked_user_ref(user_ref))
        return Response(status=204)
