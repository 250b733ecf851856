"""Policies against a twin that keeps lists, one head and one token at a time; and what they promise."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.arrays import generate
from kernels.cache_policies.policies import Full, HeavyHitters, Policy, Sliding, Streaming
from kernels.cache_policies.storage import Storage
from kernels.cache_policies.stream import MAX_MULTIPLY_ADDS, Streamed, multiply_adds, stream
from kernels.engines.reference import attend
from kernels.quantise import dequantise, quantise
from kernels.spec.model import Rope
from tests.kernels.cases import compute, make

ROPE = Rope("interleaved", theta=100.0)
SHAPES = st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 2), st.integers(1, 14))
DISTRIBUTIONS = st.sampled_from(["normal", "peaked"])
POLICIES = st.one_of(
    st.just(Full()),
    st.builds(Sliding, st.integers(1, 9)),
    st.builds(Streaming, st.integers(1, 6), st.integers(0, 4)),
    st.integers(1, 9).flatmap(
        lambda budget: st.builds(HeavyHitters, st.just(budget), st.none() | st.integers(1, budget))
    ),
)


def inputs(
    shape: tuple[int, int, int, int], distribution: str = "normal", seed: int = 3
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For (batch, key heads, group, tokens)."""
    b, h_kv, group, length = shape
    return (
        generate("q", seed, (b, h_kv * group, length, 4), distribution, "float64"),
        generate("k", seed, (b, h_kv, length, 4), distribution, "float64"),
        generate("v", seed, (b, h_kv, length, 3), "normal", "float64"),
    )


# -- the twin ------------------------------------------------------------------------------------------------


def turned(x: np.ndarray, position: int) -> np.ndarray:
    """RoPE of one vector, by complex numbers."""
    pairs = x[0::2] + 1j * x[1::2]
    found = pairs * np.exp(1j * position * 100.0 ** (-np.arange(0, len(x), 2) / len(x)))
    return np.stack([found.real, found.imag], axis=-1).reshape(-1)


def evict(policy: Policy, held: list[int], mass: dict[int, float]) -> list[int]:
    match policy:
        case Sliding(window=w):
            return held[-w:]
        case Streaming(window=w, sinks=s):
            return [token for token in held if token < s or token > held[-1] - w]
        case HeavyHitters(budget=budget) if len(held) > budget:
            recent = budget // 2 or 1 if policy.recent is None else policy.recent
            older = held[:-recent]
            older.remove(min(older, key=lambda token: (mass[token], token)))
            return older + held[-recent:]
    return held


def twin(
    queries: np.ndarray, keys: np.ndarray, values: np.ndarray, policy: Policy, *, rope: bool, positions: str
) -> tuple[list[list[int]], np.ndarray]:
    """One key head: queries [g, T, d] → what is held at each step, and outputs [g, T, e]."""
    held: list[int] = []
    mass: dict[int, float] = {}
    history, out = [], np.zeros((*queries.shape[:2], values.shape[1]))
    for t in range(len(keys)):
        held, mass[t] = [*held, t], 0.0
        held = evict(policy, held, mass)
        history.append(list(held))
        places = held if positions == "text" else list(range(len(held)))
        new: dict[int, float] = dict.fromkeys(held, 0.0)
        for g, query in enumerate(queries[:, t]):
            q = turned(query, places[-1]) if rope else query
            scores = [
                float(q @ (turned(keys[j], place) if rope else keys[j])) / math.sqrt(len(q))
                for j, place in zip(held, places, strict=True)
            ]
            weights = [math.exp(score - max(scores)) for score in scores]
            for j, weight in zip(held, weights, strict=True):
                new[j] += weight / sum(weights)
                out[g, t] += weight / sum(weights) * values[j]
        for j in held:
            mass[j] += new[j]
    return history, out


@settings(max_examples=150, deadline=None)
@given(SHAPES, DISTRIBUTIONS, POLICIES, st.booleans(), st.sampled_from([None, "text", "cache"]))
def test_every_policy_is_its_twin(
    shape: tuple[int, int, int, int], distribution: str, policy: Policy, rope: bool, positions: str | None
) -> None:
    q, k, v = inputs(shape, distribution)
    found = stream(q, k, v, policy, rope=ROPE if rope else None, positions=positions)
    group = shape[2]
    for b, h in np.ndindex(shape[:2]):
        heads = slice(h * group, (h + 1) * group)
        history, out = twin(
            q[b, heads], k[b, h], v[b, h], policy, rope=rope, positions=positions or policy.positions
        )
        assert [np.flatnonzero(row).tolist() for row in found.held[b, h]] == history
        np.testing.assert_allclose(found.out[b, heads], out, atol=1e-12)


