"""Engine ``cache``, from a request to its result: beside loops written out, torch, and other engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.estimate import estimate
from kernels.execute import execute
from kernels.registry import ENGINES
from kernels.spec import parse_run
from tests.kernels.double_engines import (
    Body,
    assert_compared_with,
    everything,
    for_heads,
    made,
    refusals,
    request,
    run,
    sdpa,
)

ALL = {"return": everything("cache")}
ROPE = {"style": "interleaved", "theta": 100.0}


def cache(policy: str = "streaming", *, rope: Body | None = None, **fields: Any) -> Body:
    """A request with some options, named as such."""
    names = ("budget", "sinks", "recent", "cache_positions", "kv_dtype", "kv_scale")
    options = {"policy": policy} | {name: fields.pop(name) for name in names if name in fields}
    attention = ({"rope": rope} if rope else {}) | fields.pop("attention", {})
    return request("cache", options=options, attention=attention, **fields)


def weights(q: np.ndarray, k: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Softmax attention [n, m] of one head over what is seen, row by row."""
    found = np.zeros(seen.shape)
    for i, row in enumerate(seen):
        logits = k[row] @ q[i] / np.sqrt(q.shape[1])
        exponentials = np.exp(logits - logits.max())
        found[i, row] = exponentials / exponentials.sum()
    return found


# -- what is held, by hand -----------------------------------------------------------------------------------


