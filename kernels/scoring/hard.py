"""Hard attention: one key, drawn, instead of a weighted sum; and what that does to the gradient.

    soft     c = Σ_j α_j v_j                           the same every time, differentiable
    hard     s ~ Categorical(α),  c = v_s              E[c] is the soft c

(Xu et al. 2015, *Show, Attend and Tell*, ICML, arXiv 1502.03044, §4.1 and 4.2.) With R_j the reward for
choosing key j, the gradient of the expected reward with respect to the scores a, where α = softmax(a), is

    g_l = ∂ E[R] / ∂a_l = α_l (R_l − Σ_j α_j R_j)

and needs the reward of every key. REINFORCE (Williams 1992, *Simple statistical gradient-following
algorithms*, Machine Learning 8) needs that of the drawn one alone:

    ĝ = (R_s − b) ∇ log α_s,      ∂ log α_s / ∂a_l = δ_sl − α_l

Since E[∇ log α_s] = 0, the baseline b is free, if the draw has no say in it: E[ĝ] = g. What b decides is the
variance of a draw, in closed form

    Var ĝ_l = Σ_s α_s ((R_s − b) (δ_sl − α_l) − g_l)²         and  + Var(b) α_l (1 − α_l)  where b varies
            = α_l (1 − α_l)² (R_l − b)² + α_l² Σ_{s≠l} α_s (R_s − b)² − g_l²

* ``none``: b = 0. A constant added to every reward changes nothing of g, and all of the variance.
* ``expected``: b = E[R].
* ``optimal``: b = E[R ‖∇ log α_s‖²] / E[‖∇ log α_s‖²], which makes Σ_l Var ĝ_l least (Greensmith, Bartlett &
  Baxter 2004, JMLR 5), with ‖∇ log α_s‖² = 1 − 2α_s + ‖α‖².
* ``moving``: b₀ = 0 and b_{k+1} = 0.9 b_k + 0.1 R_k, from the draws before, as in Xu et al., §4.1. The
  formula then takes E[b_k] = (1 − 0.9^k) E[R] and Var b_k = 0.01 Var R (1 − 0.81^k) / 0.19.

Where the reward is linear in the output, R_j = u · v_j, g is the gradient of the soft u · c: hard attention
then estimates, at great cost, what soft attention computes.

A draw is known by its key, so that sums over draws are sums over keys: of how often each was drawn, of R_s −
b where it was, and of the squares of these. So nothing here takes more than draws · queries + queries · keys
steps. All of it is of one head: weights α and rewards R are [n, m], values [m, e], keys drawn [draws, n].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kernels.arrays import Array, generate

BASELINES = ("none", "expected", "optimal", "moving")
DECAY = 0.9
MAX_DRAWN = 2**22  # keys, by all queries together
BLOCK = 64  # draws whose moving baselines are one product


@dataclass(frozen=True)
class Reinforced:
    """The gradient by the scores, exact and estimated: all [n, m]. Both variances are of one draw; that of
    the estimate is theirs over the number of draws."""

    exact: Array
    estimate: Array  # the mean of all draws
    variance: Array  # in closed form
    measured_variance: Array  # of the draws; NaN for a single one


class _Baseline(NamedTuple):
    """Of each query."""

    values: Array  # [draws or 1, n]
    mean: Array  # [n], over draws and their random past
    variance: Array  # [n]


# -- draws ---------------------------------------------------------------------------------------------------


def uniform_numbers(draws: int, queries: tuple[int, ...], seed: int) -> Array:
    """[draws, *queries] in [0, 1), from ``generate("hard_attention", …)``: more draws begin with those of
    fewer. ValueError for more than ``MAX_DRAWN``."""
    count = math.prod(queries)
    if draws * count > MAX_DRAWN:
        raise ValueError(
            f"{draws:,} draws for {count:,} queries are too many: at most {MAX_DRAWN // count:,}"
        )
    drawn = generate("hard_attention", seed, (draws, *queries), "uniform", "float64")
    return np.asarray((drawn + 1.0) / 2.0)


def drawn_keys(weights: Array, uniform: Array) -> Array:
    """By inversion, the keys in whose shares of Σ_j α_j the numbers [draws, n] fall: [draws, n] int64, −1
    where a row has no weight, or none that is a number."""
    chosen = np.full(uniform.shape, -1, dtype=np.int64)
    for row, alpha in enumerate(weights):
        cumulative = np.cumsum(alpha)
        if alpha.sum() > 0.0:
            found = np.searchsorted(cumulative, uniform[:, row] * cumulative[-1], side="right")
            chosen[:, row] = np.minimum(found, np.flatnonzero(alpha)[-1])  # a product may round up to the sum
    return chosen


def shares(chosen: Array, keys: int) -> Array:
    """How often each key was drawn, over the number of draws: [n, m]; with v their product is the mean of the
    outputs v_s of all draws, 0 for −1."""
    return _by_key(np.where(chosen < 0, 0.0, 1.0 / len(chosen)), chosen, keys)


def output_variance(weights: Array, v: Array) -> Array:
    """Of each number of v_s where s is drawn by ``weights``, Σ_j α_j (v_j − c)²: [n, e]. Of ``shares`` it is
    the mean square of what was drawn, around its mean; soft attention has 0."""
    centred = v - v.mean(axis=0) if len(v) else v  # so that little is lost in the difference
    return np.asarray(np.maximum(weights @ np.square(centred) - np.square(weights @ centred), 0.0))


def _by_key(values: Array, chosen: Array, keys: int) -> Array:
    """Sums of values [draws, n] over the draws of each key: [n, m]; what belongs to −1 must be 0."""
    n = chosen.shape[1]
    places = np.maximum(chosen, 0) + keys * np.arange(n)
    sums = np.bincount(places.reshape(-1), weights=values.reshape(-1), minlength=n * keys)
    return sums[: n * keys].reshape(n, keys)


# -- gradients -----------------------------------------------------------------------------------------------


def linear_rewards(dout: Array, v: Array) -> Array:
    """R_j = u · v_j for upstream gradients u [n, e]: [n, m]."""
    return np.asarray(dout @ v.T)


def exact_gradient(weights: Array, rewards: Array) -> Array:
    """∂ E[R] / ∂a = α (R − E[R])."""
    return np.asarray(weights * (rewards - (weights * rewards).sum(axis=-1, keepdims=True)))


def reinforce(weights: Array, rewards: Array, chosen: Array, baseline: str = "none") -> Reinforced:
    """The exact gradient, and its estimate from the keys ``chosen`` for each query; ``rewards``: of choosing
    each key. ValueError for no draws or an unknown baseline."""
    if baseline not in BASELINES:
        raise ValueError(f"baseline must be one of {', '.join(BASELINES)}, not {baseline!r}")
    draws, keys = len(chosen), weights.shape[1]
    if draws < 1:
        raise ValueError("an estimate needs at least 1 draw, not 0")
    found = np.take_along_axis(rewards, np.maximum(chosen, 0).T, axis=1).T if keys else np.zeros(chosen.shape)
    b = _BASELINES[baseline](weights, rewards, found)
    off = np.where(chosen < 0, 0.0, found - b.values)  # R_s − b
    sums, squares = (_by_key(x, chosen, keys) for x in (off, np.square(off)))
    others = squares.sum(axis=1, keepdims=True) - squares
    estimate = (sums - weights * sums.sum(axis=1, keepdims=True)) / draws
    mean_square = (np.square(1.0 - weights) * squares + np.square(weights) * others) / draws
    exact = exact_gradient(weights, rewards)
    spread = np.maximum(mean_square - np.square(estimate), 0.0)
    return Reinforced(
        exact=exact,
        estimate=estimate,
        variance=_variance(weights, rewards, b, exact),
        measured_variance=spread * draws / (draws - 1) if draws > 1 else np.full(spread.shape, np.nan),
    )


def _variance(weights: Array, rewards: Array, b: _Baseline, gradient: Array) -> Array:
    """In closed form."""
    squares = weights * np.square(rewards - b.mean[:, None])
    others = squares.sum(axis=1, keepdims=True) - squares
    mean_square = np.square(1.0 - weights) * squares + np.square(weights) * others
    varying = b.variance[:, None] * weights * (1.0 - weights)
    return np.asarray(np.maximum(mean_square - np.square(gradient), 0.0) + varying)


# -- baselines: (weights [n, m], rewards [n, m], rewards of what was drawn [draws, n]) -> the baseline -------


def _constant(values: Array) -> _Baseline:
    return _Baseline(values[None], values, np.zeros(len(values)))


def _none(weights: Array, rewards: Array, drawn: Array) -> _Baseline:
    return _constant(np.zeros(len(weights)))


def _expected(weights: Array, rewards: Array, drawn: Array) -> _Baseline:
    return _constant((weights * rewards).sum(axis=1))


def _optimal(weights: Array, rewards: Array, drawn: Array) -> _Baseline:
    share = weights * (1.0 - 2.0 * weights + np.square(weights).sum(axis=1, keepdims=True))
    total = share.sum(axis=1)
    # With all weight on one key the gradient is 0 whatever is drawn.
    best = (share * rewards).sum(axis=1) / np.where(total > 0.0, total, 1.0)
    return _constant(np.where(total > 0.0, best, 0.0))


def _moving(weights: Array, rewards: Array, drawn: Array) -> _Baseline:
    mean = (weights * rewards).sum(axis=1)
    spread = (weights * np.square(rewards - mean[:, None])).sum(axis=1)
    settled = spread * (1.0 - DECAY) ** 2 / (1.0 - DECAY**2)
    steps = np.arange(len(drawn))
    reached = 1.0 - DECAY**steps  # E b_k = reached_k · E[R]
    variance = settled * (1.0 - DECAY ** (2 * steps)).mean() + np.square(mean) * reached.var()
    return _Baseline(_moving_values(drawn), mean * reached.mean(), variance)


def _moving_values(drawn: Array) -> Array:
    """b_0 = 0 and b_{k+1} = 0.9 b_k + 0.1 R_k, a block at a time: b_k = 0.9^k b_0 + 0.1 Σ_{j<k} 0.9^{k−1−j}
    R_j, counted from its first."""
    values, carried = np.zeros(drawn.shape), np.zeros(drawn.shape[1])
    steps = np.arange(BLOCK)
    recent = (1.0 - DECAY) * np.tril(DECAY ** np.maximum(steps[:, None] - 1 - steps, 0), -1)
    for first in range(0, len(drawn), BLOCK):
        part = drawn[first : first + BLOCK]
        here = len(part)
        values[first : first + here] = DECAY ** steps[:here, None] * carried + recent[:here, :here] @ part
        carried = DECAY * values[first + here - 1] + (1.0 - DECAY) * part[-1]
    return values


_BASELINES: dict[str, Callable[[Array, Array, Array], _Baseline]] = {
    "none": _none,
    "expected": _expected,
    "optimal": _optimal,
    "moving": _moving,
}
