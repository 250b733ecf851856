"""Costs: counted pairs against a brute-force count, and the figures everybody quotes."""

import subprocess
import sys

import numpy as np
import pytest

from kernels import positions
from kernels.engines.reference import reference
from kernels.estimate import estimate
from kernels.spec import RunSpec, parse_run
from tests.kernels.cases import make


def described(batch: int, heads: int, length: int, dim: int, **fields: object) -> RunSpec:
    seeded = {"seed": 1, "shape": [batch, heads, length, dim]}
    return parse_run({"engine": "flash", "inputs": {"q": seeded, "k": seeded, "v": seeded}, **fields}).spec


def test_flops_are_the_familiar_formula_and_about_half_when_causal() -> None:
    full = estimate(described(1, 8, 1024, 64))
    assert full.flops == 4 * 8 * 1024 * 1024 * 64
    causal = estimate(described(1, 8, 1024, 64, attention={"is_causal": True}))
    assert causal.flops == 4 * 8 * (1024 * 1025 // 2) * 64
    assert full.bytes_min == 4 * 4 * 8 * 1024 * 64
    assert full.arithmetic_intensity == full.flops / full.bytes_min


def test_visible_pairs_are_those_the_reference_leaves_unmasked() -> None:
    rng = np.random.default_rng()
    for _ in range(150):
        q_len, kv_len = (int(n) for n in rng.integers(0, 9, 2))
        attention: dict[str, object] = {
            "is_causal": bool(rng.random() < 0.5),
            "causal_alignment": str(rng.choice(["top_left", "bottom_right"])),
            "window": [None if rng.random() < 0.5 else int(rng.integers(0, 5)) for _ in range(2)],
        }
        if rng.random() < 0.3:
            attention["q_positions"] = int(rng.integers(-6, 12))
        elif rng.random() < 0.5:
            attention["q_positions"] = rng.integers(-3, 9, q_len).tolist()
        if rng.random() < 0.3:
            attention["kv_positions"] = rng.integers(-3, 9, (2, kv_len)).tolist()
        spec, arrays = make("reference", (2, 2, 1, q_len, kv_len, 4), attention=attention)
        masked = reference(spec, arrays, ("masked_scores",))["masked_scores"]
        assert positions.visible_pairs(spec) == np.isfinite(masked).sum(), attention


def test_more_work_never_costs_less() -> None:
    specs = [described(1, heads, length, 64) for heads in (1, 8) for length in (16, 256, 1024, 4096)]
    seconds = [estimate(spec).predicted_seconds for spec in specs]
    assert seconds[:4] == sorted(seconds[:4])
    assert seconds[4:] == sorted(seconds[4:])
    assert (
        estimate(described(1, 8, 1024, 64, options={"block_m": 16, "block_n": 16})).predicted_seconds
        > seconds[6]
    )
    more = estimate(described(1, 1, 256, 64, timing={"warmup": 5, "iters": 50})).predicted_seconds
    assert more > 5 * seconds[1]


def test_results_count_towards_output() -> None:
    cost = estimate(described(1, 2, 100, 8, **{"return": ["out", "lse", "weights"]}))
    assert cost.output_elements == 2 * (100 * 8 + 100 + 100 * 100)
    assert cost.output_bytes == 4 * cost.output_elements


def test_an_estimate_of_the_largest_spec_is_instant_arithmetic() -> None:
    spec = described(1, 1, 2**22, 1, attention={"is_causal": True})
    cost = estimate(spec)
    assert cost.flops == 4 * (2**22 * (2**22 + 1) // 2)
    assert cost.predicted_seconds > 1e4


@pytest.mark.parametrize("module", ["kernels.spec", "kernels.registry", "kernels.estimate", "kernels.arrays"])
def test_the_web_process_never_needs_torch(module: str) -> None:
    code = f"import sys, {module}; assert not {{'torch', 'triton', 'django'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
