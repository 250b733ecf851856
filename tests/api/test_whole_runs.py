"""A request with everything in it, from the body to the files: what a client sees of the whole spec."""

import base64
import io

import numpy as np
import pytest
from safetensors import numpy as safetensors

from api.runs.examples import EXAMPLES
from tests.api.helpers import assert_problem, compute, validator

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
    validator(document, "RunRequest").validate(body)
    answer = api.post("/runs", body)
    assert answer.status_code == 202, answer.content
    compute(answer.json()["id"])
    run = api.get(f"/runs/{answer.json()['id']}").json()
    validator(document, "Run").validate(run)
    assert run["status"] == "succeeded"
    return run


def file(api, run, name):
    answer = api.get(f"/runs/{run['id']}/artifacts/{name}")
    assert answer.status_code == 200, answer.content
    return np.load(io.BytesIO(answer.content))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_every_example_of_the_document_is_a_run(api, example):
    run = whole_run(api, {**example.value, **TIMING})
    assert run["result"]["numerics"]["within_bound"] is True
    assert set(example.value["return"]) <= set(run["result"])


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


def test_linear_attention_beside_exact_attention(api):
    body = {
        "engine": "linear",
        "inputs": {"q": seeded(1, 4, 20, 8), "k": seeded(1, 2, 20, 8), "v": seeded(1, 2, 20, 6)},
        "attention": {"is_causal": True},
        "options": {"form": "chunked", "chunk_size": 16},
        "return": ["out", "state", "normaliser"],
        **TIMING,
    }
    run = whole_run(api, body)
    result = run["result"]
    shapes = {name: np.shape(result[name]) for name in body["return"]}
    assert shapes == {"out": (1, 4, 20, 6), "state": (1, 2, 8, 6), "normaliser": (1, 2, 8)}
    assert result["numerics"]["within_bound"] is True
    assert result["comparison"]["with"] == "softmax"
    assert 0 < result["comparison"]["rel_err"] < 2
    assert run["spec"]["options"]["feature_map"] == "elu1"
    exact = whole_run(api, {**body, "engine": "reference", "options": {}, "return": ["out"]})
    difference = np.array(result["out"]) - np.array(exact["result"]["out"])
    assert result["comparison"]["max_abs_err"] == pytest.approx(np.abs(difference).max(), rel=1e-5)
    assert exact["result"]["comparison"] is None


