"""Where rows meet the mathematics: the only module of grading that computes.

A problem is read once in a process: its version never changes.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from kernels.grading.answers import Answers
from kernels.grading.cases import attempt_seeds, make_inputs
from kernels.grading.judge import Attempt
from kernels.grading.judge import judge as judge_attempts
from kernels.grading.model import Case, Problem, held_to_least
from workers.grading import answers, scoring
from workers.grading.models import Answers as AnswersRow
from workers.grading.models import Assignment, ProblemVersion, Submission
from workers.grading.submissions import MOST_AT_ONCE, Claim, Judged, fitting

KEPT_PROBLEMS = 64
# Numbers of one score matrix for all attempts that are judged together; a judge holds some ten of them.
MOST_PAIRS = 2**22

_problems: OrderedDict[tuple[str, str], Problem] = OrderedDict()


class NothingJudged(Exception):
    """A judge that looked at nothing gave a verdict: it counts for nothing."""


def problem_of(version: ProblemVersion) -> Problem:
    """The problem of a version as its publication left it, read once."""
    key = version.fingerprint, version.least_dtype
    problem = _problems.pop(key, None) or _read(version)
    _problems[key] = problem  # the latest used is the last
    while len(_problems) > KEPT_PROBLEMS:
        _problems.popitem(last=False)
    return problem


def _read(version: ProblemVersion) -> Problem:
    problem = Problem.from_dict(version.body)
    return held_to_least(problem, version.least_dtype) if version.least_dtype else problem


def at_once(version: ProblemVersion) -> int:
    """How many submissions to judge together, of a problem of this size."""
    return min(MOST_AT_ONCE, max(1, MOST_PAIRS // max(1, *pairs_of(problem_of(version)))))


def pairs_of(problem: Problem) -> list[int]:
    """batch · heads · q_len · kv_len of each case; a trace of serving counts as one."""
    specs = [case.spec for case in problem.cases]
    return [spec.batch * spec.num_heads * spec.q_len * spec.kv_len if spec else 1 for spec in specs]


def attempt_of(assignment: Assignment, user_ref: str, number: int) -> tuple[Problem, dict[str, int]]:
    """The problem, and the seed of each of its cases for a student's attempt."""
    problem = problem_of(assignment.problem_version)
    return problem, attempt_seeds(problem, bytes(assignment.seed), user_ref=user_ref, attempt=number)


def inputs_of_case(problem: Problem, case: Case, seeds: Mapping[str, int]) -> dict[str, Any]:
    """The inputs of a case as a student gets them, and the computation that is asked for."""
    inputs: dict[str, Any] = dict(make_inputs(problem, case, seeds[case.name]))
    if case.run is not None:
        inputs["attention"] = case.run.to_dict()["attention"]
    return inputs


def judge_once(problem: Problem, seeds: Mapping[str, int], handed: Answers) -> dict[str, Any]:
    """The judgement, as JSON, of answers that are kept nowhere."""
    (found,) = judge_attempts(problem, [Attempt(seeds, handed)])
    return _checked(problem, found.to_dict())


def judge(claim: Claim) -> list[Judged]:
    """Every submission of a claim, together. Raises whatever fails: then nobody has a verdict."""
    version = claim.assignment.problem_version
    return _judge(claim.assignment, version, claim.submissions, claim.answers)


def judge_again(
    assignment: Assignment, version: ProblemVersion, submissions: Sequence[Submission]
) -> list[Judged]:
    """The same of submissions that have a verdict, by any version of the problem."""
    left, found = list(submissions), list[Judged]()
    while left:
        group = list(fitting((each, each.size) for each in left[: at_once(version)]))
        left = left[len(group) :]
        found += _judge(assignment, version, group, _contents(group))
    return found


def _contents(group: Sequence[Submission]) -> dict[str, bytes]:
    rows = AnswersRow.objects.filter(submission__in=group).values_list("submission_id", "content")
    return {pk: bytes(content) for pk, content in rows}


def _judge(
    assignment: Assignment,
    version: ProblemVersion,
    submissions: Sequence[Submission],
    contents: Mapping[str, bytes],
) -> list[Judged]:
    problem, secret = problem_of(version), bytes(assignment.seed)
    attempts = [
        Attempt(
            attempt_seeds(problem, secret, user_ref=each.user_ref, attempt=each.number),
            answers.unpack(contents[each.id]),
        )
        for each in submissions
    ]
    found = judge_attempts(problem, attempts)
    return [
        _judged(assignment, submission, _checked(problem, judgement.to_dict()))
        for submission, judgement in zip(submissions, found, strict=True)
    ]


def _judged(assignment: Assignment, submission: Submission, result: dict[str, Any]) -> Judged:
    score, most = scoring.points(assignment, result, submission.deduction)
    return Judged(submission, result, score, most)


def _checked(problem: Problem, result: dict[str, Any]) -> dict[str, Any]:
    """The result, if every case was looked at."""
    names = " ".join(str(test["name"]) for test in result["tests"])
    if not result["tests"] or not all(case.name in names for case in problem.cases):
        raise NothingJudged(f"{len(result['tests'])} tests of {len(problem.cases)} cases")
    if not math.isfinite(result["score"]):
        raise NothingJudged(f"a score of {result['score']}")
    return result