# -- promises ------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(SHAPES, DISTRIBUTIONS, POLICIES, st.booleans())
def test_budgets_are_kept_the_newest_is_there_and_who_is_evicted_stays_out(
    shape: tuple[int, int, int, int], distribution: str, policy: Policy, rope: bool
) -> None:
    found = stream(*inputs(shape, distribution), policy, rope=ROPE if rope else None)
    length = shape[3]
    steps = np.arange(length)
    counts = found.held.sum(axis=3)
    limit = length if policy.budget is None else policy.budget
    np.testing.assert_array_equal(counts, np.broadcast_to(np.minimum(steps + 1, limit), counts.shape))
    assert found.held[:, :, steps, steps].all()
    came_back = ~found.held[:, :, :-1] & found.held[:, :, 1:]
    came_back[:, :, steps[:-1], steps[1:]] = False
    assert not came_back.any()
    if isinstance(policy, Streaming):
        for t in steps:
            assert found.held[:, :, t, : min(policy.sinks, t + 1)].all()
    if isinstance(policy, HeavyHitters):
        for t in steps:
            assert found.held[:, :, t, max(t - policy.newest + 1, 0) : t + 1].all()


@pytest.mark.parametrize("distribution", ["normal", "peaked"])
@pytest.mark.parametrize("rope", [None, ROPE])
def test_exact_is_causal_attention_and_a_full_cache_has_no_error(
    rope: Rope | None, distribution: str
) -> None:
    attention: dict[str, Any] = {"is_causal": True}
    if rope:
        attention["rope"] = {"style": "interleaved", "theta": 100.0}
    spec, arrays = make(
        "reference", (2, 4, 2, 13, 13, 6), v_dim=3, attention=attention, dtype="float64",
        distribution=distribution,
    )  # fmt: skip
    found = stream(arrays["q"], arrays["k"], arrays["v"], Full(), rope=rope)
    np.testing.assert_allclose(found.exact, compute(spec, arrays)["out"], atol=1e-12)
    np.testing.assert_array_equal(found.out, found.exact)
    assert (found.error == 0).all()
    np.testing.assert_allclose(found.weight, 1)
    by_place = stream(arrays["q"], arrays["k"], arrays["v"], Full(), rope=rope, positions="cache")
    np.testing.assert_allclose(by_place.out, found.exact, atol=1e-12)


@pytest.mark.parametrize(
    "policy",
    [Sliding(11), Sliding(40), Streaming(7, 4), Streaming(11, 0), HeavyHitters(11), HeavyHitters(50, 1)],
)
def test_room_for_all_is_a_full_cache(policy: Policy) -> None:
    found = stream(*inputs((2, 2, 2, 11), "peaked"), policy, rope=ROPE)
    np.testing.assert_allclose(found.out, found.exact, atol=1e-12)
    assert found.error.max() < 1e-12
    one_more = stream(*inputs((2, 2, 2, 12), "peaked"), policy, rope=ROPE)
    assert one_more.held[:, :, -1].all() == (policy.budget is not None and policy.budget >= 12)


