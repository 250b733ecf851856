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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.arrays import Array, generate
from kernels.numerics import errors
from kernels.scoring.attention import softmax, summed
from kernels.scoring.functions import for_query_heads, scaled_dot

MAX_ROUNDS = 64


@dataclass(frozen=True)
class Hashed:
    """Attention within buckets, beside that over all keys. b batch, h query heads, n queries, m keys."""

    q_buckets: Array  # [rounds, b, h, n] int64
    k_buckets: Array  # [rounds, b, h_kv, m] int64
    seen: Array  # bool [b, h, n, m]
    out: Array  # [b, h, n, e]
    exact: Array  # [b, h, n, e], over all that is allowed
    error: Mapping[str, Any]  # of out, as ``kernels.numerics.errors`` has it
    recall: Array  # [b, h, n]: the share of the keys with the highest scores that is seen
    weight: Array  # [b, h, n]: the share of the exact weights that is seen
    pairs: int  # scored
    multiply_adds: int  # of the hash


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
    """h(x) in every round: x [b, h, n, d], rotations [rounds, h_kv, d, c] → [rounds, b, h, n] int64."""
    projected = x @ for_query_heads(rotations, x.shape[1])[:, None]
    return np.asarray(np.argmax(np.concatenate([projected, -projected], axis=-1), axis=-1))


def share_a_bucket(q_buckets: Array, k_buckets: Array) -> Array:
    """Which pairs do in any round: [rounds, b, h, n] and [rounds, b, h_kv, m] → bool [b, h, n, m]."""
    heads = q_buckets.shape[2]
    seen = np.zeros((*q_buckets.shape[1:], k_buckets.shape[3]), dtype=np.bool_)
    for of_queries, of_keys in zip(q_buckets, k_buckets, strict=True):
        for_queries = np.repeat(of_keys, heads // of_keys.shape[1], axis=1)
        seen |= of_queries[..., :, None] == for_queries[..., None, :]
    return seen


def highest(scores: Array, allowed: Array | bool, count: int) -> Array:
    """The ``count`` highest scores of each row that are allowed, or all: bool, of the shape of the scores.
    Of equals the first."""
    masked = np.where(allowed, scores, -np.inf)
    order = np.argsort(-masked, axis=-1, kind="stable")[..., :count]
    found = np.zeros(scores.shape, dtype=np.bool_)
    np.put_along_axis(found, order, True, axis=-1)
    return np.asarray(found & allowed)


def lsh_attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    rounds: int,
    buckets: int,
    seed: int,
    top: int = 8,
    allowed: Array | bool = True,
) -> Hashed:
    """q [b, h, n, d], k [b, h_kv, m, d] and v [b, h_kv, m, e] in float64; ``top`` is how many of the keys
    with the highest scores are looked for. A query that finds no key has output 0."""
    turned = rotations(rounds, k.shape[1], q.shape[3], buckets, seed)
    q_buckets, k_buckets = buckets_of(q, turned), buckets_of(k, turned)
    scores = scaled_dot(q, k)
    seen = share_a_bucket(q_buckets, k_buckets) & allowed
    weights, best = softmax(scores, allowed), highest(scores, allowed, top)
    out, exact = summed(softmax(scores, seen), v), summed(weights, v)
    wanted = best.sum(axis=-1)
    return Hashed(
        q_buckets=q_buckets,
        k_buckets=k_buckets,
        seen=seen,
        out=out,
        exact=exact,
        error=errors(out, exact),
        recall=(best & seen).sum(axis=-1) / np.maximum(wanted, 1),
        weight=(weights * seen).sum(axis=-1),
        pairs=int(np.count_nonzero(seen)),
        multiply_adds=rounds * (q.size + k.size) * buckets // 2,
    )


def collision_probability(theta: Array | float, rounds: int) -> Array:
    """That two vectors with the angle θ share one of two buckets in any of the rounds: 1 − (θ/π)^rounds."""
    return np.asarray(1.0 - (np.asarray(theta) / np.pi) ** rounds)
