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

* ``none``: b = 0. A constant added to every reward changes nothing of g, and all of the variance.
* ``expected``: b = E[R].
* ``optimal``: b = E[R ‖∇ log α_s‖²] / E[‖∇ log α_s‖²], which makes Σ_l Var ĝ_l least (Greensmith, Bartlett &
  Baxter 2004, JMLR 5), with ‖∇ log α_s‖² = 1 − 2α_s + ‖α‖².
* ``moving``: b₀ = 0 and b_{k+1} = 0.9 b_k + 0.1 R_k, from the draws before, as in Xu et al., §4.1. The
  formula then takes E[b_k] = (1 − 0.9^k) E[R] and Var b_k = 0.01 Var R (1 − 0.81^k) / 0.19.

Where the reward is linear in the output, R_j = u · v_j, g is the gradient of the soft u · c: hard attention
then estimates, at great cost, what soft attention computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kernels.arrays import Array, generate
from kernels.scoring.functions import for_query_heads

BASELINES = ("none", "expected", "optimal", "moving")
DECAY = 0.9
MAX_NUMBERS = 2**28  # draws · rows · keys


@dataclass(frozen=True)
class Reinforced:
    """The gradient by the scores, exact and estimated: all [b, h, n, m]. Both variances are of one draw; that
    of the estimate is theirs over the number of draws."""

    exact: Array
    estimate: Array  # the mean of all draws
    variance: Array  # in closed form
    measured_variance: Array  # of the draws; NaN for a single one


class _Moments(NamedTuple):
    """Of a baseline, over draws and their random past."""

    mean: float
    variance: float


# -- draws ---------------------------------------------------------------------------------------------------


def sample(weights: Array, draws: int, seed: int) -> Array:
    """Keys drawn from weights [b, h, n, m]: [draws, b, h, n] int64, −1 where a row has no weight.

    By inversion: the key in whose share of Σ_j α_j the uniform number of ``generate("hard_attention", …)``
    falls. More draws begin with those of fewer.
    """
    rows = weights.reshape(-1, weights.shape[3])
    uniform = (generate("hard_attention", seed, (draws, len(rows)), "uniform", "float64") + 1.0) / 2.0
    chosen = np.full(uniform.shape, -1, dtype=np.int64)
    for row, alpha in enumerate(rows):
        cumulative = np.cumsum(alpha)
        if alpha.any():
            chosen[:, row] = np.searchsorted(cumulative, uniform[:, row] * cumulative[-1], side="right")
    return chosen.reshape(draws, *weights.shape[:3])


def outputs(chosen: Array, v: Array) -> Array:
    """v_s for every draw: [draws, b, h, n] and v [b, h_kv, m, e] → [draws, b, h, n, e]; 0 for −1."""
    v = for_query_heads(v, chosen.shape[2])
    b, h, _ = np.ogrid[: v.shape[0], : v.shape[1], : chosen.shape[3]]
    return np.where(chosen[..., None] < 0, 0.0, v[b, h, chosen])


def output_variance(weights: Array, v: Array) -> Array:
    """Of each number of v_s over draws, Σ_j α_j (v_j − c)²: [b, h, n, e]. Soft attention has 0."""
    v = for_query_heads(v, weights.shape[1])
    mean = weights @ v
    apart = v[:, :, None] - mean[:, :, :, None]  # [b, h, n, m, e]
    return np.asarray((weights[..., None] * np.square(apart)).sum(axis=3))


# -- gradients -----------------------------------------------------------------------------------------------


def linear_rewards(dout: Array, v: Array) -> Array:
    """R_j = u · v_j for upstream gradients u [b, h, n, e]: [b, h, n, m]."""
    return np.asarray(dout @ np.swapaxes(for_query_heads(v, dout.shape[1]), -1, -2))


def exact_gradient(weights: Array, rewards: Array) -> Array:
    """∂ E[R] / ∂a = α (R − E[R]), for any leading axes."""
    return np.asarray(weights * (rewards - (weights * rewards).sum(axis=-1, keepdims=True)))