def heavy_hitters(body: Body, budget: int, recent: int) -> np.ndarray:
    """[b, h_kv, T, T]: the least looked at of the older tokens goes, one at a time."""
    q, k = made(body, "q"), made(body, "k")
    (batch, heads, length, dim), kv_heads = q.shape, k.shape[1]
    found = np.zeros((batch, kv_heads, length, length), bool)
    for b, h in np.ndindex(batch, kv_heads):
        held: list[int] = []
        mass = np.zeros(length)
        for t in range(length):
            held.append(t)
            if len(held) > budget:
                held.remove(min(held[:-recent], key=lambda token: (mass[token], token)))
            found[b, h, t, held] = True
            for query in range(h * heads // kv_heads, (h + 1) * heads // kv_heads):
                logits = k[b, h, held] @ q[b, query, t] / np.sqrt(dim)
                exponentials = np.exp(logits - logits.max())
                mass[held] += exponentials / exponentials.sum()
    return found


def held_by(policy: str, body: Body, *, budget: int, sinks: int = 4, recent: int = 1) -> np.ndarray:
    length = body["inputs"]["q"]["shape"][2]
    query, key = np.ogrid[:length, :length]
    past = key <= query
    if policy == "heavy_hitters":
        return heavy_hitters(body, budget, recent)
    if policy == "sliding":
        past &= query - key < budget
    if policy == "streaming":
        past &= (key < sinks) | (query - key < budget - sinks)
    return np.broadcast_to(past, (*body["inputs"]["k"]["shape"][:2], length, length))


@pytest.mark.parametrize("dtype", ENGINES["cache"].dtypes)
@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("full", {}),
        ("sliding", {"budget": 7}),
        ("sliding", {"budget": 1}),
        ("streaming", {"budget": 7, "sinks": 2}),
        ("streaming", {"budget": 9}),
        ("heavy_hitters", {"budget": 7, "recent": 2}),
        ("heavy_hitters", {"budget": 6, "recent": 6}),
        ("heavy_hitters", {"budget": 1, "recent": 1}),
    ],
)
def test_each_row_is_attention_over_what_the_policy_holds(policy: str, options: Body, dtype: str) -> None:
    body = cache(policy, **options, **ALL, dtype=dtype, distribution="peaked")
    outcome = run(body)
    found = outcome.arrays
    held = held_by(policy, body, **{"budget": 21, **options})
    np.testing.assert_array_equal(found["held"], held)
    assert found["held"].dtype == np.bool_
    np.testing.assert_allclose(found["out"], sdpa(body, for_heads(held, 4)), atol=1e-12)
    q, k = made(body, "q"), for_heads(made(body, "k"), 4)
    exact = sdpa(body, is_causal=True)
    for b, h in np.ndindex(2, 4):
        of_head = weights(q[b, h], k[b, h], held[b, h // 2])
        np.testing.assert_allclose(found["weights"][b, h], of_head, atol=1e-12)
        whole = weights(q[b, h], k[b, h], np.tril(np.ones((21, 21), bool)))
        kept = (whole * held[b, h // 2]).sum(axis=1)
        np.testing.assert_allclose(found["kept_weight"][b, h], kept, atol=1e-12)
        apart = np.linalg.norm(found["out"][b, h] - exact[b, h], axis=1)
        np.testing.assert_allclose(
            found["row_error"][b, h], apart / np.linalg.norm(exact[b, h], axis=1), atol=1e-12
        )
    assert_compared_with(outcome, exact)
    figures = outcome.findings
    assert figures["budget"] == options.get("budget")
    assert figures["tokens_held"] == held[0, 0, -1].sum()
    assert figures["mean_row_error"] == pytest.approx(found["row_error"].mean())
    assert figures["worst_row_error"] == found["row_error"].max()
    assert figures["mean_kept_weight"] == pytest.approx(found["kept_weight"].mean())


# -- equalities ----------------------------------------------------------------------------------------------

SIZES = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 2), "heads": st.just(4), "kv_heads": st.sampled_from([1, 2, 4]),
        "q_len": st.integers(1, 17), "v_dim": st.integers(1, 5),
        "distribution": st.sampled_from(["normal", "uniform", "peaked"]),
        "dtype": st.sampled_from(ENGINES["cache"].dtypes),
    }
)  # fmt: skip
ROPES = st.sampled_from([None, ROPE, {"style": "half", "dim": 4, "dim_offset": 2}])


def reference(body: Body, **attention: Any) -> np.ndarray:
    """Engine reference on the same inputs."""
    attention = {**body["attention"], "is_causal": True, **attention}
    exact = {**body, "engine": "reference", "options": {}, "attention": attention, "return": ["out"]}
    return run(exact).arrays["out"]


@settings(max_examples=40, deadline=None)
@given(SIZES, ROPES, st.sampled_from([None, "text", "cache"]), st.booleans(), st.none() | st.floats(-2, 2))
def test_a_cache_that_keeps_all_is_causal_attention(
    sizes: Any, rope: Body | None, positions: str | None, said: bool, scale: float | None
) -> None:
    attention = ({"is_causal": True} if said else {}) | ({} if scale is None else {"scale": scale})
    options = {"cache_positions": positions} if rope and positions else {}
    for policy, more in (("full", {}), ("streaming", {"budget": 99}), ("heavy_hitters", {"budget": 17})):
        body = cache(policy, rope=rope, attention=attention, **sizes, **options, **more)
        np.testing.assert_allclose(run(body).arrays["out"], reference(body), atol=1e-10, rtol=1e-10)


@settings(max_examples=40, deadline=None)
@given(SIZES, ROPES, st.integers(1, 20))
def test_a_sliding_cache_is_a_window(sizes: Any, rope: Body | None, budget: int) -> None:
    body = cache("sliding", rope=rope, budget=budget, **sizes, **{"return": ["out", "row_error"]})
    got, wanted = run(body), reference(body, window=[budget - 1, 0])
    np.testing.assert_allclose(got.arrays["out"], wanted, atol=1e-10, rtol=1e-10)
    assert_compared_with(got, reference(body))
    without_sinks = cache("streaming", rope=rope, budget=budget, sinks=0, **sizes)
    if rope:
        without_sinks["options"]["cache_positions"] = "text"
    np.testing.assert_array_equal(run(without_sinks).arrays["out"], got.arrays["out"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sliding_cache_is_what_flash_computes_with_a_window(dtype: str) -> None:
    body = cache("sliding", budget=6, dtype=dtype)
    parsed = parse_run({**body, "engine": "flash", "options": {}, "attention": {"window": [5, 0]}})
    flash = execute(parsed.spec, parsed.arrays)
    error = np.abs(flash.arrays["out"].astype(np.float64) - run(body).arrays["out"]).max()
    assert error <= flash.numerics["bound"]


def turned(x: np.ndarray, position: int) -> np.ndarray:
    """Interleaved RoPE of one vector, by complex numbers."""
    pairs = (x[0::2] + 1j * x[1::2]) * np.exp(1j * position * 100.0 ** (-np.arange(0, len(x), 2) / len(x)))
    return np.stack([pairs.real, pairs.imag], axis=-1).reshape(-1)


@pytest.mark.parametrize("positions", [None, "text", "cache"])
def test_positions_count_places_in_the_cache_or_in_the_text(positions: str | None) -> None:
    """With policy streaming those in the cache unless another is asked for; the comparison is always with
    those in the text."""
    body = cache(rope=ROPE, budget=6, sinks=2, cache_positions=positions)
    outcome = run(body)
    q, k, v = (made(body, name) for name in "qkv")
    held = held_by("streaming", body, budget=6, sinks=2)
    for b, h, t in np.ndindex(2, 4, 21):
        tokens = np.flatnonzero(held[b, h // 2, t])
        places = tokens if positions == "text" else np.arange(len(tokens))
        query = turned(q[b, h, t], places[-1])
        keys = [turned(k[b, h // 2, token], place) for token, place in zip(tokens, places, strict=True)]
        exponentials = np.exp(np.array(keys) @ query / np.sqrt(6))
        wanted = exponentials / exponentials.sum() @ v[b, h // 2, tokens]
        np.testing.assert_allclose(outcome.arrays["out"][b, h, t], wanted, atol=1e-12)
    assert_compared_with(outcome, reference(body))


def test_packed_inputs_and_fewer_axes_are_the_same_computation() -> None:
    body = cache("heavy_hitters", budget=5, rope=ROPE, batch=1, **ALL)
    found = run(body).arrays
    packed = {name: made(body, name).swapaxes(1, 2).reshape(1, 21, -1).tolist() for name in "qkv"}
    heads = {"num_heads": 4, "num_kv_heads": 2}
    other = run({**body, "inputs": packed, "attention": {**body["attention"], **heads}}).arrays
    np.testing.assert_allclose(other.pop("out"), found["out"].swapaxes(1, 2).reshape(1, 21, -1), atol=1e-12)
    for name, array in other.items():
        np.testing.assert_allclose(array, found[name], atol=1e-12)
    one = {name: made(body, name)[0, :1].tolist() for name in "qkv"}
    alone = run({**body, "inputs": one}).arrays
    assert {name: array.shape for name, array in alone.items()} == {
        "out": (1, 21, 5), "weights": (1, 21, 21), "held": (1, 21, 21), "kept_weight": (1, 21),
        "row_error": (1, 21),
    }  # fmt: skip


# -- bytes and quantised caches ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "token", "shared", "held"),
    [
        (cache("full"), 11 * 4, 0, 21),
        (cache("full", dtype="bfloat16"), 11 * 2, 0, 21),
        (cache(dtype="float64"), 11 * 8, 0, 11),  # half of the text
        (cache(q_len=5), 11 * 4, 0, 5),  # room for the sinks and one more
        (cache(sinks=0), 11 * 4, 0, 11),
        (cache("heavy_hitters", budget=8), 11 * 4 + 4, 0, 8),  # and a sum of weights
        (cache("sliding", budget=100), 11 * 4, 0, 21),
        (cache("sliding", budget=8, kv_dtype="int8"), 11 + 8, 0, 8),
        (cache("full", kv_dtype="fp8_e4m3", kv_scale="per_tensor"), 11, 8, 21),
    ],
)
def test_bytes_are_those_of_what_is_held(body: Body, token: int, shared: int, held: int) -> None:
    """2 batch rows with 2 key heads of 6 + 5 numbers."""
    outcome = run(body)
    wide = {"float64": 8, "bfloat16": 2}.get(body.get("dtype", "float32"), 4)
    length = body["inputs"]["q"]["shape"][2]
    assert outcome.findings["cache_bytes"] == 4 * token * held + shared
    assert outcome.findings["full_cache_bytes"] == 4 * 11 * wide * length
    assert outcome.findings["tokens_held"] == held
    # A server writes each token once, and reads at each step what it holds.
    steps = sum(min(t, held) for t in range(1, length + 1))
    inputs = 4 * wide * length * (2 * 6 + 11)
    assert outcome.traffic["bytes_read"] == inputs + 4 * token * steps
    assert outcome.traffic["bytes_written"] == 8 * length * 5 * 8 + 4 * token * length


@pytest.mark.parametrize("kv_scale", ["per_token_head", "per_tensor"])
def test_codes_cost_what_they_round_away(kv_scale: str) -> None:
    errors = {
        kv_dtype: run(cache("full", kv_dtype=kv_dtype, **({"kv_scale": kv_scale} if kv_dtype else {})))
        for kv_dtype in (None, "int8", "fp8_e5m2")
    }
    found = {name: outcome.findings["mean_row_error"] for name, outcome in errors.items()}
    assert found[None] == 0
    assert 1e-4 < found["int8"] < found["fp8_e5m2"] < 0.2
    # Rounded by hand: 127 steps each way.
    body = cache("full", kv_dtype="int8", kv_scale=kv_scale)
    inputs = {"q": made(body, "q").tolist()}
    for name in "kv":
        x = made(body, name)
        size = np.abs(x).max(axis=-1, keepdims=True) if kv_scale == "per_token_head" else np.abs(x).max()
        inputs[name] = (np.rint(x / size * 127) * size / 127).tolist()
    rounded = sdpa({**body, "inputs": inputs, "dtype": "float64"}, is_causal=True)
    np.testing.assert_allclose(errors["int8"].arrays["out"], rounded, atol=1e-6)


# -- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "pointer", "says"),
    [
        (cache(q_len=21, kv_len=20), "/inputs/q", "q has length 21 and k 20; make them equal"),
        (cache("full", budget=3), "/options/budget", "policy full has no use for it: leave it out"),
        (cache("full", sinks=3), "/options/sinks", "with policy streaming; policy full"),
        (cache("sliding", sinks=3), "/options/sinks", "policy sliding has no use for it"),
        (cache("streaming", recent=3), "/options/recent", "with policy heavy_hitters"),
        (cache("heavy_hitters", sinks=0), "/options/sinks", "policy heavy_hitters has no use"),
        (cache(budget=4), "/options/budget", "send a budget of 5 or more, or fewer sinks"),
        (cache(budget=4, sinks=6), "/options/sinks", "send a budget of 7 or more"),
        (cache("heavy_hitters", budget=4, recent=5), "/options/recent", "send at most 4, or a budget of 5"),
        (cache("heavy_hitters", recent=12), "/options/recent", "12 recent tokens are safe, and 11 are held"),
        (cache("sliding", budget=0), "/options/budget", "between 1 and 16,777,216 or null, not 0"),
        (cache(cache_positions="text"), "/options/cache_positions", "set attention.rope, or leave it out"),
        (cache(rope=ROPE, cache_positions="place"), "/options/cache_positions", "null, text or cache"),
        (cache(rope={"style": "half", "positions": 3}), "/attention/rope/positions", "leave positions out"),
        (cache("oldest"), "/options/policy", "streaming, full, sliding or heavy_hitters"),
        (cache(attention={"window": [3, 0]}), "/attention/window", "sliding windows"),
        (cache(attention={"q_positions": 3}), "/attention/q_positions", "does not support positions"),
        (cache(inputs={"kv_lens": [3, 4]}), "/inputs/kv_lens", "ragged"),
        (cache(kv_scale="per_tensor"), "/options/kv_scale", "ask for a kv_dtype too"),
        (cache(**{"return": ["lse"]}), "/return/0", "the result lse"),
        (request("flash", options={"budget": 3}), "/options/budget", "leave it out"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_named(body: Body, pointer: str, says: str) -> None:
    status, detail = refusals(body)[pointer]
    assert says in detail
    assert status == 422


def test_a_text_that_is_too_long_is_refused_before_it_is_read() -> None:
    status, detail = refusals(cache(batch=1, heads=8, kv_heads=8, q_len=3000, dim=64, v_dim=64))["/inputs/q"]
    assert status == 413
    assert "9,219,072,000 multiply-adds, and at most 4,294,967,296" in detail
    assert "half of them are a quarter" in detail


# -- ends ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["full", "sliding", "streaming", "heavy_hitters"])
@pytest.mark.parametrize(
    "sizes",
    [
        {"q_len": 0}, {"q_len": 1}, {"batch": 0}, {"heads": 0, "kv_heads": 0}, {"heads": 0}, {"dim": 0},
        {"v_dim": 0},
    ],
)  # fmt: skip
def test_empty_axes_are_legal(policy: str, sizes: Any) -> None:
    body = cache(policy, **sizes, **ALL)
    outcome = run(body)
    assert outcome.arrays["out"].shape == (*body["inputs"]["q"]["shape"][:3], body["inputs"]["v"]["shape"][3])
    if outcome.arrays["out"].size:
        np.testing.assert_allclose(outcome.arrays["out"][:, :, 0], for_heads(made(body, "v"), 4)[:, :, 0])
    else:
        assert outcome.findings["worst_row_error"] in (None, 0)


def test_numbers_that_overflow_are_reported_and_no_error() -> None:
    huge = {"q": [[1e200, 1], [1, 1]], "k": [[1e200, 1], [1, 1]], "v": [[1e300, 2], [-1e300, 1]]}
    outcome = run(cache("full", inputs=huge, dtype="float64", **ALL))
    assert outcome.numerics["within_bound"] is False
    assert outcome.findings["worst_row_error"] == "nan"
    large = {"q": [[1, 1], [2, 1]], "k": [[1, 1], [1, 1]], "v": [[1e300, 2], [-1e300, 1]]}
    kept = run(cache("sliding", budget=1, inputs=large, dtype="float64", **ALL))
    np.testing.assert_allclose(kept.arrays["row_error"], [0, 1e300 / 1.5], rtol=1e-12)


def test_longer_texts_cost_more_and_more_calls_too() -> None:
    def cost(length: int, iters: int = 1, **options: Any) -> float:
        body = cache(q_len=length, **options) | {"timing": {"warmup": 0, "iters": iters}}
        return estimate(parse_run(body).spec).predicted_seconds

    assert cost(64) < cost(128) < cost(512)
    assert cost(512, iters=5) > 2 * cost(512)
    assert cost(512, rope=ROPE) > cost(512)
    assert run(cache(q_len=200)).cost["flops"] == 2 * 8 * 11 * (201 * 100 + 101 * 50 + 100 * 100)
