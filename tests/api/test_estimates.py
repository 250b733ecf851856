"""/estimates, /models and /gpus as a client sees them."""

import time

import pytest

from kernels.sizing.gpus import gpus
from kernels.sizing.models import models
from tests.api.helpers import assert_problem, validator
from tests.kernels.sizing import configs

pytestmark = pytest.mark.django_db
KIB, GIB = 2**10, 2**30
KINDS = {
    "kv-cache": ("KvCache", {}),
    "memory": ("Memory", {"gpu": "h200"}),
    "roofline": ("Roofline", {"gpu": "h200"}),
    "fit": ("Fit", {"find": "gpu"}),
}


def ask(api, kind, body):
    answer = api.post(f"/estimates/{kind}", body)
    assert answer.status_code == 200, answer.content[:800]
    return answer.json()


def test_a_cache_by_name(api, django_assert_num_queries):
    with django_assert_num_queries(0):
        answer = ask(api, "kv-cache", {"model": "gemma-3-27b", "len": 131072, "batch": 2})
    assert answer["bytes"] == 2 * 11_173_625_856
    assert answer["bytes_unwindowed"] == 2 * 62 * GIB
    assert answer["bytes_per_token"] == 496 * KIB
    assert answer["readable"]["bytes"] == "20.8 GiB (22.3 GB)"
    assert sum(layer["bytes"] for layer in answer["layers"]) == answer["bytes"]
    assert answer["layers"][5] == {
        "layer": 5, "kind": "full_attention", "kv_heads": 16, "head_dim": 128, "v_head_dim": 128,
        "window": None, "tokens": 131072, "bytes": 2 * GIB, "state_bytes": 0,
    }  # fmt: skip
    assert (answer["dtype"], answer["len"], answer["batch"]) == ("float16", 131072, 2)


@pytest.mark.parametrize("name", ["llama-2-70b", "Llama-2-70B", "LLAMA 2 70b", "llama_2_70b"])
def test_a_model_however_it_is_spelt(api, name):
    assert ask(api, "kv-cache", {"model": name, "len": 1})["model"] == "llama-2-70b"


def test_a_cache_of_a_pasted_config(api):
    answer = ask(api, "kv-cache", {"config": configs.FALCON_180B, "len": 2048, "dtype": "float16"})
    assert answer["bytes_per_token"] == 160 * KIB
    assert answer["model"] is None
    assert "num_kv_heads" in answer["understood"]
    assert "layer_norm_epsilon" in answer["ignored"]
    assert answer["unknown"] == []
    assert any("multi_query" in note for note in answer["notes"])
    assert {entry["field"] for entry in answer["assumed"]} >= {"head_dim"}


def test_quantised_caches_and_their_scales(api):
    body = {"model": "llama-3-8b", "len": 1}
    sizes = {
        (dtype, scale): ask(api, "kv-cache", {**body, "dtype": dtype, "kv_scale": scale})["bytes"]
        for dtype in ("int8", "fp8_e4m3")
        for scale in ("per_tensor", "per_token_head")
    }
    assert set(sizes.values()) == {64 * KIB, 32 * 8 * 2 * (128 + 4)}


def test_an_encoder_s_tokens(api):
    body = {"model": "t5-base", "len": 10}
    assumed = ask(api, "kv-cache", body)
    assert assumed["encoder_len"] == 10
    assert "encoder_len" in {entry["field"] for entry in assumed["assumed"]}
    said = ask(api, "kv-cache", {**body, "encoder_len": 500})
    assert said["bytes"] == 36 * KIB * 510
    assert "encoder_len" not in {entry["field"] for entry in said["assumed"]}


def test_memory_says_what_fits(api):
    answer = ask(api, "memory", {"model": "llama-3-8b", "len": 4096, "gpu": "rtx-4090"})
    assert answer["params"] == 8_030_261_248
    assert answer["parts"]["weights"] == 16_060_522_496
    assert answer["parts"]["cache"] == GIB // 2
    assert answer["bytes"] == sum(answer["parts"].values())
    assert answer["readable"]["weights"] == "15 GiB (16.1 GB)"
    assert answer["fits"] is True
    assert answer["free_bytes"] == 24 * 10**9 - answer["bytes"]
    big = ask(api, "memory", {"model": "llama-3-70b", "len": 4096, "gpu": "rtx-4090"})
    assert big["fits"] is False
    assert big["free_bytes"] < 0
    assert ask(api, "memory", {"model": "llama-3-70b", "len": 4096})["fits"] is None
    small = ask(
        api, "memory", {"model": "llama-3-70b", "len": 4096, "weights_dtype": "int4", "group_size": 64}
    )
    assert small["bytes"] < big["bytes"] * 0.33


