"""A case in the lab: the same inputs and the same computation, run by the float64 engine, with the row lit in
which an answer is furthest off."""

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlencode

import numpy as np
from django.http import Http404

from kernels.grading.case import encoded
from kernels.grading.cases import attempt_seeds, make_inputs
from kernels.grading.model import Case, Problem
from lab.form import fork
from workers.grading.models import Submission

ENGINE = "reference"
RETURNS = ("out", "lse", "weights", "masked_scores")
SEEDED = ("q", "k", "v")  # that the lab draws as a grader does


def place(problem: Problem, name: str, numerics: Mapping[str, Any]) -> str | None:
    """The query string that lights the worst row of a case on the page of its run; None where the lab cannot
    compute it, or no row is wrong."""
    case = next((case for case in problem.cases if case.name == name), None)
    cells = numerics.get("worst") or []
    if case is None or case.run is None or not cells:
        return None
    index = cells[0]["index"]
    found = {"batch": index.get("batch"), "head": index.get("head"), "row": index.get("query")}
    return urlencode({name: value for name, value in found.items() if value is not None})


def of_test(
    tests: Iterable[Mapping[str, Any]], name: str, problem: Problem, submission: Submission
) -> tuple[dict[str, Any], str]:
    """The body of a run, and the place on its page, for a case of a submission that failed. Http404: it did
    not fail, or is not shown."""
    test = next((test for test in tests if test["lab"] is not None and test["case"] == name), None)
    if test is None:
        raise Http404
    secret, number = bytes(submission.assignment.seed), submission.number
    seeds = attempt_seeds(problem, secret, user_ref=submission.user_ref, attempt=number)
    return body_of(problem, problem.case(name), seeds[name]), str(test["lab"])


def body_of(problem: Problem, case: Case, seed: int) -> dict[str, Any]:
    """The body of `POST /api/v1/runs` that computes a case on the inputs of a seed.

    What is drawn from the seed alone stays a seed, so that the run's form can be edited.
    """
    if case.run is None:
        raise ValueError("a trace of serving is no run")
    inputs: dict[str, Any] = {}
    made = make_inputs(problem, case, seed)
    for name, given in case.run.inputs.items():
        if given.source == "seed" and name in SEEDED and case.made_by is None:
            shape, distribution = list(given.shape), given.distribution
            inputs[name] = {"seed": seed, "shape": shape, "distribution": distribution}
        elif name in made:
            inputs[name] = encoded(np.asarray(made[name]))
    inputs.pop("dout", None)  # no gradients are asked for there
    settings = fork.beyond_the_defaults(case.run)
    kept = {str(name): settings[name] for name in ("attention", "dtype") if name in settings}
    return {"engine": ENGINE, **kept, "inputs": inputs, "return": list(RETURNS)}
