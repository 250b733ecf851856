"""What the scores of ``functions.py`` take, counted from shapes: products and sums, and functions evaluated.

A multiply-add is one; so is a sum or a product alone. For n queries and m keys of width d in each head, and a
hidden numbers of a pair:

    dot          n·m·d
    scaled_dot   n·m·d + n·m
    cosine       n·m·d + 2(n + m)·d               squares and quotients; n + m roots
    general      n·d·d + n·m·d
    additive     (n + m)·a·d + 2·n·m·a            a sum and a multiply-add of each hidden number; n·m·a tanh
    concat       n·m·a·2d + n·m·a                 the same tanh

Where a mask or a window leaves pairs out, n·m is how many are left. Additive attention does with hidden
numbers what dot products do with those of the vectors, but for the tanh: with a = d it takes twice the
operations and n·m·d tanh on top, and no matrix product does it, which is why dot products won (Vaswani et al.
2017, §3.2.1: "much faster and more space-efficient in practice"). What matrix products, and so tensor cores,
can do is counted apart: n·m·d of all that are products, the projections of additive, and all of concat but
its last n·m·a, written out pair by pair.
"""

from __future__ import annotations

from typing import NamedTuple


class Sizes(NamedTuple):
    """Of one computation: ``heads`` counts those of the queries, ``hidden`` is a (0 where there is none)."""

    batch: int
    heads: int
    q_len: int
    kv_len: int
    d_q: int
    d_k: int
    hidden: int = 0


class Cost(NamedTuple):
    """Of scores; the softmax, and the sum over the values, cost the same after all of them."""

    multiply_adds: int
    functions: int = 0  # tanh, or roots
    in_products: int = 0  # multiply-adds of matrix products


def cost(name: str, sizes: Sizes, pairs: int | None = None) -> Cost:
    """Of one of ``functions.SCORES``; keys count once for each query head that reads them. ``pairs``: how
    many are scored, of all batch rows and heads together; None: all."""
    batch, heads, n, m, d_q, d_k, a = sizes
    every = batch * heads
    pairs = every * n * m if pairs is None else pairs
    general, hidden = every * n * d_q * d_k, every * a * (n * d_q + m * d_k)
    return {
        "dot": Cost(pairs * d_k, 0, pairs * d_k),
        "scaled_dot": Cost(pairs * d_k + pairs, 0, pairs * d_k),
        "cosine": Cost(pairs * d_k + 2 * every * (n + m) * d_k, every * (n + m), pairs * d_k),
        "general": Cost(general + pairs * d_k, 0, general + pairs * d_k),
        "additive": Cost(hidden + 2 * pairs * a, pairs * a, hidden),
        "concat": Cost(pairs * a * (d_q + d_k) + pairs * a, pairs * a, pairs * a * (d_q + d_k)),
    }[name]