def test_memory_of_a_whole_prompt_with_all_its_logits(api):
    body = {"model": "llama-3-8b", "len": 4096, "q_len": "len", "logits": "all", "attention": "materialised"}
    parts = ask(api, "memory", body)["parts"]
    assert parts["logits"] == 4096 * 128256 * 4
    assert parts["scores"] == 2 * 32 * 4096**2 * 2


def test_weights_are_as_the_config_says_unless_told(api):
    answer = ask(api, "memory", {"model": "gpt-oss-120b", "len": 1})
    assert answer["weights_dtype"] == "config"
    assert round(answer["parts"]["weights"] / GIB, 1) == 60.8
    told = ask(api, "memory", {"model": "gpt-oss-120b", "len": 1, "weights_dtype": "bfloat16"})
    assert told["parts"]["weights"] == 2 * told["params"]


def test_a_roofline_is_a_bound_and_says_so(api):
    answer = ask(api, "roofline", {"model": "llama-2-70b", "len": 4096, "gpu": "a100-80-sxm", "gpus": 2})
    assert (answer["method"], answer["measured"]) == ("roofline", False)
    assert answer["decode"]["bound"] == "memory"
    assert answer["prefill"]["bound"] == "compute"
    assert answer["decode"]["traffic"]["cache_read"] == 5 * GIB // 4
    assert answer["decode"]["tokens_per_second"] == pytest.approx(1 / answer["decode"]["seconds"])
    assert answer["gpu"]["ridge_flop_per_byte"] == pytest.approx(153, abs=0.5)
    encoder = ask(api, "roofline", {"model": "bert-base", "len": 512, "gpu": "l4"})
    assert encoder["decode"] is None
    assert encoder["prefill"]["tokens"] == 512


def test_a_gpu_of_one_s_own(api):
    gpu = {"memory_gb": 80, "bandwidth_gb_s": 2039, "tflops_16bit": 312}
    body = {"model": "llama-2-70b", "len": 4096, "gpus": 2}
    own, known = (ask(api, "roofline", {**body, "gpu": g}) for g in (gpu, "a100-80-sxm"))
    assert own["decode"] == known["decode"]


def test_the_longest_the_largest_and_which(api):
    fit = {"model": "llama-2-70b", "gpu": "a100-80-sxm", "gpus": 2}
    batch = ask(api, "fit", {**fit, "find": "batch", "len": 4096})
    assert batch["batch"] == 16
    assert batch["per_gpu_bytes"] <= batch["budget_bytes"] < batch["one_more_bytes"]
    length = ask(api, "fit", {**fit, "find": "len", "batch": 16})
    assert 4096 <= length["len"] < 4400
    assert length["per_gpu_bytes"] <= length["budget_bytes"] < length["one_more_bytes"]
    assert (length["context"], length["within_context"]) == (4096, False)
    assert "len" not in ask(api, "fit", {"model": "llama-2-70b", "find": "gpu", "len": 1})["fitting"][0]
    fitting = {
        row["gpu"]: row["gpus"]
        for row in ask(api, "fit", {"model": "llama-2-70b", "find": "gpu", "len": 4096})["fitting"]
    }
    assert set(fitting) == set(gpus())
    assert (fitting["a100-80-sxm"], fitting["b200"], fitting["h200"]) == (2, 1, 1)


def test_nothing_fits_is_an_answer(api):
    answer = ask(api, "fit", {"model": "llama-3.1-405b", "gpu": "l4", "find": "len"})
    assert answer["len"] == 0
    assert answer["one_more_bytes"] > answer["budget_bytes"]


def test_the_tables(api):
    listed = {model["slug"]: model for model in api.get("/models").json()["models"]}
    assert list(listed) == list(models())
    assert listed["deepseek-v3"]["kv_bytes_per_token"] == 70_272
    assert listed["mixtral-8x7b"]["active_params"] == 12_879_925_248
    listed = {gpu["slug"]: gpu for gpu in api.get("/gpus").json()["gpus"]}
    assert list(listed) == list(gpus())
    assert listed["h200"]["memory_bytes"] == 141 * 10**9
    assert all(row["source"] for row in listed.values())


def test_what_can_be_estimated(api):
    listed = api.get("/estimates").json()
    assert [each["name"] for each in listed["estimates"]] == [*KINDS, "pattern", "hybrid"]
    for each in listed["estimates"]:
        assert each["url"].endswith(f"/api/v1/estimates/{each['name']}")
        ask(api, each["name"], each["example"])
    longest = ask(api, "kv-cache", {"model": "gpt2", "len": listed["limits"]["len"]})
    assert longest["bytes"] == 36 * KIB * 10**9


