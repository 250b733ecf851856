"""eager and sdpa against the float64 reference: every feature they declare, alone and in any combination, and
the bound on their error, which is never exceeded and not far away either."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.engines.reference import reference
from kernels.numerics import compare
from kernels.registry import ENGINES
from kernels.spec import RunSpec
from tests.kernels.cases import Arrays, Case, cases, compute, make, torch_in_low_precision
from tests.kernels.error_bounds import error_bound, error_bounds

SHAPE = (2, 4, 2, 7, 9, 12)
rng = np.random.default_rng(5)
BOOL_MASK = (rng.random((2, 1, 7, 9)) < 0.6).tolist()
FLOAT_MASK = rng.standard_normal((4, 7, 9)).tolist()


def seeded(*shape: int) -> dict[str, Any]:
    return {"seed": 11, "shape": list(shape)}


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"attention": {"scale": 0.7}},
    "negative scale": {"attention": {"scale": -0.3}},
    "zero scale": {"attention": {"scale": 0.0}},
    "causal bottom right": {"attention": {"is_causal": True}},
    "causal top left": {"attention": {"is_causal": True, "causal_alignment": "top_left"}},
    "window": {"attention": {"window": [3, 1]}},
    "window and causal": {"attention": {"window": [2, None], "is_causal": True}},
    "offset": {"attention": {"is_causal": True, "q_positions": 4, "kv_positions": 2}},
    "positions": {"attention": {"is_causal": True, "q_positions": [3, 0, 8, 1, 2, 4, 5]}},
    "boolean mask": {"inputs": {"attn_mask": BOOL_MASK}},
    "float mask": {"inputs": {"attn_mask": FLOAT_MASK}, "attention": {"is_causal": True}},
    "short mask": {"inputs": {"attn_mask": [[True, False, True, True, True, True, False, True, True]]}},
    "alibi": {"attention": {"alibi_slopes": "auto", "is_causal": True}},
    "alibi per row": {"attention": {"alibi_slopes": [[1, 0.5, 0.25, 0.1], [0.2, 0.3, 0.4, 0]]}},
    "softcap": {"attention": {"softcap": 1.5}},
    "sinks": {"attention": {"sinks": [0.5, -1, "-inf", 3], "is_causal": True}},
    "rope": {"attention": {"rope": {"style": "half"}, "is_causal": True}},
    "partial rope": {"attention": {"rope": {"style": "interleaved", "dim": 4, "dim_offset": 6}}},
    "yarn": {
        "attention": {
            "rope": {
                "style": "half",
                "scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 8},
            }
        }
    },
    "rope at its own positions": {
        "inputs": {"k": seeded(2, 2, 7, 12), "v": seeded(2, 2, 7, 5)},
        "attention": {"rope": {"style": "half", "positions": [[3, 1, 2, 0, 4, 9, 5], [0, 1, 2, 3, 4, 5, 6]]}},
    },
    "past": {
        "inputs": {"past_key": seeded(2, 2, 6, 12), "past_value": seeded(2, 2, 6, 5)},
        "attention": {"rope": {"style": "half"}, "is_causal": True, "window": [8, None]},
    },
    "ragged": {
        "inputs": {"q_lens": [7, 3], "kv_lens": [4, 9]},
        "attention": {"is_causal": True, "sinks": [0.1, 1, -1, 2]},
    },
    "ragged and empty": {"inputs": {"q_lens": [0, 7], "kv_lens": [9, 0]}, "attention": {"is_causal": True}},
    "chunks": {"attention": {"pattern": {"type": "chunked", "size": 4}, "is_causal": True}},
    "paged": {
        "inputs": {
            "k": seeded(5, 3, 2, 12),
            "v": seeded(5, 3, 2, 5),
            "block_table": [[4, 0, 2], [2, 1, -1]],
            "kv_lens": [9, 5],
        },
        "attention": {"is_causal": True, "rope": {"style": "half"}},
    },
    "everything": {
        "inputs": {"attn_mask": FLOAT_MASK, "q_lens": [7, 5], "kv_lens": [9, 6]},
        "attention": {
            "softcap": 3,
            "alibi_slopes": "auto",
            "window": [4, 2],
            "sinks": [1, 0, -1, 2],
            "scale": 0.5,
            "rope": {"style": "half", "dim": 8},
            "pattern": {"type": "prefix", "len": 6},
        },
    },
}


def judge(spec: RunSpec, arrays: Arrays) -> tuple[dict[str, dict[str, Any]], Arrays]:
    """The verdict on every result by its name, and the reference."""
    expected = reference(spec, arrays, ("out", *spec.returns))
    got = compute(spec, arrays)
    for name in spec.returns:
        assert got[name].shape == expected[name].shape
    verdict = compare(spec, got, expected, error_bounds(spec, arrays, gradients="dout" in arrays))
    return {"out": verdict, **verdict["arrays"]}, expected


@pytest.mark.parametrize("distribution", ["normal", "peaked"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("engine", ["eager", "sdpa"])
def test_agrees_with_the_reference(engine: str, case: str, distribution: str) -> None:
    if "softcap" in CASES[case].get("attention", {}) and engine == "sdpa":
        assert "softcap" not in ENGINES["sdpa"].features
        return
    returns = sorted(ENGINES[engine].returns)
    fields = dict(CASES[case])
    inputs = {"dout": seeded(2, 4, 7, 5), **fields.pop("inputs", {})}
    spec, arrays = make(
        engine,
        SHAPE,
        v_dim=5,
        distribution=distribution,
        seed=len(case),
        inputs=inputs,
        **fields,
        **{"return": returns},
    )
    verdicts, expected = judge(spec, arrays)
    for name, verdict in verdicts.items():
        assert verdict["within_bound"], (name, verdict)
        finite = np.abs(expected[name][np.isfinite(expected[name])]).max(initial=0.0)
        assert verdict["max_abs_err"] <= 2e-5 * max(finite, 1.0), name


COMMON = settings(deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("engine", ["eager", "sdpa"])
def test_no_spec_leads_out_of_the_bounds(engine: str) -> None:
    """Whatever is combined: every result, gradients included, within its own bound; nothing beyond the
    lengths is read, for it is NaN."""

    @settings(COMMON, max_examples=60)
    @given(cases(engine, gradients=True), st.sampled_from(["float32", "float16", "bfloat16", "float64"]))
    def check(case: Case, dtype: str) -> None:
        verdicts, _ = judge(*case.on(engine, dtype=dtype, **{"return": sorted(ENGINES[engine].returns)}))
        for name, verdict in verdicts.items():
            assert verdict["within_bound"], (name, verdict)

    check()


@settings(COMMON, max_examples=60)
@given(cases("eager", gradients=True, extreme=True), st.sampled_from(["float32", "bfloat16"]))
def test_eager_has_a_number_wherever_the_reference_has_one(case: Case, dtype: str) -> None:
    """Scores up to 1e50, biases up to 1e31, softcaps of 1e±30: what float32 cannot hold is computed in
    float64."""
    verdicts, expected = judge(*case.on("eager", dtype=dtype, **{"return": sorted(ENGINES["eager"].returns)}))
    for name, verdict in verdicts.items():
        assert not np.isnan(expected[name]).any()
        assert verdict["nan_count"] == 0, name
        assert verdict["within_bound"], (name, verdict)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("softcap", [1e30, 3.4e38])
def test_a_softcap_beyond_all_scores_changes_no_gradient(softcap: float, dtype: str) -> None:
    """Autograd multiplies by c before it divides by it: 3 · 3.4e38 is beyond float32."""
    dout = {"dout": seeded(1, 2, 9, 8) | {"distribution": "peaked"}}
    found = []
    for attention in ({"softcap": softcap}, {}):
        spec, arrays = make(
            "eager", (1, 2, 1, 9, 17, 8), dtype=dtype, inputs=dout, attention=attention,
            **{"return": ["dq", "dk", "dv"]},
        )  # fmt: skip
        found.append(compute(spec, arrays))
        assert all(verdict["within_bound"] for verdict in judge(spec, arrays)[0].values())
    for name, gradient in found[0].items():
        np.testing.assert_allclose(gradient, found[1][name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("engine", ["eager", "sdpa"])
@pytest.mark.parametrize("shape", [(1, 2, 2, 8, 8, 8), (1, 4, 2, 33, 65, 40), (1, 2, 2, 90, 128, 64)])
@pytest.mark.parametrize("distribution", ["normal", "peaked", "uniform"])
def test_the_bound_is_near_the_error(engine: str, shape: Any, distribution: str) -> None:
    """A bound that nothing could exceed would say nothing."""
    most = {"float32": (200, 2000), "float16": (20, 300), "bfloat16": (20, 300)}
    for dtype, (out, gradient) in most.items():
        batch, heads, _, n, _, d = shape
        inputs = {"dout": {"seed": 5, "shape": [batch, heads, n, d], "distribution": distribution}}
        spec, arrays = make(
            engine, shape, dtype=dtype, distribution=distribution, inputs=inputs,
            attention={"is_causal": True}, **{"return": ["out", "dq", "dk", "dv"]},
        )  # fmt: skip
        for name, verdict in judge(spec, arrays)[0].items():
            limit = out if name == "out" else gradient
            assert verdict["max_abs_err"] <= verdict["bound"] <= limit * verdict["max_abs_err"], (dtype, name)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("engine", ["eager", "sdpa"])
@pytest.mark.parametrize("attention", [{"is_causal": True}, {"window": [20, 3], "alibi_slopes": "auto"}])
def test_low_precision_is_as_good_as_torchs(engine: str, dtype: str, attention: dict[str, Any]) -> None:
    """flash-attention's rule: the error is at most twice that of torch's operations in the same dtype, three
    times for gradients."""
    inputs = {"dout": seeded(1, 4, 65, 40)}
    spec, arrays = make(
        engine, (1, 4, 2, 65, 97, 40), dtype=dtype, seed=8, inputs=inputs, attention=attention,
        **{"return": ["out", "dq", "dk", "dv"]},
    )  # fmt: skip
    expected, theirs = reference(spec, arrays, spec.returns), torch_in_low_precision(spec, arrays)
    got = compute(spec, arrays)
    for name in spec.returns:
        ours, torchs = (np.abs(x[name] - expected[name]).max() for x in (got, theirs))
        assert ours <= (2 if name == "out" else 3) * torchs, name


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("engine", ["eager", "sdpa"])
def test_every_dtype_stays_within_its_bound(engine: str, dtype: str) -> None:
    spec, arrays = make(engine, (1, 4, 2, 33, 65, 40), dtype=dtype, seed=3, attention={"is_causal": True})
    got, expected = compute(spec, arrays), reference(spec, arrays, ("out",))
    error, bound = np.abs(got["out"] - expected["out"]).max(), error_bound(spec, arrays)
    assert error <= bound
    assert bound < (1e-12 if dtype == "float64" else 0.2)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("alignment", ["bottom_right", "top_left"])
@pytest.mark.parametrize("lengths", [(9, 9), (7, 9)])
@pytest.mark.parametrize("scale", [-0.3, 0.0, 1e-300, 0.3])
def test_causal_masking_holds_whatever_the_scale(
    scale: float, lengths: tuple[int, int], alignment: str, dtype: str
) -> None:
    attention = {"is_causal": True, "causal_alignment": alignment, "scale": scale}
    spec, arrays = make("sdpa", (1, 4, 2, *lengths, 12), dtype=dtype, attention=attention)
    got, expected = compute(spec, arrays)["out"], reference(spec, arrays, ("out",))["out"]
    assert np.abs(got - expected).max() <= error_bound(spec, arrays)


@pytest.mark.parametrize("engine", ["eager", "sdpa"])
@pytest.mark.parametrize(
    "shape",
    [
        (1, 2, 1, 5, 3, 4),
        (0, 2, 1, 3, 3, 4),
        (1, 2, 2, 0, 3, 4),
        (1, 2, 1, 3, 0, 4),
        (1, 2, 1, 3, 3, 0),
        (1, 0, 2, 4, 4, 4),
    ],
)
def test_masked_rows_and_empty_axes(engine: str, shape: tuple[int, int, int, int, int, int]) -> None:
    batch, heads, _, n, _, d = shape
    spec, arrays = make(
        engine, shape, inputs={"dout": seeded(batch, heads, n, d)}, attention={"is_causal": True},
        **{"return": sorted(ENGINES[engine].returns)},
    )  # fmt: skip
    for name, verdict in judge(spec, arrays)[0].items():
        assert verdict["within_bound"], name


def test_an_lse_errs_no_more_than_its_only_logit() -> None:
    """Of one key the LSE is the logit, here 2²¹/√2, in float32 right to about 1: ε becomes e^ε − 1 ≤ ε + ε²,
    and 4 · 2⁻²⁴ of the LSE are its own rounding."""
    spec, _ = make("eager", (1, 1, 1, 1, 1, 2), **{"return": ["lse", "masked_scores"]})
    large = np.full((1, 1, 1, 2), 1024.0, np.float32)
    bounds = error_bounds(spec, {"q": large, "k": large, "v": large})
    logit = bounds["masked_scores"]
    assert logit < bounds["lse"] < 1.01 * (logit + logit**2 + 2.0**-22 * 2.0**20.5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("size", [1e3, 3e7, 1e8, 3e8])
def test_weights_made_from_an_lse_are_as_far_off_as_it_is(size: float, dtype: str) -> None:
    """Near 10⁸ float32 numbers are 8 apart, and torch's gradients take the exponential of such an error."""
    inputs = {"dout": seeded(1, 1, 17, 64)}
    spec, arrays = make(
        "sdpa", (1, 1, 1, 17, 33, 64), dtype=dtype, inputs=inputs, attention={"scale": size / 64},
        **{"return": ["out", "dq", "dk", "dv"]},
    )  # fmt: skip
    verdicts, _ = judge(spec, arrays)
    for name, verdict in verdicts.items():
        assert float(verdict["max_abs_err"]) <= float(verdict["bound"]), name
    if size < 1e6:
        assert all(verdict["within_bound"] for verdict in verdicts.values())


