"""/api/v1/assignments/{id}/submissions and /api/v1/submissions: what students hand in."""

import datetime
from collections.abc import Sequence
from typing import Any

from django.urls import reverse
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api import errors, idempotency, parsers, preferences
from api.errors import Problem
from api.grading import bodies, feedback, reports, schema
from api.grading.access import Access, GradingView, checked_user_ref
from api.grading.assignments import CURSOR, KEY
from api.openapi import PREFER, problems
from api.pagination import NewestFirst
from api.uploads import store
from api.views import AnyAccept
from kernels.grading.answers import read_answers
from kernels.spec import SpecError
from kernels.spec.problems import Problems, show
from workers.grading import answers, judging, submissions
from workers.grading.assignments import NotOpen
from workers.grading.models import ProblemVersion, State, Submission, SubmissionBatch
from workers.grading.submissions import Draft

TAGS = ["submissions"]
RETRY_AFTER = "1"
VIEW = OpenApiParameter(
    "view", str, enum=("student", "staff"), description="staff: everything, for who teaches."
)
NOT_OPEN = "not-open"
Result = dict[str, Any]  # of one submission in a batch


class NewestSubmissions(NewestFirst):
    ordering = ("-submitted_at", "id")


class SubmissionsView(GradingView):
    """What reads or makes submissions."""

    arrived: datetime.datetime  # of what is handed in: in time is who had sent it, however long we take

    def body(self) -> Any:
        found = parsers.json_body(self.request)
        self.arrived = timezone.now()
        return found

    def as_staff(self, access: Access, default: str = "student") -> bool:
        """Whether the request asks for what only staff sees."""
        wanted = self.request.query_params.get("view", default)
        if wanted not in ("student", "staff"):
            raise Problem(400, f"view must be student or staff, not {show(wanted)}.")
        if wanted == "staff":
            access.require_staff()
        return wanted == "staff"

    def document(self, submission: Submission, access: Access, default: str = "student") -> dict[str, Any]:
        staff = self.as_staff(access, default)
        submission.assignment = access.assignment
        if submission.problem_version_id == access.assignment.problem_version_id:
            submission.problem_version = access.assignment.problem_version
        return feedback.represent(submission, feedback.view_of(submission, as_staff=staff), as_staff=staff)

    def answer(
        self,
        submission: Submission,
        access: Access,
        status: int,
        *,
        waited: int | None = None,
        replayed: bool = False,
    ) -> Response:
        headers = {}
        if not submission.is_terminal:
            headers["Retry-After"] = RETRY_AFTER
        if waited is not None:
            headers["Preference-Applied"] = f"wait={waited}"
        if replayed:
            headers |= idempotency.REPLAYED
        if self.request.method == "POST":
            path = reverse("api:submission", kwargs={"submission_id": submission.id})
            headers["Location"] = self.request.build_absolute_uri(path)
        return Response(self.document(submission, access), status=status, headers=headers)

    def draft(self, handed: bodies.Handed, access: Access) -> Draft:
        """The answers of one submission, read. Raises SpecError, or a Problem."""
        access.require(handed.user_ref)
        problem = judging.problem_of(access.assignment.problem_version)
        read = read_answers(problem, handed.answers, handed.pointer, store.loader(self.caller))
        content = answers.pack(read)
        return Draft(
            handed.user_ref,
            content,
            answers.fingerprint(handed.user_ref, content),
            handed.external_id,
            handed.submitted_at or self.arrived,
            handed.attempt,
        )


