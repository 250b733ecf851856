"""Engine ``scoring``, from a request to its result."""

from __future__ import annotations

import importlib
import json
from typing import Any

import numpy as np
import pytest
import torch

from kernels.arrays import generate
from kernels.estimate import estimate
from kernels.execute import Outcome, execute, materialise, warm
from kernels.flash.interpreter import counted_traffic
from kernels.layout import to_canonical
from kernels.registry import ENGINES
from kernels.scoring import pricing
from kernels.scoring.functions import SCORES
from kernels.scoring.inputs import SCORE_INPUTS, SPAN_INPUTS
from kernels.spec import RunSpec, SpecError, parse_run
from kernels.tuning import Tiling
from tests.kernels.fences import fences, poisoned_memory

Body = dict[str, Any]
SPANS = tuple(SPAN_INPUTS)
EVERYTHING = ["out", "lse", "scores", "weights"]
OF_WINDOWS = ["centres", "kept_weight"]
WIDE = {"half_width": 4}


def seeded(*shape: int, distribution: str = "normal") -> Body:
    return {"seed": 5, "shape": list(shape), "distribution": distribution}


def parameter(name: str, heads: int, dim: int, hidden: int = 6) -> Body:
    shapes = {
        "w_q": (heads, hidden, dim), "w_k": (heads, hidden, dim), "v_a": (heads, hidden),
        "w_general": (heads, dim, dim), "w_concat": (heads, hidden, 2 * dim),
        "w_p": (heads, 3, dim), "v_p": (heads, 3),
    }  # fmt: skip
    return seeded(*shapes[name])


def request(
    score: str = "additive", span: str = "global", *, distribution: str = "normal", **fields: Any
) -> Body:
    """Grouped heads, values of another width than keys, more keys than queries."""
    inputs = {
        "q": seeded(2, 4, 21, 10, distribution=distribution),
        "k": seeded(2, 2, 33, 10, distribution=distribution),
        "v": seeded(2, 2, 33, 7),
    }
    inputs |= {name: parameter(name, 4, 10) for name in (*SCORE_INPUTS[score], *SPAN_INPUTS[span])}
    options = {"score": score, "span": span} | fields.pop("options", {})
    returns = EVERYTHING + (OF_WINDOWS if span != "global" else [])
    return {
        "engine": "scoring", "inputs": inputs | fields.pop("inputs", {}), "options": options,
        "return": returns, "timing": {"warmup": 0, "iters": 1}, **fields,
    }  # fmt: skip


def made(body: Body, name: str) -> np.ndarray:
    given = body["inputs"][name]
    if isinstance(given, dict):
        numbers = generate(name, given["seed"], tuple(given["shape"]), given["distribution"], "float32")
        return numbers.astype(np.float64)
    return np.array(given, np.float64)


def run(body: Body) -> Outcome:
    """Its result, which is within its bounds."""
    parsed = parse_run(json.loads(json.dumps(body)))
    assert RunSpec.from_dict(json.loads(json.dumps(parsed.spec.to_dict()))) == parsed.spec
    outcome = execute(parsed.spec, parsed.arrays)
    found = outcome.numerics
    assert found["within_bound"], found
    assert all(other["within_bound"] for other in found["arrays"].values()), found
    assert outcome.findings.keys() == ENGINES["scoring"].findings.keys()
    json.dumps(outcome.findings)
    return outcome


def refused(body: Body) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        parse_run(body)
    return {problem.pointer: problem.detail for problem in caught.value.problems}


# -- what is computed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ENGINES["scoring"].dtypes)
@pytest.mark.parametrize("score", SCORES)
def test_every_score_runs_with_every_span(score: str, dtype: str) -> None:
    for span, distribution in zip(SPANS, ("normal", "peaked", "normal"), strict=True):
        outcome = run(request(score, span, dtype=dtype, distribution=distribution))
        assert outcome.comparison is not None
        assert outcome.comparison["with"] == "softmax"


