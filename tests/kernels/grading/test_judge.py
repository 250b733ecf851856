"""Verdicts, figures and sentences: of answers right, wrong, odd and missing; alone and among many."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.arrays import to_jsonable
from kernels.grading.answers import Answer, Answers, read_answers
from kernels.grading.case import answer_shape
from kernels.grading.cases import attempt_seeds, make_inputs, seeds_of_number
from kernels.grading.judge import Attempt, judge
from kernels.grading.problem import parse_problem, parse_question
from kernels.grading.report import Judgement
from kernels.spec import SpecError
from tests.kernels.grading.asking import Arrays, ask, handed_in, inputs, judged, seeds, shape
from tests.kernels.grading.students import Student
from tests.kernels.grading.test_hypotheses import SPECS, computed, problem_of

CAUSAL = {"is_causal": True}
ALL = ("out", "lse", "weights", "scores", "masked_scores")
NUMERICS = {
    "max_abs_err", "max_rel_err", "max_ulp", "rmse", "mismatched", "total", "mismatch_ratio", "atol", "rtol",
    "reference_err", "nan_count", "worst", "row_sum_err",
}  # fmt: skip


def right_of(
    problem: Any, attention: dict[str, Any], user: str = "ada", mistake: str = ""
) -> dict[str, Arrays]:
    with np.errstate(all="ignore"):
        return {
            case.name: Student(inputs(problem, case.name, user), attention, mistake).answers()
            for case in problem.cases
        }


def sent(problem: Any, body: Any) -> Judgement:
    """As the answers of a request."""
    found = judge(problem, [Attempt(seeds(problem), read_answers(problem, body))])[0]
    json.dumps(found.to_dict(), allow_nan=False)
    return found


def test_an_accepted_answer_and_all_that_is_said_of_it() -> None:
    problem = ask(shape(2, 1, 5, 7, 4, e=3), CAUSAL, answer=("out", "weights"), cases=2)
    found = judged(problem, right_of(problem, CAUSAL), "float32").to_dict()
    assert (found["verdict"], found["reason"], found["score"], found["max_score"]) == (
        "accepted",
        None,
        2.0,
        2.0,
    )
    assert [test["name"] for test in found["tests"]] == [
        "case 0: out", "case 0: weights", "case 1: out", "case 1: weights",
    ]  # fmt: skip
    assert [test["number"] for test in found["tests"]] == ["1.1", "1.2", "2.1", "2.2"]
    for test in found["tests"]:
        assert test["status"] == "passed"
        assert (test["score"], test["max_score"]) == (0.5, 0.5)
        assert test["output_format"] == "text"
        assert test["visibility"] == "visible"
        assert test["tags"] == [test["name"].split(": ")[1]]
        assert test["output"].startswith("Right: the largest error is ")
        numerics = test["extra_data"]["numerics"]
        assert numerics.keys() >= NUMERICS
        assert numerics["mismatched"] == numerics["nan_count"] == 0
        assert 0 < numerics["max_abs_err"] < numerics["atol"] < 1e-3
        assert 0 < numerics["reference_err"] < numerics["atol"]
        assert numerics["max_ulp"] <= 1
    assert found["numerics"].keys() >= NUMERICS
    assert (found["hypotheses"], found["notes"]) == ([], [])
    weights = found["tests"][1]["extra_data"]["numerics"]
    assert 0 < weights["row_sum_err"] < 1e-6
    assert weights["total"] == 2 * 5 * 7


def test_a_wrong_answer_and_all_that_is_said_of_it() -> None:
    problem = ask(shape(2, 1, 5, 7, 4, e=3), CAUSAL, answer=("out", "lse"), cases=2)
    right = right_of(problem, CAUSAL)
    right["case 1"]["out"][0, 1, 3, 2] += 0.25
    found = judged(problem, right).to_dict()
    assert (found["verdict"], found["reason"]) == ("wrong_answer", "numeric_mismatch")
    assert found["score"] == 1.5
    assert [test["status"] for test in found["tests"]] == ["passed", "passed", "failed", "passed"]
    numerics = found["numerics"]
    assert (numerics["case"], numerics["answer"]) == ("case 1", "out")
    assert (numerics["mismatched"], numerics["total"]) == (1, 30)
    assert numerics["mismatch_ratio"] == 1 / 30
    assert numerics["max_abs_err"] == pytest.approx(0.25)
    assert numerics["rmse"] == pytest.approx(0.25 / 30**0.5, rel=1e-3)
    cell = numerics["worst"][0]
    assert cell["index"] == {"batch": 0, "head": 1, "query": 3, "dim": 2}
    assert cell["actual"] - cell["expected"] == pytest.approx(0.25)
    assert cell["allowed"] < cell["abs_err"]
    output = found["tests"][2]["output"]
    assert "1 of 30 numbers of out" in output
    assert "batch 0, head 1, query 3, dim 2" in output


# -- odd answers ---------------------------------------------------------------------------------------------


ODD = ask(
    shape(2, 1, 5, 7, 4, e=3), CAUSAL, answer=("out", "lse", "weights", "masked_scores", "mask"), cases=2
)
RIGHT = right_of(ODD, CAUSAL)
for _arrays in RIGHT.values():
    _arrays["mask"] = np.broadcast_to(np.tril(np.ones((5, 7), bool), 2), (1, 2, 5, 7))
BODY = {case: {name: to_jsonable(x) for name, x in arrays.items()} for case, arrays in RIGHT.items()}
OUT = RIGHT["case 0"]["out"]


def with_answer(name: str, value: Any) -> dict[str, Any]:
    return {**BODY, "case 0": {**BODY["case 0"], name: value}}


@pytest.mark.parametrize(
    ("name", "value", "reason", "said"),
    [
        ("out", [[1, 2], [3]], "shape_mismatch", "/answers/case 0/out/1: this row has 1 entries"),
        ("out", [], "shape_mismatch", "it should have shape [1, 2, 5, 3]"),
        ("out", [[[[[[[[[[1]]]]]]]]]], "shape_mismatch", "nested more than 8 deep"),
        ("out", OUT.ravel().tolist(), "shape_mismatch", "only the shape is another"),
        ("out", OUT.transpose(0, 2, 1, 3).reshape(1, 5, 6).tolist(), "shape_mismatch", "only the shape"),
        ("out", OUT.swapaxes(2, 3).tolist(), "shape_mismatch", "the last two axes are swapped"),
        ("out", OUT.swapaxes(1, 2).tolist(), "shape_mismatch", "heads and length are swapped"),
        ("out", {"b64": "", "dtype": "float32", "shape": [0, 4]}, "shape_mismatch", "has shape [0, 4]"),
        ("out", [["a", "b"]], "dtype_mismatch", '"a" is not a number'),
        ("out", [[None, 1.0]], "dtype_mismatch", "null is not a number"),
        ("out", [[True, 1.0]], "dtype_mismatch", "true among numbers"),
        ("out", [[True, False]], "dtype_mismatch", "out holds booleans"),
        ("out", [[10**400]], "non_finite", "beyond the range of a 64-bit float"),
        ("out", to_jsonable(np.where(OUT > 1, np.nan, OUT)), "non_finite", "of 30 numbers of out are NaN"),
        ("out", to_jsonable(np.where(OUT > 1, np.inf, OUT)), "non_finite", "numbers of out are infinite"),
        ("out", (OUT * 1e300).tolist(), "numeric_mismatch", "30 of 30 numbers of out"),
        ("out", (OUT * 0 + 1.5).tolist(), "numeric_mismatch", "All numbers of out are 1.5"),
        ("out", (OUT * 0 + 5e-324).tolist(), "numeric_mismatch", "every number is 0"),
        ("out", (OUT * -0.0).tolist(), "numeric_mismatch", "every number is 0"),
        ("mask", np.full((5, 7), 0.5).tolist(), "dtype_mismatch", "other numbers than 0 and 1"),
        ("mask", [[True]], "shape_mismatch", "mask has shape [1, 1]"),
        ("mask", np.ones((5, 7), bool).tolist(), "mask_leak", "the causal mask is missing"),
        ("lse", [["nan"] * 5] * 2, "non_finite", "10 of 10 numbers of lse are NaN"),
        ("masked_scores", np.maximum(RIGHT["case 0"]["masked_scores"], -1e9).tolist(), "non_finite",
         "holds -1e+09 where −inf is right"),
        ("masked_scores", RIGHT["case 0"]["scores"].tolist(), "mask_leak", "the causal mask is missing"),
        ("out", None, "shape_mismatch", "No out was handed in for case case 0"),
    ],
)  # fmt: skip
def test_odd_answers_are_wrong_in_words(name: str, value: Any, reason: str, said: str) -> None:
    found = sent(ODD, with_answer(name, value))
    assert (found.verdict, found.reason) == ("wrong_answer", reason)
    assert found.score == pytest.approx(1.8)  # the other nine of ten answers are right
    failed = [test for test in found.tests if test["status"] == "failed"]
    assert [test["name"] for test in failed] == [f"case 0: {name}"]
    assert said in failed[0]["output"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("out", OUT[0].tolist()),  # without the batch
        ("out", OUT[None].tolist()),
        ("mask", np.tril(np.ones((5, 7)), 2).tolist()),  # 0 and 1, the same for all heads
        ("mask", np.tril(np.ones((5, 7), bool), 2).tolist()),
        ("masked_scores", BODY["case 0"]["masked_scores"]),  # with "-inf"
    ],
)
def test_what_means_the_same_is_right(name: str, value: Any) -> None:
    assert sent(ODD, with_answer(name, value)).verdict == "accepted"


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (3.0, 400), ("abc", 400), (True, 400), ({}, 400), ({"seed": 1, "shape": [1]}, 400),
        ({"b64": "!!!!", "dtype": "float32", "shape": [1]}, 400), ({"upload": "x", "name": "y"}, 422),
        ([0.0] * (2**20 + 1), 413),
    ],
)  # fmt: skip
def test_what_is_no_array_is_refused_with_its_place(value: Any, status: int) -> None:
    with pytest.raises(SpecError) as refused:
        read_answers(ODD, with_answer("out", value))
    assert refused.value.status == status
    assert all(problem.pointer.startswith("/answers/case 0/out") for problem in refused.value.problems)


@pytest.mark.parametrize("body", [None, [], 3, "x", {"case 0": []}, {"case 0": 1}])
def test_answers_that_are_no_object_are_refused(body: Any) -> None:
    with pytest.raises(SpecError) as refused:
        read_answers(ODD, body)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "body", [{}, {"case 0": {}}, {"case 0": None}, {"another": {"out": [1]}}, {"case 0": {"x": [1]}}]
)
def test_nothing_that_can_be_graded_is_never_accepted(body: Any) -> None:
    found = sent(ODD, body)
    assert (found.verdict, found.reason, found.score) == ("rejected", "no_answers", 0.0)
    assert all(test["status"] == "failed" for test in found.tests)


def test_what_nobody_asked_for_is_noted() -> None:
    found = sent(ODD, {**BODY, "case 7": {}, "case 0": {**BODY["case 0"], "scores": [1], "foo": [1]}})
    assert found.verdict == "accepted"
    assert [note.split(":")[0] for note in found.notes] == [
        "No case is called case 7", "Nobody asked for scores and foo",
    ]  # fmt: skip
    missing = sent(ODD, {"case 0": BODY["case 0"]})
    assert (missing.verdict, missing.score) == ("wrong_answer", 1.0)


@settings(suppress_health_check=list(HealthCheck), max_examples=60)
@given(st.data())
def test_whatever_numbers_come_there_is_a_judgement(data: st.DataObject) -> None:
    spec = data.draw(st.sampled_from(sorted(SPECS)))
    problem = problem_of(spec, ALL)
    right = computed(problem, spec)["case 0"]
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    odd = data.draw(st.sampled_from([np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, 1e308, -1e308, 1.0, 1e38]))
    share = data.draw(st.sampled_from([0.02, 0.5, 1.0]))
    dtype = data.draw(st.sampled_from(["float64", "float32", "float16", "bfloat16"]))
    with np.errstate(over="ignore"):
        given = {name: np.where(rng.random(x.shape) < share, odd, x) for name, x in right.items()}
        answers = handed_in(problem, {"case 0": given}, dtype)
    found = judge(problem, [Attempt(seeds(problem), answers)])[0]
    assert found.verdict == "wrong_answer"
    assert 0 <= found.score <= found.max_score
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, np.nan])
@pytest.mark.parametrize("spec", SPECS)
def test_zeros_and_constants_fail_every_case(spec: str, value: float) -> None:
    for policy in ({}, {"tolerance": {"policy": "allclose", "per_dtype": {"float32": {"atol": 1e9}}}}):
        problem = problem_of(spec, **policy)
        given = {"out": np.full(answer_shape(problem.cases[0].spec, "out"), value)}
        assert judged(problem, {"case 0": given}).score == 0


# -- tolerance -----------------------------------------------------------------------------------------------


def test_a_right_answer_in_float16_is_accepted_and_said_to_be_less_precise() -> None:
    problem = ask(shape(1, 1, 16, 16, 8), CAUSAL)
    right = right_of(problem, CAUSAL)
    found = judged(problem, right, "float16")
    assert (found.verdict, found.notes) == ("accepted", ("low_precision",))
    assert found.numerics["dtype"] == "float16"
    assert found.numerics["atol"] > 1e-3 > judged(problem, right, "float32").numerics["atol"]


def test_what_was_computed_in_float16_is_not_float32() -> None:
    problem = ask(shape(1, 1, 16, 16, 8), CAUSAL)
    low = {"case 0": Student(inputs(problem), CAUSAL, dtype=np.float16).answers()}
    assert judged(problem, low, "float16").verdict == "accepted"
    found = judged(problem, low, "float32")
    assert (found.verdict, found.reason) == ("wrong_answer", "numeric_mismatch")
    assert [each["code"] for each in found.hypotheses] == ["low_precision"]
    assert "only to the precision of float16" in found.tests[0]["output"]


def test_a_problem_may_demand_a_dtype() -> None:
    problem = ask(shape(1, 1, 16, 16, 8), CAUSAL, tolerance={"least_dtype": "float32"})
    right = right_of(problem, CAUSAL)
    assert judged(problem, right, "float32").verdict == "accepted"
    found = judged(problem, right, "float16")
    assert found.verdict == "wrong_answer"
    assert [each["code"] for each in found.hypotheses] == ["low_precision"]


def test_nobody_is_held_to_more_than_the_dtype_of_the_problem() -> None:
    problem = ask(shape(1, 1, 16, 16, 8), CAUSAL)
    single = {"case 0": Student(inputs(problem), CAUSAL, dtype=np.float32).answers()}
    assert judged(problem, single, "float64").verdict == "accepted"
    strict = ask(shape(1, 1, 16, 16, 8), CAUSAL, dtype="float64")
    single = {"case 0": Student(inputs(strict), CAUSAL, dtype=np.float32).answers()}
    found = judged(strict, single, "float64")
    assert (found.verdict, found.hypotheses[0]["code"]) == ("wrong_answer", "low_precision")
    assert judged(strict, single, "float32").verdict == "accepted"


def test_allclose_is_what_the_author_says() -> None:
    tolerance = {"policy": "allclose", "per_dtype": {"float32": {"atol": 0.01, "rtol": 0.0}}}
    problem = ask(shape(1, 1, 16, 16, 8), CAUSAL, tolerance=tolerance)
    right = right_of(problem, CAUSAL)
    near = {"case 0": {"out": right["case 0"]["out"] + 0.009}}
    far = {"case 0": {"out": right["case 0"]["out"] + 0.011}}
    assert judged(problem, near).verdict == "accepted"
    assert judged(problem, far).verdict == "wrong_answer"
    assert (judged(problem, near).numerics["atol"], judged(problem, near).numerics["rtol"]) == (0.01, 0.0)


def test_some_numbers_may_be_wrong_where_the_author_says_so() -> None:
    problem = ask(shape(1, 1, 10, 10, 8), CAUSAL, tolerance={"max_mismatch_ratio": 0.05})
    for wrong, verdict in ((4, "accepted"), (5, "wrong_answer")):  # of 80
        given = right_of(problem, CAUSAL)
        given["case 0"]["out"].reshape(-1)[:wrong] += 1
        assert judged(problem, given).verdict == verdict
    given = right_of(problem, CAUSAL)
    given["case 0"]["out"][0, 0, 0, 0] = np.nan
    assert judged(problem, given).reason == "non_finite"


def test_rows_that_see_nothing() -> None:
    attention = {**CAUSAL}
    problem = ask(shape(1, 1, 6, 3, 4), attention, answer=("out", "lse", "weights"))
    right = right_of(problem, attention)
    assert np.isneginf(right["case 0"]["lse"][0, 0, :3]).all()
    body = {"case 0": {name: to_jsonable(right["case 0"][name]) for name in ("out", "lse", "weights")}}
    assert body["case 0"]["lse"][0][0][:3] == ["-inf"] * 3
    assert sent(problem, body).verdict == "accepted"
    naive = right["case 0"]["out"].copy()
    naive[0, 0, :3] = np.nan
    found = judged(problem, {"case 0": {**right["case 0"], "out": naive}})
    assert found.reason == "non_finite"
    assert "A query that sees no key has output and weights 0 and LSE −inf." in found.tests[0]["output"]


# -- hypotheses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "first", "second"),
    [
        ("causal", "no_scale", "no_mask"), ("rope", "rope_missing", "no_mask"),
        ("causal groups", "no_scale", "heads_tiled"), ("softcap", "scale_by_d", "softcap_missing"),
        ("causal", "scale_by_d", "unnormalised"),
    ],
)  # fmt: skip
def test_two_mistakes_at_once_are_both_named(spec: str, first: str, second: str) -> None:
    """The first is the right computation with another attention, on which the second is made."""
    problem, attention = problem_of(spec), SPECS[spec][1]
    arrays = inputs(problem)
    others = {"no_scale": {"scale": 1.0}, "scale_by_d": {"scale": 1 / 8}, "rope_missing": {"rope": None}}
    with np.errstate(all="ignore"):
        given = Student(arrays, {**attention, **others[first]}, second).answers()
    found = judged(problem, {"case 0": given})
    assert {each["code"] for each in found.hypotheses} == {first, second}
    assert found.hypotheses[0]["residual"] == found.hypotheses[1]["residual"] < 1e-9


def test_of_two_mistakes_one_may_make_the_other_nobodys_business() -> None:
    problem = problem_of("causal")
    given = Student(inputs(problem), {**CAUSAL, "scale": 1.0}, "uniform_weights:all").answers()
    assert judged(problem, {"case 0": given}).hypotheses[0]["code"] == "uniform_weights"


@pytest.mark.parametrize(
    ("sizes", "attention", "mistake"),
    [
        (shape(1, 1, 12, 12, 8), CAUSAL, "causal_top_left"),
        (shape(1, 1, 12, 12, 8), {**CAUSAL, "causal_alignment": "top_left"}, "causal_bottom_right"),
        (shape(1, 1, 6, 1, 8), {}, "softmax_over_queries:heads"),
        (shape(1, 1, 6, 1, 8), {"window": [9, 9]}, "no_mask"),
        (shape(3, 3, 6, 9, 8), CAUSAL, "heads_tiled"),
        (shape(3, 1, 6, 9, 8), CAUSAL, "heads_tiled"),
        (shape(1, 1, 6, 9, 8), CAUSAL, "scale_by_sqrt_d_model"),
        (shape(1, 1, 6, 9, 8), {"scale": 1.0}, "no_scale"),
    ],
)
def test_a_mistake_that_makes_no_difference_is_right(
    sizes: dict[str, int], attention: dict[str, Any], mistake: str
) -> None:
    problem = ask(sizes, attention)
    found = judged(problem, right_of(problem, attention, mistake=mistake))
    assert (found.verdict, found.hypotheses) == ("accepted", ())


def test_a_mistake_is_told_from_the_cases_that_show_it() -> None:
    """Alignment is nobody's business where the mask is square; the other case tells it."""
    body = ask(shape(1, 1, 8, 8, 8), CAUSAL).to_dict()
    body["cases"].append({**body["cases"][0], "name": "wide", "shape": shape(1, 1, 8, 13, 8)})
    problem = parse_problem(body)
    found = judged(problem, right_of(problem, CAUSAL, mistake="causal_top_left"))
    assert [test["status"] for test in found.tests] == ["passed", "failed"]
    assert found.hypotheses[0]["code"] == "causal_top_left"
    assert found.score == 1.0


