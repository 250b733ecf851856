"""The forward pass over flash-attention's own head dims and lengths, on each Triton engine of softmax.

float32 against the float64 reference and its bound; float16 also by flash-attention's rule: no further from
float64 than twice what torch in float16 is on the same input.
"""

import itertools
from typing import Any

import numpy as np
import pytest

from kernels.engines.reference import reference
from tests.kernels.cases import compute, make
from tests.kernels.error_bounds import error_bound

DIMS = (32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256)
LENGTHS = (
    (113, 203),
    (128, 217),
    (113, 211),
    (108, 256),
    (256, 512),
    (1, 147),
    (3, 799),
    (64, 128),
    (1023, 1024),
)
# Every dim and every pair of lengths, each pair of them once in a few runs: a Latin walk through the grid.
GRID = [(dim, LENGTHS[(i + j) % len(LENGTHS)]) for j in (0, 4) for i, dim in enumerate(DIMS)]
FEATURES: dict[str, dict[str, Any]] = {
    "causal": {"is_causal": True},
    "top left": {"is_causal": True, "causal_alignment": "top_left"},
    "window": {"window": [37, 5]},
    "causal window": {"is_causal": True, "window": [20, None]},
    "softcap": {"softcap": 3.0, "is_causal": True},
    "ALiBi": {"alibi_slopes": "auto"},
    "sinks": {"sinks": [0.5, -1.0, 3.0, "-inf"], "is_causal": True},
    "RoPE": {"rope": {"style": "half"}, "is_causal": True},
}
HEADS = {"MHA": (4, 4), "GQA": (4, 2), "MQA": (4, 1)}


def check(engine: str, shape: tuple[int, ...], dtype: str, attention: dict[str, Any]) -> None:
    spec, arrays = make(engine, shape, dtype=dtype, attention=attention, **{"return": ["out", "lse"]})  # type: ignore[arg-type]
    got, expected = compute(spec, arrays), reference(spec, arrays, ("out", "lse"))
    assert not np.isnan(got["out"]).any()
    error = np.abs(got["out"] - expected["out"]).max(initial=0.0)
    assert error <= error_bound(spec, arrays)
    finite = np.isfinite(expected["lse"])
    np.testing.assert_array_equal(np.isfinite(got["lse"]), finite)
    np.testing.assert_allclose(got["lse"][finite], expected["lse"][finite], rtol=1e-5, atol=1e-3)
    if dtype == "float16":
        # torch has no softcap; without one its error is the smaller, and the rule the stricter.
        theirs, _ = make("sdpa", shape, dtype=dtype, attention={**attention, "softcap": 0.0})  # type: ignore[arg-type]
        exact = reference(theirs, arrays, ("out",))["out"]
        torch_error = np.abs(compute(theirs, arrays)["out"] - exact).max(initial=0.0)
        assert error <= 2 * torch_error + 1e-4


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("dim", "lengths"), GRID)
def test_head_dims_and_lengths(dim: int, lengths: tuple[int, int], dtype: str) -> None:
    check("flash", (1, 2, 1, *lengths, dim), dtype, {"is_causal": True})


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("engine", "heads", "feature"), [
    (engine, heads, feature)
    for engine, (heads, feature) in itertools.product(
        ("flash", "decode", "paged"), zip(itertools.cycle(HEADS), FEATURES, strict=False)
    )
])  # fmt: skip
def test_every_feature(engine: str, heads: str, feature: str, dtype: str) -> None:
    q_len = 5 if engine == "decode" else 67
    check(engine, (2, *HEADS[heads], q_len, 131, 40), dtype, FEATURES[feature])


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("engine", ["decode", "paged"])
def test_head_dims_when_decoding(engine: str, dim: int) -> None:
    check(engine, (1, 4, 2, 1, 203, dim), "float32", {})
