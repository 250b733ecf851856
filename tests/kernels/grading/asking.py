"""Problems and attempts in a line."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.arrays import float32_to_bfloat16
from kernels.grading.answers import Answer, Answers
from kernels.grading.cases import attempt_seeds, make_inputs
from kernels.grading.judge import Attempt, judge
from kernels.grading.model import Problem
from kernels.grading.problem import parse_problem
from kernels.grading.report import Judgement

Arrays = dict[str, np.ndarray]


def shape(*sizes: int, e: int | None = None, batch: int = 1) -> dict[str, int]:
    """Of heads, key heads, queries, keys and head dim."""
    names = ("num_heads", "num_kv_heads", "q_len", "kv_len", "head_dim")
    return {
        **dict(zip(names, sizes, strict=True)),
        "v_head_dim": sizes[-1] if e is None else e,
        "batch": batch,
    }


def ask(
    sizes: dict[str, int],
    attention: dict[str, Any] | None = None,
    *,
    answer: tuple[str, ...] = ("out",),
    cases: int = 1,
    dtype: str = "float32",
    case: dict[str, Any] | None = None,
    **fields: Any,
) -> Problem:
    """A problem whose cases all look alike."""
    body = {
        "slug": "a-problem", "title": "A problem", "spec": {"dtype": dtype, "attention": attention or {}},
        "answer": [{"name": name, "points": 1} for name in answer],
        "cases": [{"name": f"case {i}", "points": 1, "shape": sizes, "distribution": "peaked", **(case or {})}
                  for i in range(cases)],
        **fields,
    }  # fmt: skip
    return parse_problem(body)


def seeds(problem: Problem, user: str = "ada", attempt: int = 1) -> dict[str, int]:
    return attempt_seeds(problem, b"a secret", user_ref=user, attempt=attempt)


def inputs(problem: Problem, name: str = "case 0", user: str = "ada") -> Arrays:
    return make_inputs(problem, problem.case(name), seeds(problem, user)[name])


def as_dtype(array: np.ndarray, dtype: str) -> Answer:
    """As it is handed in in base64."""
    if dtype == "bfloat16":
        bits = float32_to_bfloat16(array.astype(np.float32)).astype(np.uint32) << np.uint32(16)
        return Answer(bits.view(np.float32), dtype)
    return Answer(array.astype(dtype), dtype)


def handed_in(problem: Problem, given: dict[str, Arrays], dtype: str = "float64") -> Answers:
    """Of each case the answers that the problem asks for."""
    names = [part.name for part in problem.answers]
    return Answers(
        {
            case: {name: as_dtype(arrays[name], dtype) for name in names if name in arrays}
            for case, arrays in given.items()
        }
    )


def judged(
    problem: Problem, given: dict[str, Arrays], dtype: str = "float64", user: str = "ada"
) -> Judgement:
    return judge(problem, [Attempt(seeds(problem, user), handed_in(problem, given, dtype))])[0]