def test_what_no_mistake_explains_is_not_explained() -> None:
    problem = ask(shape(2, 2, 10, 10, 8), CAUSAL, answer=("out", "lse"))
    rng = np.random.default_rng(3)
    given = {"case 0": {"out": rng.standard_normal((1, 2, 10, 8)), "lse": rng.standard_normal((1, 2, 10))}}
    found = judged(problem, given)
    assert (found.verdict, found.hypotheses) == ("wrong_answer", ())


@pytest.mark.parametrize(
    ("spec", "mistake", "leaks"),
    [
        ("causal", "no_mask", True), ("causal", "mask_added_as_01:allowed", True),
        ("masked", "mask_inverted", True), ("top left", "causal_bottom_right", True),
        ("window", "window_off_by_one:left+1", True), ("causal", "strict_causal", False),
        ("causal wide", "causal_top_left", False), ("causal", "no_scale", False),
        ("window", "window_off_by_one:left-1", False), ("causal", "mask_after_softmax", False),
    ],
)  # fmt: skip
def test_a_mask_that_leaks_is_the_reason(spec: str, mistake: str, leaks: bool) -> None:
    problem = problem_of(spec)
    found = judged(problem, computed(problem, spec, mistake))
    assert found.reason == ("mask_leak" if leaks else "numeric_mismatch")
    weights = problem_of(spec, ("weights",))
    shown = judged(weights, computed(weights, spec, mistake))
    assert shown.reason == ("mask_leak" if leaks else "numeric_mismatch")


