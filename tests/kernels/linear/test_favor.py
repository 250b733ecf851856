"""FAVOR+ against softmax attention: it is unbiased, it is reproducible, and its errors are those reported."""

import numpy as np
import pytest

from kernels.arrays import generate
from kernels.linear.comparison import Exact, ranks, relative_error
from kernels.linear.favor import (
    coverage,
    directions,
    error_spread,
    order_statistic,
    performer,
    positive_features,
)
from kernels.linear.inputs import Recurrence
from kernels.linear.recurrence import chunked, parallel, weights

SEEDS = range(8)


def attention(
    n: int = 512, d: int = 64, *, size: float = 1.0, causal: bool = False, kv_heads: int = 1
) -> Exact:
    def made(name: str, heads: int) -> np.ndarray:
        return generate(f"favor/{name}", 0, (1, heads, n, d), "normal", "float64")

    q, k, v = size * made("q", 2), size * made("k", kv_heads), made("v", kv_heads)
    return Exact(q[:, : max(1, kv_heads)], k, v, d**-0.5, causal)


# -- the features --------------------------------------------------------------------------------------------


def test_directions_are_orthogonal_in_blocks_and_as_long_as_normal_draws():
    w = directions(3, 150, 40)
    assert w.shape == (150, 40)
    for first in range(0, 150, 40):
        block = w[first : first + 40]
        products = block @ block.T
        np.testing.assert_allclose(products, np.diag(np.diag(products)), atol=1e-12)
    # ‖w‖² has mean d and variance 2d.
    assert abs(np.square(w).sum(1).mean() - 40) < 4 * np.sqrt(2 * 40 / 150)


def test_directions_are_gram_schmidt_of_the_documented_draws():
    d = 6
    normal = generate("favor/directions", 5, (1, d, d), "normal", "float64")[0]
    lengths = generate("favor/lengths", 5, (4, d), "normal", "float64")
    rows: list[np.ndarray] = []
    for row in normal:
        for done in rows:
            row = row - (row @ done) * done  # noqa: PLW2901
        rows.append(row / np.sqrt(row @ row))
    wanted = np.array(rows[:4]) * np.sqrt(np.square(lengths).sum(1))[:, None]
    np.testing.assert_allclose(directions(5, 4, d), wanted, atol=1e-13)


def test_more_directions_begin_with_the_fewer():
    np.testing.assert_array_equal(directions(1, 100, 16)[:30], directions(1, 30, 16))


def test_products_of_features_are_exponentials_on_average():
    """Over 40,000 draws, to four standard errors."""
    q, k = np.array([[0.3, -0.8, 0.5]]), np.array([[0.9, 0.1, -0.4]])
    w = directions(0, 40_000, 3)
    made = np.exp(w @ q[0] - q @ q[0] / 2) * np.exp(w @ k[0] - k @ k[0] / 2)
    assert abs(made.mean() - np.exp(q @ k[0])) < 4 * made.std() / np.sqrt(len(made))


def test_features_of_huge_inputs_stay_finite():
    x = np.full((1, 1, 3, 4), 1e3)
    for shared in (False, True):
        features = positive_features(x, directions(0, 8, 4), shared=shared)
        assert features.max() == pytest.approx(8**-0.5)


@pytest.mark.parametrize("causal", [False, True])
def test_a_performer_is_its_definition(causal):
    """Features without any factor, in a matrix of n × n."""
    exact = attention(9, 4, size=0.5, causal=causal)
    w = directions(2, 12, 4)
    q, k = (x / 4**0.25 for x in (exact.q, exact.k))
    q, k = (np.exp(x @ w.T - np.square(x).sum(-1, keepdims=True) / 2) for x in (q, k))
    weights = q @ k.mT * (np.tri(9) if causal else 1)
    wanted = weights @ exact.v / weights.sum(-1, keepdims=True)
    linear = performer(exact, count=12, seed=2)
    np.testing.assert_allclose(parallel(linear).out, wanted, atol=1e-12)
    np.testing.assert_allclose(chunked(linear, chunk=4).out, wanted, atol=1e-12)