@settings(max_examples=60, deadline=None)
@given(SHAPES, DISTRIBUTIONS, POLICIES)
def test_what_is_forgotten_costs_as_much_as_it_would_have_been_looked_at(
    shape: tuple[int, int, int, int], distribution: str, policy: Policy
) -> None:
    """Without positions in the cache: exact weights over what is held, divided by their sum."""
    q, k, v = inputs(shape, distribution)
    found = stream(q, k, v, policy)
    for b, h in np.ndindex(*found.out.shape[:2]):
        keys, values = k[b, h // shape[2]], v[b, h // shape[2]]
        apart = np.linalg.norm(values[:, None] - values, axis=-1)
        whole = attend(q[b, h], keys, values, scale=0.5, allowed=np.tril(np.ones((shape[3],) * 2, bool)))
        restricted = whole["weights"] * found.held[b, h // shape[2]]
        p = restricted.sum(axis=1)
        np.testing.assert_allclose(found.weight[b, h], p, atol=1e-13)
        np.testing.assert_allclose(found.out[b, h], restricted / p[:, None] @ values, rtol=1e-9, atol=1e-12)
        error = np.linalg.norm(found.out[b, h] - found.exact[b, h], axis=-1)
        assert (error <= (1 - p) * apart.max() + 1e-12).all()
        exact = np.linalg.norm(found.exact[b, h], axis=-1)
        np.testing.assert_allclose(found.error[b, h], error / exact, atol=1e-12)


# -- positions -----------------------------------------------------------------------------------------------


def test_a_window_does_not_care_what_positions_count() -> None:
    """Distances within it are the same; only where tokens are missing in between do they shrink."""
    q, k, v = inputs((1, 2, 2, 20), "peaked")
    both = [stream(q, k, v, Sliding(5), rope=ROPE, positions=x).out for x in ("text", "cache")]
    np.testing.assert_allclose(both[0], both[1], atol=1e-12)
    q, k, v = inputs((1, 2, 2, 20))
    in_cache, in_text = (stream(q, k, v, Streaming(5, 2), rope=ROPE, positions=x).out for x in (None, "text"))
    np.testing.assert_allclose(in_cache[:, :, :7], in_text[:, :, :7], atol=1e-12)
    assert np.abs(in_cache[:, :, 8:] - in_text[:, :, 8:]).max(axis=-1).min() > 1e-4


def test_in_a_streaming_cache_no_distance_exceeds_its_size() -> None:
    """After the first hundred tokens are gone a query sees sinks and window just as it did before."""
    q, k, v = inputs((1, 1, 1, 8))
    gap = inputs((1, 1, 1, 100), seed=4)
    with_gap = [
        np.concatenate([x[:, :, :2], y, x[:, :, 2:]], axis=2) for x, y in zip((q, k, v), gap, strict=True)
    ]
    short, long = stream(q, k, v, Streaming(6, 2), rope=ROPE), stream(*with_gap, Streaming(6, 2), rope=ROPE)
    np.testing.assert_allclose(long.out[:, :, -1], short.out[:, :, -1], atol=1e-12)


def with_sink(length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A head that has nothing to say puts its weight on the first token, whose value is small."""
    q, k, v = inputs((1, 1, 1, length))
    q[..., 0], k[..., 0] = 4.0, 0.0
    k[:, :, 0, 0], v[:, :, 0] = 8.0, 0.01
    return q, k, v


def test_sinks_save_a_window_and_a_window_alone_breaks() -> None:
    q, k, v = with_sink(60)
    alone, saved = stream(q, k, v, Sliding(12)), stream(q, k, v, Streaming(8, 4))
    after = slice(20, None)
    assert alone.error[:, :, after].min() > 10
    assert alone.weight[:, :, after].max() < 0.05
    assert saved.error[:, :, after].max() < 0.6
    assert saved.weight[:, :, after].min() > 0.95
    assert (alone.bytes == saved.bytes).all()


def test_heavy_hitters_keep_what_a_window_loses() -> None:
    """One token in the middle that all later queries look at."""
    q, k, v = inputs((1, 2, 1, 60))
    q[..., 0], k[..., 0] = 4.0, 0.0
    k[:, :, 10, 0] = 8.0
    heavy, window = stream(q, k, v, HeavyHitters(8)), stream(q, k, v, Sliding(8))
    assert heavy.held[:, :, 10:, 10].all()
    assert heavy.error[:, :, 30:].max() < 0.2
    assert window.error[:, :, 30:].min() > 0.3
    # each head has its own
    other = k.copy()
    other[:, 1, 10, 0], other[:, 1, 20, 0] = 0.0, 8.0
    apart = stream(q, other, v, HeavyHitters(8)).held[0, :, -1]
    assert apart[0, 10]
    assert apart[1, 20]
    assert not apart[1, 10]


@pytest.mark.parametrize(("budget", "recent"), [(1, 1), (3, 1), (8, 4)])
def test_half_of_the_budget_is_for_recent_tokens(budget: int, recent: int) -> None:
    q, k, v = inputs((1, 2, 1, 40), "peaked")
    found = stream(q, k, v, HeavyHitters(budget))
    np.testing.assert_array_equal(found.held, stream(q, k, v, HeavyHitters(budget, recent)).held)
    if budget > recent + 1:
        assert (found.held != stream(q, k, v, HeavyHitters(budget, recent + 1)).held).any()


# -- storage -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_scale", ["per_token_head", "per_tensor"])
@pytest.mark.parametrize("kv_dtype", ["int8", "fp8_e4m3", "fp8_e5m2"])
def test_a_quantised_cache_is_a_full_one_of_rounded_keys_and_values(kv_dtype: str, kv_scale: str) -> None:
    q, k, v = inputs((2, 2, 2, 9), "peaked")
    found = stream(q, k, v, Full(), Storage(kv_dtype=kv_dtype, kv_scale=kv_scale))
    rounded = [dequantise(quantise(x, kv_dtype, kv_scale), "float64") for x in (k, v)]
    np.testing.assert_allclose(found.out, stream(q, *rounded, Full()).exact, atol=1e-12)
    np.testing.assert_allclose(found.exact, stream(q, k, v, Full()).exact, atol=1e-12)
    assert 1e-4 < np.median(found.error) < 0.3
    assert found.held.sum() == 4 * 45


def test_keys_are_quantised_as_they_are_kept() -> None:
    """Turned to their places in the text, or not yet turned where places change."""
    q, k, v = inputs((1, 2, 1, 9), "peaked")
    for positions in ("text", "cache"):
        found = stream(q, k, v, Full(), Storage(kv_dtype="int8"), rope=ROPE, positions=positions)

        def kept(x: np.ndarray) -> np.ndarray:
            return dequantise(quantise(x, "int8", "per_token_head"), "float64")

        def at_places(x: np.ndarray) -> np.ndarray:
            return np.stack([[turned(x[0, h, t], t) for t in range(9)] for h in range(2)])[None]

        keys = kept(at_places(k)) if positions == "text" else at_places(kept(k))
        wanted = stream(at_places(q), keys, kept(v), Full())
        np.testing.assert_allclose(found.out, wanted.exact, atol=1e-12)


def bytes_of(policy: Policy, storage: Storage | None = None) -> Streamed:
    return stream(*inputs((2, 3, 2, 10)), policy, storage)


@pytest.mark.parametrize(
    ("policy", "storage", "per_token", "shared", "most"),
    [
        (Full(), Storage("float16"), 7 * 2, 0, 10),
        (Full(), Storage("float32"), 7 * 4, 0, 10),
        (Sliding(4), None, 7 * 2, 0, 4),
        (Streaming(3, 2), None, 7 * 2, 0, 5),
        (HeavyHitters(6), None, 7 * 2 + 4, 0, 6),
        (Full(), Storage(kv_dtype="int8"), 7 + 2 * 4, 0, 10),
        (Full(), Storage(kv_dtype="fp8_e4m3", kv_scale="per_tensor"), 7, 8, 10),
        (HeavyHitters(6), Storage(kv_dtype="int8", kv_scale="per_tensor"), 7 + 4, 8, 6),
    ],
)
def test_bytes(policy: Policy, storage: Storage | None, per_token: int, shared: int, most: int) -> None:
    """Keys of 4 and values of 3 numbers, 2 batch rows, 3 key heads; sums of weights count as well."""
    found = bytes_of(policy, storage)
    assert found.bytes.tolist() == [6 * per_token * min(t, most) + shared for t in range(1, 11)]
    dtype_bytes = 4 if storage == Storage("float32") else 2
    assert found.full_bytes.tolist() == [6 * 7 * dtype_bytes * t for t in range(1, 11)]


def test_nothing_to_read() -> None:
    found = stream(np.zeros((1, 2, 0, 4)), np.zeros((1, 1, 0, 4)), np.zeros((1, 1, 0, 3)), Full())
    assert found.out.shape == (1, 2, 0, 3)
    assert found.bytes.tolist() == []


@pytest.mark.parametrize(
    ("make_policy", "words"),
    [
        (lambda: Sliding(0), "window must be at least 1, not 0"),
        (lambda: Streaming(3, -1), "sinks must be at least 0, not -1"),
        (lambda: Streaming(0), "window must be at least 1"),
        (lambda: HeavyHitters(0), "budget must be at least 1"),
        (lambda: HeavyHitters(4, 0), "recent must be at least 1"),
        (lambda: HeavyHitters(4, 5), "recent must be at most the budget of 4, not 5"),
    ],
)
def test_policies_that_cannot_be_say_why(make_policy: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_policy()


def test_streams_that_do_not_fit_say_why() -> None:
    q, k, v = inputs((1, 2, 2, 5))
    with pytest.raises(ValueError, match="one query, key and value for each token"):
        stream(q, k[:, :, 1:], v, Full())
    with pytest.raises(ValueError, match="4 query heads are no multiple of 3"):
        stream(q, np.zeros((1, 3, 5, 4)), np.zeros((1, 3, 5, 3)), Full())
    with pytest.raises(ValueError, match="positions must be text or cache, not 'place'"):
        stream(q, k, v, Full(), positions="place")
    long = np.broadcast_to(0.0, (1, 8, 2**15, 64))
    assert multiply_adds(1, 8, 2**15, 128) > MAX_MULTIPLY_ADDS
    with pytest.raises(ValueError, match="take fewer tokens or heads"):
        stream(long, long, long, Full())