def test_gradients_are_graded() -> None:
    problem = ask(shape(2, 1, 6, 6, 8), CAUSAL, answer=("dq", "dk", "dv"))
    given = inputs(problem)
    right = gradients(given, scale=8**-0.5)
    assert judged(problem, {"case 0": right}, "float32").verdict == "accepted"
    unscaled = gradients(given, scale=1.0)
    assert judged(problem, {"case 0": unscaled}).hypotheses[0]["code"] == "no_scale"
    lacking = {**right, "dq": right["dq"] * 8**0.5, "dk": right["dk"] * 8**0.5}
    assert judged(problem, {"case 0": lacking}).hypotheses[0]["code"] == "no_scale"


def gradients(given: Arrays, scale: float) -> Arrays:
    """By autograd."""
    import torch

    q, k, v = (torch.tensor(given[name], dtype=torch.float64, requires_grad=True) for name in ("q", "k", "v"))
    keys, values = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    scores = (q @ keys.mT * scale).masked_fill(~torch.ones(6, 6, dtype=torch.bool).tril(), -torch.inf)
    out = torch.softmax(scores, -1) @ values
    found = torch.autograd.grad(out, (q, k, v), torch.tensor(given["dout"], dtype=torch.float64))
    return {name: x.numpy() for name, x in zip(("dq", "dk", "dv"), found, strict=True)}


