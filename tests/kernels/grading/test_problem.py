"""What authors may say of a problem, and what they are told when it cannot be."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from kernels.grading.problem import parse_problem, parse_question
from kernels.spec import SpecError

SHAPE = {
    "batch": 1,
    "num_heads": 2,
    "num_kv_heads": 1,
    "q_len": 4,
    "kv_len": 5,
    "head_dim": 4,
    "v_head_dim": 3,
}
GOOD: dict[str, Any] = {
    "slug": "causal-attention",
    "title": "Causal attention",
    "statement": "Compute it.",
    "hints": ["Mind the mask."],
    "solution": "Softmax.",
    "spec": {"dtype": "float32", "attention": {"is_causal": True}},
    "answer": [{"name": "out", "points": 2}, {"name": "weights", "points": 1}],
    "cases": [
        {
            "name": "small", "points": 1, "visibility": "visible", "seed_scope": "student",
            "distribution": "peaked", "shape": SHAPE,
        },
    ],
    "tolerance": {"policy": "error_bound", "per_dtype": {}, "max_mismatch_ratio": 0, "nan_policy": "reject"},
    "properties": [],
}  # fmt: skip
NONE = object()


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    body = copy.deepcopy(GOOD)
    inside: Any = body
    for step in path[:-1]:
        inside = inside[step]
    if value is NONE:
        del inside[path[-1]]
    else:
        inside[path[-1]] = value
    return body


def refused(body: Any) -> SpecError:
    with pytest.raises(SpecError) as error:
        parse_problem(body)
    return error.value


def test_a_problem_comes_back_as_it_was_said() -> None:
    problem = parse_problem(GOOD)
    said = problem.to_dict()
    assert {name: said[name] for name in ("slug", "title", "statement", "hints", "solution", "answer")} == {
        name: GOOD[name] for name in ("slug", "title", "statement", "hints", "solution", "answer")
    }
    assert said["cases"][0] == {**GOOD["cases"][0], "seed": None, "mask": None}
    assert said["spec"] == GOOD["spec"]
    assert parse_problem(json.loads(json.dumps(said, allow_nan=False))) == problem
    assert type(problem).from_dict(said) == problem
    assert [problem.share(part) for part in problem.answers] == [2 / 3, 1 / 3]


def test_what_is_left_out_has_a_default() -> None:
    least: dict[str, Any] = {"slug": "p", "title": "P", "answer": ["out"]}
    least["cases"] = [{"name": "a", "shape": {"q_len": 3, "head_dim": 4}}]
    problem = parse_problem(least)
    case = problem.cases[0]
    assert (case.points, case.visibility, case.seed_scope, case.distribution) == (
        1,
        "visible",
        "student",
        "peaked",
    )
    assert problem.spec_body == {"dtype": "float32", "attention": {}}
    assert {name: given.shape for name, given in case.run.inputs.items()} == dict.fromkeys(
        "qkv", (1, 1, 3, 4)
    )


CASE = ("cases", 0)


@pytest.mark.parametrize(
    ("path", "value", "status", "pointer", "said"),
    [
        (("slug",), NONE, 400, "/slug", "slug is required"),
        (("slug",), "Not a slug", 422, "/slug", "a-z, 0-9 and -"),
        (("title",), " ", 422, "/title", "title is empty"),
        (("title",), "x" * 300, 413, "/title", "at most 200"),
        (("hints",), [1], 400, "/hints/0", "must be a string"),
        (("hints",), ["x"] * 21, 413, "/hints", "at most 20"),
        (("kind",), "poem", 422, "/kind", "attention, paging or speculative"),
        (("spec", "dtype"), "int8", 422, "/spec/dtype", "not \"int8\""),
        (("spec", "attention"), {"windw": 3}, 400, "/spec/attention/windw", "did you mean window?"),
        (("spec", "attention"), {"sinks": [1.0]}, 422, "/spec/attention/sinks", "1 entries for 2 heads"),
        (("answer",), [], 400, "/answer", "a list of {name, points}"),
        (("answer",), ["out", "out"], 422, "/answer/1/name", "asked for already"),
        (("answer",), [{"name": "outt"}], 422, "/answer/0/name", "did you mean out?"),
        (("answer", 0, "points"), float("nan"), 422, "/answer/0/points", "between 0 and 1000"),
        (("answer", 0, "points"), 1e400, 422, "/answer/0/points", "between 0 and 1000"),
        (("answer",), [{"name": "out", "points": 0}], 422, "/answer", "every answer has 0 points"),
        (("cases",), [], 400, "/cases", "cases is required"),
        (("cases",), GOOD["cases"] * 21, 413, "/cases", "at most 20"),
        (("cases",), GOOD["cases"] * 2, 422, "/cases/1/name", 'a case "small" already'),
        ((*CASE, "name"), "a/b", 422, "/cases/0/name", "without slashes"),
        ((*CASE, "name"), "\ud800", 422, "/cases/0/name", "printable"),
        ((*CASE, "points"), -1, 422, "/cases/0/points", "between 0 and 1000"),
        ((*CASE, "points"), True, 400, "/cases/0/points", "must be a number"),
        ((*CASE, "points"), 0, 422, "/cases", "every case has 0 points"),
        ((*CASE, "visibility"), "public", 422, "/cases/0/visibility", "after_due_date"),
        ((*CASE, "seed_scope"), "class", 422, "/cases/0/seed_scope", "student, submission or fixed"),
        ((*CASE, "seed"), 3, 422, "/cases/0/seed", "leave it out"),
        ((*CASE, "distribution"), "flat", 422, "/cases/0/distribution", "normal, uniform or peaked"),
        ((*CASE, "shape"), NONE, 400, "/cases/0/shape", "shape is required"),
        ((*CASE, "shape", "head_dim"), NONE, 400, "/cases/0/shape/head_dim", "head_dim is required"),
        ((*CASE, "shape", "q_len"), 0, 422, "/cases/0/shape", "no axis 0"),
        ((*CASE, "shape", "q_len"), 2**18, 413, "/cases/0/shape", "accepted"),
        ((*CASE, "shape", "q_len"), 10**9, 422, "/cases/0/shape/q_len", "between 0 and"),
        ((*CASE, "shape", "num_kv_heads"), 3, 422, "/cases/0/shape", "not a multiple of the 3"),
        ((*CASE, "shape", "depth"), 1, 400, "/cases/0/shape/depth", "unknown field"),
        ((*CASE, "mask"), "some", 422, "/cases/0/mask", "boolean or float"),
        ((*CASE, "inputs"), {"attn_mask": [[True, False]]}, 422, "/cases/0/inputs/attn_mask", "broadcast"),
        ((*CASE, "inputs"), {"q": {"upload": "x", "name": "q"}}, 422, "/cases/0/inputs/q", "the numbers"),
        ((*CASE, "attention"), {"window": [-1, 0]}, 422, "/cases/0/attention/window/0", "between 0"),
        ((*CASE, "attention"), {"rope": {"style": "half", "dim": 8}}, 422, "/cases/0/attention/rope/dim", ""),
        (("tolerance", "policy"), "exact", 422, "/tolerance/policy", "error_bound or allclose"),
        (("tolerance", "policy"), "allclose", 422, "/tolerance/per_dtype", "needs per_dtype.float32"),
        (("tolerance", "per_dtype"), {"float32": {"atol": -1}}, 422, "/tolerance/per_dtype/float32/atol", ""),
        (("tolerance", "max_mismatch_ratio"), 1, 422, "/tolerance/max_mismatch_ratio", "between 0 and 0.5"),
        (("tolerance", "nan_policy"), "equal", 422, "/tolerance/nan_policy", "must be reject"),
        (("tolerance", "least_dtype"), "float64", 422, "/tolerance/least_dtype", "more precise than"),
        (("properties",), ["x"], 422, "/properties/0", "there is no property"),
        (("properties",), [3], 422, "/properties/0", "there is no property 3"),
        (("zzz",), 1, 400, "/zzz", "unknown field"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_where_it_is(
    path: tuple[Any, ...], value: Any, status: int, pointer: str, said: str
) -> None:
    error = refused(changed(path, value))
    assert error.status == status
    found = [problem.detail for problem in error.problems if problem.pointer == pointer]
    assert found, [problem.pointer for problem in error.problems]
    assert any(said in detail for detail in found), found


def test_all_mistakes_are_named_at_once() -> None:
    body = changed(("slug",), 3)
    body["answer"], body["tolerance"], body["cases"][0]["points"] = ["outt"], {"policy": "x"}, -1
    assert {problem.pointer for problem in refused(body).problems} == {
        "/slug", "/answer/0/name", "/tolerance/policy", "/cases/0/points",
    }  # fmt: skip


@pytest.mark.parametrize("body", [None, [], 3, "x", True])
def test_what_is_no_object_is_no_problem(body: Any) -> None:
    assert refused(body).status == 400


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("rows_sum_to_one", {"answer": ["out"]}, "ask for them in answer"),
        ("value_of_ones", {"answer": ["lse"]}, "is about out"),
        ("value_of_ones", {"spec": {"attention": {"sinks": [1, 1]}}}, "weights sum to less than 1"),
        ("future_keys_do_not_matter", {"spec": {}}, "needs is_causal"),
    ],
)
def test_properties_go_with_what_they_are_about(name: str, change: dict[str, Any], said: str) -> None:
    error = refused({**GOOD, **change, "properties": [name]})
    assert said in error.problems[0].detail


def test_explicit_inputs_are_kept() -> None:
    inputs = {
        "q": [[1, 2], [3, 4]], "k": {"seed": 5, "shape": [3, 2]}, "v": [[1.5], [2], [3]],
        "attn_mask": [[True, False, True], [True, True, False]],
    }  # fmt: skip
    body = {**GOOD, "spec": {}, "cases": [{"name": "a", "inputs": inputs}]}
    problem = parse_problem(body)
    case = problem.cases[0]
    assert not case.is_drawn
    assert case.canonical["k"].shape == (1, 1, 3, 2)
    assert case.given["v"].tolist() == [[1.5], [2], [3]]
    assert parse_problem(problem.to_dict()).cases[0].canonical["k"].tolist() == case.canonical["k"].tolist()


def test_a_question_points_into_its_body() -> None:
    body = {"spec": {}, "inputs": {"q": [[1]], "v": [[1]]}, "answers": {"out": [[1]], "foo": 1}}
    with pytest.raises(SpecError) as error:
        parse_question(body)
    assert {problem.pointer for problem in error.value.problems} == {"/answers/foo"}
    with pytest.raises(SpecError) as error:
        parse_question({**body, "answers": {"out": [[1]]}})
    assert [problem.pointer for problem in error.value.problems] == ["/inputs/k"]
    with pytest.raises(SpecError) as error:
        parse_question({})
    assert {problem.pointer for problem in error.value.problems} == {"/answers", "/inputs"}


def test_an_uploaded_input_is_stored_by_its_numbers() -> None:
    import numpy as np

    uploads = {name: np.arange(6, dtype=np.float32).reshape(3, 2) for name in ("q", "k", "v")}
    inputs = {name: {"upload": "u", "name": name} for name in uploads}
    problem = parse_question(
        {"spec": {}, "inputs": inputs, "answers": {"out": []}}, load_upload=lambda _, name: uploads[name]
    )
    again = parse_problem(problem.to_dict())
    np.testing.assert_array_equal(again.cases[0].given["q"], uploads["q"])


def test_whatever_is_sent_there_is_an_answer() -> None:
    """Odd values in the place of any field: a problem that comes back, or problems that are named."""
    odd: list[Any] = [
        None, True, -1, 0, 1e308, float("nan"), 10**30, "", "x", [], {}, [[]], [None], {"a": 1}, "\ud800",
        [1, "2"],
    ]  # fmt: skip
    rng, full = random.Random(3), copy.deepcopy(GOOD)
    full["cases"][0] |= {
        "mask": "float", "inputs": {"dout": {"seed": 3, "shape": [1, 2, 4, 3]}},
        "attention": {
            "rope": {"style": "half", "scaling": {"type": "linear", "factor": 2.0}},
            "window": [1, None], "alibi_slopes": "auto", "pattern": {"type": "chunked", "size": 2},
        },
    }  # fmt: skip
    full["properties"] = ["value_of_ones"]
    paths = [path for path in places(full) if path]
    accepted = 0
    for _ in range(600):
        body = copy.deepcopy(full)
        path, inside = rng.choice(paths), body
        for step in path[:-1]:
            inside = inside[step]
        inside[path[-1]] = rng.choice(odd)
        try:
            problem = parse_problem(body)
        except SpecError:
            continue
        accepted += 1
        json.dumps(problem.to_dict(), allow_nan=False)
        assert parse_problem(problem.to_dict()) == problem
    assert accepted > 10


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in inner for place in places(each, (*path, key)))]
