"""Votes of the end of a prompt, against PyTorch: softmax, average pooling, top k."""

import math

import numpy as np
import pytest
import torch

from kernels.cache_policies.votes import elected, votes

RNG = np.random.default_rng()


def prompt(n: int = 40, heads: int = 3, d: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Peaked, so that votes differ."""
    return tuple(2.5 * RNG.normal(size=(2, heads, n, d)) for _ in "qk")


def in_torch(q: np.ndarray, k: np.ndarray, window: int, pool: int) -> torch.Tensor:
    n, d = q.shape[2:]
    scores = torch.tensor(q) @ torch.tensor(k).transpose(2, 3) / math.sqrt(d)
    weights = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf).softmax(-1)
    sums = weights[:, :, -window:, :-window].sum(2)
    return torch.nn.functional.avg_pool1d(sums, pool, stride=1, padding=pool // 2)


@pytest.mark.parametrize("window", [1, 5, 39])
@pytest.mark.parametrize("pool", [1, 3, 5])
def test_votes_are_pooled_sums_of_weights(window: int, pool: int) -> None:
    q, k = prompt()
    np.testing.assert_allclose(votes(q, k, window, pool), in_torch(q, k, window, pool).numpy(), atol=1e-12)


@pytest.mark.parametrize(("window", "budget", "pool"), [(5, 12, 1), (5, 12, 5), (8, 8, 1), (1, 39, 3)])
def test_most_votes_stay_and_the_window_too(window: int, budget: int, pool: int) -> None:
    q, k = prompt()
    found = elected(q, k, window, budget, pool)
    top = in_torch(q, k, window, pool).topk(budget - window, dim=-1).indices.sort(-1).values.numpy()
    assert found.shape == (2, 3, budget)
    np.testing.assert_array_equal(found[..., : budget - window], top)
    np.testing.assert_array_equal(
        found[..., budget - window :], np.broadcast_to(range(40 - window, 40), (2, 3, window))
    )


def test_a_prompt_that_fits_stays_whole() -> None:
    q, k = prompt(n=10)
    np.testing.assert_array_equal(elected(q, k, 4, 10)[1, 2], np.arange(10))
    np.testing.assert_array_equal(elected(q, k, 4, 64)[0, 0], np.arange(10))


def test_of_equal_votes_the_newer_stays() -> None:
    q, k = np.zeros((1, 1, 9, 4)), np.zeros((1, 1, 9, 4))
    assert elected(q, k, 2, 5)[0, 0].tolist() == [4, 5, 6, 7, 8]


def test_what_cannot_be_done_is_said() -> None:
    q, k = prompt(n=6)
    for window in (0, 6):
        with pytest.raises(ValueError, match=f"window must be 1 to 5, not {window}"):
            votes(q, k, window)
    with pytest.raises(ValueError, match="pool must be odd, not 2"):
        votes(q, k, 2, 2)
    with pytest.raises(ValueError, match="budget must be at least the window of 4, not 3"):
        elected(q, k, 4, 3)