# -- many, and again -----------------------------------------------------------------------------------------


def test_an_attempt_gets_the_same_alone_and_among_many() -> None:
    problem = ask(shape(2, 1, 12, 12, 8), CAUSAL, answer=("out", "lse"), cases=2)
    mistakes = [
        "",
        "no_mask",
        "no_scale",
        "zeros",
        "strict_causal",
        "heads_swapped",
        "lse_base2",
        "unnormalised:plain",
    ]
    attempts = []
    for number in range(24):
        user = f"user {number % 11}"
        given = right_of(problem, CAUSAL, user, mistakes[number % len(mistakes)])
        dtype = ("float64", "float32", "float16")[number % 3]
        with np.errstate(over="ignore"):
            attempts.append(Attempt(seeds(problem, user), handed_in(problem, given, dtype)))
    together = [found.to_dict() for found in judge(problem, attempts)]
    alone = [judge(problem, [attempt])[0].to_dict() for attempt in attempts]
    backwards = [found.to_dict() for found in judge(problem, attempts[::-1])][::-1]
    assert together == alone == backwards
    assert [found["verdict"] == "accepted" for found in together] == [
        n % len(mistakes) == 0 for n in range(24)
    ]


def test_a_checkpoint_may_stop_it() -> None:
    class Stop(Exception):
        pass

    calls = 0

    def checkpoint() -> None:
        nonlocal calls
        calls += 1
        if calls > 5:
            raise Stop

    problem = ask(shape(2, 1, 12, 12, 8), CAUSAL, cases=4)
    given = right_of(problem, CAUSAL, mistake="no_mask")
    with pytest.raises(Stop):
        judge(problem, [Attempt(seeds(problem), handed_in(problem, given))], checkpoint)
    assert judge(problem, []) == []


