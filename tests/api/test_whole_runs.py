"""A request with everything in it, from the body to the files: what a client sees of the whole spec."""

import base64
import io

import numpy as np
import pytest
from openapi_schema_validator import OAS30Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT4

from tests.api.helpers import compute

pytestmark = pytest.mark.django_db

TIMING = {"timing": {"warmup": 0, "iters": 1}}


def seeded(*shape, seed=1):
    return {"seed": seed, "shape": list(shape)}


def b64(array):
    data = np.ascontiguousarray(array)
    return {"b64": base64.b64encode(data).decode(), "dtype": str(data.dtype), "shape": list(data.shape)}


def whole_run(api, body):
    """The run after a worker had it; both documents are as the OpenAPI document says."""
    document = api.get("/schema/", accept="application/json").json()
    registry = Registry().with_resource("urn:api", Resource(contents=document, specification=DRAFT4))

    def validate(name, given):
        OAS30Validator({"$ref": f"urn:api#/components/schemas/{name}"}, registry=registry).validate(given)

    validate("RunRequest", body)
    answer = api.post("/runs", body)
    assert answer.status_code == 202, answer.content
    compute(answer.json()["id"])
    run = api.get(f"/runs/{answer.json()['id']}").json()
    validate("Run", run)
    assert run["status"] == "succeeded"
    return run


def file(api, run, name):
    answer = api.get(f"/runs/{run['id']}/artifacts/{name}")
    assert answer.status_code == 200, answer.content
    return np.load(io.BytesIO(answer.content))


@pytest.mark.parametrize("engine", ["reference", "eager"])
def test_gradients_the_present_and_every_matrix(api, engine):
    wanted = [
        "out",
        "lse",
        "softcapped_scores",
        "masked_scores",
        "present_key",
        "present_value",
        "dq",
        "dk",
        "dv",
    ]
    padded = np.random.default_rng(3).standard_normal((2, 2, 3, 4)).astype(np.float32)
    padded[1, :, 1:] = np.nan
    body = {
        "engine": engine,
        "inputs": {
            "q": seeded(2, 4, 3, 4), "k": b64(padded), "v": seeded(2, 2, 3, 5), "dout": seeded(2, 4, 3, 5),
            "past_key": seeded(2, 2, 2, 4), "past_value": seeded(2, 2, 2, 5),
            "attn_mask": [[True, True, True, False, True]], "q_lens": [3, 2], "kv_lens": [5, 3],
        },
        "attention": {
            "is_causal": True, "softcap": 5.0, "alibi_slopes": "auto", "sinks": [0.5, "-inf", 0, 1],
            "rope": {"style": "half"}, "pattern": {"type": "prefix", "len": 4}, "window": [4, None],
        },
        "return": wanted,
        **TIMING,
    }  # fmt: skip
    run = whole_run(api, body)
    shapes = {name: np.shape(run["result"][name]) for name in wanted}
    assert shapes == {
        "out": (2, 4, 3, 5), "lse": (2, 4, 3),
        "softcapped_scores": (2, 4, 3, 5), "masked_scores": (2, 4, 3, 5),
        "present_key": (2, 2, 5, 4), "present_value": (2, 2, 5, 5),
        "dq": (2, 4, 3, 4), "dk": (2, 2, 3, 4), "dv": (2, 2, 3, 5),
    }  # fmt: skip
    numerics = run["result"]["numerics"]
    assert numerics["within_bound"] is True
    assert set(numerics["arrays"]) == set(wanted) - {"out"}
    assert all(found["within_bound"] for found in numerics["arrays"].values())
    assert run["result"]["lse"][1][0][2] == "-inf"  # beyond q_lens
    assert not np.any(run["result"]["present_key"][1][0][3:])  # beyond kv_lens, where k was NaN
    assert {f"{name}.npy" for name in (*wanted, "q_lens", "past_key")} <= set(run["artifacts"])
    np.testing.assert_array_equal(file(api, run, "dk.npy"), run["result"]["dk"])
    assert file(api, run, "kv_lens.npy").tolist() == [5, 3]
    assert set(file(api, run, "inputs.npz")) == set(body["inputs"])
    assert run["inputs"]["kv_lens"]["dtype"] == "int64"


def test_pages_and_packed_queries(api):
    body = {
        "engine": "eager",
        "inputs": {
            "q": seeded(2, 3, 8), "k": seeded(3, 2, 1, 4), "v": seeded(3, 2, 1, 4), "dout": seeded(2, 3, 8),
            "block_table": [[2, 0], [1, -1]], "kv_lens": [4, 2],
        },
        "attention": {"num_heads": 2},
        "return": ["out", "dq", "dk", "present_key"],
        **TIMING,
    }  # fmt: skip
    run = whole_run(api, body)
    shapes = {name: np.shape(run["result"][name]) for name in body["return"]}
    # Packed input gives packed out and [batch, heads, ...] for the rest; the gradient of pages is pages.
    assert shapes == {"out": (2, 3, 8), "dq": (2, 2, 3, 4), "dk": (3, 2, 1, 4), "present_key": (2, 1, 4, 4)}
    assert run["result"]["numerics"]["within_bound"] is True


@pytest.mark.parametrize(
    ("shape", "past"), [((3, 4), (2, 4)), ((2, 3, 4), (2, 2, 4)), ((1, 2, 3, 4), (1, 2, 2, 4))]
)
def test_results_have_the_rank_of_the_input(api, shape, past):
    body = {
        "engine": "eager",
        "inputs": dict.fromkeys(["q", "k", "v", "dout"], seeded(*shape))
        | dict.fromkeys(["past_key", "past_value"], seeded(*past)),
        "return": ["out", "lse", "weights", "present_key", "dq", "dk", "dv"],
        **TIMING,
    }
    run = whole_run(api, body)
    found = {name: np.shape(run["result"][name]) for name in body["return"]}
    rows, keys = shape[:-1], (*shape[:-2], 5)
    assert found == {
        "out": shape,
        "lse": rows,
        "weights": (*rows, 5),
        "present_key": (*keys, 4),
    } | dict.fromkeys(["dq", "dk", "dv"], shape)