class AssignmentSubmissionsView(SubmissionsView):
    quota_name = "submissions"

    @extend_schema(
        operation_id="list_submissions",
        summary="The submissions of an assignment",
        description="The newest first; for who teaches, or with a key the student's own.",
        tags=TAGS,
        parameters=[
            *CURSOR,
            KEY,
            VIEW,
            OpenApiParameter("user_ref", str, description="Of this student."),
            OpenApiParameter("status", str, enum=State.values),
        ],
        responses={200: schema.SubmissionPage, **problems(400, 401, 403, 404, 429)},
    )
    def get(self, request: Request, assignment_id: str) -> Response:
        access = self.find_assignment(assignment_id)
        if access.user_ref is None:
            access.require_staff()
        staff = self.as_staff(access)
        rows = access.assignment.submissions.select_related("problem_version").defer(ProblemVersion.BODY_OF)
        user_ref = request.query_params.get("user_ref", access.user_ref)
        if user_ref is not None:
            access.require(user_ref)
            rows = rows.filter(user_ref=checked_user_ref(user_ref))
        if status := request.query_params.get("status"):
            if status not in State.values:
                raise Problem(400, f"status must be one of {', '.join(State.values)}, not {show(status)}.")
            rows = rows.filter(status=status)
        pages = NewestSubmissions()
        page: list[Submission] = pages.paginate_queryset(rows, request, view=self) or []
        return pages.get_paginated_response(feedback.represent_all(access.assignment, page, as_staff=staff))

    @extend_schema(
        operation_id="submit_answers",
        summary="Hand in",
        description=(
            "What cannot be read is told before anything is recorded. Over the limit of the assignment "
            "nothing is recorded either (429); what fails on our side costs nobody a try. Sent again with "
            "the same `external_id` and answers it is the submission that it was then; one that ended in "
            "`error` is graded again, as in time as it was. One that was canceled stays so."
        ),
        tags=TAGS,
        parameters=[PREFER, KEY, VIEW],
        request={"application/json": schema.SubmissionRequest},
        responses={
            200: OpenApiResponse(schema.Submission, "It was graded while the client waited, or before."),
            202: OpenApiResponse(schema.Submission, "Queued; see `Location` and `Retry-After`."),
            **problems(400, 401, 403, 404, 409, 413, 415, 422, 429, 503),
        },
    )
    def post(self, request: Request, assignment_id: str) -> Response:
        access = self.find_assignment(assignment_id)
        self.as_staff(access)
        seconds = self.seconds_to_wait()
        self.count("submissions")
        body = self.body()
        key = self.checked_key(parsers.body_digest(request))
        found = Problems()
        handed = bodies.submission(body, "", found, is_staff=access.is_staff)
        found.raise_if_any()
        draft = self.draft(handed, access)
        submission, replayed = idempotency.once(key, _again, lambda: _recorded(assignment_id, draft))
        if replayed:
            submission.refresh_from_db()
        waited = preferences.wait_for(submission, seconds)
        status = 200 if submission.is_terminal else 202
        return self.answer(submission, access, status, waited=seconds if waited else None, replayed=replayed)


def _again(submission_id: str) -> Submission | None:
    return Submission.objects.filter(pk=submission_id).first()


def _recorded(assignment_id: str, draft: Draft) -> Submission:
    (entered,) = submissions.record(assignment_id, [draft])
    if isinstance(entered, submissions.Refusal):
        raise _problem(entered)
    return entered


def _problem(refusal: submissions.Refusal) -> Problem:
    """Why a submission was not recorded."""
    match refusal:
        case submissions.OverLimit():
            headers = {"Retry-After": str(refusal.retry_after)}
            return Problem(429, str(refusal), kind="submission-limit", headers=headers)
        case submissions.Conflict():
            return Problem(409, str(refusal), kind="external-id-taken")
        case submissions.StaleInputs():
            return Problem(409, str(refusal), kind="stale-inputs")
        case _:
            kind = NOT_OPEN if isinstance(refusal.__cause__, NotOpen) else ""
            return Problem(409, str(refusal), kind=kind)


class BatchView(SubmissionsView):
    quota_name = "submissions"

    @extend_schema(
        operation_id="submit_batch",
        summary="Hand in for many",
        description=(
            f"Up to {bodies.MAX_BATCH:,} submissions, graded together. Each is taken or refused by itself, "
            "and `results` says so in their order; a refused one has an `error`. For who teaches, or a "
            "harness with a token for the assignment."
        ),
        tags=TAGS,
        parameters=[PREFER],
        request={"application/json": schema.BatchRequest},
        responses={
            200: OpenApiResponse(schema.BatchAnswer, "All of them have ended."),
            202: OpenApiResponse(schema.BatchAnswer, "Some are still queued."),
            **problems(400, 401, 403, 404, 409, 413, 415, 422, 429, 503),
        },
    )
    def post(self, request: Request, assignment_id: str) -> Response:
        access = self.find_assignment(assignment_id)
        seconds = self.seconds_to_wait()
        body = self.body()
        key = self.checked_key(parsers.body_digest(request))
        found = bodies.batch(body)
        self.count("submissions", max(1, len(found)))
        if key and (earlier := _earlier_batch(key)):
            return self._answer(earlier.results, seconds, replayed=True)
        read = self._read_all(found, access)
        if key is None:
            return self._answer(self._record(access, read), seconds, replayed=False)

        def keep() -> SubmissionBatch:
            return SubmissionBatch.objects.create(
                assignment=access.assignment, results=self._record(access, read)
            )

        batch, replayed = idempotency.once(key, _batch, keep)
        return self._answer(batch.results, seconds, replayed=replayed)

    def _read_all(self, found: Sequence[object], access: Access) -> list[tuple[Result, Draft | None]]:
        """Each submission as its result is so far, and its draft where it could be read. Before anything is
        locked: a thousand take a second."""
        read: list[tuple[Result, Draft | None]] = []
        for index, body in enumerate(found):
            result = _unrecorded(body)
            try:
                read.append((result, self._read(body, f"/submissions/{index}", access)))
            except (Problem, SpecError) as error:
                read.append(({**result, **self._refused(error)}, None))
        return read

    def _record(self, access: Access, read: Sequence[tuple[Result, Draft | None]]) -> list[Result]:
        """One result for each submission, in order."""
        drafts = [draft for _, draft in read if draft]
        entered = iter(submissions.record(access.assignment.id, drafts) if drafts else [])
        return [{**result, **self._outcome(next(entered))} if draft else result for result, draft in read]

    def _outcome(self, entered: Submission | submissions.Refusal) -> Result:
        if isinstance(entered, submissions.Refusal):
            return self._refused(_problem(entered))
        return {"id": entered.id, "status": str(entered.status)}

    def _read(self, body: object, pointer: str, access: Access) -> Draft:
        problems = Problems()
        handed = bodies.submission(body, pointer, problems, is_staff=access.is_staff)
        problems.raise_if_any()
        return self.draft(handed, access)

    def _refused(self, error: Exception) -> Result:
        path = self.request.path
        return {"status": "refused", "error": errors.translate(error, path).document(path)}

    def _answer(self, results: list[dict[str, Any]], seconds: int | None, *, replayed: bool) -> Response:
        ids = [result["id"] for result in results if result["id"]]
        if seconds or replayed:
            states = preferences.wait_for_all(ids, seconds or 0)
            for result in results:
                result["status"] = states.get(result["id"], result["status"])
        waits = any(result["status"] in (State.QUEUED, State.GRADING) for result in results)
        headers = {"Retry-After": RETRY_AFTER} if waits else {}
        if replayed:
            headers |= idempotency.REPLAYED
        return Response({"results": results}, status=202 if waits else 200, headers=headers)