def test_additive_attention_is_what_bahdanau_says() -> None:
    """With one set of parameters for all heads, and a causal mask whose last query is at the last key."""
    shared = {name: parameter(name, 1, 10) for name in SCORE_INPUTS["additive"]}
    body = request(inputs=shared, attention={"is_causal": True})
    q, k, v, w_q, w_k, v_a = (torch.from_numpy(made(body, name)) for name in ("q", "k", "v", *shared))
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    scores = torch.tanh((q @ w_q[0].T)[:, :, :, None] + (k @ w_k[0].T)[:, :, None]) @ v_a[0]
    later = torch.ones(21, 33, dtype=torch.bool).triu(33 - 21 + 1)
    weights = torch.softmax(scores.masked_fill(later, -torch.inf), -1)
    found = run(body).arrays
    np.testing.assert_allclose(found["scores"], scores, atol=1e-5)
    np.testing.assert_allclose(found["weights"], weights, atol=1e-6)
    np.testing.assert_allclose(found["out"], weights @ v, atol=1e-5)


def test_scaled_dot_is_softmax_attention() -> None:
    body = request("scaled_dot", attention={"is_causal": True, "scale": 0.7})
    outcome = run(body)
    flash = run_flash(body)
    np.testing.assert_allclose(outcome.arrays["out"], flash["out"], atol=1e-6)
    np.testing.assert_allclose(outcome.arrays["weights"], flash["weights"], atol=1e-6)
    assert outcome.comparison is not None
    assert outcome.comparison["rel_err"] < 1e-6


def run_flash(body: Body, **attention: Any) -> dict[str, np.ndarray]:
    inputs = {name: body["inputs"][name] for name in body["inputs"] if name in ("q", "k", "v", "attn_mask")}
    asked = {"engine": "flash", "inputs": inputs, "return": ["out", "weights", "lse"]}
    parsed = parse_run(asked | {"attention": body.get("attention", {}) | attention})
    return execute(parsed.spec, parsed.arrays).arrays


@pytest.mark.parametrize(
    "attention",
    [
        {"window": [3, 1]},
        {"is_causal": True, "causal_alignment": "top_left"},
        {"is_causal": True, "q_positions": list(range(0, 42, 2))},
        {"is_causal": True, "q_positions": 5},
        {"pattern": {"type": "chunked", "size": 5}},
    ],
)
def test_masks_are_those_of_other_engines(attention: Body) -> None:
    mask = (np.random.default_rng(0).random((2, 1, 21, 33)) < 0.8).tolist()
    body = request("scaled_dot", attention=attention, inputs={"attn_mask": mask})
    found, flash = run(body), run_flash(body)
    for name in ("out", "weights", "lse"):
        np.testing.assert_allclose(found.arrays[name], flash[name], atol=2e-6)
    assert found.findings["pairs_scored"] == np.count_nonzero(flash["weights"])


def test_additive_masks_are_added_and_what_they_forbid_is_not_counted() -> None:
    bias = np.random.default_rng(0).normal(size=(21, 33))
    bias[:, 3] = -np.inf
    sent = [[x if np.isfinite(x) else "-inf" for x in row] for row in bias.tolist()]
    body = request("scaled_dot", inputs={"attn_mask": sent})
    found, flash = run(body), run_flash(body)
    np.testing.assert_allclose(found.arrays["out"], flash["out"], atol=2e-6)
    assert found.findings["pairs_scored"] == 2 * 4 * 21 * 32


def test_monotonic_windows_follow_the_queries() -> None:
    found = run(request("dot", "monotonic", options=WIDE))
    np.testing.assert_array_equal(found.arrays["centres"][1, 3], np.arange(21))
    seen = found.arrays["weights"][0, 0] > 0
    np.testing.assert_array_equal(seen, np.abs(np.arange(33) - np.arange(21)[:, None]) <= 4)


def test_predicted_windows_are_what_luong_says() -> None:
    """Equations 9 and 10, and how much of the global weights they hold."""
    body = request("general", "predictive")
    found, everywhere = run(body), run(request("general"))
    q, w_p, v_p = (made(body, name) for name in ("q", "w_p", "v_p"))
    centres = np.zeros((2, 4, 21))
    for b, h, t in np.ndindex(centres.shape):
        z = v_p[h] @ np.tanh(w_p[h] @ q[b, h, t])
        centres[b, h, t] = 33 / (1 + np.exp(-z))
    np.testing.assert_allclose(found.arrays["centres"], centres, rtol=1e-6)
    distance = np.arange(33) - centres[..., None]
    inside = np.abs(distance) <= 10  # the paper's
    kept = np.where(inside, everywhere.arrays["weights"].astype(float), 0)
    np.testing.assert_allclose(found.arrays["kept_weight"], kept.sum(-1), atol=1e-5)
    weights = kept / kept.sum(-1, keepdims=True) * np.exp(-(distance**2) / (2 * 5.0**2))
    np.testing.assert_allclose(found.arrays["weights"], weights, atol=1e-4)
    assert found.findings["pairs_scored"] == np.count_nonzero(inside)
    assert found.findings["share_scored"] == pytest.approx(inside.mean())


