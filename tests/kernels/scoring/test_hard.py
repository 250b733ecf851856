"""Hard attention: fair draws, and a gradient that is right on average and as noisy as the formula says."""

import numpy as np
import pytest
import torch

from kernels.arrays import generate
from kernels.engines.reference import attend, differentiate
from kernels.scoring.attention import softmax
from kernels.scoring.hard import (
    BASELINES,
    drawn_keys,
    exact_gradient,
    linear_rewards,
    output_variance,
    reinforce,
    shares,
    uniform_numbers,
)

SHAPE = (12, 5)  # queries, keys
DRAWS = 4000


def sample(weights: np.ndarray, draws: int, seed: int) -> np.ndarray:
    return drawn_keys(weights, uniform_numbers(draws, (len(weights),), seed))


def weights_of(distribution: str, *, forbidden: bool = False) -> np.ndarray:
    allowed = np.ones(SHAPE, bool)
    if forbidden:
        allowed[5, 1:4] = False
        allowed[6] = False
    return softmax(generate("scores", 3, SHAPE, distribution, "float64"), allowed)


@pytest.mark.parametrize("distribution", ["uniform", "peaked"])
def test_keys_are_drawn_in_proportion_to_their_weights(distribution: str) -> None:
    weights = weights_of(distribution, forbidden=True)
    chosen = sample(weights, DRAWS, seed=1)
    assert chosen.shape == (DRAWS, SHAPE[0])
    assert (chosen[:, 6] == -1).all()
    found = (chosen[..., None] == np.arange(SHAPE[1])).mean(axis=0)
    np.testing.assert_allclose(shares(chosen, SHAPE[1]), found, atol=1e-12)
    deviation = np.sqrt(weights * (1 - weights) / DRAWS)
    assert (np.abs(found - weights) <= 5 * deviation + 1e-12).all()
    np.testing.assert_array_equal(sample(weights, 7, seed=1), chosen[:7])
    assert (sample(weights, 7, seed=2) != chosen[:7]).any()


