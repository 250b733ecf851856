"""Attention within the buckets of a random hash (Kitaev, Kaiser & Levskaya 2020, *Reformer*, ICLR, arXiv
2001.04451, §2; the hash is that of Andoni et al. 2015, NeurIPS, arXiv 1509.02897).

Softmax attention is carried by the few keys that fit best, and these point where the query does. With R, a
matrix [d, buckets/2] of normal numbers,

    h(x) = argmax([xR; −xR])                       the bucket: which of ±R's columns x is nearest to

and a query sees the keys that fall into its bucket in any of several rounds, each with an R of its own. More
rounds find more of the keys that fit, and more that do not; more buckets the other way round. With two
buckets h is a sign, and two vectors with the angle θ between them share it in one of r rounds with
probability (Charikar 2002, *Similarity estimation techniques from rounding algorithms*, STOC)

    1 − (θ/π)^r

With buckets of about the same size and their number growing with n, r rounds score r·n·m/buckets pairs, and
sorting by bucket is what is left: O(n log n).

The hash is of directions alone: it is made for Reformer, where k = q/‖q‖. A long key may have a high score at
a large angle, and is missed; that is what the recall shows. Not here: Reformer sorts tokens by bucket and
cuts them into chunks of one size, for the hardware's sake, which splits large buckets; and a token there
looks at itself only where it sees no other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kernels.arrays import Array, generate
from kernels.limits import MAX_ROUNDS
from kernels.scoring.attention import softmax


@dataclass(frozen=True)
class Hashed:
    """Attention within buckets, and what it finds of that over all keys. b batch, h query heads, n queries, m
    keys."""

    q_buckets: Array  # [b, h, n, rounds] int64
    k_buckets: Array  # [b, h_kv, m, rounds] int64
    out: Array  # [b, h, n, e]
    weights: Array | None  # [b, h, n, m], where they were asked for
    wanted: Array  # [b, h, n] int64: how many keys are looked for: ``top``, or all that are allowed
    recall: Array  # [b, h, n]: the share of these that is seen; 0 of none
    weight: Array  # [b, h, n]: the share of the exact weights that is seen
    allowed_pairs: int
    seen_pairs: int  # of these


class _Head(NamedTuple):
    """The same of one head."""

    out: Array  # [n, e]
    weights: Array  # [n, m]
    wanted: Array  # [n]
    recall: Array  # [n]
    weight: Array  # [n]
    allowed_pairs: int
    seen_pairs: int


def rotations(rounds: int, heads: int, dim: int, buckets: int, seed: int) -> Array:
    """R of every round and head: [rounds, heads, dim, buckets/2], from ``generate("lsh", …)``; fewer rounds
    are the first of more.

    ValueError for a number of buckets that is not even, or of rounds beyond ``MAX_ROUNDS``.
    """
    if buckets < 2 or buckets % 2:
        raise ValueError(f"buckets must be even, each column of R having two ends; not {buckets}")
    if not 1 <= rounds <= MAX_ROUNDS:
        raise ValueError(f"rounds must be between 1 and {MAX_ROUNDS}, not {rounds}")
    return generate("lsh", seed, (rounds, heads, dim, buckets // 2), "normal", "float64")


def buckets_of(x: Array, rotations: Array) -> Array:
    """h(x) in every round: x [b, h, n, d], rotations [rounds, h_kv, d, c] → [b, h, n, rounds] int64."""
    rounds, kv_heads = rotations.shape[:2]
    found = np.zeros((*x.shape[:3], rounds), dtype=np.int64)
    for b, h, r in np.ndindex(*x.shape[:2], rounds):
        projected = x[b, h] @ rotations[r, h * kv_heads // x.shape[1]]
        found[b, h, :, r] = np.argmax(np.concatenate([projected, -projected], axis=1), axis=1)
    return found


def share_a_bucket(q_buckets: Array, k_buckets: Array) -> Array:
    """Which pairs of one head do in any round: [n, rounds] and [m, rounds] → bool [n, m]."""
    seen = np.zeros((len(q_buckets), len(k_buckets)), dtype=np.bool_)
    for of_queries, of_keys in zip(q_buckets.T, k_buckets.T, strict=True):
        seen |= of_queries[:, None] == of_keys
    return seen


def highest(scores: Array, allowed: Array | bool, count: int) -> Array:
    """The ``count`` highest scores of each row that are allowed, or all: bool, of the shape of the scores
    [n, m]. Of equals the first."""
    m = scores.shape[1]
    if count >= m:
        return np.array(np.broadcast_to(allowed, scores.shape))
    masked = np.where(allowed, scores, -np.inf)
    least = np.partition(masked, m - count, axis=1)[:, m - count, None]
    above, equal = masked > least, masked == least
    room = count - np.count_nonzero(above, axis=1)[:, None]
    return np.asarray((above | (equal & (np.cumsum(equal, axis=1) <= room))) & allowed)


def lsh_attention(
    q: Array,
    k: Array,
    v: Array,
    turned: Array,
    *,
    scale: float,
    top: int = 8,
    allowed: Array | bool = True,
    keep_weights: bool = False,
) -> Hashed:
    """q [b, h, n, d], k [b, h_kv, m, d] and v [b, h_kv, m, e] in float64, hashed by ``rotations``; ``top`` is
    how many of the keys with the highest scores are looked for; ``allowed`` broadcasts to [b, h, n, m].

    A query that finds no key has output 0. Head by head: what is held at once is of one.
    """
    (batch, heads, n, _), (kv_heads, m) = q.shape, k.shape[1:3]
    q_buckets, k_buckets = buckets_of(q, turned), buckets_of(k, turned)
    permitted = np.broadcast_to(allowed, (batch, heads, n, m))
    out = np.zeros((batch, heads, n, v.shape[3]))
    weights = np.zeros((batch, heads, n, m)) if keep_weights else None
    wanted = np.zeros((batch, heads, n), dtype=np.int64)
    recall, weight = np.zeros(wanted.shape), np.zeros(wanted.shape)
    allowed_pairs = seen_pairs = 0
    for b, h in np.ndindex(batch, heads):
        kv = h * kv_heads // heads
        seen = share_a_bucket(q_buckets[b, h], k_buckets[b, kv])
        head = _attend(scale * (q[b, h] @ k[b, kv].T), v[b, kv], seen, permitted[b, h], top)
        out[b, h], wanted[b, h], recall[b, h], weight[b, h] = head.out, head.wanted, head.recall, head.weight
        if weights is not None:
            weights[b, h] = head.weights
        allowed_pairs, seen_pairs = allowed_pairs + head.allowed_pairs, seen_pairs + head.seen_pairs
    return Hashed(q_buckets, k_buckets, out, weights, wanted, recall, weight, allowed_pairs, seen_pairs)


def _attend(scores: Array, v: Array, seen: Array, allowed: Array, top: int) -> _Head:
    """One head, by its scores [n, m]; ``seen`` and ``allowed`` bool [n, m]."""
    seen = seen & allowed
    best = highest(scores, allowed, top)
    wanted = np.count_nonzero(best, axis=1)
    weights = softmax(scores, seen)
    return _Head(
        out=weights @ v,
        weights=weights,
        wanted=wanted,
        recall=np.count_nonzero(best & seen, axis=1) / np.maximum(wanted, 1),
        weight=np.sum(softmax(scores, allowed), axis=1, where=seen),
        allowed_pairs=int(np.count_nonzero(allowed)),
        seen_pairs=int(np.count_nonzero(seen)),
    )
