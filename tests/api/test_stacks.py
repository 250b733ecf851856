"""/estimates/pattern and /estimates/hybrid as a client sees them."""

import copy
import json
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.estimates import hybrids, patterns
from kernels.spec import SpecError
from kernels.spec.patterns import PATTERNS
from tests.api.helpers import assert_problem, validator
from tests.support.spoiling import spoiled

pytestmark = pytest.mark.django_db
KIB, GIB = 2**10, 2**30
ESTIMATES = {"pattern": patterns.estimate, "hybrid": hybrids.estimate}
EXAMPLES = {"pattern": patterns.EXAMPLE, "hybrid": hybrids.EXAMPLE}
EVERY_PATTERN = {
    "prefix": {"type": "prefix", "len": 5},
    "document": {"type": "document", "ids": [0] * 20 + [1] * 44},
    "chunked": {"type": "chunked", "size": 16},
    "dilated": {"type": "dilated", "window": 2, "stride": 3},
    "longformer": {"type": "longformer", "window": 8, "global": [0]},
    "bigbird": {"type": "bigbird", "window": 3, "global": 1, "random": 1, "seed": 1, "block": 4},
    "block": {"type": "block", "size": 32, "layout": [[1, 0], [1, 1]]},
    "neighborhood": {"type": "neighborhood", "width": 8, "kernel_size": 3},
}


def ask(api, kind, body):
    answer = api.post(f"/estimates/{kind}", body)
    assert answer.status_code == 200, answer.content[:800]
    return answer.json()


# --- Patterns --------------------------------------------------------------------------------


def test_a_band_is_what_is_counted_by_hand(api):
    """8 tokens, each sees itself and one on either side."""
    answer = ask(api, "pattern", {"len": 8, "window": [1, 1], "num_layers": 3, "token": 4, "block_m": 16})
    (layer,) = answer["layers"]
    assert layer["layers"] == [0, 1, 2]
    assert (layer["pairs"], layer["density"]) == (8 + 2 * 7, 22 / 64)
    assert layer["tiles"] == {"all": 1, "occupied": 1, "full": 0, "visited": 1}
    stack = answer["stack"]
    assert [field["after"] for field in stack["fields"]] == [1, 2, 3]
    assert [field["pairs"] for field in stack["fields"]] == [22, 34, 44]
    assert stack["fields"][2]["share"] == 44 / 64
    assert stack["cone"] == [[[4, 4]], [[3, 5]], [[2, 6]], [[1, 7]]]
    assert stack["layers_to_hear_all"] == 7
    assert stack["reach"] == {"before": 3, "after": 3, "has_gaps": False}
    assert stack["gap_free_strides"] == [1, 3]
    assert answer["notes"] == []


def test_empty_tiles_are_not_read(api):
    """Blocks on the diagonal in their own tiles: 1 of 16 tiles to each row of them."""
    body = {"len": 1024, "pattern": {"type": "chunked", "size": 64}, "head_dim": 64, "dtype": "float16"}
    answer = ask(api, "pattern", body)
    (layer,) = answer["layers"]
    assert layer["tiles"] == {"all": 256, "occupied": 16, "full": 16, "visited": 16}
    queries, streamed = 1024 * 64 * 2, 16 * 64 * 128 * 2
    assert layer["bytes_read"] == queries + streamed + 16 * 64 * 64 + 256  # and the mask of visited tiles
    assert answer["full"] == {"pairs": 2**20, "tiles": 256, "bytes_read": queries + 16 * streamed}


@pytest.mark.parametrize("kind", PATTERNS)
def test_every_pattern_is_answered_as_described(api, document, kind):
    for more in (
        {},
        {"is_causal": True, "window": [9, None]},
        {"num_layers": 3, "token": 0},
        {"token": None},
    ):
        body = {"len": 64, "pattern": EVERY_PATTERN[kind], **more}
        validator(document, "PatternRequest").validate(body)
        answer = ask(api, "pattern", body)
        validator(document, "PatternEstimate").validate(answer)
        (layer,) = answer["layers"]
        assert (layer["closed_form"] is None) == ("window" in more)
        assert layer["type"] == kind
        assert 0 < layer["pairs"] <= layer["density"] * 64**2