def _unrecorded(body: object) -> dict[str, Any]:
    external_id = body.get("external_id") if isinstance(body, dict) else None
    return {
        "external_id": external_id if isinstance(external_id, str) else None,
        "id": None,
        "status": "refused",
    }


def _batch(batch_id: str) -> SubmissionBatch | None:
    return SubmissionBatch.objects.filter(pk=batch_id).first()


def _earlier_batch(key: idempotency.Key) -> SubmissionBatch | None:
    batch_id = idempotency.find(key)
    return _batch(batch_id) if batch_id else None


class SubmissionView(SubmissionsView):
    @extend_schema(
        operation_id="get_submission",
        summary="A submission",
        description=(
            "As its student may read it: of a hidden case there are no numbers until it says. With "
            "`view=staff`, everything, for who teaches."
        ),
        tags=TAGS,
        parameters=[PREFER, KEY, VIEW],
        responses={200: schema.Submission, **problems(400, 401, 403, 404, 429)},
    )
    def get(self, request: Request, submission_id: str) -> Response:
        submission, access = self.find_submission(submission_id)
        self.as_staff(access)
        seconds = self.seconds_to_wait()
        waited = preferences.wait_for(submission, seconds)
        return self.answer(submission, access, 200, waited=seconds if waited else None)

    @extend_schema(
        operation_id="cancel_submission",
        summary="Take a submission back",
        description="While it has no verdict; the student has the try again. A graded one stays (409).",
        tags=TAGS,
        parameters=[KEY, VIEW],
        responses={200: schema.Submission, **problems(400, 401, 403, 404, 409, 429)},
    )
    def delete(self, request: Request, submission_id: str) -> Response:
        submission, access = self.find_submission(submission_id)
        self.as_staff(access)
        submissions.cancel(submission_id)
        submission.refresh_from_db(fields=Submission.CHANGING)
        return self.answer(submission, access, 200)


class ResultsView(SubmissionsView):
    content_negotiation_class = AnyAccept

    @extend_schema(
        operation_id="get_results",
        summary="A verdict in another system's words",
        description=(
            "`gradescope`: the results.json of its autograders, for who teaches with the numbers of hidden "
            "tests, which Gradescope itself hides; `prairielearn`: that of its external graders. 409 while "
            "there is no verdict, and for good where there will be none."
        ),
        tags=TAGS,
        parameters=[
            KEY,
            VIEW,
            OpenApiParameter("format", str, enum=tuple(reports.FORMATS), required=True),
        ],
        responses={
            200: OpenApiResponse(schema.Results, "In the fields of that system."),
            **problems(400, 401, 403, 404, 409, 429),
        },
    )
    def get(self, request: Request, submission_id: str) -> Response:
        submission, access = self.find_submission(submission_id)
        wanted = request.query_params.get("format", "")
        if wanted not in reports.FORMATS:
            raise Problem(400, f"format must be {' or '.join(reports.FORMATS)}, not {show(wanted)}.")
        # A format that says of each test who may see it is filled in, for who may see all of it.
        default = "staff" if wanted == "gradescope" and access.is_staff else "student"
        document = self.document(submission, access, default)
        if submission.status != State.GRADED:
            headers = {} if submission.is_terminal else {"Retry-After": RETRY_AFTER}
            detail = f"The submission is {submission.status}, so there are no results to report."
            raise Problem(409, detail, kind="not-graded", headers=headers)
        return Response(reports.FORMATS[wanted](document))