def test_another_students_answers_are_wrong() -> None:
    problem = ask(shape(1, 1, 8, 8, 8), CAUSAL)
    assert judged(problem, right_of(problem, CAUSAL, "ada"), user="grace").verdict == "wrong_answer"


def test_what_is_hidden_does_not_show_in_the_figures() -> None:
    body = ask(shape(1, 1, 8, 13, 8), CAUSAL).to_dict()
    body["cases"].append({**body["cases"][0], "name": "secret", "visibility": "hidden"})
    problem = parse_problem(body)
    wrong = right_of(problem, CAUSAL, mistake="no_mask")
    found = judged(problem, {**right_of(problem, CAUSAL), "secret": wrong["secret"]})
    assert (found.verdict, found.reason, found.score) == ("wrong_answer", "mask_leak", 1.0)
    seen = found.seen_by({"visible"})
    assert (seen.verdict, seen.score, seen.reason) == ("wrong_answer", 1.0, None)
    assert [test["name"] for test in seen.tests] == ["case 0: out"]
    assert seen.hypotheses == ()
    assert "secret" not in json.dumps(seen.to_dict())
    assert found.seen_by({"visible", "hidden"}) == found


def test_points_are_shared_in_proportion() -> None:
    body = ask(shape(1, 1, 4, 4, 4), CAUSAL, answer=("out", "lse", "scores")).to_dict()
    body["answer"] = [
        {"name": "out", "points": 3},
        {"name": "lse", "points": 1},
        {"name": "scores", "points": 0},
    ]
    body["cases"] = [{**body["cases"][0], "points": 2.5}, {**body["cases"][0], "name": "free", "points": 0}]
    problem = parse_problem(body)
    right = right_of(problem, CAUSAL)
    assert judged(problem, right).score == problem.max_score == 2.5
    wrong = {case: {**arrays, "lse": arrays["lse"] + 1} for case, arrays in right.items()}
    found = judged(problem, wrong)
    assert found.score == pytest.approx(2.5 * 3 / 4)
    wrong = {**right, "free": {name: x + 1 for name, x in right["free"].items()}}
    assert (judged(problem, wrong).verdict, judged(problem, wrong).score) == ("wrong_answer", 2.5)


