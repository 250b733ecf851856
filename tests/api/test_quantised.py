"""A run with a quantised cache over REST, from the request to its numerics."""

import numpy as np
import pytest

from tests.api.helpers import BODY, assert_problem, compute

pytestmark = pytest.mark.django_db


def test_a_quantised_cache_is_judged_against_the_numbers_before(api):
    inputs = {name: {"seed": 3, "shape": [1, 2, 20, 8]} for name in "qkv"}
    body = {
        "engine": "paged",
        "inputs": inputs,
        "attention": {"is_causal": True},
        "options": {"kv_dtype": "int8", "kv_scale": "per_token_head", "page_size": 4},
        "return": ["out", "lse", "present_value"],
        "timing": {"warmup": 0, "iters": 1},
    }
    answer = api.post("/runs", body)
    assert answer.status_code == 202
    assert answer.json()["spec"]["options"]["kv_dtype"] == "int8"
    compute(answer.json()["id"])
    run = api.get(f"/runs/{answer.json()['id']}").json()
    numerics = run["result"]["numerics"]
    # A step of int8 is 1/127 of a token's largest number, far more than float32 loses.
    assert 1e-4 < numerics["max_abs_err"] <= numerics["bound"] < 0.1
    assert numerics["within_bound"]
    assert all(numerics["arrays"][name]["within_bound"] for name in ("lse", "present_value"))
    values = np.array(run["result"]["present_value"])
    largest = np.abs(values).max(axis=-1, keepdims=True)
    codes = values / largest * 127
    np.testing.assert_allclose(codes, np.rint(codes), atol=1e-4)
    exact = api.post("/runs", {**body, "engine": "flash", "options": {}})
    plain = compute(exact.json()["id"]).result["numerics"]
    assert plain["max_abs_err"] < 1e-5


def test_the_reference_names_the_engines_that_quantise(api):
    answer = api.post("/runs", {**BODY, "engine": "reference", "options": {"kv_dtype": "fp8_e5m2"}})
    assert_problem(
        answer,
        422,
        pointer="/options/kv_dtype",
        code="unsupported",
        says=["flash", "decode", "paged", "eager"],
    )
