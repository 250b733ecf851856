"""Engines beyond softmax, from a request to its result: linear, performer and scan."""

from __future__ import annotations

import importlib
import itertools
import json
from typing import Any

import numpy as np
import pytest
import torch

from kernels.arrays import generate
from kernels.estimate import estimate
from kernels.execute import Outcome, execute, materialise
from kernels.layout import to_canonical
from kernels.registry import ENGINES, SOFTMAX
from kernels.spec import RunSpec, SpecError, parse_run
from kernels.spec.families import PLAIN, SCAN
from tests.kernels.fences import fences, poisoned_memory

Body = dict[str, Any]
CAUSAL = {"is_causal": True}
SIZES = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 21, "kv_len": 21, "head_dim": 6, "v_head_dim": 5}
SCANNED = {"batch": 2, "heads": 4, "groups": 2, "len": 21, "channels": 5, "states": 3}


def seeded(*shape: int, distribution: str = "normal") -> Body:
    return {"seed": 5, "shape": list(shape), "distribution": distribution}


def of(name: str, family: Any = PLAIN, **sizes: int) -> Body:
    lengths = (SIZES if family is PLAIN else SCANNED) | sizes
    return seeded(*(lengths[axis] for axis in family.axes[name]), distribution="uniform")


def linear(*more: str, engine: str = "linear", **fields: Any) -> Body:
    inputs = {name: of(name) for name in ("q", "k", "v", *more)} | fields.pop("inputs", {})
    return {
        "engine": engine, "inputs": inputs, "attention": CAUSAL, "timing": {"warmup": 0, "iters": 1}, **fields
    }  # fmt: skip


def scan(*more: str, **fields: Any) -> Body:
    inputs = {name: of(name, SCAN) for name in (*SCAN.required, *more)} | fields.pop("inputs", {})
    # Of one sign, as those of models are: nothing grows.
    if 0 not in inputs["delta"]["shape"]:
        inputs["delta"] = np.abs(made("delta", inputs["delta"])).tolist()
    inputs["a"] = (-np.abs(made("a", inputs["a"]))).tolist()
    return {"engine": "scan", "inputs": inputs, "timing": {"warmup": 0, "iters": 1}, **fields}


def made(name: str, given: Any) -> np.ndarray:
    """The numbers of an input."""
    if isinstance(given, dict):
        made = generate(name, given["seed"], tuple(given["shape"]), given["distribution"], "float32")
        return made.astype(np.float64)
    return np.array(given, np.float64)


def run(body: Body) -> Outcome:
    """Its result, which is within its bounds."""
    parsed = parse_run(json.loads(json.dumps(body)))
    assert RunSpec.from_dict(json.loads(json.dumps(parsed.spec.to_dict()))) == parsed.spec
    outcome = execute(parsed.spec, parsed.arrays)
    found = outcome.numerics
    assert found["within_bound"], found
    assert all(other["within_bound"] for other in found["arrays"].values()), found
    return outcome


def refused(body: Body) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        parse_run(body)
    return {problem.pointer: problem.detail for problem in caught.value.problems}


# -- what is computed ----------------------------------------------------------------------------------------

STATES = {"return": ["out", "state"]}
ONE_RATE = {"delta": of("delta", SCAN, channels=1), "a": of("a", SCAN, channels=1, states=1)}  # to a head


