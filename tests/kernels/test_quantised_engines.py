"""Engines with a quantised cache: against attention over the decoded numbers (tightly), against float64
(within the bound), what they read, what they return, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.arrays import generate
from kernels.engines.reference import reference
from kernels.estimate import estimate
from kernels.execute import CannotRunError, execute
from kernels.limits import MAX_DECODE_LEN
from kernels.numerics import compare
from kernels.quantise import KV_DTYPES, KV_SCALES, element_errors, quantise
from kernels.quantise import dequantise as decoded
from kernels.registry import ENGINES, SOFTMAX
from kernels.spec import RunSpec, SpecError, parse_run
from kernels.spec.results import GRADIENTS, TRACE
from kernels.traffic import modelled_traffic
from tests.kernels.cases import Arrays, canonical, cases, compute, make
from tests.kernels.error_bounds import error_bounds

QUANTISED = [name for name, it in ENGINES.items() if "kv_dtype" in it.features and it.computes == SOFTMAX]
FLOAT8 = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
LARGEST = {"int8": 127.0, "fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}
# Every kernel that reads a cache: tiles of several sizes, splits, pages, splits of pages, flash over pages.
WAYS = {
    "flash": ("flash", {"block_m": 16, "block_n": 16}, 33),
    "flash-one-tile": ("flash", {}, 1),
    "decode": ("decode", {}, 1),
    "decode-splits": ("decode", {"num_splits": 3, "block_n": 16}, 5),
    "paged": ("paged", {"page_size": 5}, 1),
    "paged-splits": ("paged", {"page_size": 7, "num_splits": 3, "block_n": 16}, 3),
    "paged-flash": ("paged", {"page_size": 16, "block_n": 16}, 20),
}
# Padding may hold anything, and the interpreter computes with it before it is masked.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero):RuntimeWarning")


def through_torch(x: np.ndarray, kv_dtype: str, kv_scale: str) -> np.ndarray:
    """What a cache makes of x [b, h, m, d]: torch's conversions to fp8, numpy's rounding; float64."""
    largest = np.abs(x.astype(np.float64)).max(None if kv_scale == "per_tensor" else 3, keepdims=True)
    scale = (largest / LARGEST[kv_dtype]).astype(np.float32).astype(np.float64)
    scaled = np.clip(x / scale, -LARGEST[kv_dtype], LARGEST[kv_dtype])
    if kv_dtype == "int8":
        return np.asarray(np.rint(scaled) * scale)
    return np.asarray(torch.from_numpy(scaled).float().to(FLOAT8[kv_dtype]).double().numpy() * scale)


def off(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one.astype(np.float64) - other.astype(np.float64)).max(initial=0.0))


def judged(spec: RunSpec, arrays: Arrays, results: Arrays) -> dict[str, Any]:
    """The ``numerics`` of results, from the reference, which knows nothing of the cache."""
    wanted = tuple(results)
    return compare(spec, results, reference(spec, arrays, wanted), error_bounds(spec, arrays))


# -- every engine, format, and kind of scale -----------------------------------------------------------------


@pytest.mark.parametrize("kv_scale", KV_SCALES)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("way", WAYS)
def test_the_answer_is_that_of_the_decoded_numbers(way: str, kv_dtype: str, kv_scale: str) -> None:
    """With grouped heads, values of another width, and a softcap, which comes after the scale of a key."""
    engine, options, n = WAYS[way]
    fields: dict[str, Any] = {"attention": {"is_causal": True, "softcap": 1.5}, "return": ["out", "lse"]}
    options = options | {"kv_dtype": kv_dtype, "kv_scale": kv_scale}
    spec, arrays = make(engine, (2, 4, 2, n, 45, 12), v_dim=7, options=options, **fields)
    got = compute(spec, arrays)
    exact, changed = make("reference", (2, 4, 2, n, 45, 12), v_dim=7, **fields)
    assert not judged(exact, changed, got)["within_bound"]  # what was quantised is another problem
    changed |= {name: through_torch(arrays[name], kv_dtype, kv_scale) for name in ("k", "v")}
    right = reference(exact, changed, ("out", "lse"))
    for name in ("out", "lse"):
        assert off(got[name], right[name]) < 5e-6
    assert judged(spec, arrays, got)["within_bound"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("way", ["flash", "decode-splits", "paged-splits"])
def test_16_bits(way: str, kv_dtype: str, dtype: str) -> None:
    """As far from eager, which computes in float32, as 16 bits are."""
    engine, options, n = WAYS[way]
    options = options | {"kv_dtype": kv_dtype}
    spec, arrays = make(engine, (1, 4, 2, n, 45, 12), dtype=dtype, options=options)
    got = compute(spec, arrays)
    simulated, _ = make("eager", (1, 4, 2, n, 45, 12), dtype=dtype, options={"kv_dtype": kv_dtype})
    unit = 2.0**-11 if dtype == "float16" else 2.0**-8
    assert off(got["out"], compute(simulated, arrays)["out"]) <= 3 * unit * np.abs(arrays["v"]).max()
    assert judged(spec, arrays, got)["within_bound"]


@pytest.mark.parametrize("way", ["flash", "decode-splits", "paged-splits"])
def test_small_values_survive_float16(way: str) -> None:
    """For values of 10⁻³ the scale, max|v| / 57344, is less than the smallest float16; a weight times it
    would be 0."""
    engine, options, n = WAYS[way]
    shape, more = (1, 2, 1, n, 45, 16), {"kv_dtype": "fp8_e5m2"}
    spec, arrays = make(engine, shape, dtype="float16", options=options | more)
    arrays["v"] = (arrays["v"] / 1024).astype(np.float16).astype(np.float32)
    expected = compute(make("eager", shape, dtype="float16", options=more)[0], arrays)["out"]
    assert off(compute(spec, arrays)["out"], expected) < 2.0**-8 * np.abs(arrays["v"]).max()


@pytest.mark.parametrize("engine", QUANTISED)
def test_no_spec_leaves_its_bound(engine: str) -> None:
    """All that the engine can be asked for beside gradients, latents and traces, NaN beyond the lengths."""
    lengths = st.sampled_from([0, 1, 2, 5, MAX_DECODE_LEN])
    returns = sorted(ENGINES[engine].returns - {*GRADIENTS, *TRACE})

    @settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        cases(engine, q_lens=lengths, without=("gradients", "mla")),
        st.sampled_from(KV_DTYPES),
        st.sampled_from(KV_SCALES),
        st.sampled_from(ENGINES[engine].dtypes),
    )
    def check(case: Any, kv_dtype: str, kv_scale: str, dtype: str) -> None:
        options = {"kv_dtype": kv_dtype, "kv_scale": kv_scale}
        spec, arrays = case.on(engine, dtype=dtype, options=options, **{"return": returns})
        found = judged(spec, arrays, compute(spec, arrays))
        for name, one in {"out": found, **found["arrays"]}.items():
            assert one["within_bound"], (name, one)

    check()


def test_the_bound_of_an_element_holds_and_is_reached() -> None:
    rng = np.random.default_rng()
    for kv_dtype in KV_DTYPES:
        for kv_scale in KV_SCALES:
            x = rng.standard_normal((2, 2, 300, 16)) * np.exp(rng.standard_normal((2, 2, 300, 1)))
            x[..., 1:] *= rng.choice([1.0, 1e-2, 1e-5], x[..., 1:].shape)
            lens = np.array([300, 7])
            x[1, :, 7:] = np.nan
            most = element_errors(x, kv_dtype, kv_scale, lens)
            error = np.abs(decoded(quantise(x, kv_dtype, kv_scale, lens), "float64") - x)
            assert not most[1, :, 7:].any()
            error[1, :, 7:] = 0.0
            assert (error <= most).all()
            assert (error > 0.9 * most)[most > 0].any()


# -- the cache ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", QUANTISED)
@pytest.mark.parametrize("rope", [None, {"style": "half"}])
def test_past_and_fresh_are_one_cache_and_come_back_decoded(engine: str, rope: dict[str, Any] | None) -> None:
    """Its codes are those of all keys after RoPE: with a scale per tensor those of the past depend on the
    fresh ones."""
    fresh = {"seed": 4, "shape": [2, 2, 3, 8]}
    past = {"seed": 5, "shape": [2, 2, 19, 8]}
    body: dict[str, Any] = {
        "engine": engine,
        "inputs": {"q": fresh, "k": fresh, "v": fresh, "past_key": past, "past_value": past},
        "attention": {"rope": rope, "is_causal": True},
        "return": ["out", "lse", "present_key", "present_value"],
    }
    for kv_scale in KV_SCALES:
        spec, arrays = canonical({**body, "options": {"kv_dtype": "int8", "kv_scale": kv_scale}})
        got = compute(spec, arrays)
        plain = reference(*canonical({**body, "engine": "reference"}), ("present_key", "present_value"))
        for name, whole in plain.items():
            expected = through_torch(whole, "int8", kv_scale)
            step = np.abs(expected).max() / 127
            differ = np.abs(got[name] - expected)
            # A rotation in float32 may turn a tie the other way.
            assert (differ > 1e-6).mean() < (0.01 if rope else 1e-9)
            assert differ.max() < 1.01 * step
        found = judged(spec, arrays, got)
        assert found["within_bound"]
        assert all(one["within_bound"] for one in found["arrays"].values())


@pytest.mark.parametrize("kv_scale", KV_SCALES)
@pytest.mark.parametrize("engine", ["eager", "paged"])
def test_pages_that_are_sent_are_quantised_like_rows(engine: str, kv_scale: str) -> None:
    """Shared, in any order, NaN where nothing was written."""
    rng = np.random.default_rng(3)
    pages = rng.standard_normal((6, 4, 2, 8)).astype(np.float32)
    table, lens = np.array([[5, 0, 2], [5, 3, -1]]), [11, 6]
    pages[2, 3], pages[3, 2:], pages[1], pages[4] = np.nan, np.nan, np.nan, np.nan
    up = {"q": rng.standard_normal((2, 4, 2, 8)), "k": pages, "v": 2 * pages, "block_table": table}
    inputs = {name: {"upload": "test", "name": name} for name in up}
    options = {"kv_dtype": "fp8_e4m3", "kv_scale": kv_scale}
    spec, arrays = canonical({"engine": engine, "inputs": inputs | {"kv_lens": lens}, "options": options}, up)
    got = compute(spec, arrays)["out"]
    for row, length in enumerate(lens):
        k, v = (
            np.concatenate([x[page] for page in table[row] if page >= 0])[None, :length].transpose(0, 2, 1, 3)
            for x in (up["k"], up["v"])
        )
        if kv_scale == "per_tensor":  # shared with the other row: brought in as the largest of all
            k, v = (through_one_scale(x, kept) for x, kept in ((k, pages), (v, 2 * pages)))
        else:
            k, v = through_torch(k, "fp8_e4m3", kv_scale), through_torch(v, "fp8_e4m3", kv_scale)
        one = {name: {"upload": "test", "name": name} for name in ("q", "k", "v")}
        plain = canonical(
            {"engine": "reference", "inputs": one}, {"q": up["q"][row : row + 1], "k": k, "v": v}
        )
        plain[1].update(k=k, v=v)
        assert off(got[row : row + 1], reference(*plain, ("out",))["out"]) < 5e-6


def through_one_scale(x: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """``through_torch`` with the scale of everything in pages."""
    largest = np.broadcast_to(np.nanmax(np.abs(kept)), (*x.shape[:2], 1, x.shape[3]))
    return through_torch(np.concatenate([x, largest], 2), "fp8_e4m3", "per_tensor")[:, :, :-1]


@pytest.mark.parametrize("way", [*WAYS, "eager"])
def test_what_lies_beyond_the_lengths_changes_nothing(way: str) -> None:
    engine, options, n = WAYS.get(way, ("eager", {}, 5))
    lens = [0, 17, 40]
    for kv_scale in KV_SCALES:
        more = {"kv_dtype": "fp8_e5m2", "kv_scale": kv_scale}
        fields = {"inputs": {"kv_lens": lens}, "options": options | more, "return": ["out", "lse"]}
        spec, arrays = make(engine, (3, 2, 1, n, 40, 8), **fields)
        clean, dirty = dict(arrays), dict(arrays)
        for name in ("k", "v"):
            clean[name], dirty[name] = arrays[name].copy(), arrays[name].copy()
            for row, length in enumerate(lens):
                clean[name][row, :, length:], dirty[name][row, :, length:] = 0.0, np.nan
                dirty[name][row, :, length + 1 :] = 1e30  # which would be the largest of all
        one, other = compute(spec, clean), compute(spec, dirty)
        for name in ("out", "lse"):
            np.testing.assert_array_equal(one[name], other[name])
        assert not one["out"][0].any()


@pytest.mark.parametrize("engine", QUANTISED)
def test_an_outlying_token_spoils_what_shares_its_scale(engine: str) -> None:
    """A token 10⁴ times the others, that no query may see. With a scale of its own it does no harm; else int8
    is worst, beyond whose range of 127 the others are zeros, and fp8_e5m2, with the most range, is best of
    the three only when that of fp8_e4m3 is left too."""
    q, k, v = (
        generate(name, 6, (1, 2, 4, 8) if name == "q" else (1, 2, 40, 8), "normal", "float32")
        for name in "qkv"
    )
    k[:, :, 7], v[:, :, 7] = 1e4, -1e4
    up = {"q": q, "k": k, "v": v, "attn_mask": np.arange(40) != 7}
    inputs = {name: {"upload": "test", "name": name} for name in up}

    def error(kv_dtype: str, kv_scale: str) -> float:
        body = {"engine": engine, "inputs": inputs, "options": {"kv_dtype": kv_dtype, "kv_scale": kv_scale}}
        spec, arrays = canonical(body, up)
        found = judged(spec, arrays, compute(spec, arrays))
        assert found["within_bound"]
        return float(found["rmse"])

    apart = {kv_dtype: error(kv_dtype, "per_token_head") for kv_dtype in KV_DTYPES}
    shared = {kv_dtype: error(kv_dtype, "per_tensor") for kv_dtype in KV_DTYPES}
    assert apart["int8"] < apart["fp8_e4m3"] < apart["fp8_e5m2"]
    assert shared["fp8_e4m3"] < shared["int8"]
    assert shared["fp8_e5m2"] < shared["int8"]
    assert all(apart[kv_dtype] <= shared[kv_dtype] for kv_dtype in KV_DTYPES)
    assert shared["int8"] > 10 * apart["int8"]


# -- bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_scale", KV_SCALES)
@pytest.mark.parametrize("kv_dtype", [None, *KV_DTYPES])
@pytest.mark.parametrize("engine", ["flash", "decode", "paged"])
def test_a_cache_is_read_a_byte_to_an_element(engine: str, kv_dtype: str | None, kv_scale: str) -> None:
    """Counted, load by load, with one tile of queries: K and V of each key head once (by flash: for each
    query head), a scale for each token that has one, and in pages the page of each token for whatever is
    read."""
    batch, heads, kv_heads, n, m, d, e = 2, 4, 2, 3, 40, 12, 7
    options = {"kv_dtype": kv_dtype, "kv_scale": kv_scale} if kv_dtype else {}
    body = {"options": options, "timing": {"warmup": 0, "iters": 1}}
    spec, _ = make(engine, (batch, heads, kv_heads, n, m, d), v_dim=e, **body)
    traffic = execute(spec, {}).traffic
    assert traffic["method"] == "interpreter"
    tokens = batch * m * (heads if engine == "flash" else kv_heads)
    item, scales = (4, 0) if kv_dtype is None else (1, 2 * (kv_scale == "per_token_head"))
    cache = tokens * ((d + e) * item + 4 * scales)
    table = 4 * tokens * (2 + scales) if engine == "paged" else 0
    states = 0 if engine == "flash" else 4 * batch * heads * n * (e + 2)
    assert traffic["bytes_read"] == 4 * batch * heads * n * d + cache + table + states


def test_costs_count_codes_and_scales() -> None:
    shape, tokens = (2, 4, 2, 3, 40, 12), 2 * 2 * 40
    queries = results = 2 * 4 * 3 * 12 * 2

    def spec(engine: str, **options: Any) -> RunSpec:
        return make(engine, shape, dtype="float16", options=options)[0]

    def least(**options: Any) -> int:
        return estimate(spec("decode", **options)).bytes_min - queries - results

    assert least() == tokens * 24 * 2
    assert least(kv_dtype="int8", kv_scale="per_tensor") == tokens * 24
    assert least(kv_dtype="fp8_e4m3") == tokens * (24 + 2 * 4)
    read = {name: modelled_traffic(spec("decode", kv_dtype=name))["bytes_read"] for name in (None, "int8")}
    assert read[None] - read["int8"] == tokens * (24 - 8)
    # A whole tile of queries reads them once.
    read = {name: modelled_traffic(spec("flash", kv_dtype=name))["bytes_read"] for name in (None, "int8")}
    assert read[None] - read["int8"] == 2 * tokens * (24 - 8)
    # Eager only simulates.
    simulated = [modelled_traffic(spec("eager", kv_dtype=name)) for name in (None, "int8")]
    assert simulated[0] == simulated[1]
    plain, quantised = (estimate(spec("decode", kv_dtype=name)) for name in (None, "int8"))
    assert quantised.predicted_bytes > plain.predicted_bytes
    assert quantised.predicted_seconds >= plain.predicted_seconds


# -- what is said and refused --------------------------------------------------------------------------------


def refused(body: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        canonical(body)
    return {problem.pointer: problem.detail for problem in caught.value.problems}


SQUARE = {name: {"seed": 1, "shape": [2, 4]} for name in "qkv"}


@pytest.mark.parametrize("engine", ["reference", "sdpa"])
def test_engines_without_a_cache_name_those_with_one(engine: str) -> None:
    found = refused({"engine": engine, "inputs": SQUARE, "options": {"kv_dtype": "int8"}})
    assert found.keys() == {"/options/kv_dtype"}
    assert all(name in found["/options/kv_dtype"] for name in QUANTISED)


@pytest.mark.parametrize("engine", ["eager", "flash"])
def test_gradients_are_refused_with_a_reason_and_a_remedy(engine: str) -> None:
    inputs = SQUARE | {"dout": {"seed": 1, "shape": [2, 4]}}
    body = {"engine": engine, "inputs": inputs, "return": ["dq"], "options": {"kv_dtype": "int8"}}
    detail = refused(body)["/options/kv_dtype"]
    assert "gradient" in detail
    assert "leave kv_dtype out" in detail


@pytest.mark.parametrize("engine", ["mla", "eager", "reference"])
def test_latents_are_refused_and_no_engine_is_named(engine: str) -> None:
    shapes = {"q_nope": [1, 2, 3, 4], "q_rope": [1, 2, 3, 2], "c_kv": [1, 5, 6], "k_rope": [1, 5, 2],
              "w_uk": [2, 6, 4], "w_uv": [2, 6, 4]}  # fmt: skip
    inputs = {name: {"seed": 1, "shape": shape} for name, shape in shapes.items()}
    found = refused({"engine": engine, "inputs": inputs, "options": {"kv_dtype": "int8"}})
    assert found.keys() == {"/options/kv_dtype"}
    assert "no engine quantises" in found["/options/kv_dtype"]
    assert "can" not in found["/options/kv_dtype"].split()


@pytest.mark.parametrize("engine", QUANTISED)
def test_a_kind_of_scale_alone_is_refused(engine: str) -> None:
    body = {"engine": engine, "inputs": SQUARE, "options": {"kv_scale": "per_tensor"}}
    assert "kv_dtype" in refused(body)["/options/kv_scale"]


def test_eager_says_that_it_simulates() -> None:
    notes = [
        execute(make("eager", (1, 1, 1, 2, 3, 4), options={"kv_dtype": kv})[0], {}).notes
        for kv in ("int8", None)
    ]
    assert any("simulated" in note for note in notes[0])
    assert not any("simulated" in note for note in notes[1])


def test_every_engine_declares_its_options() -> None:
    for name in QUANTISED:
        schema = ENGINES[name].describe()["options"]["properties"]
        assert schema["kv_dtype"]["enum"] == [None, *KV_DTYPES]
        assert set(schema["kv_scale"]["enum"]) == set(KV_SCALES)
    assert {"eager", "flash", "decode", "paged"} == set(QUANTISED)


@pytest.mark.parametrize("engine", ["eager", "cache"])
def test_numbers_that_no_scale_reaches_are_the_senders_to_change(engine: str) -> None:
    inputs = {"q": [[1, 2]], "k": [[1e300, 1]], "v": [[1, 2]]}
    parsed = parse_run(
        {"engine": engine, "dtype": "float64", "inputs": inputs, "options": {"kv_dtype": "int8"}}
    )
    with pytest.raises(CannotRunError, match="leave kv_dtype out, or send smaller numbers"):
        execute(parsed.spec, parsed.arrays)
