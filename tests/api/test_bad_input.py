"""Each way to get it wrong that we know of: the answer names the field, the value and the remedy, at once."""

import base64
import json
import tracemalloc

import numpy as np
import pytest

from tests.api.helpers import BODY, assert_problem, changed
from workers.models import Run

pytestmark = pytest.mark.django_db

Q = "/inputs/q"
MEBIBYTE = 1024**2

CASES = {
    "ragged lists": (changed(Q, [[1, 2], [3]]), 400, "/inputs/q/1", "ragged", ["1 entries", "2"]),
    "wrong rank": (changed(Q, [1, 2, 3]), 422, Q, None, ["rank"]),
    "too deep a list": (changed(Q, [[[[[1.0]]]]]), 422, Q, None, ["rank"]),
    "q and k widths differ": (changed("/inputs/k", [[1, 2, 3]]), 422, "/inputs/k", None, ["3", "2"]),
    "heads do not divide": (
        {
            "engine": "flash",
            "inputs": {
                "q": {"seed": 1, "shape": [3, 4, 8]},
                "k": {"seed": 2, "shape": [2, 4, 8]},
                "v": {"seed": 3, "shape": [2, 4, 8]},
            },
        },
        422,
        "/inputs/k",
        None,
        ["3", "2", "multiple"],
    ),
    "NaN in Q": (changed(Q, [[1, "nan"], [0, 1]]), 422, Q, "not-finite", ["nan", "[0, 1]"]),
    "boolean among numbers": (changed(Q, [[1, True], [0, 1]]), 422, "/inputs/q/0/1", "boolean", ["true"]),
    "a word among numbers": (changed(Q, [[1, "x"], [0, 1]]), 400, "/inputs/q/0/1", None, ["x"]),
    "a number beyond float64": (changed(Q, [[10**400, 1]]), 422, "/inputs/q/0/0", None, ["64-bit"]),
    "10⁹ elements": (
        changed(Q, {"seed": 1, "shape": [1, 1, 1_000_000, 1_000]}),
        413,
        "/inputs/q/shape",
        "too-large",
        ["1,000,000,000", "at most"],
    ),
    "unknown field": (
        changed("/atention", {}),
        400,
        "/atention",
        "unknown-field",
        ["did you mean attention"],
    ),
    "unknown inner field": (
        changed("/attention/is_casual", True),
        400,
        "/attention/is_casual",
        "unknown-field",
        ["did you mean is_causal"],
    ),
    "unknown engine": (changed("/engine", "flsh"), None, "/engine", "unknown-engine", ["did you mean flash"]),
    "no engine": ({"inputs": BODY["inputs"]}, 400, "/engine", "required", ["flash"]),
    "not an object": ([], 400, "", None, ["object"]),
    "bad base64": (
        changed(Q, {"b64": "####", "dtype": "float32", "shape": [1, 2]}),
        400,
        "/inputs/q/b64",
        None,
        ["base64"],
    ),
    "base64 of another length": (
        changed(Q, {"b64": "AAAA", "dtype": "float32", "shape": [1, 2]}),
        400,
        "/inputs/q/b64",
        "wrong-length",
        ["8 bytes"],
    ),
    "an upload that is not there": (
        changed(Q, {"upload": "nosuchid", "name": "q"}),
        422,
        Q,
        "not-found",
        ["POST /api/v1/uploads"],
    ),
    "what another engine can": (
        {**BODY, "engine": "sdpa", "attention": {"softcap": 5}},
        422,
        "/attention/softcap",
        "unsupported",
        ["reference", "eager"],
    ),
    "a result that another engine has": (
        {**BODY, "engine": "sdpa", "return": ["out", "lse"]},
        422,
        "/return/1",
        "unsupported",
        ["reference", "eager"],
    ),
    "a gradient without its cause": (
        {**BODY, "return": ["dq"]},
        422,
        "/inputs/dout",
        "needs",
        ["dq need dout"],
    ),
    "a page that is not there": (
        {
            **BODY,
            "engine": "reference",
            "inputs": {"q": [[[[1]]]], "k": [[[[1]]]], "v": [[[[1]]]], "block_table": [[1]]},
        },
        422,
        "/inputs/block_table",
        "out-of-range",
        ["there are 1"],
    ),
    "a length beyond the keys": (
        changed("/inputs/kv_lens", [4]),
        422,
        "/inputs/kv_lens/0",
        "out-of-range",
        ["exceeds the 3"],
    ),
    "an option that is not used": (
        {**BODY, "engine": "eager", "options": {"block_m": 64}},
        422,
        "/options/block_m",
        None,
        ["flash"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_explained_before_anything_happens(api, charged, sent, case):
    body, status, pointer, code, says = CASES[case]
    api.post("/runs", body)  # the first request also imports
    tracemalloc.start()
    answer = api.post("/runs", body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert_problem(answer, status or answer.status_code, pointer=pointer, code=code, says=says)
    assert 400 <= answer.status_code < 500
    assert peak < MEBIBYTE + 4 * len(json.dumps(body))
    assert (Run.objects.count(), charged, sent) == (0, [], [])


def test_all_mistakes_are_told_at_once(api):
    body = {"engine": "flash", "dtype": "float99", "atention": {}, "timing": {"iters": 0}, "inputs": {}}
    errors = assert_problem(api.post("/runs", body), 400)["errors"]
    assert {"/dtype", "/atention", "/timing/iters", "/inputs/q"} <= {error["pointer"] for error in errors}


def test_a_run_that_costs_too_much_is_refused_with_what_would_fit(api, charged, sent):
    seeded = {name: {"seed": 1, "shape": [1, 8, 8_192, 64]} for name in "qkv"}
    answer = api.post("/runs", {"engine": "flash", "inputs": seeded})
    problem = assert_problem(answer, 422, says=["allowed", "fit"])
    assert problem["type"].endswith("too-expensive")
    assert (Run.objects.count(), charged, sent) == (0, [], [])


def test_base64_is_read(api):
    q = np.array([[1, 0], [0, 1]], "<f2")
    body = changed(Q, {"b64": base64.b64encode(q.tobytes()).decode(), "dtype": "float16", "shape": [2, 2]})
    answer = api.post("/runs", body)
    assert answer.status_code == 202
    assert answer.json()["spec"]["inputs"]["q"] == {"shape": [2, 2], "dtype": "float16", "source": "inline"}