def reinforce(weights: Array, rewards: Array, chosen: Array, baseline: str = "none") -> Reinforced:
    """The exact gradient, and its estimate from the keys ``chosen`` [draws, b, h, n] for each query.

    ``rewards`` [b, h, n, m]: of choosing each key. ValueError for no draws or an unknown baseline.
    """
    if baseline not in BASELINES:
        raise ValueError(f"baseline must be one of {', '.join(BASELINES)}, not {baseline!r}")
    draws, m = len(chosen), weights.shape[3]
    if draws < 1:
        raise ValueError("an estimate needs at least 1 draw, not 0")
    if draws * weights.size > MAX_NUMBERS:
        most = MAX_NUMBERS // weights.size
        raise ValueError(f"{draws:,} draws for {weights.size:,} weights are too many: at most {most:,}")
    exact = exact_gradient(weights, rewards)
    estimate, variance, measured = (np.zeros(weights.shape) for _ in range(3))
    of_rows = (x.reshape(-1, m) for x in (weights, rewards, exact, estimate, variance, measured))
    picked = chosen.reshape(draws, -1)
    for row, (alpha, reward, gradient, mean, closed, spread) in enumerate(zip(*of_rows, strict=True)):
        if not alpha.any():
            continue
        found, moments = _BASELINES[baseline](alpha, reward, picked[:, row])
        drawn = _estimates(alpha, reward, picked[:, row], found)
        mean[:] = drawn.mean(axis=0)
        closed[:] = _variance(alpha, reward, moments, gradient)
        spread[:] = drawn.var(axis=0, ddof=1) if draws > 1 else np.nan
    return Reinforced(exact, estimate, variance, measured)


def _estimates(alpha: Array, rewards: Array, chosen: Array, baseline: Array | float) -> Array:
    """(R_s − b) (δ_sl − α_l) of each draw: [draws, m]."""
    gradient_of_log = np.eye(len(alpha))[chosen] - alpha
    return np.asarray((rewards[chosen] - baseline)[:, None] * gradient_of_log)


def _variance(alpha: Array, rewards: Array, baseline: _Moments, gradient: Array) -> Array:
    """In closed form, at the mean of the baseline as a mean of squares, which cannot come out negative."""
    gradient_of_log = np.eye(len(alpha)) - alpha
    each = (rewards - baseline.mean)[:, None] * gradient_of_log
    return np.asarray(alpha @ np.square(each - gradient) + baseline.variance * alpha * (1.0 - alpha))


# -- baselines: (alpha [m], rewards [m], chosen [draws]) -> the baseline of each draw, and its moments -------


def _constant(value: float) -> tuple[float, _Moments]:
    return value, _Moments(value, 0.0)


def _none(alpha: Array, rewards: Array, chosen: Array) -> tuple[float, _Moments]:
    return _constant(0.0)


def _expected(alpha: Array, rewards: Array, chosen: Array) -> tuple[float, _Moments]:
    return _constant(float(alpha @ rewards))


def _optimal(alpha: Array, rewards: Array, chosen: Array) -> tuple[float, _Moments]:
    squared_norms = 1.0 - 2.0 * alpha + alpha @ alpha
    total = float(alpha @ squared_norms)
    # With all weight on one key the gradient is 0 whatever is drawn.
    return _constant(float(alpha @ (rewards * squared_norms)) / total if total > 0.0 else 0.0)


def _moving(alpha: Array, rewards: Array, chosen: Array) -> tuple[Array, _Moments]:
    found = np.zeros(len(chosen))
    for draw, reward in enumerate(rewards[chosen[:-1]]):
        found[draw + 1] = DECAY * found[draw] + (1.0 - DECAY) * reward
    mean = float(alpha @ rewards)
    steps = np.arange(len(chosen))
    means = (1.0 - DECAY**steps) * mean
    settled = float(alpha @ np.square(rewards - mean)) * (1.0 - DECAY) ** 2 / (1.0 - DECAY**2)
    variances = settled * (1.0 - DECAY ** (2 * steps))
    return found, _Moments(float(means.mean()), float(variances.mean() + means.var()))


_BASELINES: dict[str, Callable[[Array, Array, Array], tuple[Array | float, _Moments]]] = {
    "none": _none,
    "expected": _expected,
    "optimal": _optimal,
    "moving": _moving,
}
