"""How soft a softmax is: the closed forms against rows that are written out, and the figures that articles
give."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.arrays import generate
from kernels.scoring.attention import softmax
from kernels.scoring.functions import dot, scaled_dot
from kernels.scoring.softness import (
    gap_needed,
    jacobian,
    largest_weights,
    leading_weight,
    score_deviation,
    through_layers,
)


@pytest.mark.parametrize("gap", [0.0, 0.3, 1.0, 7.0, 40.0, 800.0, -2.0, -800.0])
@pytest.mark.parametrize("keys", [1, 2, 3, 50])
def test_the_leading_weight_is_that_of_a_row(gap, keys):
    row = np.zeros(keys)
    row[-1] = gap
    assert leading_weight(gap, keys) == pytest.approx(softmax(row)[-1], rel=1e-14)


@given(st.floats(1e-6, 1 - 1e-6), st.integers(2, 10**6))
def test_a_gap_gives_the_weight_that_it_was_needed_for(weight, keys):
    assert leading_weight(gap_needed(weight, keys), keys) == pytest.approx(weight, rel=1e-9)


@pytest.mark.parametrize(("weight", "keys"), [(0.0, 5), (1.0, 5), (0.5, 1), (math.nan, 5)])
def test_no_gap_gives_all_or_nothing(weight, keys):
    with pytest.raises(ValueError, match="a weight between 0 and 1 among at least 2 keys has a gap"):
        gap_needed(weight, keys)


def test_the_jacobian_is_the_slope_of_the_softmax():
    scores, step = generate("scores", 1, (2, 3, 7), "peaked", "float64"), 1e-6
    slopes = [(softmax(scores + step * e) - softmax(scores - step * e)) / (2 * step) for e in np.eye(7)]
    np.testing.assert_allclose(jacobian(softmax(scores)), np.stack(slopes, axis=-1), atol=1e-9)


# -- figures -------------------------------------------------------------------------------------------------


def test_a_gap_of_1_becomes_7071_and_gives_5035_of_three_keys():
    """The row of the worked example, whose best key is 1 ahead before the division by √2."""
    scores = scaled_dot(np.array([[[[1.0, 1.0]]]]), np.array([[[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]]]))[
        0, 0, 0
    ]
    gap = float(scores[2] - scores[0])
    assert round(gap, 4) == 0.7071
    assert round(leading_weight(gap, 3), 4) == 0.5035


@pytest.mark.parametrize(("keys", "weight"), [(2, 1.0), (4096, 0.843), (131_072, 0.144)])
def test_a_gap_of_10_is_a_hard_choice_among_few_keys_only(keys, weight):
    assert round(leading_weight(10, keys), 3) == weight


@pytest.mark.parametrize(("keys", "gap"), [(4096, 12.9), (131_072, 16.4)])
def test_what_gap_gives_99_of_100(keys, gap):
    """ln 99(n − 1)."""
    assert round(gap_needed(0.99, keys), 1) == gap


def test_a_gap_of_16_saturates():
    """e¹⁶ to one: p = .99999989, and the slope p(1 − p) is 1.125e−7, where it is ¼ at an even choice."""
    weights = softmax(np.array([16.0, 0.0]))
    assert round(weights[0] / weights[1]) == 8_886_111
    assert f"{leading_weight(16, 2):.8f}" == "0.99999989"
    assert f"{jacobian(weights)[0, 0]:.3e}" == "1.125e-07"
    assert jacobian(softmax(np.zeros(2)))[0, 0] == 0.25


def test_scores_of_64_dimensions_spread_by_8_and_reach_16():
    """Two standard deviations hold 95 of 100. Of 2¹⁹ scores, which share queries and keys: to 2%."""
    assert score_deviation(64) == 8
    assert score_deviation(64, 1 / 8) == 1
    q, k = (generate(name, 3, (128, 1, 64, 64), "normal", "float64") for name in "qk")
    found = dot(q, k)
    assert found.std() == pytest.approx(8, rel=0.02)
    assert np.mean(np.abs(found) < 16) == pytest.approx(0.954, abs=0.005)
    assert scaled_dot(q, k).std() == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("d", [4, 64, 256])
def test_dividing_by_d_instead_of_its_root_leaves_no_contrast(d):
    assert score_deviation(d, d**-0.5) == 1
    assert score_deviation(d, 1 / d) == pytest.approx(d**-0.5)


def test_without_the_scale_most_rows_of_64_keys_are_peaked_and_not_locked():
    """Printed of one simulation of d = 64: mean largest weight .78, 19% of the rows above .99 and .2% above
    .9999999; scaled .11. Here over 32,768 rows, whose means are known to .002 and .4%: the first is .79, by
    which one matrix of 64 rows, ± .03, agrees; the others are as printed."""
    unscaled = largest_weights(64, 64, scale=1.0, sets=512, seed=0)
    assert unscaled.shape == (512, 64)
    assert unscaled.mean() == pytest.approx(0.79, abs=0.005)
    assert np.mean(unscaled > 0.99) == pytest.approx(0.19, abs=0.005)
    assert np.mean(unscaled > 0.9999999) == pytest.approx(0.002, abs=0.0005)
    scaled = largest_weights(64, 64, scale=1 / 8, sets=64, seed=0)
    assert scaled.mean() == pytest.approx(0.11, abs=0.005)
    assert scaled.max() < 0.99


@pytest.mark.parametrize("scale", [1.0, 1 / 8, 1 / 64])
def test_a_layer_multiplies_a_signal_by_what_a_score_is_multiplied_by(scale):
    """Of 64 signals and 64² weights the deviation is known to a few percent, layer by layer."""
    found = through_layers(64, 5, scale=scale, normalised=False, seed=3)
    factors = found[1:] / found[:-1]
    np.testing.assert_allclose(factors, score_deviation(64, scale), rtol=0.15)
    assert np.max(np.abs(factors / factors.mean() - 1)) > 1e-6, "every layer draws its own weights"


def test_layer_norm_holds_a_signal_whatever_the_weights():
    found = through_layers(32, 4, scale=100.0, normalised=True, seed=3)
    assert found[0] != 1.0
    np.testing.assert_allclose(found[1:], 1.0, rtol=1e-12)
