"""Block tables and drafts: answers of integers, against serving written again in a few lines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernels.grading.answers import read_answers
from kernels.grading.cases import make_inputs
from kernels.grading.judge import Attempt, judge
from kernels.grading.mutants import matrix
from kernels.grading.problem import parse_problem
from tests.kernels.grading.asking import seeds

PAGING = ("block_table", "lens", "slots", "free_blocks", "references", "copies")
SPECULATIVE = ("accepted", "tokens", "counts")


def traced(kind: str, shape: dict[str, int], answer: tuple[str, ...], **case: Any) -> Any:
    return parse_problem(
        {"slug": "t", "title": "T", "kind": kind, "answer": list(answer),
         "cases": [{"name": "a", "points": 3, "shape": shape, **case}]}
    )  # fmt: skip


def paged(operations: np.ndarray, num_blocks: int, size: int) -> dict[str, np.ndarray]:
    """Every answer, from lists of blocks alone."""
    free, tables, lens, slots, copies = list(range(num_blocks))[::-1], {}, {}, [], []
    held = lambda block: sum(block in table for table in tables.values())  # noqa: E731
    for op, name, tokens, parent in operations.tolist():
        if op == 0:
            tables[name], lens[name] = [], 0
        if op in (0, 1):
            wanted = -(-(lens[name] + tokens) // size) - len(tables[name])
            shares = lens[name] % size and held(tables[name][-1]) > 1 and tokens
            taken = [free.pop() for _ in range(wanted + bool(shares))]
            if shares:
                copies.append((tables[name].pop(), taken[0]))
            tables[name] += taken
            for place in range(lens[name], lens[name] + tokens):
                slots.append(tables[name][place // size] * size + place % size)
            lens[name] += tokens
        elif op == 2:
            tables[name], lens[name] = tables[parent][: -(-tokens // size)], tokens
        else:
            for block in reversed(tables.pop(name)):
                if not held(block):
                    free.append(block)
            lens.pop(name)
    count = 1 + int(operations[:, 1].max())
    width = max(map(len, tables.values()), default=0)
    table = [tables.get(name, []) + [-1] * (width - len(tables.get(name, []))) for name in range(count)]
    return {
        "block_table": np.array(table).reshape(count, width),
        "lens": np.array([lens.get(name, 0) for name in range(count)]),
        "slots": np.array(slots),
        "free_blocks": np.array(free[::-1]),
        "references": np.array([held(block) for block in range(num_blocks)]),
        "copies": np.array(copies).reshape(-1, 2),
    }


def verdict(problem: Any, user: str, given: dict[str, Any]) -> Any:
    answers = read_answers(problem, {"a": given})
    return judge(problem, [Attempt(seeds(problem, user), answers)])[0]


@pytest.mark.parametrize("user", ["ada", "grace", "alan", "emmy"])
def test_block_tables(user: str) -> None:
    problem = traced("paging", {"num_blocks": 24, "block_size": 4, "sequences": 5, "steps": 30}, PAGING)
    given = make_inputs(problem, problem.cases[0], seeds(problem, user)["a"])
    assert given["operations"].shape[1] == 4
    assert given["memory"].tolist() == [24, 4]
    right = {name: x.tolist() for name, x in paged(given["operations"], 24, 4).items()}
    found = verdict(problem, user, right)
    assert (found.verdict, found.score, found.max_score) == ("accepted", 3.0, 3.0)
    wrong = {**right, "slots": [right["slots"][0] + 1, *right["slots"][1:]]}
    found = verdict(problem, user, wrong)
    assert (found.verdict, found.reason) == ("wrong_answer", "numeric_mismatch")
    assert found.score == pytest.approx(2.5)
    assert "the first is at token 0: yours is 1, right is 0" in found.tests[2]["output"]
    assert found.numerics["worst"][0]["index"] == {"token": 0}
    assert verdict(problem, "somebody else", right).verdict == "wrong_answer"


def test_an_authors_own_operations() -> None:
    operations = [
        {"op": "allocate", "sequence": 0, "tokens": 5},
        {"op": "fork", "sequence": 1, "parent": 0, "tokens": 5},
        {"op": "append", "sequence": 1, "tokens": 1}, {"op": "free", "sequence": 0},
    ]  # fmt: skip
    problem = traced(
        "paging", {"num_blocks": 6, "block_size": 4}, ("block_table", "copies"), operations=operations
    )
    right = {"block_table": [[-1, -1], [0, 2]], "copies": [[1, 2]]}
    assert verdict(problem, "ada", right).verdict == "accepted"
    padded = {"block_table": [[-1, -1, -1], [0, 2, -1]], "copies": [[1, 2]]}
    assert verdict(problem, "ada", padded).verdict == "accepted"
    for table in (
        [[-1, -1], [0, 1]],
        [[0, 1], [0, 2]],
        [[-1, -1, -1], [0, 2, 3]],
        [[0, 2]],
        [0, 2],
        [[0.5, 2]],
    ):
        assert verdict(problem, "ada", {**right, "block_table": table}).verdict == "wrong_answer"
    assert parse_problem(problem.to_dict()) == problem


def speculated(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Token by token, by the paper."""
    runs, gamma = given["drafted"].shape
    accepted, tokens = np.full((runs, gamma), -1), np.full((runs, gamma + 1), -1)
    for run in range(runs):
        kept = 0
        for place in range(gamma):
            token = given["drafted"][run, place]
            p, q = given["target"][run, place, token], given["draft"][run, place, token]
            accepted[run, place] = given["uniforms"][run, place] < p / q
            if not accepted[run, place]:
                break
            tokens[run, place], kept = token, kept + 1
        law = given["target"][run, kept].astype(np.float32)
        if kept < gamma:
            law = np.maximum(law - given["draft"][run, kept].astype(np.float32), 0)
        tokens[run, kept] = np.searchsorted(
            np.cumsum(law / law.sum()), given["uniforms"][run, -1], side="right"
        )
    return {"accepted": accepted, "tokens": tokens, "counts": (tokens >= 0).sum(1)}