def test_configs_of_the_table_can_be_sent_back(api):
    for model in api.get("/models").json()["models"]:
        answer = ask(api, "kv-cache", {"config": model["config"], "len": 1})
        assert answer["bytes_per_token"] == model["kv_bytes_per_token"], model["slug"]


# --- What is refused -------------------------------------------------------------------------

LLAMA = {"model": "llama-3-8b", "len": 8}
CASES = {
    "no model": ("kv-cache", {"len": 1}, 400, "/model", "required", ["config"]),
    "both": ("kv-cache", {**LLAMA, "config": {}}, 400, "/config", "contradiction", ["model"]),
    "unknown model": ("kv-cache", {"model": "lama-3-8b", "len": 1}, 422, "/model", None, ["llama-3-8b"]),
    "model is a number": ("kv-cache", {"model": 3, "len": 1}, 400, "/model", "wrong-type", ["3"]),
    "no length": ("kv-cache", {"model": "gpt2"}, 400, "/len", "required", ["tokens"]),
    "a negative length": ("kv-cache", {**LLAMA, "len": -1}, 422, "/len", "out-of-range", ["-1", "0"]),
    "a fraction of a token": ("kv-cache", {**LLAMA, "len": 1.5}, 400, "/len", "wrong-type", ["1.5"]),
    "no sequence": ("kv-cache", {**LLAMA, "batch": 0}, 422, "/batch", "out-of-range", ["0"]),
    "too long": ("kv-cache", {**LLAMA, "len": 10**12}, 422, "/len", "out-of-range", ["1000000000"]),
    "unknown dtype": ("kv-cache", {**LLAMA, "dtype": "float12"}, 422, "/dtype", None, ["float12", "int8"]),
    "unknown field": ("kv-cache", {**LLAMA, "length": 3}, 400, "/length", "unknown-field", ["len"]),
    "a field of another estimate": ("kv-cache", {**LLAMA, "gpu": "l4"}, 400, "/gpu", "unknown-field", []),
    "encoder of a decoder": ("kv-cache", {**LLAMA, "encoder_len": 3}, 422, "/encoder_len", None, ["encoder"]),
    "not an object": ("kv-cache", [], 400, "", "wrong-type", ["object"]),
    "an empty config": ("kv-cache", {"config": {}, "len": 1}, 422, "/config/hidden_size", "required", []),
    "a config that is a word": ("kv-cache", {"config": "x", "len": 1}, 400, "/config", "wrong-type", ["x"]),
    "heads that do not divide": (
        "kv-cache",
        {"config": {**configs.LLAMA_2_70B, "num_key_value_heads": 7}, "len": 1},
        422,
        "/config/num_key_value_heads",
        "contradiction",
        ["7", "64", "1, 2, 4, 8"],
    ),
    "unknown gpu": ("memory", {**LLAMA, "gpu": "h10"}, 422, "/gpu", "unknown-gpu", ["h100-sxm", "memory_gb"]),
    "half a gpu": ("memory", {**LLAMA, "gpu": {"memory_gb": 8}}, 400, "/gpu/bandwidth_gb_s", "required", []),
    "a gpu of nothing": (
        "memory",
        {**LLAMA, "gpu": {"memory_gb": 0, "bandwidth_gb_s": 1, "tflops_16bit": 1}},
        422,
        "/gpu/memory_gb",
        "out-of-range",
        ["0"],
    ),
    "a gpu's unknown figure": (
        "memory",
        {**LLAMA, "gpu": {"memory_gb": 1, "bandwidth_gb_s": 1, "tflops_16bit": 1, "watts": 5}},
        400,
        "/gpu/watts",
        "unknown-field",
        [],
    ),
    "no gpu for a roofline": ("roofline", LLAMA, 400, "/gpu", "required", ["GET /gpus"]),
    "heads that 3 gpus cannot share": ("memory", {**LLAMA, "gpus": 3}, 422, "/gpus", None, ["32", "1, 2, 4"]),
    "8 bits on an A100": (
        "roofline",
        {**LLAMA, "gpu": "a100-40", "compute_bits": 8},
        422,
        "/compute_bits",
        "unsupported",
        ["A100", "16"],
    ),
    "4 bits": ("roofline", {**LLAMA, "gpu": "l4", "compute_bits": 4}, 422, "/compute_bits", None, ["4", "8"]),
    "a group of nothing": ("memory", {**LLAMA, "group_size": 64}, 422, "/group_size", None, ["bfloat16"]),
    "a step beyond the end": ("memory", {**LLAMA, "q_len": 9}, 422, "/q_len", "out-of-range", ["9", "8"]),
    "weights without a width": (
        "memory",
        {"config": {"num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 8}, "len": 1},
        422,
        "/config/intermediate_size",
        "required",
        ["d_ff"],
    ),
    "find nothing": ("fit", LLAMA, 400, "/find", "required", ["len", "batch", "gpu"]),
    "find a word": ("fit", {**LLAMA, "find": "gpus"}, 422, "/find", "not-a-choice", ["gpus"]),
    "find what is said": ("fit", {**LLAMA, "find": "len", "gpu": "l4"}, 422, "/len", "contradiction", []),
    "find gpus and say how many": (
        "fit",
        {**LLAMA, "find": "gpu", "gpus": 2},
        422,
        "/gpus",
        "contradiction",
        ["leave it out"],
    ),
    "find a length nowhere": ("fit", {"model": "gpt2", "find": "len"}, 400, "/gpu", "required", []),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_explained(api, name):
    kind, body, status, pointer, code, words = CASES[name]
    assert_problem(api.post(f"/estimates/{kind}", body), status, pointer=pointer, code=code, says=words)


def test_one_mistake_is_one_problem(api):
    bodies = [
        {"find": "longest", "gpu": "l4", "model": "gpt2"},
        {"gpu": "l4", "model": "gpt2", "len": 3},
        {"find": "len", "gpu": "l5", "model": "gpt2"},
        {"find": "len", "gpu": "l4", "model": "gpt22"},
    ]
    for body in bodies:
        assert len(api.post("/estimates/fit", body).json()["errors"]) == 1, body


def test_everything_wrong_is_told_at_once(api):
    body = {"config": {"hidden_size": -1}, "len": -1, "dtype": "x", "batsh": 1}
    problem = assert_problem(api.post("/estimates/kv-cache", body), 400)
    pointers = {error["pointer"] for error in problem["errors"]}
    assert pointers >= {"/config/hidden_size", "/config/num_hidden_layers", "/len", "/dtype", "/batsh"}


@pytest.mark.parametrize("kind", KINDS)
def test_there_is_nothing_to_get(api, kind):
    assert_problem(api.get(f"/estimates/{kind}"), 405)


def test_a_large_config_is_answered_at_once(api):
    """As many layers as are allowed, alternating: what costs most."""
    config = {
        **configs.GPT_OSS_20B,
        "num_hidden_layers": 1024,
        "layer_types": ["sliding_attention", "full_attention"] * 512,
    }
    for kind, (_, more) in KINDS.items():
        started = time.perf_counter()
        ask(api, kind, {"config": config, "len": 100, **more})
        assert time.perf_counter() - started < 2, kind
    many = {f"field{index}": [index] for index in range(5000)}
    assert_problem(api.post("/estimates/kv-cache", {"config": many, "len": 1}), 413, pointer="/config")


# --- The document ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "slug", ["llama-3-8b", "t5-base", "bert-base", "mamba-2.8b", "deepseek-v3", "jamba-v0.1"]
)
def test_requests_and_answers_are_as_described(api, document, slug):
    for kind, (name, more) in KINDS.items():
        body = {"model": slug, "len": 100, **more}
        validator(document, f"{name}Request").validate(body)
        validator(document, f"{name}Estimate").validate(ask(api, kind, body))
    for find in ("len", "batch"):
        body = {"model": slug, "find": find, "gpu": "b200", **({"len": 10} if find == "batch" else {})}
        validator(document, "FitRequest").validate(body)
        validator(document, "FitEstimate").validate(ask(api, "fit", body))
    validator(document, "Estimates").validate(api.get("/estimates").json())
    validator(document, "ModelList").validate(api.get("/models").json())
    validator(document, "GpuList").validate(api.get("/gpus").json())


def test_the_examples_of_the_document_are_answered(api, document):
    for kind in KINDS:
        content = document["paths"][f"/api/v1/estimates/{kind}"]["post"]["requestBody"]["content"]
        for example in content["application/json"]["examples"].values():
            ask(api, kind, example["value"])


DESCRIBED = [
    name
    for name, (_, _, _, pointer, code, _) in CASES.items()
    if code in ("unknown-field", "not-a-choice")
    or (pointer in ("/len", "/batch") and code != "contradiction")
    or name in ("no model", "both", "no gpu for a roofline", "find nothing", "half a gpu")
]


@pytest.mark.parametrize("name", DESCRIBED)
def test_what_a_field_alone_makes_wrong_the_description_refuses_too(document, name):
    kind, body, *_ = CASES[name]
    assert not validator(document, f"{KINDS[kind][0]}Request").is_valid(body)
