"""POST /api/v1/grade: answers judged while the client waits, without an assignment. Nothing is kept."""

from typing import Any

from drf_spectacular.utils import OpenApiExample, OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api.grading import feedback, schema
from api.grading.access import GradingView
from api.openapi import problems
from api.pure import PureView
from api.uploads import store
from kernels.grading.answers import Answers, read_answers
from kernels.grading.cases import seeds_of_number
from kernels.grading.model import Problem
from kernels.grading.problem import QUESTION, parse_question
from kernels.limits import MAX_SEED
from kernels.spec import FieldProblem, SpecError
from kernels.spec.problems import Problems
from kernels.spec.reader import ObjectReader
from workers.grading import judging
from workers.grading import problems as rows

# Of all cases together: what the web process may compute at once. Larger problems have assignments.
MOST_PAIRS = 2**21


class GradeView(PureView, GradingView):
    @extend_schema(
        operation_id="grade",
        summary="Grade answers at once",
        description=(
            "Either of a problem, with the inputs of `GET /problems/{slug}/inputs?seed=…`; or of a spec with "
            "its inputs. The same answers get the same verdict every time."
        ),
        tags=["problems"],
        request={"application/json": schema.GradeRequest},
        examples=[
            OpenApiExample("A computation and its answer", schema.QUESTION_EXAMPLE, request_only=True),
        ],
        responses={
            200: OpenApiResponse(schema.Judgement, "The verdict."),
            **problems(400, 401, 404, 409, 413, 415, 422, 429, 503),
        },
    )
    def post(self, request: Request) -> Response:
        return self.answer(request, self._grade)

    def _grade(self, body: Any) -> dict[str, Any]:
        named = isinstance(body, dict) and "problem" in body
        problem, seeds, answers, head = self._of_problem(body) if named else self._of_question(body)
        _check_size(problem)
        result = judging.judge_once(problem, seeds, answers)
        return {**feedback.judgement(result, feedback.READER), **head}

    def _of_problem(self, body: Any) -> tuple[Problem, dict[str, int], Answers, dict[str, Any]]:
        found = Problems()
        reader = ObjectReader(body, "", found, ("problem", "version", "seed", "answers"))
        seed = reader.integer("seed", 0, 0, MAX_SEED)
        number = reader.integer_or_null("version", 1, 2**31 - 1)
        slug = reader.fields["problem"]
        if not isinstance(slug, str):
            reader.wrong_type("problem", "the slug of a problem")
        found.raise_if_any()
        row = rows.find(slug, self.caller.owner)
        version = rows.version_of(row, self.caller.owner, number) if row else None
        if version is None:
            detail = f"there is no such problem as {slug[:64]!r}; GET /api/v1/problems lists those there are"
            raise SpecError([FieldProblem("/problem", "not-found", detail)])
        problem = judging.problem_of(version)
        answers = read_answers(problem, reader.fields.get("answers"), "/answers", store.loader(self.caller))
        head = {"problem": slug, "seed": seed}
        return problem, seeds_of_number(problem, seed), answers, head

    def _of_question(self, body: Any) -> tuple[Problem, dict[str, int], Answers, dict[str, Any]]:
        load_upload = store.loader(self.caller)
        problem = parse_question(body, load_upload=load_upload)
        answers = read_answers(problem, body.get("answers"), "/answers", load_upload)
        return problem, {QUESTION: 0}, answers, {"problem": None, "seed": None}


def _check_size(problem: Problem) -> None:
    pairs = judging.pairs_of(problem)
    if sum(pairs) > MOST_PAIRS:
        detail = (
            f"its cases have {sum(pairs):,} pairs of a query and a key; in one call at most {MOST_PAIRS:,} "
            "are graded: use an assignment, or shorter cases"
        )
        raise SpecError([FieldProblem("", "too-slow", detail)])