@pytest.mark.parametrize(
    ("body", "forms"),
    [
        (linear(**{"return": ["out", "state", "normaliser"]}), ["chunked", "recurrent"]),
        (linear(), ["chunked", "recurrent", "parallel"]),
        (linear("log_decay", options={"feature_map": "identity"}), ["chunked", "recurrent", "parallel"]),
        (linear("beta", "log_decay", options={"feature_map": "identity"}, **STATES),
         ["chunked", "recurrent"]),
        (linear(attention={}, dtype="float16"), ["chunked", "recurrent", "parallel"]),
        (scan("d_skip", "initial_state", **STATES), ["chunked", "recurrent", "scan"]),
        (scan(inputs=ONE_RATE), ["chunked", "recurrent", "scan", "quadratic"]),
        (scan("d_skip", "initial_state", inputs=ONE_RATE), ["chunked", "recurrent", "scan", "quadratic"]),
        (scan("d_skip", inputs=ONE_RATE, dtype="float16"), ["chunked", "quadratic"]),
    ],
)  # fmt: skip
def test_all_forms_give_the_same_numbers(body: Body, forms: list[str]) -> None:
    found = [run(body | {"options": body.get("options", {}) | {"form": form}}) for form in forms]
    for other in found[1:]:
        for name, array in found[0].arrays.items():
            tolerance = 2e-3 if body.get("dtype") == "float16" else 1e-5
            wanted = array.astype(np.float64)
            tolerance *= np.abs(wanted).max()
            np.testing.assert_allclose(other.arrays[name], wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize("form", ["chunked", "recurrent", "parallel", "scan", "quadratic"])
def test_kernels_stay_within_their_arguments_and_write_all_of_them(form: str) -> None:
    options = {"options": {"form": form}}
    state = ["state", "normaliser"] if form != "parallel" else []
    if form == "scan":
        body = scan("d_skip", "initial_state", **options, **STATES)
    elif form == "quadratic":
        body = scan("d_skip", "initial_state", **options, inputs=ONE_RATE)
    else:
        body = linear("log_decay", **options, **{"return": ["out", *state]})
    parsed = parse_run(body)
    canonical = {
        name: to_canonical(parsed.spec, name, array)
        for name, array in materialise(parsed.spec, parsed.arrays).items()
    }
    with poisoned_memory(), fences() as watch:
        prepared = importlib.import_module(ENGINES[body["engine"]].module).prepare(
            parsed.spec, canonical, "cpu"
        )
        found = prepared.collect(prepared.compute())
    assert watch.launches
    assert not any(np.isnan(array).any() for array in found.values())


def test_linear_attention_is_what_its_definition_says() -> None:
    """Katharopoulos et al. 2020, equation 9."""
    body = linear()
    q, k, v = (made(name, body["inputs"][name]) for name in "qkv")
    phi_q, phi_k = (np.where(x > 0, x + 1, np.exp(x)) for x in (q, np.repeat(k, 2, 1)))
    weights = np.tril(phi_q @ phi_k.swapaxes(2, 3))
    wanted = weights @ np.repeat(v, 2, 1) / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(run(body).arrays["out"], wanted, rtol=1e-5, atol=1e-6)


def test_the_scale_counts_where_nothing_is_normalised() -> None:
    """By default 1/√d, as everywhere."""
    options = {"normalise": False, "feature_map": "identity"}
    usual, doubled = (
        run(linear(attention=CAUSAL | scale, options=options)).arrays["out"]
        for scale in ({}, {"scale": 2 / np.sqrt(6)})
    )
    np.testing.assert_allclose(doubled, 2 * usual, rtol=1e-5)
    q, k, v = (made(name, linear()["inputs"][name]) for name in "qkv")
    wanted = np.tril(q @ np.repeat(k, 2, 1).swapaxes(2, 3)) @ np.repeat(v, 2, 1) / np.sqrt(6)
    np.testing.assert_allclose(usual, wanted, rtol=1e-4, atol=1e-5)


def test_a_scan_is_what_mamba_says() -> None:
    """h ← exp(Δ A) h + Δ B x, y = C·h + D x (Gu and Dao 2023)."""
    body = scan("d_skip", **STATES)
    x, delta, a, b, c, skip = (made(n, body["inputs"][n]) for n in ("x", "delta", "a", "b", "c", "d_skip"))
    b, c = np.repeat(b, 2, 1), np.repeat(c, 2, 1)
    h, out = np.zeros((2, 4, 5, 3)), np.zeros_like(x)
    for t in range(x.shape[2]):
        step = delta[:, :, t, :, None]
        h = np.exp(step * a) * h + step * b[:, :, t, None] * x[:, :, t, :, None]
        out[:, :, t] = np.einsum("bhpn,bhn->bhp", h, c[:, :, t]) + skip * x[:, :, t]
    got = run(body)
    np.testing.assert_allclose(got.arrays["out"], out, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got.arrays["state"], h, rtol=1e-4, atol=1e-5)


def cut(body: Body, where: slice, *, axis: int = 2, names: tuple[str, ...]) -> Body:
    """Some tokens of a request."""
    index = (slice(None),) * axis + (where,)
    parts = {
        name: made(name, given)[index].tolist() for name, given in body["inputs"].items() if name in names
    }
    return body | {"inputs": body["inputs"] | parts}


@pytest.mark.parametrize(
    ("body", "names", "carried"),
    [
        (linear(**{"return": ["out", "state", "normaliser"]}), ("q", "k", "v"), ("state", "normaliser")),
        (linear("beta", "log_decay", options={"feature_map": "identity"}, **STATES),
         ("q", "k", "v", "beta", "log_decay"), ("state",)),
        (scan(**STATES), ("x", "delta", "b", "c"), ("state",)),
    ],
)  # fmt: skip
def test_a_run_goes_on_where_another_ended(
    body: Body, names: tuple[str, ...], carried: tuple[str, ...]
) -> None:
    whole = run(body)
    first = run(cut(body, slice(None, 8), names=names))
    second = cut(body, slice(8, None), names=names)
    second["inputs"] |= {f"initial_{name}": first.arrays[name].tolist() for name in carried}
    rest = run(second)
    out = np.concatenate([first.arrays["out"], rest.arrays["out"]], 2)
    np.testing.assert_allclose(out, whole.arrays["out"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(rest.arrays["state"], whole.arrays["state"], rtol=1e-4, atol=1e-5)
    assert rest.comparison is None  # nobody knows of which keys the state is


@pytest.mark.parametrize("rank", [2, 3])
def test_results_have_the_rank_of_the_inputs(rank: int) -> None:
    lengths = SIZES | SCANNED
    for body, family in ((linear(**STATES), PLAIN), (scan(**STATES), SCAN)):
        inputs = {
            name: seeded(*(lengths[axis] for axis in family.axes_of(name, rank))) for name in body["inputs"]
        }
        if family is SCAN:
            inputs["delta"] = seeded(*inputs["delta"]["shape"], distribution="uniform")
        found = run(body | {"inputs": inputs}).arrays
        assert found["out"].ndim == rank
        assert found["state"].shape == ((2, 6, 5) if family is PLAIN else (4, 5, 3))[3 - rank :]


def test_packed_inputs_are_the_same_computation() -> None:
    body = linear()
    packed = {
        name: made(name, body["inputs"][name]).swapaxes(1, 2).reshape(2, 21, -1).tolist() for name in "qkv"
    }
    heads = {"num_heads": 4, "num_kv_heads": 2}
    got = run(body | {"inputs": packed, "attention": CAUSAL | heads}).arrays["out"]
    wanted = run(body).arrays["out"].swapaxes(1, 2).reshape(2, 21, -1)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


# -- beside exact attention ----------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_the_comparison_is_with_softmax_attention(causal: bool) -> None:
    body = linear(attention={"is_causal": causal})
    outcome = run(body)
    q, k, v = (torch.from_numpy(made(name, body["inputs"][name])) for name in "qkv")
    exact = torch.nn.functional.scaled_dot_product_attention(
        q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), is_causal=causal
    ).numpy()
    error = outcome.arrays["out"] - exact
    assert outcome.comparison is not None
    assert outcome.comparison["with"] == "softmax"
    assert outcome.comparison["rel_err"] == pytest.approx(
        np.linalg.norm(error) / np.linalg.norm(exact), rel=1e-4
    )
    assert outcome.comparison["max_abs_err"] == pytest.approx(np.abs(error).max(), rel=1e-4)
    assert outcome.comparison["rmse"] == pytest.approx(np.sqrt(np.square(error).mean()), rel=1e-4)


def test_a_scan_is_compared_with_its_dual() -> None:
    """c are the queries, b the keys and x the values; always causal."""
    body = scan()
    outcome = run(body)
    c, b, x = (torch.from_numpy(made(name, body["inputs"][name])) for name in "cbx")
    c, b = (array.repeat_interleave(2, 1) for array in (c, b))
    exact = torch.nn.functional.scaled_dot_product_attention(c, b, x, is_causal=True).numpy()
    assert outcome.comparison is not None
    assert outcome.comparison["max_abs_err"] == pytest.approx(
        np.abs(outcome.arrays["out"] - exact).max(), rel=1e-4
    )


def test_softmax_attention_that_leaves_nothing_out_is_compared_with_nothing_else() -> None:
    assert run(linear(engine="flash", attention={"is_causal": True})).comparison is None


@pytest.mark.parametrize("engine", ["reference", "flash", "sdpa"])
@pytest.mark.parametrize(
    "sparse",
    [
        {"window": [2, 1]},
        {"pattern": {"type": "bigbird", "window": 1, "global": 1, "random": 1, "seed": 3, "block": 2}},
    ],
)
def test_a_sparse_run_is_compared_with_the_same_attention_made_dense(engine: str, sparse: dict) -> None:
    body = linear(engine=engine, attention={"is_causal": True, **sparse})
    outcome, dense = run(body), run(body | {"attention": {"is_causal": True}})
    error = outcome.arrays["out"] - dense.arrays["out"]
    assert outcome.comparison is not None
    assert outcome.comparison["with"] == "softmax without pattern and window"
    assert outcome.comparison["max_abs_err"] == pytest.approx(np.abs(error).max(), rel=1e-4)
    assert outcome.comparison["rel_err"] == pytest.approx(
        np.linalg.norm(error) / np.linalg.norm(dense.arrays["out"]), rel=1e-4
    )
    assert outcome.comparison["rel_err"] > 0.1  # it does lose something


@pytest.mark.parametrize("dtype", ENGINES["performer"].dtypes)
@pytest.mark.parametrize("causal", [False, True])
def test_more_features_are_nearer_to_softmax(causal: bool, dtype: str) -> None:
    errors = []
    for count in (16, 4096):
        options = {"num_features": count, "features_seed": 3}
        body = linear(engine="performer", options=options, dtype=dtype, attention={"is_causal": causal})
        comparison = run(body).comparison
        assert comparison is not None
        errors.append(comparison["rel_err"])
    assert errors[1] < errors[0] / 4
    assert errors[1] < 0.05


# -- what they find ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "state", "token"),
    [
        # [2, 2 key heads, 21, 6 and 5]: numbers of a state, with its normaliser, and of a token.
        (linear(options={"normalise": True}), 2 * 2 * 6 * (5 + 1), 2 * 2 * (6 + 5)),
        (linear(options={"normalise": False}), 2 * 2 * 6 * 5, 2 * 2 * (6 + 5)),
        (linear(engine="performer", options={"num_features": 7}), 2 * 2 * 7 * (5 + 1), 2 * 2 * (6 + 5)),
    ],
    ids=["normalised", "plain", "features"],
)
def test_a_state_is_measured_beside_the_cache_that_it_stands_for(body: Body, state: int, token: int) -> None:
    assert body["inputs"]["k"]["shape"] == [2, 2, 21, 6]
    assert body["inputs"]["v"]["shape"] == [2, 2, 21, 5]
    found = run(body | {"dtype": "float16"}).findings
    assert found["state_bytes"] == 4 * state
    assert found["cache_bytes"] == 2 * token * 21
    assert 2 * token * found["break_even_tokens"] > 4 * state >= 2 * token * (found["break_even_tokens"] - 1)


def test_the_state_of_a_scan_is_measured_beside_the_cache_of_its_dual() -> None:
    body = scan()
    batch, heads, tokens, channels = body["inputs"]["x"]["shape"]
    groups, states = body["inputs"]["b"]["shape"][1], body["inputs"]["b"]["shape"][3]
    found = run(body).findings
    assert found["state_bytes"] == 4 * batch * heads * channels * states
    assert found["cache_bytes"] == 4 * batch * tokens * (groups * states + heads * channels)


def test_ranks_of_linear_attention_beside_those_of_softmax() -> None:
    """Without causality the weights are a product of features, and no rank is beyond their number."""
    shape = {"seed": 5, "shape": [3, 40, 6], "distribution": "normal"}
    body = linear(inputs=dict.fromkeys("qkv", shape), attention={"is_causal": False})
    ranks = run(body).findings["ranks"]
    assert ranks["rank"] == 6
    assert ranks["softmax_rank"] == 40
    q, k = (made(name, shape) for name in "qk")
    softmax = torch.softmax(torch.from_numpy(q @ k.mT / np.sqrt(6)), -1)
    p = torch.linalg.svdvals(softmax)
    p = p / p.sum(-1, keepdim=True)
    wanted = torch.exp(-(p * p.log()).sum(-1)).mean().item()
    assert ranks["softmax_effective_rank"] == pytest.approx(wanted, rel=1e-6)
    few = run(body | {"engine": "performer", "options": {"num_features": 3}}).findings["ranks"]
    assert few["rank"] == 3
    assert few["softmax_effective_rank"] == pytest.approx(wanted, rel=1e-6)


def test_ranks_are_left_out_where_nobody_can_tell_them() -> None:
    first = run(linear() | {"return": ["out", "state", "normaliser"]}).arrays
    start = {"initial_state": first["state"].tolist(), "initial_normaliser": first["normaliser"].tolist()}
    assert run(linear(inputs=start)).findings["ranks"] is None
    long = {"seed": 5, "shape": [1, 1025, 2], "distribution": "normal"}
    assert run(linear(inputs=dict.fromkeys("qkv", long))).findings["ranks"] is None


def test_the_error_of_a_performer_falls_with_its_features_by_intervals_that_hold_it() -> None:
    shape = {"seed": 2, "shape": [1, 30, 4], "distribution": "uniform"}  # small: no heavy tail
    body = linear(engine="performer", inputs=dict.fromkeys("qkv", shape))
    found = run(body | {"options": {"num_features": 1024, "trials": 20}}).findings["error_by_features"]
    assert [row["features"] for row in found] == [16, 64, 256, 1024]
    medians = [row["median"] for row in found]
    # 1/√m: a half for four times as many, roughly.
    assert all(0.3 < later / earlier < 0.8 for earlier, later in itertools.pairwise(medians))
    for row in found:
        assert 0.95 <= row["confidence"] < 1
        assert row["low"] < row["median"] < row["high"]
    # Seed 0 of 20 is what a run without trials draws.
    once = run(body | {"options": {"num_features": 16}})
    assert once.findings["error_by_features"] == []
    comparison = once.comparison
    assert comparison is not None
    six = run(body | {"options": {"num_features": 16, "trials": 6}}).findings["error_by_features"][-1]
    assert six["low"] <= comparison["rel_err"] * (1 + 1e-4)
    assert comparison["rel_err"] <= six["high"] * (1 + 1e-4)


@pytest.mark.parametrize("trials", [1, 5])
def test_too_few_trials_are_refused(trials: int) -> None:
    found = refused(linear(engine="performer", options={"trials": trials}))
    assert "send 6 or more, or 0 for none" in found["/options/trials"]


def test_what_is_found_is_what_the_registry_says() -> None:
    for body in (linear(), linear(engine="performer", options={"trials": 6, "num_features": 4}), scan()):
        assert list(run(body).findings) == list(ENGINES[body["engine"]].findings)


def test_features_are_drawn_from_their_seed() -> None:
    def out(**options: Any) -> np.ndarray:
        return run(linear(engine="performer", options={"num_features": 32, **options})).arrays["out"]

    np.testing.assert_array_equal(out(), out())
    assert not np.allclose(out(), out(features_seed=1))
    assert not np.allclose(out(), out(orthogonal=False))


# -- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "pointer", "says"),
    [
        (linear("beta", attention={}), "/attention/is_causal", "set is_causal to true"),
        (linear("beta", options={"normalise": True}), "/options/normalise", "leave normalise or beta out"),
        (linear("beta", options={"form": "parallel"}), "/options/form", "use chunked or recurrent"),
        (linear(options={"form": "parallel"}, **STATES), "/return/1", "use form chunked or recurrent"),
        (linear("beta", **{"return": ["normaliser"]}), "/return/0", "set normalise to true"),
        (linear("initial_state"), "/inputs/initial_normaliser", "send both"),
        (linear("initial_state", "beta", "initial_normaliser"), "/inputs/initial_normaliser", "leave"),
        (linear(options={"form": "recurrent", "chunk_size": 16}), "/options/chunk_size", "leave it out"),
        (linear(inputs={"q": seeded(2, 4, 20, 6)}), "/inputs/q", "make them equal"),
        (linear(inputs={"beta": seeded(2, 4, 21)}), "/inputs/beta", "[batch, kv_heads, kv_len] = [2, 2, 21]"),
        (linear(inputs={"log_decay": [[[0.0, "nan"]]]}), "/inputs/log_decay", "[2, 2, 21]"),
        (linear(options={"form": "absorbed"}), "/options/form", "chunked, recurrent or parallel, not"),
        (linear(options={"chunk_size": 24}), "/options/chunk_size", "null, 16, 32 or 64, not 24"),
        (linear(options={"normalise": 1}), "/options/normalise", "true or false or null, not 1"),
        (linear(options={"num_features": 8}), "/options/num_features", "the option num_features"),
        (linear(attention=CAUSAL | {"softcap": 5}), "/attention/softcap", "together with linear attention"),
        (linear(attention=CAUSAL | {"window": [1, 0]}), "/attention/window", "does not support sliding"),
        (linear(engine="flash", inputs={"beta": of("beta")}), "/inputs/beta", "without it linear can"),
        (linear(engine="performer", options={"num_features": 0}), "/options/num_features",
         "an integer between 1 and 4,096, not 0"),
        (linear(engine="performer", options={"num_features": True}), "/options/num_features", "not true"),
        (linear(engine="performer", options={"orthogonal": None}), "/options/orthogonal", "true or false"),
        (linear(engine="performer", **{"return": ["state"]}), "/return/0", "the result state"),
        (linear(engine="scan"), "/inputs/x", "x is required"),
        (scan(inputs={"q": seeded(2, 4, 21, 3)}), "/inputs/q", "engine scan takes x, b, c, delta and a"),
        (scan(inputs={"b": seeded(2, 2, 20, 3)}), "/inputs/b", "len 20 but x has len 21"),
        (scan(inputs={"b": seeded(2, 3, 21, 3), "c": seeded(2, 3, 21, 3)}), "/inputs/b", "the 3 groups"),
        (scan(inputs={"delta": seeded(2, 4, 21, 2)}), "/inputs/delta", "channels 2 but x has channels 5"),
        (scan(inputs={"x": seeded(2, 21, 5)}), "/inputs/b", "[groups, len, states]"),
        (scan(attention={"rope": {"style": "half", "dim": 2}}), "/attention/rope", "does not support rotary"),
        (scan(attention={"num_heads": 4}), "/attention/num_heads", "leave it out"),
        (scan("d_skip", options={"form": "parallel"}), "/options/form", "recurrent, scan or quadratic"),
        (scan(options={"form": "quadratic"}), "/options/form", "delta has 5 to a head and a 5 × 3; send"),
        (scan(inputs={"delta": of("delta", SCAN, channels=1)}, options={"form": "quadratic"}),
         "/options/form", "delta has 1 to a head and a 5 × 3"),
        (scan(inputs=ONE_RATE, options={"form": "quadratic"}, **STATES), "/return/1", "use form chunked"),
        (scan(inputs=ONE_RATE | {name: of(name, SCAN, states=257) for name in "bc"},
              options={"form": "quadratic"}), "/options/form", "up to 256 states, and there are 257"),
        (scan(inputs=ONE_RATE, options={"form": "quadratic", "chunk_size": 16}), "/options/chunk_size",
         "leave it out"),
        ({**scan(), "engine": "linear"}, "/inputs/x", "does not support a selective scan"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_named(body: Body, pointer: str, says: str) -> None:
    assert says in refused(body)[pointer]


def test_a_scan_too_long_to_be_held_at_once_is_advised_another_form() -> None:
    lengths = SCANNED | {"batch": 1, "heads": 1, "groups": 1, "len": 2**15}
    body = {
        "engine": "scan",
        "inputs": {name: seeded(*(lengths[axis] for axis in SCAN.axes[name])) for name in SCAN.required},
        "options": {"form": "scan"},
    }
    assert "use form chunked" in refused(body)["/options/form"]


def test_no_number_is_too_many_or_nan_where_forgetting_everything_is_one() -> None:
    log_decay = np.full((2, 2, 21), -0.5).tolist()
    log_decay[0][0][3] = "-inf"
    body = linear(inputs={"log_decay": log_decay})
    forgetful = run(body).arrays["out"]
    assert np.isfinite(forgetful).all()
    # Token 3 sees itself alone.
    np.testing.assert_allclose(forgetful[0, 0, 3], made("v", body["inputs"]["v"])[0, 0, 3], rtol=1e-5)
    log_decay[0][0][3] = "nan"
    assert "must be finite" in refused(linear(inputs={"log_decay": log_decay}))["/inputs/log_decay"]


@pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning")
def test_a_state_that_grows_beyond_all_numbers_is_reported_and_no_error() -> None:
    body = linear(
        inputs={"beta": (100 * np.ones((2, 2, 60))).tolist(), **{n: seeded(2, 2, 60, 6) for n in "qkv"}},
        options={"feature_map": "identity"},
    )
    parsed = parse_run(body)
    outcome = execute(parsed.spec, parsed.arrays)
    assert outcome.numerics["within_bound"] is False
    assert "Engine reference" not in "".join(outcome.notes)  # which computes something else


@pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning")
def test_a_scan_that_grows_beyond_all_numbers_has_no_bound_and_says_why() -> None:
    body = scan(**STATES)
    body["inputs"]["a"] = np.full((4, 5, 3), 1e6).tolist()
    parsed = parse_run(body)
    outcome = execute(parsed.spec, parsed.arrays)
    for found in (outcome.numerics, outcome.numerics["arrays"]["state"]):
        assert found["bound"] == "inf"
        assert found["within_bound"] is False
        assert found["nan_count"] > 0
    for name in ("out", "state"):
        assert any(f"of {name} are not known in float64 either" in note for note in outcome.notes)


@pytest.mark.parametrize(
    ("dtype", "tiny"), [("float32", 1e-25), ("float32", 1e-40), ("float16", 1e-5), ("bfloat16", 1e-38)]
)
@pytest.mark.parametrize(
    "body",
    [
        linear(options={"feature_map": "identity"}, **STATES),
        linear(options={"feature_map": "identity", "normalise": False}, **STATES),
        linear("log_decay", "beta", options={"feature_map": "identity"}, **STATES),
        linear(engine="performer"),
        scan(**STATES),
    ],
    ids=["normalised", "sums", "delta", "performer", "scan"],
)
@pytest.mark.parametrize("of_all", [False, True], ids=["values", "all"])
def test_what_vanishes_below_a_dtype_is_within_its_bound(
    body: Body, dtype: str, tiny: float, of_all: bool
) -> None:
    small = {"q", "k", "v", "x", "b", "c"} if of_all else {"v", "x"}
    inputs = {
        name: (made(name, given) * (tiny if name in small else 1.0)).tolist()
        for name, given in body["inputs"].items()
    }
    run(body | {"inputs": inputs, "dtype": dtype})


def test_the_bound_of_numbers_in_range_is_not_what_may_vanish() -> None:
    for body in (linear(), linear(engine="performer"), scan()):
        assert run(body).numerics["bound"] < 1e-4


EMPTY = {"b64": "", "dtype": "float32", "shape": [1, 2, 0, 4]}
NO_DIMS = {"b64": "", "dtype": "float32", "shape": [2, 2, 21, 0]}  # with two key heads


@pytest.mark.parametrize(
    "body",
    [
        linear(inputs=dict.fromkeys("qkv", EMPTY), **STATES),
        linear(attention={}, inputs=dict.fromkeys("kv", EMPTY) | {"q": seeded(1, 2, 3, 4)}),
        linear(engine="performer", attention={},
               inputs=dict.fromkeys("kv", EMPTY) | {"q": seeded(1, 2, 3, 4)}),
        linear(engine="performer", inputs=dict.fromkeys("qkv", EMPTY)),
        linear(engine="performer", inputs=dict.fromkeys("qkv", seeded(0, 2, 3, 4)), options={"trials": 6}),
        *(linear(attention=attention, engine=engine, inputs={"v": NO_DIMS})
          for engine in ("linear", "performer") for attention in ({}, CAUSAL)),
        *(linear(inputs={"v": NO_DIMS}, options={"form": form}) for form in ("parallel", "recurrent")),
        linear(inputs={"v": NO_DIMS}, options={"normalise": False}, **STATES),
        *(linear(inputs=dict.fromkeys("qk", NO_DIMS), options={"form": form}, attention=attention)
          for form in ("chunked", "parallel", "recurrent") for attention in ({}, CAUSAL)),
        linear(engine="performer", inputs={"v": NO_DIMS}, options={"trials": 6}),
        *(linear(engine=engine, inputs=dict.fromkeys("qkv", seeded(0, 2, 3, 4)))
          for engine in ("linear", "performer")),
        scan(inputs=dict.fromkeys(("x", "b", "c", "delta"), seeded(0, 2, 3, 4))
             | {"a": seeded(2, 4, 4)}, **STATES),
        scan(inputs=dict.fromkeys(("x", "b", "c", "delta"), EMPTY) | {"a": seeded(2, 4, 4)}, **STATES),
    ],
)  # fmt: skip
def test_empty_axes_are_legal(body: Body) -> None:
    outcome = run(body)
    assert not outcome.arrays["out"].any()


@pytest.mark.parametrize("form", ["chunked", "recurrent"])
@pytest.mark.parametrize("attention", [{}, CAUSAL])
def test_values_of_no_dimensions_leave_a_normaliser(form: str, attention: Body) -> None:
    body = linear(attention=attention, options={"form": form}, **{"return": ["out", "normaliser"]})
    wanted = run(body).arrays["normaliser"]
    with poisoned_memory():
        found = run(body | {"inputs": body["inputs"] | {"v": NO_DIMS}}).arrays["normaliser"]
    np.testing.assert_array_equal(found, wanted)


# -- what is declared ----------------------------------------------------------------------------------------


def test_options_have_the_defaults_of_their_engine_and_no_others() -> None:
    options = parse_run(linear()).spec.to_dict()["options"]
    assert options["feature_map"] == "elu1"
    assert options["form"] == "chunked"
    assert "num_features" not in options
    assert "form" not in parse_run(linear(engine="flash")).spec.to_dict()["options"]


@pytest.mark.parametrize("engine", [name for name, engine in ENGINES.items() if engine.computes != SOFTMAX])
def test_every_input_and_option_is_described(engine: str) -> None:
    described = ENGINES[engine].describe()
    schema = described["inputs_schema"]
    assert set(ENGINES[engine].family.required) <= schema["properties"].keys()
    assert all(given["description"] for given in schema["properties"].values())
    assert all(
        "default" in option and option["description"]
        for option in described["options"]["properties"].values()
    )


@pytest.mark.parametrize("body", [linear(), linear(engine="performer"), scan()])
def test_what_a_run_costs_grows_with_it_and_covers_its_memory(body: Body) -> None:
    run(body)  # the first of a process takes memory that none after it does
    outcome = run(body)
    cost = estimate(parse_run(body).spec)
    assert outcome.memory["peak_bytes"] <= cost.predicted_bytes
    longer = parse_run(json.loads(json.dumps(body | {"timing": {"warmup": 0, "iters": 3}}))).spec
    assert estimate(longer).predicted_seconds > cost.predicted_seconds
    assert cost.flops > 0


def cost_of(engine: str, shapes: dict[str, list[int]], **options: Any) -> Any:
    inputs = {name: {"seed": 1, "shape": shape} for name, shape in shapes.items()}
    return estimate(parse_run({"engine": engine, "inputs": inputs, "options": options}).spec)


def test_the_price_of_a_performer_has_its_directions_and_its_state() -> None:
    """Directions that are orthogonal to each other come in squares, and a state has a row for each feature:
    both are float64 in the reference."""
    d, e, features = 20_000, 30_000, 4096
    wide = cost_of("performer", {"q": [1, 2, d], "k": [1, 2, d], "v": [1, 2, 2]})
    assert wide.predicted_bytes > 2 * 8 * d**2
    assert wide.predicted_seconds > 120  # QR takes d³
    far = cost_of("performer", {"q": [1, 2, 2], "k": [1, 2, 2], "v": [1, 2, e]}, num_features=features)
    assert far.predicted_bytes > 2 * 8 * features * e
    tried = cost_of(
        "performer", {"q": [1, 2, 2], "k": [1, 2, 2], "v": [1, 2, e]}, num_features=features, trials=64
    )
    assert tried.predicted_seconds > 2 * far.predicted_seconds
