"""The layers of the Transformer, block by block, for one sequence (Vaswani et al. 2017, §3; numpy, float64).

A sublayer is attention or the feed-forward network. Around each there is a residual connection and a
normalisation, in one of two orders (post-LN is the original's, pre-LN that of Xiong et al. 2020):

    post-LN   x ← LN(x + Sub(x))
    pre-LN    x ← x + Sub(LN(x))

Nothing is dropped out; attention has no bias, and norms have neither gain nor bias, as before training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kernels.arrays import Array
from kernels.engines.reference import attend
from kernels.mistakes import merge_heads, split_heads

EPSILON = 1e-5  # added to the variance, as most programs do; the paper does not say


@dataclass(frozen=True)
class Projections:
    """W^Q, W^K, W^V, W^O of all heads side by side, each [d, d]."""

    q: Array
    k: Array
    v: Array
    o: Array


@dataclass(frozen=True)
class Network:
    """max(0, xW₁ + b₁)W₂ + b₂, the same for every position: w1 [d, f], w2 [f, d]."""

    w1: Array
    b1: Array
    w2: Array
    b2: Array


@dataclass(frozen=True)
class Attended:
    """h heads of e numbers each, n queries, m keys."""

    q: Array  # [h, n, e]
    k: Array  # [h, m, e]
    v: Array  # [h, m, e]
    weights: Array  # [h, n, m]
    parts: Array  # [h, n, e]: the output of each head
    out: Array  # [n, d]: heads side by side, times W^O


@dataclass(frozen=True)
class Fed:
    """What the network computes on its way."""

    before: Array  # [n, f]: xW₁ + b₁
    hidden: Array  # [n, f]: what the ReLU leaves of it
    out: Array  # [n, d]


Sub = Attended | Fed


@dataclass(frozen=True)
class Step:
    """A block of a layer and what leaves it. ``part`` is the sublayer that it belongs to, ``kind`` is "sub",
    "add" or "norm"; ``before`` is the stream as it enters an addition or a norm."""

    part: str
    kind: str
    before: Array  # [n, d]
    out: Array  # [n, d]
    found: Sub | None = None  # of a "sub": all that it computed


def layer_norm(x: Array) -> Array:
    """Each row less its mean, over its standard deviation: [n, d]."""
    return np.asarray((x - x.mean(axis=-1, keepdims=True)) / deviation(x))


def deviation(x: Array) -> Array:
    """What ``layer_norm`` divides each row by: [n, 1]."""
    return np.asarray(np.sqrt(x.var(axis=-1, keepdims=True) + EPSILON))


def attention(
    x: Array, source: Array, given: Projections, heads: int, allowed: Array | bool = True
) -> Attended:
    """Queries of x [n, d], keys and values of source [m, d]; allowed [n, m]."""
    q, k, v = (
        split_heads(rows @ matrix, heads)
        for rows, matrix in ((x, given.q), (source, given.k), (source, given.v))
    )
    scale = q.shape[-1] ** -0.5
    each = [attend(*one, scale=scale, allowed=allowed) for one in zip(q, k, v, strict=True)]
    weights, parts = (np.stack([one[name] for one in each]) for name in ("weights", "out"))
    return Attended(q, k, v, weights, parts, merge_heads(parts) @ given.o)


def feed_forward(x: Array, given: Network) -> Fed:
    before = x @ given.w1 + given.b1
    hidden = np.maximum(0.0, before)
    return Fed(before, hidden, hidden @ given.w2 + given.b2)


def sublayer(x: Array, part: str, compute: Callable[[Array], Sub], *, norm_first: bool) -> list[Step]:
    """A sublayer with its addition and its norm, in the order in which they come. The stream x [n, d] goes
    in, and the last step's ``out`` is the stream that leaves."""
    if norm_first:
        normed = layer_norm(x)
        found = compute(normed)
        return [
            Step(part, "norm", x, normed),
            Step(part, "sub", normed, found.out, found),
            Step(part, "add", x, x + found.out),
        ]
    found = compute(x)
    added = x + found.out
    return [
        Step(part, "sub", x, found.out, found),
        Step(part, "add", x, added),
        Step(part, "norm", added, layer_norm(added)),
    ]


def encoder_layer(
    x: Array, itself: Projections, network: Network, *, heads: int, norm_first: bool
) -> list[Step]:
    """Self-attention ("self"), then the network ("ffn")."""
    steps = sublayer(x, "self", lambda rows: attention(rows, rows, itself, heads), norm_first=norm_first)
    return steps + sublayer(
        steps[-1].out, "ffn", lambda rows: feed_forward(rows, network), norm_first=norm_first
    )


def decoder_layer(
    x: Array,
    memory: Array,
    itself: Projections,
    across: Projections,
    network: Network,
    *,
    heads: int,
    norm_first: bool,
) -> list[Step]:
    """Causal self-attention ("self"), attention to what the encoder has made ("cross"), the network ("ffn").

    The stream x [n, d] goes in; the memory [m, d] gives keys and values."""
    causal = np.tri(len(x), dtype=bool)
    steps = sublayer(
        x, "self", lambda rows: attention(rows, rows, itself, heads, causal), norm_first=norm_first
    )
    steps += sublayer(
        steps[-1].out, "cross", lambda rows: attention(rows, memory, across, heads), norm_first=norm_first
    )
    return steps + sublayer(
        steps[-1].out, "ffn", lambda rows: feed_forward(rows, network), norm_first=norm_first
    )