@pytest.mark.parametrize("score", ["additive", "concat", "general"])
def test_findings_count_what_the_score_takes_beside_dot_products(score: str) -> None:
    """By the formulas of the papers, of all heads: n·m pairs, d = 10, six hidden numbers."""
    found = run(request(score)).findings
    heads, n, m, d, a = 8, 21, 33, 10, 6
    multiply_adds, in_products, functions = {
        "additive": ((n + m) * a * d + 2 * n * m * a, (n + m) * a * d, n * m * a),
        "concat": (n * m * a * 2 * d + n * m * a, n * m * a * 2 * d, n * m * a),
        "general": (n * d * d + n * m * d, n * d * d + n * m * d, 0),
    }[score]
    assert found["score_cost"] == {
        "multiply_adds": heads * multiply_adds,
        "in_matrix_products": heads * in_products,
        "functions": heads * functions,
    }
    assert found["scaled_dot_cost"]["multiply_adds"] == heads * (n * m * d + n * m)
    assert found["pairs_scored"] == heads * n * m
    assert found["share_scored"] == 1.0


@pytest.mark.parametrize("rank", [2, 3])
def test_results_have_the_rank_of_the_inputs(rank: int) -> None:
    """Without heads parameters have none."""
    body = request("additive", "predictive")
    cut = {"q": 4 - rank, "k": 4 - rank, "v": 4 - rank}
    for name, given in body["inputs"].items():
        given["shape"] = given["shape"][cut.get(name, 1 if rank == 2 else 0) :]
    found = run(body).arrays
    assert found["out"].shape == (4, 21, 7)[3 - rank :]
    assert found["centres"].shape == (4, 21)[3 - rank :]
    assert found["weights"].shape == (4, 21, 33)[3 - rank :]


def test_packed_inputs_are_the_same_computation() -> None:
    body = request("additive", "monotonic")
    packed = {
        name: made(body, name).swapaxes(1, 2).reshape(2, made(body, name).shape[2], -1).tolist()
        for name in "qkv"
    }
    heads = {"num_heads": 4, "num_kv_heads": 2}
    got = run(body | {"inputs": body["inputs"] | packed, "attention": heads}).arrays
    wanted = run(body).arrays
    np.testing.assert_allclose(got["out"], wanted["out"].swapaxes(1, 2).reshape(2, 21, -1), atol=1e-6)
    np.testing.assert_allclose(got["kept_weight"], wanted["kept_weight"], atol=1e-6)


def test_beta_sharpens_cosines() -> None:
    flat, sharp = (run(request("cosine", options={"beta": beta})).arrays["weights"] for beta in (None, 30.0))
    assert flat.max() < 0.25 < sharp.max()
    reverse = run(request("cosine", options={"beta": -30.0})).arrays
    np.testing.assert_allclose(
        reverse["scores"], -run(request("cosine", options={"beta": 30})).arrays["scores"], rtol=1e-6
    )


def test_parameters_are_rounded_as_those_of_a_model() -> None:
    body = request(dtype="bfloat16")
    sent = body["inputs"] | {"v_a": [[1.0 + 2.0**-12] * 6] * 4}
    found = run(body | {"inputs": sent})
    np.testing.assert_array_equal(found.inputs["v_a"], np.ones((4, 6)))


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("score", SCORES)
def test_kernels_stay_within_their_arguments_and_write_all_of_them(score: str, span: str) -> None:
    parsed = parse_run(request(score, span))
    canonical = {
        name: to_canonical(parsed.spec, name, array)
        for name, array in materialise(parsed.spec, parsed.arrays).items()
    }
    with poisoned_memory(), fences() as watch:
        prepared = importlib.import_module(ENGINES["scoring"].module).prepare(parsed.spec, canonical, "cpu")
        found = prepared.collect(prepared.compute())
    assert watch.launches
    assert set(found) == set(parsed.spec.returns)
    assert not any(np.isnan(array).any() for array in found.values())


# -- what is refused -----------------------------------------------------------------------------------------

DOT = request("dot")


