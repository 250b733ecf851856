"""The mutant matrix: which mistakes the cases of a problem would notice, and what would notice the others."""

from __future__ import annotations

from typing import Any

import pytest

from kernels.grading.hypotheses import CODES
from kernels.grading.model import held_to_least
from kernels.grading.mutants import matrix
from kernels.grading.problem import parse_problem
from tests.kernels.grading.asking import ask, judged, shape
from tests.kernels.grading.test_hypotheses import problem_of
from tests.kernels.grading.test_judge import CAUSAL, right_of

FLAT = {"policy": "allclose", "per_dtype": {"float32": {"atol": 0.1, "rtol": 0}}}


def row(found: Any, code: str) -> Any:
    return next(each for each in found.rows if each.code == code)


@pytest.mark.parametrize("spec", ["causal long", "rope heads", "masked groups", "everything"])
def test_peaked_cases_notice_everything(spec: str) -> None:
    problem = problem_of(spec, ("out", "lse"), cases=2)
    found = matrix(problem)
    assert found.is_publishable, found.problems
    assert found.killed == found.total > 12
    assert [each.code for each in found.rows] == list(CODES)
    assert all(set(each.killed_by) <= {"case 0", "case 1"} for each in found.rows)


def test_flat_inputs_let_mistakes_pass_and_are_refused_with_a_remedy() -> None:
    """2048 flat keys and room in the tolerance: the mean of V, a missing scale and a block less pass."""
    problem = ask(shape(1, 1, 4, 2048, 16), case={"distribution": "uniform"}, tolerance=FLAT)
    body = problem.to_dict()
    found = matrix(problem)
    survivors = {each.code for each in found.rows if each.survives}
    assert {"no_scale", "uniform_weights", "last_block_dropped"} <= survivors
    assert not found.is_publishable
    assert any("no_scale passes every case" in problem for problem in found.problems)
    suggested = {each["code"]: each["change"] for each in found.suggestions}
    assert suggested["no_scale"] == {"case": "case 0", "distribution": "peaked"}
    body["cases"][0]["distribution"] = "peaked"
    assert not row(matrix(parse_problem(body)), "no_scale").survives


def test_a_survivor_is_indeed_accepted() -> None:
    """What the matrix says of a mistake, the judge does."""
    attention = {"sinks": [-9.0]}
    problem = ask(shape(1, 1, 8, 8, 8), attention)
    assert row(matrix(problem), "sink_missing").survives
    assert judged(problem, right_of(problem, attention, mistake="sink_missing")).verdict == "accepted"
    killed = row(matrix(problem), "no_scale")
    assert (killed.killed_by, killed.survives) == (("case 0",), False)
    assert judged(problem, right_of(problem, attention, mistake="no_scale")).verdict == "wrong_answer"


HIDDEN = ("softcap groups", "softcap window", "window wide")


@pytest.mark.parametrize("spec", HIDDEN)
def test_what_hides_in_low_precision_is_not_let_in(spec: str) -> None:
    """A right computation in float16 or bfloat16 may be off by more than some mistakes are: then no tolerance
    tells them apart, and answers are held to a dtype in which the cases do."""
    problem = problem_of(spec)
    found = matrix(problem)
    assert found.is_publishable, found.problems
    assert found.least_dtype in ("float32", "float16")
    assert not found.precision["bfloat16"]["should_pass"]
    held = matrix(held_to_least(problem, found.least_dtype))
    assert (held.is_publishable, held.least_dtype) == (True, None)


def test_where_all_dtypes_tell_none_is_kept_out() -> None:
    found = matrix(problem_of("causal long", ("out", "lse"), cases=2))
    assert found.least_dtype is None
    assert all(each["should_pass"] for each in found.precision.values())


def test_what_cannot_be_told_is_no_survivor() -> None:
    found = matrix(ask(shape(3, 3, 10, 10, 8), CAUSAL))
    for code in (
        "heads_tiled",
        "causal_top_left",
        "causal_bottom_right",
        "rope_missing",
        "lse_base2",
        "low_precision",
    ):
        each = row(found, code)
        assert (each.relevant, each.survives, each.killed_by) == (False, False, ()), code
    one_key = matrix(ask(shape(1, 1, 3, 1, 8), {"window": [9, 9]}, answer=("out",)))
    assert not row(one_key, "no_mask").relevant
    assert row(one_key, "no_mask").coincides
    assert row(one_key, "softmax_over_queries").killed_by == ("case 0",)


def test_a_case_that_tells_is_named() -> None:
    body = ask(shape(1, 1, 8, 8, 8), CAUSAL).to_dict()
    body["cases"].append({**body["cases"][0], "name": "wide", "shape": shape(1, 1, 8, 13, 8)})
    found = matrix(parse_problem(body))
    assert row(found, "causal_top_left").killed_by == ("wide",)
    assert row(found, "no_scale").killed_by == ("case 0", "wide")


def test_zeros_that_pass_a_case_keep_it_from_being_published() -> None:
    body = ask(shape(1, 1, 8, 8, 8), CAUSAL).to_dict()
    nothing = {"attn_mask": [[False] * 8]}
    body["cases"].append({**body["cases"][0], "name": "empty", "inputs": nothing})
    found = matrix(parse_problem(body))
    assert found.zeros_pass == ("empty",)
    assert "An answer of zeros passes case empty." in found.problems


def test_a_right_computation_in_low_precision_has_to_pass_where_it_is_let_in() -> None:
    close = {"policy": "allclose", "per_dtype": {"float32": {"atol": 1e-4, "rtol": 1e-4}}}
    strict = matrix(ask(shape(1, 1, 16, 16, 8), CAUSAL, tolerance=close))
    assert {dtype: each["should_pass"] for dtype, each in strict.precision.items()} == {
        "float64": True, "float32": True, "float16": False, "bfloat16": False,
    }  # fmt: skip
    assert strict.is_publishable
    close["per_dtype"]["float16"] = {"atol": 1e-4, "rtol": 1e-4}
    found = matrix(ask(shape(1, 1, 16, 16, 8), CAUSAL, tolerance=close))
    assert not found.precision["float16"]["passes"]
    assert any("A right computation in float16 fails case case 0" in problem for problem in found.problems)
    tiny = {"policy": "allclose", "per_dtype": {"float32": {"atol": 1e-9, "rtol": 0}}}
    found = matrix(ask(shape(1, 1, 16, 16, 8), CAUSAL, tolerance=tiny))
    assert not found.precision["float32"]["passes"]
    assert not found.is_publishable


def test_the_table_is_json() -> None:
    import json

    table = matrix(ask(shape(1, 1, 6, 6, 4), {"sinks": [-9.0]})).to_dict()
    json.dumps(table, allow_nan=False)
    assert table.keys() == {
        "publishable", "killed", "total", "problems", "rows", "precision", "least_dtype", "suggestions",
    }  # fmt: skip
    assert table["killed"] < table["total"]
    assert {"code", "relevant", "coincides", "killed_by", "survives"} <= table["rows"][0].keys()
