"""eager and sdpa against the float64 reference, over every feature they declare."""

from typing import Any

import numpy as np
import pytest

from kernels.engines.reference import reference
from kernels.numerics import error_bound
from kernels.registry import ENGINES
from tests.kernels.cases import compute, make

SHAPE = (2, 4, 2, 7, 9, 12)
rng = np.random.default_rng(5)
BOOL_MASK = (rng.random((2, 1, 7, 9)) < 0.6).tolist()
FLOAT_MASK = rng.standard_normal((4, 7, 9)).tolist()
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
    "everything": {
        "inputs": {"attn_mask": FLOAT_MASK},
        "attention": {
            "softcap": 3,
            "alibi_slopes": "auto",
            "window": [4, 2],
            "sinks": [1, 0, -1, 2],
            "scale": 0.5,
        },
    },
}


@pytest.mark.parametrize("distribution", ["normal", "peaked"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("engine", ["eager", "sdpa"])
def test_agrees_with_the_reference(engine: str, case: str, distribution: str) -> None:
    if engine == "sdpa" and case in ("softcap", "sinks", "everything"):
        assert {"softcap", "sinks"}.isdisjoint(ENGINES["sdpa"].features)
        return
    returns = sorted(ENGINES[engine].returns)
    spec, arrays = make(
        engine,
        SHAPE,
        v_dim=5,
        distribution=distribution,
        seed=len(case),
        **CASES[case],
        **{"return": returns},
    )
    got, expected = compute(spec, arrays), reference(spec, arrays, tuple(returns))
    assert np.abs(got["out"] - expected["out"]).max() <= error_bound(spec, arrays)
    for name in returns:
        np.testing.assert_allclose(got[name], expected[name], rtol=2e-5, atol=2e-5)


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
    [(1, 2, 1, 5, 3, 4), (0, 2, 1, 3, 3, 4), (1, 2, 2, 0, 3, 4), (1, 2, 1, 3, 0, 4), (1, 2, 1, 3, 3, 0)],
)
def test_masked_rows_and_empty_axes(engine: str, shape: tuple[int, int, int, int, int, int]) -> None:
    returns = sorted(ENGINES[engine].returns)
    spec, arrays = make(engine, shape, attention={"is_causal": True}, **{"return": returns})
    got, expected = compute(spec, arrays), reference(spec, arrays, tuple(returns))
    for name in returns:
        assert got[name].shape == expected[name].shape
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-5, atol=1e-6)