def test_where_masks_are_too_large_closed_forms_remain(api, document):
    answer = ask(api, "pattern", {"len": 2**17, "window": [4096, 0], "num_layers": 32})
    validator(document, "PatternEstimate").validate(answer)
    (layer,) = answer["layers"]
    assert layer["pairs"] == 2**17 + 4096 * (2**18 - 4097) // 2
    assert (
        layer["tiles"] is layer["bytes_read"] is answer["stack"]["fields"] is answer["stack"]["cone"] is None
    )
    assert answer["stack"]["reach"] == {"before": 131_072, "after": 0, "has_gaps": False}
    assert answer["stack"]["layers_to_hear_all"] == 32
    assert answer["full"]["tiles"] == 2**22
    assert "4,096 tokens" in answer["notes"][0]


# --- Hybrids ---------------------------------------------------------------------------------


def test_jamba_from_its_fields(api, document):
    answer = ask(api, "hybrid", hybrids.EXAMPLE)
    validator(document, "HybridEstimate").validate(answer)
    assert (answer["attention_layers"], answer["state_layers"]) == (4, 28)
    assert answer["bytes_per_token"] == answer["bytes_per_next_token"] == 16 * KIB
    assert answer["cache_bytes"] == 4 * GIB
    assert answer["all_attention_bytes"] == 32 * GIB
    assert answer["readable"]["cache_bytes"] == "4 GiB (4.29 GB)"
    assert answer["state_bytes"] == 28 * 8192 * (16 + 4) * 2
    assert answer["bytes"] == answer["cache_bytes"] + answer["state_bytes"]
    assert answer["ratio"] == answer["bytes"] / (32 * GIB)
    assert answer["break_even_tokens"] == answer["state_bytes"] // (16 * KIB) + 1
    series = answer["series"]
    assert series["len"][-1] == 2**18
    assert (series["cache_bytes"][-1], series["all_attention_bytes"][-1]) == (4 * GIB, 32 * GIB)
    assert series["attention_flops"][-1] == answer["flops"]["attention"]["per_token"] == 4 * 4096 * 2**18
    assert answer["flops"]["state"]["per_token"] == 6 * 8192 * 16 + 2 * 8192 * 4
    assert answer["flops"]["windowed"] is None


def test_the_same_as_from_a_config(api):
    known = ask(api, "kv-cache", {"model": "jamba-v0.1", "len": 5000, "batch": 3})
    answer = ask(api, "hybrid", {**hybrids.EXAMPLE, "len": 5000, "batch": 3})
    assert (answer["cache_bytes"], answer["state_bytes"]) == (known["bytes"], known["state_bytes"])


@pytest.mark.parametrize(
    "state",
    [
        {"kind": "mamba", "d_inner": 64},
        {"kind": "mamba2", "num_heads": 2, "dtype": "float32"},
        {"kind": "linear", "num_heads": 2, "d_k": 8, "d_v": 8, "conv_dtype": "float32"},
    ],
)
def test_every_state_is_answered_as_described(api, document, state):
    body = {
        "num_layers": 6,
        "attention_layers": 3,
        "windowed_layers": 2,
        "window": 100,
        "attention": {"num_kv_heads": 2, "head_dim": 8, "dtype": "int8"},
        "state": state,
        "len": 0,
    }
    for length in (0, 1, 10**9):
        validator(document, "HybridRequest").validate({**body, "len": length})
        answer = ask(api, "hybrid", {**body, "len": length})
        validator(document, "HybridEstimate").validate(answer)
        assert answer["state"]["kind"] == state["kind"]
        assert (answer["ratio"] is None) == (length == 0)
        assert answer["cache_bytes"] == (length + 2 * min(length, 100)) * 2 * 2 * (8 + 4)


# --- Both ------------------------------------------------------------------------------------