# -- one call ------------------------------------------------------------------------------------------------


def test_a_question_in_one_call() -> None:
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((6, 4)) * 3 for _ in range(3))
    single = {name: x.astype(np.float32)[None, None] for name, x in zip("qkv", (q, k, v), strict=True)}
    right = Student(single, CAUSAL).answers()
    body = {
        "spec": {"dtype": "float32", "attention": CAUSAL},
        "inputs": {"q": q.tolist(), "k": k.tolist(), "v": v.tolist()},
        "answers": {"out": right["out"][0, 0].tolist(), "lse": right["lse"][0, 0].tolist()},
    }
    problem = parse_question(body)
    attempt = Attempt(seeds_of_number(problem, 0), read_answers(problem, body["answers"]))
    found = judge(problem, [attempt])[0]
    assert (found.verdict, found.score, found.max_score) == ("accepted", 1.0, 1.0)
    wrong = Student(single, CAUSAL, "no_scale").answers()
    answers = read_answers(problem, {"out": wrong["out"].tolist(), "lse": wrong["lse"].tolist()})
    found = judge(problem, [replace(attempt, answers=answers)])[0]
    assert found.hypotheses[0]["code"] == "no_scale"


def test_packed_and_paged_inputs() -> None:
    rng = np.random.default_rng(6)
    packed = {name: rng.standard_normal((2, 5, 8)).tolist() for name in ("q", "k", "v")}
    problem = parse_question(
        {"spec": {"attention": {**CAUSAL, "num_heads": 2}}, "inputs": packed, "answers": {"out": [1]}}
    )
    split = {n: np.array(x, np.float32).reshape(2, 5, 2, 4).transpose(0, 2, 1, 3) for n, x in packed.items()}
    out = Student(split, CAUSAL).answers()["out"].transpose(0, 2, 1, 3).reshape(2, 5, 8)
    answers = read_answers(problem, {"out": out.tolist()})
    assert judge(problem, [Attempt({"case": 0}, answers)])[0].verdict == "accepted"

    pages = rng.standard_normal((6, 4, 1, 8))
    table = np.array([[3, 0], [5, 2]])
    given = {
        "q": rng.standard_normal((2, 2, 1, 8)).tolist(), "k": pages.tolist(), "v": (pages * 2).tolist(),
        "block_table": table.tolist(), "kv_lens": [7, 5],
    }  # fmt: skip
    problem = parse_question({"spec": {}, "inputs": given, "answers": {"out": [1]}})
    out = np.zeros((2, 2, 1, 8))
    for b, length in enumerate((7, 5)):
        keys = pages.astype(np.float32)[table[b]].reshape(8, 8)[:length].astype(np.float64)
        for h in range(2):
            scores = keys @ np.array(given["q"], np.float32)[b, h, 0].astype(np.float64) / 8**0.5
            weights = np.exp(scores - scores.max())
            out[b, h, 0] = weights / weights.sum() @ (2 * keys)
    answers = read_answers(problem, {"out": out.tolist()})
    assert judge(problem, [Attempt({"case": 0}, answers)])[0].verdict == "accepted"
    wrong = read_answers(problem, {"out": (out + 0.1).tolist()})
    assert judge(problem, [Attempt({"case": 0}, wrong)])[0].verdict == "wrong_answer"


