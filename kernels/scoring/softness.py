"""How soft a softmax is: what the key that leads gets, and why scores are divided by √d.

Of n keys let one have a score that is g above the others, which are all alike. It gets

    p = 1 / (1 + (n − 1) e^−g),          so that p takes   g = ln((n − 1) p / (1 − p)) :

no gap is large in itself, only beside ln n. The weights of a row answer to its scores by the Jacobian

    J = diag(p) − p pᵀ,                  p (1 − p) on the diagonal,

which vanishes where one p is near 1: a choice that is hard learns nothing. And scores make hard choices by
themselves: of independent numbers with mean 0 and variance 1 in queries and keys, q·k has variance d, so that
s·q·k has the standard deviation |s|·√d, which is 1 for s = 1/√d (Vaswani et al. 2017, §3.2.1, footnote 4).
Each number that comes out of a linear layer is such a product, so weights are drawn by the same rule (Glorot
& Bengio 2010): after l layers a signal of deviation 1 has (|s|·√d)^l.
"""

from __future__ import annotations

import math

import numpy as np

from kernels.arrays import Array, generate
from kernels.scoring.attention import softmax
from kernels.scoring.functions import dot


def leading_weight(gap: float, keys: int) -> float:
    """p of one of ``keys`` keys whose score is ``gap`` above those of all others."""
    if keys < 2:
        return 1.0
    # Whichever exponential does not overflow.
    led, others = (1.0, math.exp(-gap)) if gap >= 0 else (math.exp(gap), 1.0)
    return led / (led + (keys - 1) * others)


def gap_needed(weight: float, keys: int) -> float:
    """The gap that gives one of ``keys`` keys this weight. ValueError unless 0 < weight < 1 and there is
    another key."""
    if not 0.0 < weight < 1.0 or keys < 2:
        raise ValueError(
            f"a weight between 0 and 1 among at least 2 keys has a gap, not {weight:g} among {keys}"
        )
    return math.log(weight / (1.0 - weight) * (keys - 1))


def jacobian(weights: Array) -> Array:
    """∂p_i / ∂s_j = p_i (δ_ij − p_j) of rows of weights [.., n]: [.., n, n]."""
    return np.asarray(weights[..., :, None] * (np.eye(weights.shape[-1]) - weights[..., None, :]))


def score_deviation(d: int, scale: float = 1.0) -> float:
    """The standard deviation of scale · q·k."""
    return abs(scale) * math.sqrt(d)


def largest_weights(d: int, keys: int, *, scale: float, sets: int, seed: int) -> Array:
    """The largest weight of each query, [sets, keys], of random inputs: in each set as many queries as keys,
    of d normal numbers each."""
    q, k = (generate(f"softness/{name}", seed, (sets, 1, keys, d), "normal", "float64") for name in "qk")
    return np.asarray(softmax(scale * dot(q, k)).max(axis=-1)[:, 0])


def through_layers(width: int, layers: int, *, scale: float, normalised: bool, seed: int) -> Array:
    """The standard deviation of 64 random signals before and after each of some linear layers, [layers + 1]:
    weights are normal numbers times ``scale``. ``normalised``: each signal gets the mean 0 and the deviation
    1 after each layer, as a LayerNorm does it."""
    signal = generate("softness/signal", seed, (64, width), "normal", "float64")
    found = [float(signal.std())]
    for layer in range(layers):
        weights = generate(f"softness/layer{layer}", seed, (width, width), "normal", "float64")
        signal = scale * (signal @ weights)
        if normalised:
            signal = signal - signal.mean(axis=1, keepdims=True)
            signal = signal / signal.std(axis=1, keepdims=True)
        found.append(float(signal.std()))
    return np.array(found)
