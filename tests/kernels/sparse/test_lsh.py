"""Reformer's hash: who shares a bucket, how much of the best keys that finds, and what it costs in error."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from kernels.arrays import generate
from kernels.limits import MAX_ROUNDS
from kernels.sparse.lsh import (
    Hashed,
    buckets_of,
    highest,
    lsh_attention,
    rotations,
    share_a_bucket,
)


def inputs(
    shape: tuple[int, int, int, int, int, int], distribution: str = "normal"
) -> tuple[np.ndarray, ...]:
    """For (batch, heads, key heads, queries, keys, width)."""
    b, h, h_kv, n, m, d = shape
    q = generate("q", 2, (b, h, n, d), distribution, "float64")
    k = generate("k", 2, (b, h_kv, m, d), distribution, "float64")
    return q, k, generate("v", 2, (b, h_kv, m, 3), "normal", "float64")


def shared(n: int, d: int = 16, distribution: str = "normal") -> tuple[np.ndarray, ...]:
    """As in Reformer: keys are the directions of the queries."""
    q, _, v = inputs((1, 2, 2, n, n, d), distribution)
    return q, q / np.linalg.norm(q, axis=-1, keepdims=True), v


def hashed(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, rounds: int, buckets: int, seed: int, **more: Any
) -> Hashed:
    turned = rotations(rounds, k.shape[1], q.shape[3], buckets, seed)
    return lsh_attention(q, k, v, turned, scale=1 / math.sqrt(q.shape[3]), keep_weights=True, **more)


def exact(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    return torch.nn.functional.scaled_dot_product_attention(*map(torch.from_numpy, (q, k, v))).numpy()


def seen_by(found: Hashed) -> np.ndarray:
    """[b, h, n, m], where the heads of queries and keys are as many."""
    b, h = found.q_buckets.shape[:2]
    pairs = [share_a_bucket(found.q_buckets[at], found.k_buckets[at]) for at in np.ndindex(b, h)]
    return np.array(pairs).reshape(b, h, *pairs[0].shape)


def test_the_bucket_is_the_nearest_of_the_rotated_axes() -> None:
    q, k, _ = inputs((2, 4, 2, 5, 7, 3))
    turned = rotations(3, 2, 3, 8, seed=4)
    of_q, of_k = buckets_of(q, turned), buckets_of(k, turned)
    assert of_k.shape == (2, 2, 7, 3)
    for b, h, i, r in np.ndindex(2, 4, 5, 3):
        axes = np.concatenate([turned[r, h // 2].T, -turned[r, h // 2].T])
        assert of_q[b, h, i, r] == max(range(8), key=lambda c: axes[c] @ q[b, h, i])
    for b, h in np.ndindex(2, 4):
        seen = share_a_bucket(of_q[b, h], of_k[b, h // 2])
        for i, j in np.ndindex(5, 7):
            assert seen[i, j] == any(of_q[b, h, i, r] == of_k[b, h // 2, j, r] for r in range(3))


def test_hashes_do_not_depend_on_lengths_and_opposite_vectors_never_meet() -> None:
    q, _, _ = inputs((1, 1, 1, 50, 1, 6))
    turned = rotations(4, 1, 6, 6, seed=0)
    np.testing.assert_array_equal(buckets_of(q, turned), buckets_of(7.5 * q, turned))
    np.testing.assert_array_equal((buckets_of(q, turned) + 3) % 6, buckets_of(-q, turned))


@pytest.mark.parametrize("theta", [0.2, 1.0, math.pi / 2, 2.5])
@pytest.mark.parametrize("rounds", [1, 3])
def test_two_buckets_meet_as_often_as_their_angle_says(theta: float, rounds: int) -> None:
    seeds = 1500
    pair = np.array([[1.0, 0.0, 0.0], [math.cos(theta), math.sin(theta), 0.0]])[None, None]
    met = 0
    for seed in range(seeds):
        found = buckets_of(pair, rotations(rounds, 1, 3, 2, seed))
        met += bool((found[:, :, 0] == found[:, :, 1]).any())
    p = 1 - (theta / math.pi) ** rounds
    assert abs(met / seeds - p) < 5 * math.sqrt(p * (1 - p) / seeds)


@pytest.mark.parametrize("distribution", ["normal", "peaked"])
def test_recall_rises_with_rounds_and_falls_with_buckets(distribution: str) -> None:
    q, k, v = shared(128, distribution=distribution)
    found = {
        (rounds, buckets): hashed(q, k, v, rounds=rounds, buckets=buckets, seed=1)
        for rounds in (1, 2, 4, 8)
        for buckets in (2, 8, 32)
    }
    recall = {key: float(x.recall.mean()) for key, x in found.items()}
    for buckets in (2, 8, 32):
        of_rounds = [recall[rounds, buckets] for rounds in (1, 2, 4, 8)]
        assert of_rounds == sorted(of_rounds)
        assert of_rounds[-1] > of_rounds[0] + 0.1
        for fewer, more in ((1, 2), (2, 4), (4, 8)):  # fewer rounds are the first of more
            assert not (seen_by(found[fewer, buckets]) & ~seen_by(found[more, buckets])).any()
    for rounds in (1, 2, 4, 8):
        assert recall[rounds, 2] > recall[rounds, 8] > recall[rounds, 32]
    # and it is no accident: buckets hold far more of the best keys than of all
    few = found[4, 32]
    assert few.seen_pairs == seen_by(few).sum()
    assert few.allowed_pairs == 2 * 128 * 128
    assert recall[4, 32] > 2 * few.seen_pairs / few.allowed_pairs


def test_the_error_falls_with_rounds_where_few_keys_carry_the_weight() -> None:
    q, k, v = shared(96, distribution="peaked")
    off = [
        hashed(8 * q, k, v, rounds=rounds, buckets=8, seed=3).out - exact(8 * q, k, v)
        for rounds in (1, 4, 16)
    ]
    errors = [math.sqrt(np.square(x).mean()) for x in off]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.02


def test_one_row_by_hand() -> None:
    q, k, v = inputs((2, 4, 2, 6, 9, 5), "peaked")
    allowed = np.tril(np.ones((6, 9), bool), 3)
    found = hashed(q, k, v, rounds=2, buckets=4, seed=9, top=3, allowed=allowed)
    assert found.weights is not None
    pairs = 0
    for b, h, i in np.ndindex(2, 4, 6):
        of_q, of_k = found.q_buckets[b, h, i], found.k_buckets[b, h // 2]
        seen = [j for j in range(9) if allowed[i, j] and (of_q == of_k[j]).any()]
        logits = {j: q[b, h, i] @ k[b, h // 2, j] / math.sqrt(5) for j in range(9) if allowed[i, j]}
        best = sorted(logits, key=lambda j: -logits[j])[:3]
        assert found.wanted[b, h, i] == 3
        assert found.recall[b, h, i] == pytest.approx(len(set(best) & set(seen)) / 3)
        total = sum(math.exp(x) for x in logits.values())
        within = sum(math.exp(logits[j]) for j in seen)
        assert found.weight[b, h, i] == pytest.approx(within / total)
        wanted = sum((math.exp(logits[j]) * v[b, h // 2, j] for j in seen), np.zeros(3)) / (within or 1)
        np.testing.assert_allclose(found.out[b, h, i], wanted, atol=1e-12)
        weights = [math.exp(logits[j]) / within if j in seen else 0.0 for j in range(9)]
        np.testing.assert_allclose(found.weights[b, h, i], weights, atol=1e-12)
        pairs += len(seen)
    assert found.seen_pairs == pairs
    assert found.allowed_pairs == 8 * allowed.sum()


def test_everything_in_one_bucket_is_exact() -> None:
    q, _, v = inputs((1, 2, 2, 7, 7, 4))
    same = np.abs(q[:, :, :1]) + np.zeros((1, 1, 7, 1))
    found = hashed(same, same, v, rounds=1, buckets=16, seed=0)
    np.testing.assert_allclose(found.out, exact(same, same, v), atol=1e-14)
    assert (found.recall == 1).all()
    np.testing.assert_allclose(found.weight, 1)


def test_the_highest_are_allowed_and_of_equals_the_first() -> None:
    scores = np.array([[1.0, 3.0, 3.0, 2.0], [5.0, 1.0, 1.0, 1.0]])
    allowed = np.array([[True, True, True, True], [False, True, True, False]])
    assert highest(scores, allowed, 2).tolist() == [[False, True, True, False], [False, True, True, False]]
    assert highest(scores, allowed, 1).tolist() == [[False, True, False, False], [False, True, False, False]]
    assert highest(scores, allowed, 9).tolist() == allowed.tolist()


@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_the_highest_are_those_of_a_stable_sort(count: int) -> None:
    scores = np.round(generate("q", 1, (200, 7), "normal", "float64"))  # with many equals
    allowed = generate("k", 1, (200, 7), "uniform", "float64") > -0.5
    found = highest(scores, allowed, count)
    for i in range(200):
        order = sorted((j for j in range(7) if allowed[i, j]), key=lambda j: -scores[i, j])
        assert np.flatnonzero(found[i]).tolist() == sorted(order[:count])


def test_mistakes_are_explained() -> None:
    with pytest.raises(ValueError, match=r"buckets must be even.*not 3"):
        rotations(1, 1, 4, 3, 0)
    with pytest.raises(ValueError, match=f"between 1 and {MAX_ROUNDS}, not 0"):
        rotations(0, 1, 4, 2, 0)