def test_the_mean_of_hard_outputs_is_soft_attention() -> None:
    weights, v = weights_of("normal", forbidden=True), generate("v", 5, (5, 4), "normal", "float64")
    chosen = sample(weights, DRAWS, seed=2)
    drawn = np.where(chosen[..., None] < 0, 0.0, v[chosen])
    mean = shares(chosen, 5) @ v
    np.testing.assert_allclose(mean, drawn.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(output_variance(shares(chosen, 5), v), drawn.var(axis=0), atol=1e-12)
    soft, variance = weights @ v, output_variance(weights, v)
    assert (np.abs(mean - soft) <= 5 * np.sqrt(variance / DRAWS) + 1e-12).all()
    assert (mean[6] == 0).all()


def test_the_variance_of_an_output_is_that_over_all_keys() -> None:
    weights, v = weights_of("peaked", forbidden=True), 1e6 + generate("v", 5, (5, 4), "normal", "float64")
    apart = v - (weights @ v)[:, None]
    wanted = (weights[..., None] * np.square(apart)).sum(axis=1)
    np.testing.assert_allclose(output_variance(weights, v), wanted, rtol=1e-6, atol=1e-12)
    assert (output_variance(np.eye(5), v) == 0).all()


def test_the_exact_gradient_is_that_of_autograd() -> None:
    scores = generate("scores", 3, SHAPE, "normal", "float64")
    rewards = generate("rewards", 4, SHAPE, "normal", "float64")
    leaf = torch.from_numpy(scores).requires_grad_()
    (torch.softmax(leaf, -1) * torch.from_numpy(rewards)).sum().backward()
    np.testing.assert_allclose(exact_gradient(softmax(scores), rewards), leaf.grad, atol=1e-14)


def test_with_a_linear_reward_it_is_the_gradient_of_soft_attention() -> None:
    q, k, v, dout = (generate(name, 6, (1, 2, 4, 3), "normal", "float64") for name in "qkvu")
    for h in range(2):
        head = attend(q[0, h], k[0, h], v[0, h], scale=1.0)
        soft = differentiate(head, q[0, h], k[0, h], v[0, h], dout[0, h], scale=1.0, softcap=0.0)["dscores"]
        hard = exact_gradient(head["weights"], linear_rewards(dout[0, h], v[0, h]))
        np.testing.assert_allclose(hard, soft, atol=1e-14)


def second_opinion(
    scores: torch.Tensor, rewards: np.ndarray, chosen: list[int], baselines: list[float]
) -> np.ndarray:
    """ĝ of each draw for one query: (R − b) times autograd's gradient of log α_s."""
    found = []
    for s, b in zip(chosen, baselines, strict=True):
        leaf = scores.clone().requires_grad_()
        torch.log_softmax(leaf, 0)[s].backward()
        found.append((rewards[s] - b) * leaf.grad.numpy())
    return np.array(found)


@pytest.mark.parametrize("draws", [1, 6, 200])
def test_estimates_are_reinforce_draw_by_draw(draws: int) -> None:
    scores = generate("scores", 3, (1, 5), "normal", "float64")
    rewards = generate("rewards", 4, (1, 5), "normal", "float64") + 2
    weights = softmax(scores)
    alpha, reward = weights[0], rewards[0]
    chosen = sample(weights, draws, seed=9)
    picked = chosen[:, 0].tolist()
    norms = np.square(np.eye(5) - alpha).sum(axis=1)
    moving = [0.0]
    for s in picked[:-1]:
        moving.append(0.9 * moving[-1] + 0.1 * reward[s])
    baselines = {
        "none": [0.0] * draws,
        "expected": [alpha @ reward] * draws,
        "optimal": [(alpha * norms) @ reward / (alpha @ norms)] * draws,
        "moving": moving,
    }
    for name, values in baselines.items():
        drawn = second_opinion(torch.from_numpy(scores[0]), reward, picked, values)
        found = reinforce(weights, rewards, chosen, name)
        np.testing.assert_allclose(found.estimate[0], drawn.mean(axis=0), atol=1e-13)
        measured = drawn.var(axis=0, ddof=1) if draws > 1 else np.nan
        np.testing.assert_allclose(found.measured_variance[0], measured, atol=1e-13)


@pytest.mark.parametrize("baseline", ["none", "expected", "optimal"])
def test_the_closed_form_is_the_variance_over_all_keys(baseline: str) -> None:
    """With one draw of each key, weighted by its share, there is nothing random left."""
    weights, rewards = weights_of("normal"), generate("rewards", 4, SHAPE, "normal", "float64")
    found = reinforce(weights, rewards, sample(weights, 1, seed=0), baseline)
    for at in range(SHAPE[0]):
        alpha, reward = weights[at], rewards[at]
        log_gradients = np.eye(SHAPE[1]) - alpha
        norms = np.square(log_gradients).sum(axis=1)
        b = {"none": 0, "expected": alpha @ reward, "optimal": (alpha * norms) @ reward / (alpha @ norms)}
        each = (reward - b[baseline])[:, None] * log_gradients
        mean = alpha @ each
        np.testing.assert_allclose(found.exact[at], mean, atol=1e-13)
        np.testing.assert_allclose(found.variance[at], alpha @ np.square(each - mean), atol=1e-13)


def fourth_moment(alpha: np.ndarray, reward: np.ndarray, baseline: str) -> float:
    """E ‖ĝ − g‖⁴ of a draw; ``moving`` at its mean in the long run."""
    log_gradients = np.eye(len(alpha)) - alpha
    norms = np.square(log_gradients).sum(axis=1)
    b = 0.0 if baseline == "none" else alpha @ reward
    if baseline == "optimal" and alpha.any():
        b = (alpha * norms) @ reward / (alpha @ norms)
    each = (reward - b)[:, None] * log_gradients
    return float(alpha @ np.square(np.square(each - alpha @ each).sum(axis=1)))


@pytest.mark.parametrize("distribution", ["uniform", "normal", "peaked"])
@pytest.mark.parametrize("baseline", BASELINES)
def test_estimates_are_unbiased_and_as_noisy_as_the_closed_form_says(
    baseline: str, distribution: str
) -> None:
    weights = weights_of(distribution, forbidden=True)
    rewards = generate("rewards", 4, SHAPE, "normal", "float64") + 3.0
    found = reinforce(weights, rewards, sample(weights, DRAWS, seed=11), baseline)
    # 5 standard deviations: the variance of a draw, and its fourth moment for the variance of that
    assert (np.abs(found.estimate - found.exact) <= 5 * np.sqrt(found.variance / DRAWS) + 1e-9).all()
    total, measured = found.variance.sum(axis=-1), found.measured_variance.sum(axis=-1)
    fourth = np.array([fourth_moment(weights[at], rewards[at], baseline) for at in range(SHAPE[0])])
    off = np.abs(measured - total).reshape(-1)
    assert (off <= 5 * np.sqrt(fourth / DRAWS) + 1e-9).all()
    # which says much, since for most rows it is little
    assert np.median(np.sqrt(fourth / DRAWS) / np.maximum(total.reshape(-1), 1e-12)) < 0.05
    assert (found.estimate[6] == 0).all()
    assert (found.variance[6] == 0).all()


def test_baselines_take_away_variance_and_no_gradient() -> None:
    weights = weights_of("normal")
    rewards = generate("rewards", 4, SHAPE, "normal", "float64") + 10.0
    chosen = sample(weights, 500, seed=1)
    total = {name: reinforce(weights, rewards, chosen, name).variance.sum(axis=-1) for name in BASELINES}
    assert (total["optimal"] <= total["expected"] + 1e-12).all()
    assert (total["expected"] < total["moving"]).all()
    assert (total["moving"] < total["none"]).all()
    assert (total["none"] > 20 * total["expected"]).all()
    shifted = reinforce(weights, rewards - 10.0, chosen, "expected")
    np.testing.assert_allclose(shifted.variance.sum(axis=-1), total["expected"], rtol=1e-9)


def test_no_other_constant_baseline_is_better_than_the_optimal_one() -> None:
    weights, rewards = weights_of("normal"), generate("rewards", 4, SHAPE, "normal", "float64")
    chosen = sample(weights, 1, seed=1)
    best = reinforce(weights, rewards, chosen, "optimal").variance.sum(axis=-1)
    for b in np.linspace(-2, 2, 41):  # a baseline b is no baseline with rewards less b
        assert (reinforce(weights, rewards - b, chosen, "none").variance.sum(axis=-1) >= best - 1e-12).all()


def test_one_key_that_has_all_the_weight_leaves_nothing_to_learn() -> None:
    weights, rewards = np.array([[0.0, 1.0, 0.0]]), np.array([[3.0, 1.0, 2.0]])
    for name in BASELINES:
        found = reinforce(weights, rewards, sample(weights, 5, seed=0), name)
        for array in (found.exact, found.estimate, found.variance, found.measured_variance):
            assert (array == 0).all()


def test_mistakes_are_explained() -> None:
    weights = weights_of("normal")
    with pytest.raises(ValueError, match="none, expected, optimal, moving, not 'best'"):
        reinforce(weights, weights, sample(weights, 1, 0), "best")
    with pytest.raises(ValueError, match="at least 1 draw"):
        reinforce(weights, weights, sample(weights, 0, 0))
    with pytest.raises(ValueError, match="16,777,216 draws for 12 queries are too many: at most 349,525"):
        uniform_numbers(2**24, (3, 4), 0)


def test_a_key_without_weight_is_never_drawn() -> None:
    """Not even by the smallest and the largest of the uniform numbers."""
    weights = np.array([[0.0, 0.3, 0.0, 0.7, 0.0]])
    assert drawn_keys(weights, np.array([[0.0], [1.0 - 2.0**-53]]))[:, 0].tolist() == [1, 3]
    rounded_up = np.array([[0.5, 0.5 + 2.0**-52, 0.0]])
    assert drawn_keys(rounded_up, np.array([[1.0 - 2.0**-53]])).tolist() == [[1]]
    drawn = uniform_numbers(1000, (7,), 3)
    assert drawn.min() >= 0
    assert drawn.max() < 1


def test_fewer_draws_are_the_first_of_more() -> None:
    np.testing.assert_array_equal(uniform_numbers(3, (2, 5), 1), uniform_numbers(9, (2, 5), 1)[:3])