def test_a_gated_delta_rule_goes_on_from_its_state(api):
    def body(inputs):
        given = {name: b64(array.astype(np.float32)) for name, array in inputs.items()}
        options = {"feature_map": "identity"}
        return {"engine": "linear", "inputs": given, "attention": {"is_causal": True}, "options": options,
                "return": ["out", "state"], **TIMING}  # fmt: skip

    random = np.random.default_rng(5)
    k = random.standard_normal((1, 1, 12, 4))
    inputs = {
        "q": random.standard_normal((1, 1, 12, 4)), "k": k / np.linalg.norm(k, axis=-1, keepdims=True),
        "v": random.standard_normal((1, 1, 12, 3)), "beta": random.uniform(0, 1, (1, 1, 12)),
        "log_decay": -random.uniform(0, 1, (1, 1, 12)),
    }  # fmt: skip
    whole = whole_run(api, body(inputs))["result"]
    first = whole_run(api, body({name: array[:, :, :7] for name, array in inputs.items()}))["result"]
    rest = {name: array[:, :, 7:] for name, array in inputs.items()}
    second = whole_run(api, body({**rest, "initial_state": np.array(first["state"])}))["result"]
    out = np.concatenate([first["out"], second["out"]], 2)
    np.testing.assert_allclose(out, whole["out"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(second["state"], whole["state"], rtol=1e-4, atol=1e-5)
    assert whole["comparison"]["rel_err"] > 0
    assert second["comparison"] is None


def test_a_performer_and_its_features(api):
    body = {
        "engine": "performer",
        "inputs": {name: {**seeded(2, 9, 4), "distribution": "uniform"} for name in "qkv"},
        "options": {"num_features": 1024, "features_seed": 3, "orthogonal": True},
        **TIMING,
    }
    result = whole_run(api, body)["result"]
    assert result["numerics"]["within_bound"] is True
    assert result["comparison"]["rel_err"] < 0.1


@pytest.mark.parametrize("form", ["recurrent", "scan", "chunked"])
def test_a_selective_scan(api, form):
    body = {
        "engine": "scan",
        "inputs": {
            "x": seeded(2, 2, 10, 4), "b": seeded(2, 1, 10, 3), "c": seeded(2, 1, 10, 3),
            "delta": b64(np.full((2, 2, 10, 1), 0.5)), "a": [[[-1.0]], [[-2.0]]],
            "d_skip": [[1, 1, 1, 1], [0, 0, 0, 0]],
        },
        "options": {"form": form},
        "return": ["out", "state"],
        **TIMING,
    }  # fmt: skip
    run = whole_run(api, body)
    assert np.shape(run["result"]["out"]) == (2, 2, 10, 4)
    assert np.shape(run["result"]["state"]) == (2, 2, 4, 3)
    assert run["result"]["numerics"]["within_bound"] is True
    assert run["result"]["comparison"]["rel_err"] > 0
    assert file(api, run, "state.npy").shape == (2, 2, 4, 3)


def test_additive_attention_around_predicted_positions(api):
    """Twelve keys, of which windows of half width 3 hold six or seven."""
    body = {
        "engine": "scoring",
        "inputs": {
            "q": seeded(2, 4, 9, 6), "k": seeded(2, 2, 12, 6), "v": seeded(2, 2, 12, 5),
            "w_q": seeded(4, 7, 6), "w_k": b64(np.ones((1, 7, 6), np.float32)), "v_a": seeded(4, 7),
            "w_p": seeded(1, 3, 6), "v_p": seeded(1, 3),
        },
        "options": {"span": "predictive", "half_width": 3},
        "return": ["out", "lse", "scores", "weights", "centres", "kept_weight"],
        **TIMING,
    }  # fmt: skip
    run = whole_run(api, body)
    result = run["result"]
    assert {name: np.shape(result[name]) for name in body["return"]} == {
        "out": (2, 4, 9, 5), "lse": (2, 4, 9), "scores": (2, 4, 9, 12), "weights": (2, 4, 9, 12),
        "centres": (2, 4, 9), "kept_weight": (2, 4, 9),
    }  # fmt: skip
    assert result["numerics"]["within_bound"] is True
    distance = np.abs(np.arange(12) - np.array(result["centres"])[..., None])
    np.testing.assert_array_equal(np.array(result["weights"]) > 0, distance <= 3)
    findings = result["findings"]
    assert findings["pairs_scored"] == np.count_nonzero(distance <= 3)
    assert findings["score_cost"]["functions"] == 7 * findings["pairs_scored"]
    assert result["comparison"]["with"] == "softmax"
    assert run["spec"]["options"]["score"] == "additive"
    answer = assert_problem(api.post("/runs", body | {"options": {"score": "dot"}}), 422)
    assert {error["pointer"] for error in answer["errors"]} >= {"/inputs/w_q", "/inputs/w_p", "/return/4"}


def bundles(api, run, name):
    """One result, from each kind of file."""
    answer = api.get(f"/runs/{run['id']}/artifacts/result.safetensors")
    return (
        file(api, run, f"{name}.npy"),
        file(api, run, "result.npz")[name],
        safetensors.load(answer.content)[name],
    )


def test_a_cache_that_forgets(api):
    body = {
        "engine": "cache",
        "inputs": {"q": seeded(4, 12, 6), "k": seeded(2, 12, 6), "v": seeded(2, 12, 5)},
        "attention": {"rope": {"style": "half"}},
        "options": {"policy": "streaming", "budget": 6, "sinks": 2, "kv_dtype": "int8"},
        "return": ["out", "weights", "held", "kept_weight", "row_error"],
        **TIMING,
    }
    run = whole_run(api, body)
    result = run["result"]
    assert {name: np.shape(result[name]) for name in body["return"]} == {
        "out": (4, 12, 5), "weights": (4, 12, 12), "held": (2, 12, 12), "kept_weight": (4, 12),
        "row_error": (4, 12),
    }  # fmt: skip
    assert result["held"][0][11] == [key < 2 or key > 7 for key in range(12)]  # true and false, no numbers
    for array in bundles(api, run, "held"):
        assert array.dtype == np.bool_
        np.testing.assert_array_equal(array, result["held"])
    findings = result["findings"]
    assert findings["budget"] == findings["tokens_held"] == 6
    assert findings["cache_bytes"] == 2 * 6 * (6 + 5 + 8)
    assert findings["full_cache_bytes"] == 2 * 12 * 11 * 4
    assert findings["worst_row_error"] == np.max(result["row_error"])
    assert result["comparison"]["rel_err"] > 0
    assert run["spec"]["options"]["recent"] is None


def test_what_a_kernel_holds_after_each_tile_of_keys(api):
    traces = ["trace_tiles", "trace_max", "trace_sum", "trace_rescale", "trace_out"]
    body = {
        "engine": "flash",
        "inputs": {"q": seeded(2, 20, 6), "k": seeded(1, 36, 6), "v": seeded(1, 36, 5)},
        "attention": {"is_causal": True, "causal_alignment": "top_left"},
        "options": {"block_m": 16, "block_n": 16},
        "return": ["out", "lse", *traces],
        **TIMING,
    }
    run = whole_run(api, body)
    result = run["result"]
    shapes = dict.fromkeys(traces, (2, 20, 3)) | {"trace_out": (2, 20, 3, 5)}
    assert {name: np.shape(result[name]) for name in traces} == shapes
    assert result["trace_tiles"][0][15] == [1, 0, 0]
    assert result["trace_tiles"][0][16] == [2, 1, 0]
    assert all(found["within_bound"] for found in result["numerics"]["arrays"].values())
    m, total, held = (np.array(result[name])[:, :, -1] for name in ("trace_max", "trace_sum", "trace_out"))
    np.testing.assert_allclose(held / total[..., None], result["out"], rtol=1e-5)
    np.testing.assert_allclose(m + np.log(total), result["lse"], rtol=1e-5)
    for array in bundles(api, run, "trace_tiles"):
        np.testing.assert_array_equal(array, result["trace_tiles"])


def test_attention_within_buckets(api):
    body = {
        "engine": "lsh",
        "inputs": {"q": seeded(2, 4, 12, 6), "k": seeded(2, 2, 12, 6), "v": seeded(2, 2, 12, 5),
                   "attn_mask": [[True] * 11 + [False]]},
        "attention": {"is_causal": True},
        "options": {"rounds": 3, "buckets": 4, "hash_seed": 2, "top": 2},
        "return": ["out", "weights", "recall", "kept_weight", "q_buckets", "k_buckets"],
        **TIMING,
    }  # fmt: skip
    run = whole_run(api, body)
    result = run["result"]
    assert {name: np.shape(result[name]) for name in body["return"]} == {
        "out": (2, 4, 12, 5), "weights": (2, 4, 12, 12), "recall": (2, 4, 12), "kept_weight": (2, 4, 12),
        "q_buckets": (2, 4, 12, 3), "k_buckets": (2, 2, 12, 3),
    }  # fmt: skip
    assert all(type(bucket) is int and 0 <= bucket < 4 for bucket in result["k_buckets"][0][0][0])
    for array in bundles(api, run, "k_buckets"):
        assert array.dtype == np.int64
        np.testing.assert_array_equal(array, result["k_buckets"])
    assert 0 < result["findings"]["mean_recall"] <= 1
    assert result["findings"]["pairs"] == 8 * (66 + 11)
    assert result["comparison"]["rel_err"] > 0


def test_keys_that_are_drawn(api):
    body = {
        "engine": "hard",
        "inputs": dict.fromkeys(["q", "k", "v", "dout"], seeded(2, 6, 4)),
        "attention": {"is_causal": True},
        "options": {"draws": 20, "draws_seed": 3, "baseline": "optimal"},
        "return": ["out", "weights", "chosen", "dscores", "dscores_estimate", "dscores_variance"],
        **TIMING,
    }
    run = whole_run(api, body)
    result = run["result"]
    matrices = dict.fromkeys(["weights", "dscores", "dscores_estimate", "dscores_variance"], (2, 6, 6))
    assert {name: np.shape(result[name]) for name in body["return"]} == {
        "out": (2, 6, 4), "chosen": (2, 6), **matrices
    }  # fmt: skip
    assert [row[0] for row in result["chosen"]] == [0, 0]  # the only key that there is
    for array in bundles(api, run, "chosen"):
        assert array.dtype == np.int64
        np.testing.assert_array_equal(array, result["chosen"])
    baselines = result["findings"]["baselines"]
    assert set(baselines) == {"none", "expected", "optimal", "moving"}
    assert baselines["optimal"]["variance"] == pytest.approx(np.sum(result["dscores_variance"]))
    assert result["comparison"]["rel_err"] > 0


@pytest.mark.parametrize(
    ("body", "pointer", "status", "says"),
    [
        ({"engine": "cache", "options": {"policy": "full", "budget": 3}}, "/options/budget", 422, "leave it"),
        ({"engine": "lsh", "options": {"buckets": 3}}, "/options/buckets", 422, "an even number, 2 or 4"),
        ({"engine": "hard", "return": ["dscores"]}, "/inputs/dout", 422, "need dout, of the shape of out"),
        ({"engine": "hard", "options": {"draws": 2**20}}, "/options/draws", 413, "at most 233,016 draws"),
    ],
)
def test_what_engines_in_float64_refuse(api, body, pointer, status, says):
    asked = {"inputs": dict.fromkeys("qkv", seeded(2, 9, 4)), **TIMING, **body}
    assert_problem(api.post("/runs", asked), status, pointer=pointer, says=says)


@pytest.mark.parametrize("engine", ["cache", "lsh", "hard"])
def test_what_would_take_too_long_is_refused_with_what_fits(api, engine):
    body = {"engine": engine, "inputs": dict.fromkeys("qkv", seeded(1, 8192, 8)), "timing": {"iters": 100}}
    assert_problem(api.post("/runs", body), 422, pointer="/inputs/q", says=["worker time", "lengths up to"])


@pytest.mark.parametrize(
    ("changed", "pointer", "says"),
    [
        ({"options": {"num_features": 0}}, "/options/num_features", "between 1 and 4,096, not 0"),
        ({"options": {"block_m": 16}}, "/options/block_m", "leave it out"),
        ({"inputs": {"beta": seeded(3, 4)}}, "/inputs/beta", "[kv_heads, kv_len] = [2, 9]"),
        ({"attention": {"softcap": 5}}, "/attention/softcap", "logit softcapping"),
        ({"engine": "scan"}, "/inputs/x", "x is required"),
    ],
)
def test_what_engines_beyond_softmax_refuse(api, changed, pointer, says):
    body = {"engine": "performer", "inputs": dict.fromkeys("qkv", seeded(2, 9, 4)), **TIMING}
    asked = {**body, **changed, "inputs": body["inputs"] | changed.get("inputs", {})}
    assert_problem(
        api.post("/runs", asked), 400 if changed.get("engine") else 422, pointer=pointer, says=says
    )
