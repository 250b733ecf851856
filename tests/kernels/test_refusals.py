"""What an engine cannot do is refused with advice that holds: whoever follows it is not refused again."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kernels import registry
from kernels.limits import MAX_DECODE_LEN
from kernels.registry import ENGINES, FEATURES
from kernels.spec import SpecError, parse_run
from kernels.spec.families import MLA, SCAN
from kernels.spec.results import DRAWN, GRADIENTS, RESULTS, TRACE

Body = dict[str, Any]


def seeded(*shape: int) -> Body:
    return {"seed": 1, "shape": list(shape)}


def request(engine: str, *, inputs: Body | None = None, **fields: Any) -> Body:
    return {"engine": engine, "inputs": {name: seeded(3, 4) for name in "qkv"} | (inputs or {}), **fields}


def latents(q_len: int = 3, v_dim: int = 4) -> Body:
    sizes = {
        "batch": 1,
        "heads": 2,
        "q_len": q_len,
        "kv_len": 3,
        "d_c": 5,
        "d_nope": 4,
        "d_rope": 2,
        "d_v": v_dim,
    }
    return {name: seeded(*(sizes[axis] for axis in axes)) for name, axes in MLA.axes.items()}


def scanned(length: int = 3, states: int = 4) -> Body:
    sizes = {"batch": 1, "heads": 1, "groups": 1, "len": length, "channels": states, "states": states}
    axes = {name: SCAN.axes[name] for name in SCAN.required}
    return {name: seeded(*(sizes[axis] for axis in of)) for name, of in axes.items()}


def refusals(body: Body) -> dict[str, str]:
    """pointer -> detail."""
    try:
        parse_run(body)
    except SpecError as error:
        return {problem.pointer: problem.detail for problem in error.problems}
    return {}


def advice(detail: str) -> str:
    return detail.split("; ", 1)[1]


WIDE = dict.fromkeys("qk", seeded(3, 300))
TABLE = {"block_table": [[0]], **dict.fromkeys("kv", seeded(1, 3, 1, 4))}


@pytest.mark.parametrize(
    ("engine", "fields", "pointer", "remedy"),
    [
        ("sdpa", {"attention": {"softcap": 5}}, "/attention/softcap",
         "reference, eager, flash, decode or paged"),
        ("sdpa", {"return": ["out", "softcapped_scores"]}, "/return/1", "reference, eager or flash"),
        ("flash", {"dtype": "float64"}, "/dtype", "reference, eager or sdpa"),
        ("reference", {"device": "cuda"}, "/device", "eager, sdpa, flash, decode or paged"),
        ("eager", {"options": {"block_m": 64}}, "/options/block_m", "flash"),
        ("flash", {"inputs": WIDE}, "/inputs/q", "reference, eager or sdpa"),
        ("flash", {"inputs": WIDE, "options": {"kv_dtype": "int8"}}, "/inputs/q", "eager"),
        ("decode", {"inputs": {"dout": seeded(3, 4)}, "return": ["dq"]}, "/return/0",
         "reference, eager, sdpa or flash"),
        ("flash", {"inputs": TABLE}, "/inputs/block_table", "reference, eager, sdpa or paged"),
    ],
)  # fmt: skip
def test_what_an_engine_cannot_do_names_who_can(engine: str, fields: Body, pointer: str, remedy: str) -> None:
    detail = refusals(request(engine, **fields))[pointer]
    assert f"engine {engine} does not support" in detail
    assert advice(detail) == f"{remedy} can"


def test_where_no_one_engine_does_both_the_refusal_says_what_keeps_the_able_ones_back() -> None:
    found = refusals(request("flash", dtype="float64", options={"block_m": 16}))
    assert advice(found["/dtype"]) == (
        "no one engine does it together with the option block_m; without it reference, eager or sdpa can"
    )
    found = refusals({"engine": "mla", "inputs": latents(), "options": {"num_splits": 2}})
    assert found == {
        "/options/num_splits": "engine mla does not support the option num_splits; no one engine does it "
        "together with multi-head latent attention: leave it out"
    }


@pytest.mark.parametrize("engine", ["decode", "paged"])
def test_a_gradient_is_not_asked_for_its_cause_first_where_there_is_none_to_be_had(engine: str) -> None:
    found = refusals(request(engine, **{"return": ["dq"]}))
    assert advice(found["/return/0"]) == (
        "reference, eager, sdpa or flash can, once the rest of the request is right"
    )
    assert "dq need dout" in found["/inputs/dout"]
    assert refusals(request("flash", **{"return": ["dq"]})).keys() == {"/inputs/dout"}


def test_a_limit_names_itself_and_what_was_asked_for() -> None:
    wide = refusals(request("flash", inputs={"v": seeded(3, 257)}))
    assert "a head dim of 257 (its limit is 256)" in wide["/inputs/v"]
    many = refusals(request("decode", inputs=dict.fromkeys("qkv", seeded(17, 4))))
    assert "a q_len of 17 (its limit is 16)" in many["/inputs/q"]


PAGES = {"k": seeded(2, 3, 1, 4), "v": seeded(2, 3, 1, 4), "block_table": [[0]]}
PAST = {"past_key": seeded(3, 4), "past_value": seeded(3, 4)}


@pytest.mark.parametrize(
    ("feature", "fields", "pointer"),
    [
        ("rope", {"attention": {"rope": {"style": "half"}}}, "/attention/rope"),
        ("sinks", {"attention": {"sinks": [0]}}, "/attention/sinks"),
        ("window", {"attention": {"window": [1, 0]}}, "/attention/window"),
        ("pattern", {"attention": {"pattern": {"type": "chunked", "size": 2}}}, "/attention/pattern"),
        ("positions", {"attention": {"q_positions": [0, 1, 2]}}, "/attention/q_positions"),
        ("attn_mask", {"inputs": {"attn_mask": [[0, 0, 0]]}}, "/inputs/attn_mask"),
        ("past", {"inputs": PAST}, "/inputs/past_key"),
        ("ragged", {"inputs": {"kv_lens": [2]}}, "/inputs/kv_lens"),
        ("paged", {"inputs": PAGES}, "/inputs/block_table"),
        ("gradients", {"inputs": {"dout": seeded(3, 4)}}, "/inputs/dout"),
    ],
)
def test_a_feature_that_no_engine_has_is_said_so(
    monkeypatch: pytest.MonkeyPatch, feature: str, fields: Body, pointer: str
) -> None:
    """Every feature is checked for: an engine without it refuses by name what asks for it."""
    assert refusals(request("reference", **fields)) == {}
    poorer = {name: replace(e, features=e.features - {feature}) for name, e in ENGINES.items()}
    monkeypatch.setattr(registry, "ENGINES", poorer)
    detail = refusals(request("reference", **fields))[pointer]
    assert FEATURES[feature] in detail
    assert advice(detail) == "no engine can yet"


# -- requests that nobody thought of -------------------------------------------------------------------------

# What may be asked for, in the words of a refusal, and how. "wide" and "long" change the shapes.
OPTIONS = {
    "block_m": 32, "block_n": 16, "num_splits": 2, "page_size": 3, "form": "absorbed", "num_features": 8,
    "normalise": True,
}  # fmt: skip
ASKED: dict[str, Callable[[Body], Any]] = {
    "dtype float64": lambda body: body.update(dtype="float64"),
    "device cuda": lambda body: body.update(device="cuda"),
    FEATURES["softcap"]: lambda body: body["attention"].update(softcap=5),
    FEATURES["window"]: lambda body: body["attention"].update(window=[1, None]),
    FEATURES["gradients"]: lambda body: body["inputs"].update(dout=seeded(*body["inputs"]["q"]["shape"])),
    FEATURES["kv_dtype"]: lambda body: body["options"].update(kv_dtype="int8"),
    "kv_scale": lambda body: body["options"].update(kv_scale="per_tensor"),
    **{f"the result {name}": lambda body, n=name: body["return"].append(n) for name in RESULTS},
    **{
        f"the option {name}": lambda body, o={name: x}: body["options"].update(o)
        for name, x in OPTIONS.items()
    },
}
SHAPED = (f"a q_len of {MAX_DECODE_LEN + 1}", "a head dim of 257")
DIFFERENTIATED = {f"the result {name}" for name in (*GRADIENTS, *DRAWN)}
ADVICE = re.compile(
    r"(?:no one engine does it together with (?P<lacks>.+); without (?:it|them) )?"
    r"(?P<able>[a-z, ]+?) can(?P<proviso>, once the rest of the request is right)?"
)


def learnt(q_len: int, dim: int) -> Body:
    """What additive scores take."""
    parameters = {"w_q": seeded(1, 2, dim), "w_k": seeded(1, 2, dim), "v_a": seeded(1, 2)}
    return dict.fromkeys("qkv", seeded(1, 1, q_len, dim)) | parameters


def build(kind: str, engine: str, asked: frozenset[str]) -> Body:
    q_len = MAX_DECODE_LEN + 1 if SHAPED[0] in asked else 3
    dim = 257 if SHAPED[1] in asked else 4
    made = {"latent": latents, "scan": scanned, "learnt": learnt}.get(kind)
    inputs = made(q_len, dim) if made else dict.fromkeys("qkv", seeded(1, 1, q_len, dim))
    if kind == "pages":
        inputs |= {**dict.fromkeys("kv", seeded(2, 3, 1, dim)), "block_table": [[0]]}
    body: Body = {"engine": engine, "inputs": inputs, "attention": {}, "options": {}, "return": ["out"]}
    for name, ask in ASKED.items():
        if name in asked:
            ask(body)
    return body


OWN = {
    "pages": FEATURES["paged"], "latent": FEATURES["mla"], "scan": FEATURES["scan"],
    "learnt": FEATURES["parameters"],
}  # fmt: skip


def can_be_asked(kind: str, engine: str) -> bool:
    """Whether the inputs are those that the engine cannot do without."""
    lacking = {"plain": ("mla", "scan", "scoring"), "scan": ("mla",), "learnt": ("mla", "scan")}
    return engine not in lacking.get(kind, ()) and not (kind == "pages" and engine in lacking["plain"])


def put_right(kind: str, asked: frozenset[str]) -> frozenset[str]:
    """Without what no engine takes, as the refusals advise."""
    if asked & DIFFERENTIATED:
        asked |= {FEATURES["gradients"]}
    if SHAPED[0] in asked:
        asked -= {"the option num_splits"}
    if asked & {f"the result {name}" for name in TRACE}:
        asked -= {"device cuda"}
    if kind == "latent" or FEATURES["gradients"] in asked:
        asked -= {FEATURES["kv_dtype"]}
    return asked if FEATURES["kv_dtype"] in asked else asked - {"kv_scale"}


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(["plain", "pages", "latent", "scan", "learnt"]),
    st.sampled_from(list(ENGINES)),
    st.frozensets(st.sampled_from([*ASKED, *SHAPED]), max_size=5),
)
def test_the_engines_that_a_refusal_names_accept_the_request_and_no_others(
    kind: str, engine: str, asked: frozenset[str]
) -> None:
    if kind in {"latent", "scan"}:  # which have neither a present nor gradients
        asked -= {
            FEATURES["gradients"],
            *DIFFERENTIATED,
            "the result present_key",
            "the result present_value",
        }
    if kind == "learnt":  # which are of windows, and by default there are none
        asked -= {"the result centres", "the result kept_weight"}
    assume(can_be_asked(kind, engine) and not (engine in {"linear", "scan"} and "the option form" in asked))
    assume(not (engine == "cache" and kind != "plain" and SHAPED[0] in asked))  # fewer keys than queries
    computes = ENGINES[engine].computes
    for pointer, detail in refusals(build(kind, engine, asked)).items():
        found = ADVICE.fullmatch(detail.partition("; ")[2])
        if found is None:
            assert re.search("leave (it|kv_dtype|kv_scale|trace_.+) out|need dout", detail), detail
            continue
        lacks = re.split(", | and ", found["lacks"] or "")
        if not {OWN.get(kind), "plain q"}.isdisjoint(lacks):
            continue  # without what its inputs say it is another request
        changed, others = asked.difference(lacks), [name for name in ENGINES if can_be_asked(kind, name)]
        if computes in lacks:
            lacks.remove(computes)
        else:
            others = [name for name in others if ENGINES[name].computes == computes]
        assert found["lacks"] is None or len(asked) - len(changed) == len(lacks), (pointer, detail)
        if FEATURES["kv_dtype"] in lacks:
            changed -= {"kv_scale"}  # which means nothing without it
        if found["proviso"]:
            assert put_right(kind, asked) != asked
            changed = put_right(kind, changed)
            changed -= asked - put_right(kind, asked)
        able = [name for name in others if not refusals(build(kind, name, changed))]
        assert re.split(", | or ", found["able"]) == able, (pointer, detail)