# -- properties ----------------------------------------------------------------------------------------------


def test_properties_make_cases_of_their_own() -> None:
    names = ["rows_sum_to_one", "value_of_ones", "future_keys_do_not_matter"]
    problem = ask(shape(1, 1, 6, 6, 8), CAUSAL, answer=("out", "weights"), properties=names)
    assert [case.name for case in problem.cases] == [
        "case 0", "case 0.value_of_ones", "case 0.future_keys_do_not_matter",
    ]  # fmt: skip
    assert problem.max_score == 1.0
    base, ones, other = (inputs(problem, case.name) for case in problem.cases)
    assert (ones["v"] == 1).all()
    np.testing.assert_array_equal(ones["q"], base["q"])
    np.testing.assert_array_equal(other["k"][..., :-1, :], base["k"][..., :-1, :])
    assert (other["k"][..., -1, :] != base["k"][..., -1, :]).all()
    right = right_of(problem, CAUSAL)
    np.testing.assert_allclose(right["case 0.value_of_ones"]["out"], 1, rtol=1e-12)
    assert judged(problem, right).verdict == "accepted"
    assert parse_problem(problem.to_dict()) == problem


def test_a_key_of_the_future_that_matters_is_shown() -> None:
    problem = ask(shape(1, 1, 6, 6, 8), CAUSAL, properties=["future_keys_do_not_matter"])
    given = right_of(problem, CAUSAL, mistake="uniform_weights:all")
    found = judged(problem, given)
    last = found.tests[1]
    assert last["extra_data"]["reason"] == "mask_leak"
    assert (
        "may not see, was changed between cases case 0 and case 0.future_keys_do_not_matter" in last["output"]
    )