@pytest.mark.parametrize(
    ("body", "pointer", "says"),
    [
        (DOT | {"options": {}}, "/inputs/w_q", "score additive takes w_q, w_k, v_a, and w_q is missing: "
         "send it, of shape [heads, hidden, head_dim] = [1 or 4, any, 10], or set another options.score"),
        (DOT | {"options": {"score": "general"}}, "/inputs/w_general", "[1 or 4, 10, 10]"),
        (request(inputs={"w_concat": seeded(4, 6, 20)}), "/inputs/w_concat",
         "score additive has no use for w_concat: leave it out, or set options.score to concat"),
        (request() | {"options": {"score": "concat"}}, "/inputs/w_q", "set options.score to additive"),
        (request() | {"options": {"score": "concat"}}, "/inputs/w_concat", "= [1 or 4, 6, 20]"),
        (request(inputs={"w_p": seeded(4, 3, 10)}), "/inputs/w_p", "set options.span to predictive"),
        (DOT | {"options": {"score": "dot", "span": "predictive"}}, "/inputs/v_p", "[heads, hidden of w_p]"),
        (request(inputs={"w_k": seeded(4, 5, 10)}), "/inputs/w_k", "[4, 6, 10]"),
        (request(inputs={"w_q": seeded(3, 6, 10)}), "/inputs/w_q", "[heads, hidden, head_dim] = [4, "),
        (request(inputs={"v_a": seeded(6)}), "/inputs/v_a", "[heads, hidden]"),
        (request(inputs={"w_q": seeded(4, 6, 11)}), "/inputs/w_q", "has shape [4, 6, 11]"),
        (request("dot", attention={"scale": 2.0}), "/attention/scale", "set options.score to scaled_dot"),
        (request("cosine", attention={"scale": 2.0}), "/attention/scale", "set beta"),
        (request("dot", options={"beta": 2}), "/options/beta", "the score is dot: leave it out"),
        (request("dot", options={"half_width": 2}), "/options/half_width", "set a span"),
        (request("dot", "monotonic", options={"half_width": -1}), "/options/half_width", "between 0 and"),
        (request("dot", "predictive", options={"half_width": 0}), "/options/half_width", "more than 0"),
        (request("dot", "predictive", options={"half_width": 1e-60}), "/options/half_width", "more than 0"),
        (request("dot", **{"return": ["out", "centres"]}), "/return/1", "leave it out"),
        (request("dot", **{"return": ["kept_weight"]}), "/return/0", "set options.span"),
        (request("dot", options={"score": "euclidean"}), "/options/score", "additive, dot, scaled_dot"),
        (request("dot", options={"beta": True}), "/options/beta", "not true"),
        (request("dot", attention={"softcap": 5}), "/attention/softcap", "does not support"),
        (request("dot", attention={"rope": {"style": "half"}}), "/attention/rope", "does not support"),
        (request("dot", inputs={"kv_lens": [3, 3]}), "/inputs/kv_lens", "does not support ragged"),
        (request("dot", inputs={"q": seeded(2, 4, 21, 300), "k": seeded(2, 2, 33, 300)}), "/inputs/q",
         "head dim of 300"),
        (request(inputs={"v_a": [["inf"] * 6] * 4}), "/inputs/v_a", "must be finite"),
        (request(inputs={"v_a": [[1e30] * 6] * 4}, dtype="float16"), "/inputs/v_a", "beyond float16"),
        (request(engine="flash"), "/inputs/w_q", "does not support learnt parameters"),
        (request("dot", options={"chunk_size": 16}), "/options/chunk_size", "the option chunk_size"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_named(body: Body, pointer: str, says: str) -> None:
    assert says in refused(body)[pointer]


# -- at the edges --------------------------------------------------------------------------------------------


def empty(*shape: int) -> Body:
    return {"b64": "", "dtype": "float32", "shape": list(shape)}


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize(
    "inputs",
    [
        {"q": empty(2, 4, 0, 10)},
        {"k": empty(2, 2, 0, 10), "v": empty(2, 2, 0, 7)},
        {"v": empty(2, 2, 33, 0)},
        {"q": empty(0, 4, 21, 10), "k": empty(0, 2, 33, 10), "v": empty(0, 2, 33, 7)},
        {"w_q": empty(4, 0, 10), "w_k": empty(1, 0, 10), "v_a": empty(4, 0)},
        {"q": empty(2, 4, 21, 0), "k": empty(2, 2, 33, 0), "w_q": empty(4, 6, 0), "w_k": empty(4, 6, 0),
         "w_p": empty(4, 3, 0)},
    ],
)  # fmt: skip
def test_empty_axes_are_legal(inputs: Body, span: str) -> None:
    if span != "predictive":
        inputs = {name: given for name, given in inputs.items() if name != "w_p"}
    outcome = run(request("additive", span, inputs=inputs))
    assert not any(np.isnan(array).any() for array in outcome.arrays.values())
    if 0 in outcome.arrays["weights"].shape:
        assert not outcome.arrays["out"].any()


@pytest.mark.parametrize("score", SCORES)
def test_numbers_beyond_the_dtype_are_said_and_no_error(score: str) -> None:
    huge = {name: (1e38 * made(request(score), name) / 5).tolist() for name in ("q", "k")}
    body = request(score, inputs=huge)
    parsed = parse_run(json.loads(json.dumps(body)))
    outcome = execute(parsed.spec, parsed.arrays)
    if score == "cosine":
        assert outcome.numerics["within_bound"]
    elif not outcome.numerics["within_bound"]:
        assert any("not finite" in note for note in outcome.notes)


# -- what it takes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", SCORES)
def test_what_a_run_costs_grows_with_it_and_covers_its_memory(score: str) -> None:
    body = request(score, "predictive")
    run(body)  # the first of a process takes memory that none after it does
    outcome, cost = run(body), estimate(parse_run(body).spec)
    assert outcome.memory["peak_bytes"] <= cost.predicted_bytes
    longer = parse_run(json.loads(json.dumps(body | {"timing": {"warmup": 0, "iters": 3}}))).spec
    assert estimate(longer).predicted_seconds > cost.predicted_seconds
    assert cost.flops > 0


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(("span", "more"), [("global", {}), ("monotonic", WIDE), ("predictive", WIDE)])
def test_the_model_of_traffic_is_what_the_interpreter_counts(
    score: str, span: str, more: Body, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In tiles of 16, which windows leave out, but where their share is asked for, as of predicted ones."""
    monkeypatch.setattr(pricing, "choose_tiling", lambda *_, **__: Tiling(16, 16))
    returns = ["out", "kept_weight"] if span == "predictive" else ["out"]
    for asked in (returns, [*returns, "scores", "weights"]):
        body = request(score, span, options=more, **{"return": asked}, attention={"is_causal": True})
        spec = parse_run(body).spec
        canonical = {n: to_canonical(spec, n, array) for n, array in materialise(spec, {}).items()}
        prepared = importlib.import_module(ENGINES["scoring"].module).prepare(spec, canonical, "cpu")
        with counted_traffic() as counted:
            prepared.compute()
        # The place of the first query, which a causal mask is told in 8 programs for each row of tiles.
        read, written = pricing.traffic(spec, Tiling(16, 16))
        assert counted.bytes_written == written
        assert 0 <= counted.bytes_read - read < 400


def test_flops_are_of_the_pairs_that_are_scored() -> None:
    """Monotonic: of 21 queries with 33 keys, 9 for each in the middle; predicted: 9 at most for each."""
    everywhere, band, predicted = (
        estimate(parse_run(request("dot", span, options={} if span == "global" else WIDE)).spec).flops
        for span in SPANS
    )
    pairs = sum(min(t + 4, 32) - max(t - 4, 0) + 1 for t in range(21))
    assert everywhere == 2 * 8 * 21 * 33 * (10 + 7)
    assert band == 2 * 8 * pairs * (10 + 7)
    assert predicted == 2 * 8 * (21 * 9 * (10 + 7) + 21 * 3 * (10 + 1))


def test_a_worker_warms_it_up() -> None:
    """With the inputs that its defaults need."""
    assert ENGINES["scoring"].inputs_taken({}) == ("q", "k", "v", "w_q", "w_k", "v_a")
    assert ENGINES["scoring"].inputs_taken({"score": "dot", "span": "predictive"})[3:] == ("w_p", "v_p")
    warm()


def test_every_input_and_option_is_described() -> None:
    described = ENGINES["scoring"].describe()
    properties = described["inputs_schema"]["properties"]
    assert {name for table in (SCORE_INPUTS, SPAN_INPUTS) for takes in table.values() for name in takes} <= (
        properties.keys()
    )
    assert all(given["description"] for given in properties.values())
    options = described["options"]["properties"]
    assert options["score"]["enum"] == list(SCORE_INPUTS)
    assert options["span"]["enum"] == list(SPAN_INPUTS)
