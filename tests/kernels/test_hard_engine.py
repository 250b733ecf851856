"""Engine ``hard``, from a request to its result: beside draws one by one, autograd, and soft attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.arrays import generate
from kernels.estimate import estimate
from kernels.registry import ENGINES
from kernels.scoring.hard import BASELINES
from kernels.spec import parse_run
from tests.kernels.double_engines import (
    Body,
    assert_compared_with,
    for_heads,
    made,
    refusals,
    request,
    run,
    sdpa,
    seeded,
)

SOFT = {"return": ["out", "weights", "chosen"]}
GRADIENT = {"return": ["out", "chosen", "dscores", "dscores_estimate", "dscores_variance"]}
CAUSAL = {"is_causal": True}
DOUT = {"dout": seeded(2, 4, 21, 5)}


def hard(*, attention: Body | None = None, **fields: Any) -> Body:
    """A request with some options, named as such."""
    options = {name: fields.pop(name) for name in ("draws", "draws_seed", "baseline") if name in fields}
    return request("hard", options=options, attention=attention or {}, **fields)


def soft_weights(body: Body, allowed: np.ndarray) -> np.ndarray:
    """[b, h, n, m] by torch."""
    q, k = (torch.from_numpy(made(body, name)) for name in "qk")
    scale = body["attention"].get("scale", q.shape[-1] ** -0.5)
    scores = scale * q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT
    weights = torch.softmax(scores.masked_fill(~torch.from_numpy(allowed), -torch.inf), -1)
    return weights.nan_to_num(0.0).numpy()


def draws_by_hand(body: Body, weights: np.ndarray) -> np.ndarray:
    """[draws, b, h, n]: the key in whose share of [0, 1) the number of a draw falls; −1 for none."""
    draws, rows = body["options"].get("draws", 1), weights.reshape(-1, weights.shape[3])
    seed = body["options"].get("draws_seed", 0)
    numbers = generate("hard_attention", seed, (draws, len(rows)), "uniform", "float64") / 2 + 0.5
    found = np.full((draws, len(rows)), -1)
    for draw, row in np.ndindex(found.shape):
        below = 0.0
        for key, share in enumerate(rows[row]):
            below += share
            if numbers[draw, row] < below:
                found[draw, row] = key
                break
    return found.reshape(draws, *weights.shape[:3])


# -- what is drawn -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ENGINES["hard"].dtypes)
@pytest.mark.parametrize(
    ("body", "allowed"),
    [
        (hard(), np.ones((21, 21), bool)),
        (hard(draws=7, draws_seed=3, attention=CAUSAL), np.tril(np.ones((21, 21), bool))),
        (hard(draws=3, attention={"scale": -1.3}, distribution="peaked"), np.ones((21, 21), bool)),
        (hard(draws=2, kv_len=9, attention=CAUSAL), np.tril(np.ones((21, 9), bool), -12)),
        (hard(kv_len=30, attention={**CAUSAL, "causal_alignment": "top_left"}),
         np.tril(np.ones((21, 30), bool))),
    ],
)  # fmt: skip
def test_outputs_are_means_of_values_that_were_drawn(body: Body, allowed: np.ndarray, dtype: str) -> None:
    body = {**body, "dtype": dtype, **SOFT}
    found = run(body).arrays
    weights = soft_weights(body, allowed)
    np.testing.assert_allclose(found["weights"], weights, atol=1e-12)
    chosen = draws_by_hand(body, weights)
    np.testing.assert_array_equal(found["chosen"], chosen[0])
    assert found["chosen"].dtype.kind == "i"
    v = for_heads(made(body, "v"), 4)
    for b, h, i in np.ndindex(2, 4, 21):
        values = [v[b, h, key] if key >= 0 else np.zeros(5) for key in chosen[:, b, h, i]]
        np.testing.assert_allclose(found["out"][b, h, i], np.mean(values, axis=0), atol=1e-12)
    if not allowed.any(axis=1).all():
        assert (found["chosen"][:, :, 0] == -1).all()
        assert not found["out"][:, :, 0].any()


def test_one_draw_is_one_value_to_the_bit() -> None:
    found, v = run(hard(**SOFT)).arrays, for_heads(made(hard(), "v"), 4)
    for b, h, i in np.ndindex(2, 4, 21):
        np.testing.assert_array_equal(found["out"][b, h, i], v[b, h, found["chosen"][b, h, i]])


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**63 - 1), st.sampled_from(["normal", "peaked", "uniform"]), st.booleans())
def test_the_mean_of_many_draws_is_soft_attention_within_its_standard_error(
    seed: int, distribution: str, causal: bool
) -> None:
    draws = 2000
    body = hard(draws=draws, draws_seed=seed, distribution=distribution, attention={"is_causal": causal})
    outcome = run(body)
    soft = sdpa(body, is_causal=causal)
    assert_compared_with(outcome, soft)
    weights = soft_weights(body, np.tril(np.ones((21, 21), bool)) if causal else np.ones((21, 21), bool))
    v = for_heads(made(body, "v"), 4)
    variance = np.einsum("bhnm,bhnme->bhne", weights, np.square(v[:, :, None] - soft[:, :, :, None]))
    assert (np.abs(outcome.arrays["out"] - soft) <= 6 * np.sqrt(variance / draws) + 1e-9).mean() > 0.98
    assert outcome.findings["output_variance"] == pytest.approx(variance.mean())
    assert outcome.findings["measured_output_variance"] == pytest.approx(variance.mean(), rel=0.1)
    squared = np.square(outcome.arrays["out"] - soft).mean()
    assert 0.2 < squared / (variance.mean() / draws) < 4


def test_more_draws_begin_with_fewer_and_seeds_differ() -> None:
    def chosen(**options: Any) -> np.ndarray:
        return run(hard(**SOFT, **options)).arrays["chosen"]

    np.testing.assert_array_equal(chosen(), chosen(draws=50))
    assert (chosen() != chosen(draws_seed=1)).any()


def test_the_measured_variance_is_that_of_the_draws() -> None:
    body = hard(draws=5, attention=CAUSAL)
    chosen = draws_by_hand(body, soft_weights(body, np.tril(np.ones((21, 21), bool))))
    v = for_heads(made(body, "v"), 4)
    values = np.array([[[v[b, h, one[b, h]] for h in range(4)] for b in range(2)] for one in chosen])
    wanted = values.var(axis=0, ddof=1).mean()
    assert run(body).findings["measured_output_variance"] == pytest.approx(wanted)
    alone = run(hard())
    assert alone.findings["measured_output_variance"] is None
    assert alone.findings["baselines"] is alone.findings["gradient_norm"] is None


# -- gradients -----------------------------------------------------------------------------------------------


def baselines_by_hand(name: str, alpha: np.ndarray, rewards: np.ndarray, drawn: list[int]) -> list[float]:
    norms = np.square(np.eye(len(alpha)) - alpha).sum(axis=1)
    if name == "moving":
        found = [0.0]
        for key in drawn[:-1]:
            found.append(0.9 * found[-1] + 0.1 * rewards[key])
        return found
    best = (alpha * norms) @ rewards / (alpha @ norms) if alpha @ norms > 1e-12 else 0.0
    return [{"none": 0.0, "expected": float(alpha @ rewards), "optimal": best}[name]] * len(drawn)


@pytest.mark.parametrize("baseline", BASELINES)
def test_gradients_are_those_of_autograd_and_of_each_draw(baseline: str) -> None:
    body = hard(draws=6, baseline=baseline, attention=CAUSAL, inputs=DOUT, **GRADIENT)
    outcome = run(body)
    found = outcome.arrays
    q, k, v, dout = (torch.from_numpy(made(body, name)) for name in ("q", "k", "v", "dout"))
    scores = (q @ k.repeat_interleave(2, 1).mT / 6**0.5).requires_grad_()
    mask = torch.ones(21, 21, dtype=torch.bool).tril()
    weights = torch.softmax(scores.masked_fill(~mask, -torch.inf), -1)
    values = v.repeat_interleave(2, 1)
    (weights @ values).backward(dout)
    exact = scores.grad.numpy()
    np.testing.assert_allclose(found["dscores"], exact, atol=1e-12)
    alphas, rewards = weights.detach().numpy(), (dout @ values.mT).numpy()
    chosen = draws_by_hand(body, alphas)
    sums = {name: np.zeros(3) for name in BASELINES}
    for name, at in ((n, at) for n in BASELINES for at in np.ndindex(2, 4, 21)):
        alpha, reward, drawn = alphas[at], rewards[at], chosen[(slice(None), *at)].tolist()
        offs = baselines_by_hand(name, alpha, reward, drawn)
        each = np.array([(reward[s] - b) * (np.eye(21)[s] - alpha) for s, b in zip(drawn, offs, strict=True)])
        if name == baseline:
            np.testing.assert_allclose(found["dscores_estimate"][at], each.mean(axis=0), atol=1e-12)
        if name != "moving":
            of_keys = (reward - offs[0])[:, None] * (np.eye(21) - alpha)
            closed = alpha @ np.square(of_keys - alpha @ of_keys)
            if name == baseline:
                np.testing.assert_allclose(found["dscores_variance"][at], closed, atol=1e-12)
            sums[name][0] += closed.sum()
        sums[name][1] += each.var(axis=0, ddof=1).sum()
        sums[name][2] += np.square(each.mean(axis=0) - exact[at]).sum()
    figures = outcome.findings
    assert figures["gradient_norm"] == pytest.approx(np.linalg.norm(exact))
    for name, (closed, measured, squared) in sums.items():
        told = figures["baselines"][name]
        if name != "moving":
            assert told["variance"] == pytest.approx(closed)
        assert told["measured_variance"] == pytest.approx(measured)
        assert told["error"] == pytest.approx(np.sqrt(squared))
        assert told["standard_error"] == pytest.approx(np.sqrt(told["variance"] / 6))


@pytest.mark.parametrize("baseline", BASELINES)
def test_estimates_are_right_on_average_and_as_noisy_as_the_closed_form_says(baseline: str) -> None:
    body = hard(draws=3000, baseline=baseline, attention=CAUSAL, inputs=DOUT, **GRADIENT)
    outcome = run(body)
    found, told = outcome.arrays, outcome.findings["baselines"][baseline]
    off = np.abs(found["dscores_estimate"] - found["dscores"])
    assert (off <= 6 * np.sqrt(found["dscores_variance"] / 3000) + 1e-9).mean() > 0.99
    assert told["variance"] == pytest.approx(found["dscores_variance"].sum())
    assert told["measured_variance"] == pytest.approx(told["variance"], rel=0.1)
    assert told["error"] == pytest.approx(np.linalg.norm(off))
    assert told["error"] == pytest.approx(told["standard_error"], rel=0.4)
    variances = {name: outcome.findings["baselines"][name]["variance"] for name in BASELINES}
    assert variances["optimal"] < variances["expected"] < variances["none"]


def test_one_draw_has_no_measured_variance_but_all_else() -> None:
    outcome = run(hard(inputs=DOUT, **GRADIENT))
    told = outcome.findings["baselines"]
    assert all(one["measured_variance"] is None and one["standard_error"] > 0 for one in told.values())
    assert told["moving"]["error"] == told["none"]["error"]  # it begins with 0
    assert np.isfinite(outcome.arrays["dscores_variance"]).all()


def test_packed_inputs_and_fewer_axes_are_the_same_computation() -> None:
    body = hard(draws=3, batch=1, inputs={"dout": seeded(1, 4, 21, 5)}, **GRADIENT)
    names = ("q", "k", "v", "dout")
    found = run(body).arrays
    packed = {name: made(body, name).swapaxes(1, 2).reshape(1, 21, -1).tolist() for name in names}
    other = run({**body, "inputs": packed, "attention": {"num_heads": 4, "num_kv_heads": 2}}).arrays
    np.testing.assert_allclose(other.pop("out"), found["out"].swapaxes(1, 2).reshape(1, 21, -1), atol=1e-12)
    for name, array in other.items():
        np.testing.assert_allclose(array, found[name], atol=1e-12)
    alone = run({**body, "inputs": {name: made(body, name)[0, 0].tolist() for name in names}}).arrays
    shapes = {name: array.shape for name, array in alone.items()}
    matrices = dict.fromkeys(("dscores", "dscores_estimate", "dscores_variance"), (21, 21))
    assert shapes == {"out": (21, 5), "chosen": (21,), **matrices}


# -- ends ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "pointer", "status", "says"),
    [
        (hard(**GRADIENT), "/inputs/dout", 422, "dscores_variance need dout, of the shape of out"),
        (hard(baseline="moving"), "/options/baseline", 422, "send it, or leave baseline out"),
        (hard(baseline="best"), "/options/baseline", 422, "none, expected, optimal or moving"),
        (hard(draws=0), "/options/draws", 422, "between 1 and 1,048,576, not 0"),
        (hard(draws=2.5), "/options/draws", 400, "an integer"),
        (hard(draws=100_000), "/options/draws", 413,
         "are 16,800,000, and at most 4,194,304 are made: send at most 24,966 draws, or fewer queries"),
        (hard(inputs={"dout": seeded(2, 4, 21, 6)}), "/inputs/dout", 422, "[2, 4, 21, 5]"),
        (hard(inputs=DOUT, **{"return": ["dq"]}), "/return/0", 422, "the result dq; "),
        (hard(attention={"window": [1, 0]}), "/attention/window", 422, "sliding windows"),
        (hard(attention={"softcap": 1}), "/attention/softcap", 422, "softcapping"),
        (request("flash", inputs=DOUT, **GRADIENT), "/return/2", 422, "the result dscores; "),
    ],
)  # fmt: skip
def test_what_cannot_be_is_named(body: Body, pointer: str, status: int, says: str) -> None:
    found = refusals(body)[pointer]
    assert found[0] == status
    assert says in found[1]


def test_where_queries_alone_are_too_many_nobody_is_advised_to_draw_less_than_once() -> None:
    body = hard(batch=65536, heads=65, kv_heads=1, q_len=1, kv_len=0, dim=0, v_dim=0)
    assert "at most 4,194,304 are made: send fewer queries" in refusals(body)["/options/draws"][1]


@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize(
    "sizes",
    [
        {"q_len": 0, "kv_len": 0}, {"q_len": 0, "kv_len": 3}, {"q_len": 3, "kv_len": 0}, {"batch": 0},
        {"heads": 0}, {"heads": 0, "kv_heads": 0}, {"dim": 0}, {"v_dim": 0}, {"q_len": 1},
    ],
)  # fmt: skip
def test_empty_axes_are_legal(sizes: Any, gradient: bool, draws: int) -> None:
    body = hard(draws=draws, **sizes, **(GRADIENT if gradient else SOFT))
    shape = [*body["inputs"]["q"]["shape"][:3], body["inputs"]["v"]["shape"][3]]
    if gradient:
        body["inputs"]["dout"] = seeded(*shape)
    outcome = run(body)
    assert list(outcome.arrays["out"].shape) == shape
    if sizes.get("kv_len") == 0:
        assert (outcome.arrays["chosen"] == -1).all()
        assert not outcome.arrays["out"].any()
    if "q_len" in sizes and sizes.get("kv_len") is None:  # a single key
        assert (outcome.arrays["chosen"] == 0).all()


def test_numbers_that_overflow_are_reported_and_no_error() -> None:
    huge = {name: [[1e200, 1], [1, 1]] for name in ("q", "k", "v", "dout")}
    outcome = run(hard(inputs=huge, draws=4, dtype="float64", **GRADIENT))
    assert outcome.numerics["within_bound"] is False
    assert outcome.findings["gradient_norm"] == "nan"
    large = {"q": [[1, 1]], "k": [[1, 1], [1, 0]], "v": [[1e200, 1], [1, 1]], "dout": [[1e200, 1]]}
    assert run(hard(inputs=large, draws=4, dtype="float64", **GRADIENT)).findings["gradient_norm"] in {
        "inf",
        "nan",
    }


def test_more_costs_more() -> None:
    def cost(**fields: Any) -> float:
        return estimate(parse_run(hard(q_len=128, **fields)).spec).predicted_seconds

    assert cost() < cost(draws=1000) < cost(draws=4000)
    assert cost() < cost(inputs={"dout": seeded(2, 4, 128, 5)})
    flops = 2 * 8 * 21 * 11
    assert run(hard(attention=CAUSAL)).cost["flops"] == flops * (6 + 5)
    assert run(hard(attention=CAUSAL, inputs=DOUT, **GRADIENT)).cost["flops"] == flops * (6 + 10)