def test_rows_that_do_not_sum_to_one_are_shown() -> None:
    tolerance = {"policy": "allclose", "per_dtype": {"float32": {"atol": 0.01}}}
    problem = ask(
        shape(1, 1, 6, 6, 8), answer=("weights",), tolerance=tolerance, properties=["rows_sum_to_one"]
    )
    given = right_of(problem, {})
    assert judged(problem, given).verdict == "accepted"
    given["case 0"]["weights"] += 0.005
    found = judged(problem, given)
    assert found.verdict == "wrong_answer"
    assert "The weights of a query sum to 1 with an error of 0.03" in found.tests[0]["output"]


def test_answers_survive_being_stored() -> None:
    answers = read_answers(ODD, with_answer("out", [[1, 2], [3]]))
    header, arrays = answers.to_parts()
    again = Answers.from_parts(json.loads(json.dumps(header)), arrays)
    one, other = (judge(ODD, [Attempt(seeds(ODD), each)])[0].to_dict() for each in (answers, again))
    assert one == other
    assert isinstance(again.get("case 0", "lse"), Answer)


def test_seeds_are_those_of_the_recipe() -> None:
    import hashlib
    import hmac

    problem = ask(shape(1, 1, 2, 2, 2), case={"seed_scope": "submission"})
    digest = hmac.new(b"key", b'["submission","\\u00fc",3,"case 0"]', hashlib.sha256).digest()
    expected = int.from_bytes(digest[:8], "big") % 2**63
    assert attempt_seeds(problem, b"key", user_ref="ü", attempt=3)["case 0"] == expected
    scopes = {scope: ask(shape(1, 1, 2, 2, 2), case={"seed_scope": scope}) for scope in ("fixed", "student")}
    for scope, depends in (("fixed", False), ("student", True)):
        found = {
            attempt_seeds(scopes[scope], b"key", user_ref=user, attempt=attempt)["case 0"]
            for user in "ab"
            for attempt in (1, 2)
        }
        assert len(found) == (2 if depends else 1)
    fixed = ask(shape(1, 1, 2, 2, 2), case={"seed_scope": "fixed", "seed": 77})
    assert (
        attempt_seeds(fixed, b"key", user_ref="a", attempt=1) == seeds_of_number(fixed, 5) == {"case 0": 77}
    )
    one, other = (make_inputs(fixed, fixed.cases[0], 77)["q"] for _ in range(2))
    np.testing.assert_array_equal(one, other)