def test_examples_and_limits_are_listed(api):
    listed = {each["name"]: each for each in api.get("/estimates").json()["estimates"]}
    for kind, body in EXAMPLES.items():
        assert listed[kind]["example"] == body
        ask(api, kind, body)
    assert listed["pattern"]["limits"]["len"] == 2**20
    assert listed["hybrid"]["limits"]["len"] == 10**9


PATTERN = {"len": 64}
DILATED = {"type": "dilated", "window": 1, "stride": 2}
HYBRID = hybrids.EXAMPLE


def hybrid(**more):
    body = {**copy.deepcopy(HYBRID), **more}
    return "hybrid", {name: value for name, value in body.items() if value != "gone"}


def state(**more):
    return hybrid(state={"kind": "mamba", "d_inner": 8, **more})


def attention(**more):
    return hybrid(attention={"num_kv_heads": 8, "head_dim": 8, **more})


CASES = {
    "not an object": ("pattern", [], 400, "", ["object"]),
    "no length": ("pattern", {}, 400, "/len", ["1,048,576"]),
    "no token": ("pattern", {"len": 0}, 422, "/len", ["between 1", "0"]),
    "too long": ("pattern", {"len": 2**20 + 1}, 422, "/len", ["1048576"]),
    "a length that is true": ("pattern", {"len": True}, 400, "/len", ["true"]),
    "unknown field": ("pattern", {"len": 4, "patern": None}, 400, "/patern", ["pattern"]),
    "a pattern that is a word": ("pattern", {"len": 4, "pattern": "dilated"}, 400, "/pattern", ["dilated"]),
    "no such pattern": ("pattern", {"len": 4, "pattern": {"type": "x"}}, 422, "/pattern/type", ["bigbird"]),
    "half a pattern": (
        "pattern", {"len": 4, "pattern": {"type": "chunked"}}, 400, "/pattern/size", ["chunked"]),
    "a stride of nothing": (
        "pattern", {"len": 4, "pattern": {**DILATED, "stride": 0}}, 422, "/pattern/stride", ["0"]),
    "a global token that is not there": (
        "pattern", {"len": 4, "pattern": {"type": "longformer", "window": 2, "global": [4]}}, 422,
        "/pattern/global/0", ["4 of 4"]),
    "rows that do not fit": (
        "pattern", {"len": 10, "pattern": {"type": "neighborhood", "width": 4, "kernel_size": 3}}, 422,
        "/pattern/width", ["10", "4"]),
    "a window of one side": ("pattern", {"len": 4, "window": [1]}, 400, "/window", ["[left, right]"]),
    "a negative side": ("pattern", {"len": 4, "window": [-1, 0]}, 422, "/window/0", ["-1"]),
    "no layer": ("pattern", {"len": 4, "num_layers": 0}, 422, "/num_layers", ["0"]),
    "too many layers": ("pattern", {"len": 4, "num_layers": 257}, 422, "/num_layers", ["256"]),
    "layers and a pattern": (
        "pattern", {"len": 4, "layers": [{}], "pattern": DILATED}, 400, "/pattern", ["leave pattern out"]),
    "layers and how many": ("pattern", {"len": 4, "layers": [{}], "num_layers": 2}, 400, "/num_layers", []),
    "no layers": ("pattern", {"len": 4, "layers": []}, 422, "/layers", ["at least one"]),
    "layers that are one": ("pattern", {"len": 4, "layers": {}}, 400, "/layers", ["list"]),
    "a layer that is a number": ("pattern", {"len": 4, "layers": [3]}, 400, "/layers/0", ["3"]),
    "an unknown field of a layer": (
        "pattern", {"len": 4, "layers": [{"windows": None}]}, 400, "/layers/0/windows", ["window"]),
    "a mistake in a layer": (
        "pattern", {"len": 4, "layers": [{}, {"pattern": {**DILATED, "window": -1}}]}, 422,
        "/layers/1/pattern/window", ["-1"]),
    "layers beyond the limit": (
        "pattern", {"len": 4, "layers": [{"repeat": 256}, {}]}, 413, "/layers", ["257", "256"]),
    "a token that is not there": ("pattern", {"len": 4, "token": 4}, 422, "/token", ["between 0 and 3", "4"]),
    "a tile of 60": ("pattern", {"len": 4, "block_m": 60}, 422, "/block_m", ["power of two", "60"]),
    "a tile of 8": ("pattern", {"len": 4, "block_n": 8}, 422, "/block_n", ["16"]),
    "a head of nothing": ("pattern", {"len": 4, "head_dim": 0}, 422, "/head_dim", ["0"]),
    "a dtype without a kernel": ("pattern", {"len": 4, "dtype": "int8"}, 422, "/dtype", ["int8", "float16"]),
    "too many random blocks": (
        "pattern", {"len": 4096, "layers": [{}, {"pattern": {**EVERY_PATTERN["bigbird"], "block": 1}}]}, 413,
        "/layers/1/pattern/block", ["4,096 blocks", "larger"]),
    "a list too long": (
        "pattern", {"len": 9, "pattern": {"type": "document", "ids": [0] * 262_145}}, 413, "/pattern",
        ["262,145", "262,144"]),
    "lists too long together": (
        "pattern",
        {"len": 9, "layers": [{"pattern": {"type": "longformer", "window": 1, "global": [0] * 150_000}}] * 2},
        413, "/layers/1/pattern", ["300,000"]),
    "no layers of a hybrid": (*hybrid(num_layers="gone"), 400, "/num_layers", ["1,024"]),
    "neither how many nor every": (
        *hybrid(attention_every="gone"), 400, "/attention_layers", ["attention_every", "neither"]),
    "both how many and every": (*hybrid(attention_layers=4), 400, "/attention_every", ["both"]),
    "more attention than layers": (
        *hybrid(attention_every="gone", attention_layers=33), 422, "/attention_layers", ["33", "32 layers"]),
    "rarer than layers": (*hybrid(attention_every=33), 422, "/attention_every", ["33", "32"]),
    "every no layer": (*hybrid(attention_every=0), 422, "/attention_every", ["0"]),
    "more windows than attention": (
        *hybrid(windowed_layers=5, window=3), 422, "/windowed_layers", ["5", "4 layers are attention"]),
    "windows of unknown size": (*hybrid(windowed_layers=1), 400, "/window", ["4096"]),
    "a window of no layer": (*hybrid(window=5), 422, "/window", ["windowed_layers"]),
    "no attention": (*hybrid(attention="gone"), 400, "/attention", ["num_kv_heads"]),
    "attention that is a list": (*hybrid(attention=[]), 400, "/attention", ["a list of 0"]),
    "attention without heads": (
        *hybrid(attention={"head_dim": 8}), 400, "/attention/num_kv_heads", ["65,536"]),
    "heads that do not divide": (*attention(num_heads=9), 422, "/attention/num_heads", ["9", "8"]),
    "a wide head": (*attention(head_dim=2**21), 422, "/attention/head_dim", ["1048576"]),
    "unknown dtype": (*attention(dtype="fp4"), 422, "/attention/dtype", ["fp4", "int4"]),
    "unknown field of attention": (*attention(heads=9), 400, "/attention/heads", ["num_heads"]),
    "no state": (*hybrid(state="gone"), 400, "/state", ["mamba2"]),
    "a state of no kind": (*hybrid(state={}), 400, "/state/kind", ["mamba, mamba2 or linear"]),
    "a state of another kind": (*state(kind="mamba3"), 422, "/state/kind", ["mamba3"]),
    "a kind that is a number": (*state(kind=2), 400, "/state/kind", ["2"]),
    "a state without channels": (*hybrid(state={"kind": "mamba"}), 400, "/state/d_inner", ["channels"]),
    "a field of another state": (*state(num_heads=3), 400, "/state/num_heads", ["unknown field"]),
    "no number to a channel": (*state(d_state=0), 422, "/state/d_state", ["0"]),
    "a quantised state": (*state(dtype="int8"), 422, "/state/dtype", ["int8", "float32"]),
    "no batch": (*hybrid(batch=0), 422, "/batch", ["0"]),
    "a negative length": (*hybrid(len=-1), 422, "/len", ["-1"]),
    "too long a sequence": (*hybrid(len=10**9 + 1), 422, "/len", ["1000000000"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_explained(api, name):
    kind, body, status, pointer, words = CASES[name]
    assert_problem(api.post(f"/estimates/{kind}", body), status, pointer=pointer, says=words)


def test_everything_wrong_is_told_at_once(api):
    body = {"len": "x", "layers": [{"window": 3}, {"repeat": 0, "is_causal": 1}], "block_m": 3, "dtyp": 1}
    problem = assert_problem(api.post("/estimates/pattern", body), 400)
    assert {error["pointer"] for error in problem["errors"]} == {
        "/len", "/layers/0/window", "/layers/1/repeat", "/layers/1/is_causal", "/block_m", "/dtyp",
    }  # fmt: skip
    body = {"num_layers": 0, "attention": {}, "state": {"kind": "linear", "d_k": 0}, "len": None}
    problem = assert_problem(api.post("/estimates/hybrid", body), 400)
    assert {error["pointer"] for error in problem["errors"]} == {
        "/num_layers", "/attention_layers", "/attention/num_kv_heads", "/attention/head_dim",
        "/state/num_heads", "/state/d_k", "/state/d_v", "/len",
    }  # fmt: skip


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.sampled_from([2**53, 2**53 + 1, 10**400, 1e308, 1e-320, -0.0, 0.5, 10**6, 16, 64]),
    st.sampled_from(["", "nan", "inf", "mamba2", "dilated", "x" * 99, "ä"]),
    st.lists(st.one_of(st.integers(-1, 9), st.none(), st.lists(st.integers(0, 1), max_size=2)), max_size=4),
    st.sampled_from([*EVERY_PATTERN.values(), {}, {"type": "dilated", "window": 2**53, "stride": 2**53}]),
    st.recursive(st.none(), lambda inner: st.lists(inner, min_size=1, max_size=1), max_leaves=30),
)
LINEAR = {"kind": "linear", "num_heads": 1, "d_k": 2, "d_v": 2}
BODIES = [
    *EXAMPLES.items(),
    *(
        ("pattern", {"len": 64, "pattern": each, "num_layers": 2, "window": [9, 9]})
        for each in EVERY_PATTERN.values()
    ),
    ("hybrid", {**HYBRID, "windowed_layers": 1, "window": 5, "state": LINEAR}),
]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spoiled(BODIES, ODD, ["x/~", "layers", "len", "repeat", "v_head_dim", "token"]))
def test_a_spoiled_body_is_answered_or_its_mistakes_are_named(case):
    kind, body = case
    try:
        answer = ESTIMATES[kind](body)
    except SpecError as error:
        for problem in error.problems:
            assert problem.detail
            assert problem.status in (400, 413, 422)
            assert problem.pointer == "" or problem.pointer.startswith("/")
    else:
        json.dumps(answer, allow_nan=False)


LARGEST = {
    "a long window": {"len": 4096, "window": [63, 0], "num_layers": 64},
    "two masks": {"len": 4096, "layers": [{"window": [511, 0]}, {"is_causal": True}] * 8, "block_m": 1024},
    "a picture": {"len": 4096, "pattern": {**EVERY_PATTERN["neighborhood"], "width": 64}, "num_layers": 256},
    "random blocks": {"len": 2048, "pattern": {**EVERY_PATTERN["bigbird"], "block": 1}, "num_layers": 9},
    "many kinds": {"len": 362, "layers": [{"window": [number, 3]} for number in range(256)]},
    "many numbers": {"len": 2**18, "pattern": {"type": "document", "ids": list(range(2**18))}},
    "as long as can be": {"len": 2**20, "pattern": DILATED, "num_layers": 256},
}


@pytest.mark.parametrize("name", LARGEST)
def test_the_largest_that_is_accepted_is_answered_soon(api, name):
    """A web thread computes it, so it must be short; and the answer is bounded as well."""
    start = time.process_time()
    answer = api.post("/estimates/pattern", LARGEST[name])
    assert answer.status_code == 200, answer.content[:300]
    assert time.process_time() - start < 4
    assert len(answer.content) < 2**22