@pytest.mark.parametrize("user", ["ada", "grace", "alan"])
def test_drafts_accepted_and_replaced(user: str) -> None:
    """Computed in float32, which decides everything alike."""
    problem = traced("speculative", {"runs": 20, "gamma": 4, "vocabulary": 7}, SPECULATIVE)
    given = make_inputs(problem, problem.cases[0], seeds(problem, user)["a"])
    np.testing.assert_allclose(given["target"].sum(-1), 1)
    right = {name: x.tolist() for name, x in speculated(given).items()}
    assert {tuple(set(row)) for row in right["accepted"]} != {(1,)}
    assert verdict(problem, user, right).verdict == "accepted"
    right["counts"][3] += 1
    found = verdict(problem, user, right)
    assert found.reason == "numeric_mismatch"
    assert found.numerics["worst"][0]["index"] == {"run": 3}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([[1.5]], "dtype_mismatch"), ([["nan"]], "non_finite"), ([1], "shape_mismatch"),
        ([[True, 2]], "dtype_mismatch"), ([[1], [2, 3]], "shape_mismatch"), (None, "shape_mismatch"),
        ([[10**400]], "non_finite"),
    ],
)  # fmt: skip
def test_odd_answers(value: Any, reason: str) -> None:
    problem = traced("speculative", {"runs": 2, "gamma": 2, "vocabulary": 3}, SPECULATIVE)
    given = make_inputs(problem, problem.cases[0], seeds(problem)["a"])
    right = {name: x.tolist() for name, x in speculated(given).items()}
    found = verdict(problem, "ada", {**right, "accepted": value})
    assert (found.verdict, found.reason) == ("wrong_answer", reason)


def test_the_matrix_of_a_trace() -> None:
    problem = traced("speculative", {"runs": 2, "gamma": 2, "vocabulary": 3}, SPECULATIVE)
    found = matrix(problem)
    assert found.is_publishable
    assert (found.killed, found.total) == (1, 1)