@pytest.mark.parametrize("softcap", [0.0, 1e-30, 2.0])
@pytest.mark.parametrize(
    ("q", "k", "scale"),
    [
        (1e-25, 1e-25, 1.0),
        (1e-25, 1e-25, 1e30),
        (1e-10, 1e-10, 1e-20),
        (1e-38, 1.0, 1e-3),
        (6e-8, 6e-8, 1e-30),
    ],
)
@pytest.mark.parametrize("engine", ["eager", "flash"])
def test_a_product_that_vanishes_is_within_the_bound(
    engine: str, q: float, k: float, scale: float, softcap: float
) -> None:
    """Below 1.2e-38 float32 has few digits, and below 1.4e-45 none."""
    returns = ["scores", "softcapped_scores", "masked_scores", "out"]
    spec, arrays = make(
        engine, (1, 1, 1, 2, 3, 4), attention={"scale": scale, "softcap": softcap}, **{"return": returns}
    )
    arrays |= {"q": np.full_like(arrays["q"], q), "k": np.full_like(arrays["k"], k)}
    for name, verdict in judge(spec, arrays)[0].items():
        assert verdict["within_bound"], name
    products = 4 * abs(scale) * 2.0**-126
    assert error_bounds(spec, arrays)["scores"] < 2.0**-100 + 1.1 * products
