"""Exponents, against closed forms and against what the engines are known for."""

import math

import numpy as np
import pytest

from kernels.estimate import estimate
from kernels.spec import parse_run
from kernels.sweeps.exponents import exponents, fit_power
from kernels.sweeps.points import parse_sweep

LONG = [2**n for n in range(12, 17)]


@pytest.mark.parametrize("exponent", [-1, 0.5, 1, 2, 3])
def test_a_power_law_has_its_exponent(exponent):
    law = fit_power([(x, 7 * x**exponent) for x in (1, 2, 3, 10, 64)])
    assert law.exponent == pytest.approx(exponent)
    assert (law.r_squared, law.points) == (pytest.approx(1), 5)


def test_r_squared_is_the_share_that_the_line_explains():
    pairs = [(1, 1), (math.e, math.e**2), (math.e**2, math.e**2)]  # logs: (0, 0), (1, 2), (2, 2)
    law = fit_power(pairs)
    assert law.exponent == pytest.approx(1)
    assert law.r_squared == pytest.approx(1 - (2 / 3) / (8 / 3))


def test_how_sure_an_exponent_is_agrees_with_numpy():
    x, y = np.array([1.0, 2, 3, 5, 8, 13]), np.array([2.1, 3.7, 6.6, 9.1, 17.9, 24.2])
    (slope, _), covariance = np.polyfit(np.log(x), np.log(y), 1, cov=True)
    law = fit_power(list(zip(x, y, strict=True)))
    assert law.exponent == pytest.approx(slope)
    assert law.standard_error == pytest.approx(math.sqrt(covariance[0, 0]))
    assert fit_power([(1, 3), (2, 6)]).standard_error is None


def test_two_points_explain_nothing_and_one_is_no_line():
    assert fit_power([(1, 3), (2, 6)]).r_squared is None
    assert fit_power([(2, 3), (2, 4)]) is None
    assert fit_power([]) is None
    assert fit_power([(0, 1), (1, 0), (2, 1)]) is None, "there is no logarithm of 0"
    assert fit_power([(1, 5), (2, 5), (3, 5)]).exponent == pytest.approx(0)


def of_estimates(engine, vary, **attention):
    """The laws of what the engine is predicted to take, over the points of a sweep."""
    asked = {
        "engine": engine,
        "inputs": {name: {"seed": 1, "shape": [1, 1, 16, 16]} for name in "qkv"},
        "attention": attention,
        "vary": vary,
    }
    points = []
    for point in parse_sweep(asked).points:
        cost = estimate(parse_run(point.body).spec)
        points.append((point.values, {"flops": cost.flops, "peak_bytes": cost.engine_bytes}))
    return {(law["over"], law["quantity"]): law["exponent"] for law in exponents(points)}


def test_full_attention_is_quadratic_in_operations_and_linear_in_each_length():
    assert of_estimates("reference", {"len": LONG})["len", "flops"] == pytest.approx(2)
    both = of_estimates("reference", {"q_len": LONG[:3], "kv_len": LONG[:3]})
    assert both["q_len", "flops"] == both["kv_len", "flops"] == pytest.approx(1)


def test_a_window_makes_it_linear():
    laws = of_estimates("reference", {"len": LONG}, window=[8, 8])
    assert laws["len", "flops"] == pytest.approx(1, abs=0.01)


def test_eager_memory_is_quadratic_and_flash_memory_linear():
    assert of_estimates("eager", {"len": LONG})["len", "peak_bytes"] == pytest.approx(2, abs=0.02)
    # Its tiles are all that it has beside the inputs, so that only very long ones outweigh what is fixed.
    laws = of_estimates("flash", {"len": [2**16, 2**17, 2**18]})
    assert laws["len", "peak_bytes"] == pytest.approx(1, abs=0.15)


def test_each_engine_has_a_line_of_its_own_and_only_representative_times_count():
    points = [
        (
            {"engine": engine, "len": n},
            {
                "median_ns": 5.0 * n**power,
                "representative": engine == "eager",
                "flops": n,
                "peak_bytes": None,
            },
        )
        for engine, power in (("eager", 2), ("flash", 1))
        for n in (8, 16, 32)
    ]
    found = {(law["at"]["engine"], law["quantity"]): law for law in exponents(points)}
    assert set(found) == {("eager", "flops"), ("flash", "flops"), ("eager", "median_ns")}
    assert found["eager", "median_ns"]["exponent"] == pytest.approx(2)
    assert found["eager", "median_ns"]["over"] == "len"