def test_a_negative_scale_is_as_good_as_any():
    exact = attention(16, 4, size=0.5)
    flipped = Exact(-exact.q, exact.k, exact.v, -exact.scale)
    np.testing.assert_allclose(
        parallel(performer(flipped, count=8, seed=0)).out, parallel(performer(exact, count=8, seed=0)).out
    )


# -- errors: d = 64, n = 512, neither causal -----------------------------------------------------------------


@pytest.mark.parametrize(("size", "error"), [(1.0, 2.5), (0.25, 0.014)])
def test_unit_variance_is_hopeless_even_with_4096_features_and_a_quarter_of_it_is_not(size, error):
    found = error_spread(attention(size=size), count=4096, seeds=SEEDS)
    assert found.confidence > 0.95
    assert found.low < error < found.high
    assert found.median == pytest.approx(error, rel=0.15)


def test_elu_is_no_approximation_of_the_exponential():
    exact = attention()
    linear = Recurrence(exact.q, exact.k, exact.v, features="elu", normalised=True, causal=False)
    assert relative_error(parallel(linear).out, exact.out()) == pytest.approx(0.80, abs=0.005)


def test_errors_fall_as_the_root_of_the_number_of_features():
    exact = attention(64, 8, size=0.3)
    few, many = (error_spread(exact, count=count, seeds=range(16)) for count in (64, 1024))
    assert few.median / many.median == pytest.approx(4, rel=0.25)


def test_an_interval_holds_the_median_as_often_as_it_says():
    assert coverage(6, 1) == 1 - 2 / 64
    assert order_statistic(6, 0.95) == 1
    # From a table of binomial probabilities: P(B(20, ½) ≤ 5) = 0.0207.
    assert order_statistic(20, 0.95) == 6
    assert coverage(20, 6) == pytest.approx(1 - 2 * 0.0207, abs=1e-4)
    with pytest.raises(ValueError, match=r"5 seeds cannot give an interval with confidence 0\.95"):
        order_statistic(5, 0.95)


def test_no_features_are_refused():
    with pytest.raises(ValueError, match="count, the number of features, must be at least 1, not 0"):
        performer(attention(4, 4), count=0, seed=0)


# -- ranks ---------------------------------------------------------------------------------------------------


def test_effective_rank_of_what_is_known():
    assert ranks(np.eye(7))[1] == pytest.approx(7)
    assert ranks(np.ones((5, 9)))[1] == pytest.approx(1)
    assert ranks(np.zeros((2, 3)))[1] == 0
    # Singular values 3 and 1: exp of the entropy of (¾, ¼).
    assert ranks(np.diag([3.0, 1.0]))[1] == pytest.approx(np.exp(-0.75 * np.log(0.75) - 0.25 * np.log(0.25)))


def test_weights_of_features_have_no_more_rank_than_features():
    exact = attention(48, 8, size=2.0)
    linear = Recurrence(exact.q, exact.k, exact.v, features="elu", normalised=True, causal=False)
    (rank, effective), (exact_rank, exact_effective) = ranks(weights(linear)), ranks(exact.results()[1])
    assert rank.tolist() == [[8]]
    assert exact_rank.tolist() == [[48]]
    assert effective.item() < 8 < exact_effective.item()


def test_a_causal_mask_restores_the_rank():
    """Its diagonal is positive, so that a triangular matrix has full rank, whatever the features."""
    exact = attention(24, 4, causal=True)
    linear = Recurrence(exact.q, exact.k, exact.v, features="elu", normalised=True)
    assert ranks(weights(linear))[0].tolist() == [[24]]


def test_exact_is_torch():
    import torch

    exact = attention(10, 4, causal=True, kv_heads=2)
    q, k, v = (torch.from_numpy(x) for x in (exact.q, exact.k, exact.v))
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=exact.scale)
    np.testing.assert_allclose(exact.out(), wanted.numpy(), atol=1e-12)
