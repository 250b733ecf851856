"""Recall and copying: what is claimed of attention, of a linear state and of every state is what is found."""

import math

import numpy as np
import pytest

from kernels.scan.recall import (
    attention_recall,
    copied_fraction,
    copy_pairs,
    expected_accuracy,
    least_squared_error,
    linear_recall,
    recall_pairs,
    sharpness,
)

D_K, VOCABULARY = 16, 32


def pairs_of(count: int, seed: int = 0):
    return recall_pairs(count, d_k=D_K, vocabulary=VOCABULARY, seed=seed)


@pytest.mark.parametrize("count", [1, 2, 16, 17, 64, 500])
def test_attention_recalls_every_pair(count):
    assert attention_recall(pairs_of(count)).accuracy == 1.0


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("count", [1, 7, 16])
def test_a_state_recalls_as_many_pairs_as_keys_have_dimensions(count, delta):
    found = linear_recall(pairs_of(count), delta=delta)
    assert found.accuracy == 1.0
    assert found.squared_error < 1e-24


@pytest.mark.parametrize("count", [32, 64, 128, 256, 1024])
def test_beyond_them_accuracy_is_what_crosstalk_leaves(count):
    """Over 8 seeds: within four standard errors of as many independent pairs, and of the normal
    approximation."""
    found = np.mean([linear_recall(pairs_of(count, seed)).accuracy for seed in range(8)])
    expected = expected_accuracy(count, d_k=D_K, vocabulary=VOCABULARY)
    assert abs(found - expected) < 4 * math.sqrt(expected * (1 - expected) / (8 * count)) + 0.02


def test_a_state_four_times_as_large_recalls_as_well_four_times_as_many():
    small = expected_accuracy(64, d_k=16, vocabulary=VOCABULARY)
    large = expected_accuracy(256, d_k=64, vocabulary=VOCABULARY)
    assert small == pytest.approx(large)
    assert expected_accuracy(5, d_k=4, vocabulary=1) == 1.0


def test_the_integral_is_the_probability_that_it_says():
    """Against 200,000 draws of it."""
    sigma = math.sqrt(64 / (VOCABULARY * D_K))
    draws = sigma * np.random.default_rng(0).standard_normal((200_000, VOCABULARY))
    right = (1 + draws[:, 0] > draws[:, 1:].max(1)).mean()
    assert expected_accuracy(64, d_k=D_K, vocabulary=VOCABULARY) == pytest.approx(right, abs=0.004)


def test_the_delta_rule_keeps_what_came_last():
    right = np.mean([linear_recall(pairs_of(128, seed), delta=True).right for seed in range(8)], axis=0)
    assert right[-4:].mean() > 0.9
    assert right[:64].mean() < 0.15


def test_no_state_is_closer_than_linear_algebra_allows():
    for count in (8, 17, 40, 128):
        pairs = copy_pairs(count, d_k=D_K)
        floor = least_squared_error(pairs.symbols, D_K)
        assert floor == max(0, count - D_K) / count
        # The best of any matrix of that rank, by its singular values.
        singular = np.linalg.svd(pairs.values, compute_uv=False)
        assert floor == pytest.approx(np.square(singular[D_K:]).sum() / count)
        assert linear_recall(pairs).squared_error == pytest.approx(floor, abs=1e-12)
        assert linear_recall(pairs, delta=True).squared_error >= floor - 1e-12
        assert linear_recall(recall_pairs(count, d_k=D_K, vocabulary=count, seed=0)).squared_error >= 0


def test_symbols_that_repeat_are_easier_to_keep():
    """The best of any matrix of that rank, by its singular values."""
    for vocabulary in (2, 16, 17, 40):
        pairs = recall_pairs(90, d_k=D_K, vocabulary=vocabulary, seed=1)
        floor = least_squared_error(pairs.symbols, D_K)
        singular = np.linalg.svd(pairs.values, compute_uv=False)
        assert floor == pytest.approx(np.square(singular[D_K:]).sum() / 90)
        assert (floor > 0) == (vocabulary > D_K)
        for delta in (False, True):
            assert linear_recall(pairs, delta=delta).squared_error >= floor


def test_a_long_copy_comes_back_blurred():
    accuracies = []
    for count in (16, 32, 64, 256):
        pairs = copy_pairs(count, d_k=D_K, vocabulary=10)
        assert attention_recall(pairs).accuracy == 1.0
        accuracies.append(linear_recall(pairs).accuracy)
    assert accuracies[0] == 1.0
    assert accuracies == sorted(accuracies, reverse=True)
    assert accuracies[-1] < 0.4


def test_a_copy_needs_as_many_bits_as_it_has():
    assert copied_fraction(80, tokens=10, vocabulary=256) == 1.0
    assert copied_fraction(79, tokens=10, vocabulary=256) == 0.5
    assert copied_fraction(1, tokens=10**6, vocabulary=256) == 0.0


def test_the_same_seed_asks_the_same():
    a, b, c = pairs_of(20, 3), pairs_of(20, 3), pairs_of(20, 4)
    np.testing.assert_array_equal(a.keys, b.keys)
    assert (a.symbols != c.symbols).any()
    assert set(pairs_of(2000).symbols.tolist()) == set(range(VOCABULARY))


def test_what_cannot_be_asked_is_refused():
    with pytest.raises(ValueError, match="count must be at least 1, not 0"):
        pairs_of(0)
    with pytest.raises(ValueError, match="d_k must be even, a sine and a cosine for each frequency, not 3"):
        copy_pairs(4, d_k=3)
    with pytest.raises(ValueError, match="two keys are the same"):
        sharpness(np.array([[1.0, 0.0], [1.0, 0.0]]))
