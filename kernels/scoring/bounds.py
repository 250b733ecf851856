"""Attention by a score in float64, one head, and how far rounding alone may take a kernel's.

Names as in ``kernels/bounds.py``: u is the unit roundoff of the dtype of a run, a = 2⁻²⁴ that of float32, in
which sums are kept, τ the smallest normal number of it, λ = 4; Σ runs over the keys of a row, |·| is taken of
each element. A score s_ij is wrong by at most

    dot, scaled dot   a(2 + λ√d)·|factor|·|q_i|·|k_j|
    general           the same of q′ = q W, and (aλ√d·|q_i|·|W| + p·|q′_i|)·|k_j|
    cosine            a(8 + λ√d)·|β|·|q̂_i|·|k̂_j| + a(12 + λ√d)·|s_ij|
    additive, concat  λ·√(Σ_c (v_c f_c δ_c)²) + a(26 + λ√h)·Σ_c |v_c tanh_c|

and by what vanishes, of the size of τ.

* p = 2⁻¹⁰ is what TF32 may lose of q′ in a run of 16 bits, and 0 in one of 32; k is exact in it.
* q̂ and k̂ have length 1. Their product and its factors are rounded, and so are the norms, sums of squares
  whose root halves their errors. With float16 numbers may vanish beside the largest of their vector, as it is
  scaled: another 2⁻²⁴√d·|β|.
* Of h hidden numbers, number c is wrong by δ_c = a(2 + √d)·(|W_q|·|q_i| + |W_k|·|k_j|)_c, times λ as sums of
  rounding errors are. They are independent from one c to the next, so that the root of their squares counts.
  tanh passes on the fraction f_c of an error, its slope: the largest within λδ_c of the hidden number. Its
  own error is 24a of its size: ``flash.logits.tanh`` measures 10a in the interpreter, and exponentials and
  quotients of a GPU are wrong by 2 units each.

A logit, a weight, the LSE and the output err by what ``kernels/bounds.py`` says, the values being g_ij v_j
where a Gaussian g multiplies the weights; it errs by 20a itself. The share of a window, Σ P_j over its keys,
is an output whose values are 1 there and 0 elsewhere: it moves by e^R·R·√(share (1 − share)), and by its own
rounding.

A window has an edge, and a key is in it or not. A predicted centre p = S·σ(z) is computed in float64, and so
wrong by a few 2⁻⁵³, e at most: keys within the window of p − e or of p + e but not of both are in doubt. Let
them have at most α of the weights of all that may be in the window. Then out, LSE and weights may move by
another 4α·max|v|, ln(1/(1 − α)) and α/(1 − α), never by more than their whole range. α is 0 in nearly every
run; where a key lies on the edge exactly, it is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from kernels.arrays import Array
from kernels.bounds import LAMBDA, UNIT_ROUNDOFF, moved_weights
from kernels.limits import SMALLEST_NORMAL
from kernels.scoring.attention import softmax
from kernels.scoring.functions import directions
from kernels.scoring.inputs import Scoring
from kernels.scoring.local import sigmoid

TF32_LOSS = 2.0**-10
TANH = 24  # a of its size
DOUBLE = 2.0**-53


class Rounding(NamedTuple):
    """What a kernel rounds to."""

    kept: float  # a
    unit: float = 0.0  # u
    lossy: float = 0.0  # p
    lost: float = 0.0  # below what weights and outputs vanish
    tiny: float = SMALLEST_NORMAL

    @classmethod
    def of(cls, dtype: str) -> Rounding:
        """In a run of this dtype."""
        lossy = 0.0 if dtype == "float32" else TF32_LOSS
        lost = 2.0**-25 if dtype == "float16" else SMALLEST_NORMAL
        return cls(UNIT_ROUNDOFF["float32"], UNIT_ROUNDOFF[dtype], lossy, lost)


class Rough(NamedTuple):
    """An array, and how far each of its elements may be off."""

    value: Array
    off: Array


class Sum(NamedTuple):
    """Sums of ``terms`` products each, and the sums of the sizes of these."""

    value: Array
    size: Array
    terms: int


def head_of(given: Scoring, b: int, h: int) -> Scoring:
    """One head of a batch row in float64: its arrays, without the axes of both."""

    def of(array: Array, *index: int) -> Array:
        return np.asarray(array[index], np.float64)

    kv = h // given.group
    parameters = {name: of(array, h % len(array)) for name, array in given.parameters.items()}
    q, k, v = of(given.q, b, h), of(given.k, b, kv), of(given.v, b, kv)
    return replace(given, q=q, k=k, v=v, parameters=parameters)


# -- scores --------------------------------------------------------------------------------------------------


def scores(head: Scoring, dtype: str, checkpoint: Callable[[], None] = lambda: None) -> Rough:
    """[n, m], of one head as ``head_of`` gives it."""
    rounding = Rounding.of(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        if head.score == "cosine":
            return _cosines(head, rounding)
        if head.score == "general":
            w = head.parameters["w_general"]
            return _projected_products(Sum(head.q @ w, np.abs(head.q) @ np.abs(w), len(w)), head.k, rounding)
        if head.score in ("additive", "concat"):
            return _hidden(*_sums_of_hidden(head), head.parameters["v_a"], rounding, checkpoint)
        return _products(head.q, head.k, head.factor, rounding)


def _products(q: Array, k: Array, factor: float, rounding: Rounding) -> Rough:
    d, scale = q.shape[1], abs(factor)
    per_product = scale * rounding.kept * (2 + LAMBDA * math.sqrt(d)) + rounding.tiny
    off = (per_product * np.abs(q)) @ np.abs(k).T + rounding.tiny * (d * scale + 1)
    return Rough(factor * (q @ k.T), off)


def _projected_products(q: Sum, k: Array, rounding: Rounding) -> Rough:
    found = _products(q.value, k, 1.0, rounding)
    off = rounding.kept * LAMBDA * math.sqrt(q.terms) * q.size + rounding.lossy * np.abs(q.value)
    return Rough(found.value, found.off + (off + rounding.tiny * (q.terms + 1)) @ np.abs(k).T)


def _cosines(head: Scoring, rounding: Rounding) -> Rough:
    (q, k), root = (directions(head.q), directions(head.k)), math.sqrt(head.q.shape[1])
    beta = abs(head.factor)
    value = head.factor * (q @ k.T)
    off = (beta * rounding.kept * (8 + LAMBDA * root) * np.abs(q)) @ np.abs(k).T
    off += rounding.kept * (12 + LAMBDA * root) * np.abs(value) + rounding.tiny * (4 * root**2 * beta + 1)
    return Rough(value, off + (2 * rounding.lost * root * beta if rounding.lost != rounding.tiny else 0.0))


def _sums_of_hidden(head: Scoring) -> tuple[Sum, Sum]:
    """[n, h] of queries and [m, h] of keys: a hidden number is the sum of both."""
    d = head.q.shape[1]
    if head.score == "additive":
        w_q, w_k = head.parameters["w_q"], head.parameters["w_k"]
    else:
        w_q, w_k = np.split(head.parameters["w_concat"], [d], axis=1)
    pairs = ((head.q, w_q), (head.k, w_k))
    of_q, of_k = (Sum(x @ w.T, np.abs(x) @ np.abs(w).T, d) for x, w in pairs)
    return of_q, of_k


def _hidden(x: Sum, y: Sum, v: Array, rounding: Rounding, checkpoint: Callable[[], None]) -> Rough:
    """Σ_c v_c tanh(x_ic + y_jc): [n, m]."""
    n, m = len(x.value), len(y.value)
    value, off = np.empty((n, m)), np.empty((n, m))
    a = rounding.kept
    per_size, vanished = LAMBDA * a * (2 + math.sqrt(x.terms)), LAMBDA * rounding.tiny * (2 * x.terms + 1)
    of_x, of_y = per_size * x.size + vanished, per_size * y.size
    squares, sizes, root = np.square(v), np.abs(v), a * (TANH + 2 + LAMBDA * math.sqrt(len(v)))
    for i in range(n):
        if i % 64 == 0:
            checkpoint()
        hidden = x.value[i] + y.value
        tanh = np.tanh(hidden)
        value[i] = tanh @ v
        moved = of_x[i] + of_y
        moved = np.minimum(moved * _steepest(hidden, tanh, moved), 2.0)
        off[i] = np.sqrt(np.square(moved) @ squares) + root * (np.abs(tanh) @ sizes)
    return Rough(value, off + rounding.tiny * (sizes.sum() + 1))


def _steepest(hidden: Array, tanh: Array, moved: Array) -> Array:
    """The largest slope of tanh within ``moved`` of the hidden numbers."""
    if float(moved.max(initial=0.0)) < 0.01:  # over which the slope grows by a factor of e^0.02 at most
        return np.asarray(1.03 * (1.0 - np.square(tanh)))
    nearest = np.exp(-2.0 * np.maximum(np.abs(hidden) - moved, 0.0))
    return np.asarray(4.0 * nearest / np.square(1.0 + nearest))


# -- windows -------------------------------------------------------------------------------------------------


class Centres(NamedTuple):
    """Of each query [n]: where its window lies, and between what."""

    value: Array
    low: Array
    high: Array


class Reach(NamedTuple):
    """The first and the last key [n] of windows."""

    first: Array
    last: Array

    def holds(self, m: int) -> Array:
        """Which keys: [n, m]."""
        keys = np.arange(m)
        return np.asarray((keys >= self.first[:, None]) & (keys <= self.last[:, None]))

    def sizes(self) -> Array:
        """How many keys [n]."""
        return np.asarray(np.maximum(self.last - self.first + 1, 0))


def centres(head: Scoring) -> Centres:
    """Of a head with windows."""
    n, m = len(head.q), len(head.k)
    if head.span == "monotonic":
        return Centres(*(np.arange(n, dtype=np.float64),) * 3)
    w, v, d = head.parameters["w_p"], head.parameters["v_p"], head.q.shape[1]
    of_q = Sum(head.q @ w.T, np.abs(head.q) @ np.abs(w).T, d)
    nothing = Sum(np.zeros((1, len(v))), np.zeros((1, len(v))), d)
    with np.errstate(over="ignore", invalid="ignore"):
        z = _hidden(of_q, nothing, v, Rounding(DOUBLE, tiny=2.0**-1022), lambda: None)
    value, low, high = (m * sigmoid(z.value[:, 0] + sign * z.off[:, 0]) for sign in (0.0, -1.0, 1.0))
    slack = 8 * DOUBLE * m
    return Centres(value, np.maximum(low - slack, 0.0), np.minimum(high + slack, float(m)))


def reach(at: Array, half_width: float, m: int) -> Reach:
    """Of windows around ``at`` [n]."""
    first, last = np.maximum(np.ceil(at - half_width), 0.0), np.minimum(np.floor(at + half_width), m - 1.0)
    return Reach(first.astype(np.int64), last.astype(np.int64))


# -- attention -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attended:
    """The results of one head in float64, and how far each may be off, by name."""

    results: dict[str, Array]
    bounds: dict[str, Array]


def attend(
    head: Scoring,
    found: Rough,
    *,
    dtype: str,
    bias: Array | float = 0.0,
    allowed: Array | bool = True,
) -> Attended:
    """Out [n, e], lse [n], scores and weights [n, m]; with windows centres and kept_weight [n] too.

    ``found``: the scores; ``bias`` is added to them, and pairs that are not ``allowed`` are forbidden.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        masked = np.where(allowed, found.value + bias, -np.inf)
        off = found.off
        if isinstance(bias, np.ndarray):
            off = off + 3 * UNIT_ROUNDOFF["float32"] * (_sizes(bias) + _sizes(found.value + bias))
        whole = _Softmax.of(masked, off)
        if head.span == "global":
            row, around = whole, None
        else:
            around = _Windows.of(head, masked)
            row = _Softmax.of(np.where(around.inside, masked, -np.inf), off)
        results, bounds = _attended(head, row, around, Rounding.of(dtype))
        if around is not None:
            results["centres"], bounds["centres"] = around.centres.value, around.centre_off
            results["kept_weight"], bounds["kept_weight"] = _share(whole, around, Rounding.of(dtype))
    return Attended(results | {"scores": found.value}, bounds | {"scores": found.off})


@dataclass(frozen=True)
class _Softmax:
    """Weights, and what moves them."""

    weights: Array  # [n, m]
    lse: Array  # [n]
    root: Array  # [n]: R
    grown: Array  # [n, m]: P ρ
    rounded: float  # of sums and quotients, relative

    @classmethod
    def of(cls, masked: Array, off: Array) -> _Softmax:
        a, m = UNIT_ROUNDOFF["float32"], masked.shape[1]
        weights, lse = softmax(masked), _log_sum_exp(masked)
        finite = np.where(np.isneginf(lse), 0.0, lse)
        logit = off + 3 * a * _sizes(masked - finite[:, None]) + 3 * a * math.log(m + 1) + 4 * a
        squares, grown = moved_weights(weights, masked, finite, logit)
        return cls(weights, lse, np.sqrt(squares), grown, 2 * LAMBDA * math.sqrt(m) * a + 4 * a)

    @property
    def growth(self) -> Array:
        """e^R."""
        return np.asarray(np.exp(np.minimum(self.root, 600.0)))


def _sizes(array: Array) -> Array:
    """|array|, with 0 in the place of ±∞, which are exact."""
    return np.where(np.isinf(array), 0.0, np.abs(array))


def _log_sum_exp(masked: Array) -> Array:
    largest = np.max(masked, axis=1, initial=-np.inf)
    finite = np.where(np.isneginf(largest), 0.0, largest)
    return np.asarray(np.log(np.exp(masked - finite[:, None]).sum(axis=1)) + finite)


@dataclass(frozen=True)
class _Windows:
    """Of one head."""

    centres: Centres
    inside: Array  # [n, m]
    gaussian: Array | None  # [n, m]
    doubted: Array  # [n]: α

    @classmethod
    def of(cls, head: Scoring, masked: Array) -> _Windows:
        m = masked.shape[1]
        at = centres(head)
        inside = reach(at.value, head.half_width, m).holds(m)
        ends = [reach(end, head.half_width, m) for end in (at.low, at.high)]
        surely = Reach(ends[1].first, ends[0].last).holds(m)
        perhaps = Reach(ends[0].first, ends[1].last).holds(m)
        doubted = np.zeros(len(masked))
        rows = (surely != perhaps).any(axis=1)
        if rows.any():
            weights = softmax(np.where(perhaps[rows], masked[rows], -np.inf))
            doubted[rows] = np.where(surely[rows], 0.0, weights).sum(axis=1)
        gaussian = None
        if head.span == "predictive":
            distance = np.where(inside, np.arange(m) - at.value[:, None], 0.0)
            gaussian = np.exp(-2.0 * np.square(distance / head.half_width))
        return cls(at, inside, gaussian, doubted)

    @property
    def centre_off(self) -> Array:
        """[n], of centres as they are returned, in float32."""
        off = np.maximum(self.centres.high - self.centres.value, self.centres.value - self.centres.low)
        return np.asarray(off + UNIT_ROUNDOFF["float32"] * self.centres.value + SMALLEST_NORMAL)


def _attended(
    head: Scoring, row: _Softmax, around: _Windows | None, rounding: Rounding
) -> tuple[dict[str, Array], dict[str, Array]]:
    a, u, sizes = rounding.kept, rounding.unit, np.abs(head.v)
    largest = sizes.max(axis=0, initial=0.0)
    weights, squared, own = row.weights, row.weights, 0.0
    if around is not None and around.gaussian is not None:
        weights, squared, own = weights * around.gaussian, weights * np.square(around.gaussian), 20 * a
    out, square = weights @ head.v, squared @ np.square(head.v)
    # The variance is a difference: what its own rounding leaves of it is added.
    sigma = np.sqrt(np.maximum(square - np.square(out), 0.0) + 2.0**-45 * square)
    of_out = (row.growth * row.root)[:, None] * sigma + (row.rounded + u) * np.sqrt(square)
    of_out += (u + 2 * a) * np.abs(out) + own * (weights @ sizes) + rounding.lost * (sizes.sum(axis=0) + 1.0)
    moved = row.growth[:, None] * (row.grown + row.weights * row.root[:, None]) + row.weights * row.rounded
    of_weights = np.minimum(moved, 1.0)
    if around is not None and around.gaussian is not None:
        of_weights = of_weights * around.gaussian
    of_weights = of_weights + own * weights + rounding.tiny
    of_lse = row.root + row.rounded + 4 * a * _sizes(row.lse)
    if around is not None:
        alpha = around.doubted
        of_out += 4 * alpha[:, None] * largest
        of_weights += np.minimum(alpha / (1 - alpha), 1.0)[:, None]
        of_lse -= np.log1p(-alpha)
    # Out is a mean of values, of weights that sum to 1 at most; nor is a NaN a bound.
    of_out = np.fmin(of_out, 2 * largest + rounding.lost)
    return {"out": out, "lse": row.lse, "weights": weights}, {
        "out": of_out, "lse": of_lse, "weights": of_weights
    }  # fmt: skip


def _share(whole: _Softmax, around: _Windows, rounding: Rounding) -> tuple[Array, Array]:
    share = np.where(around.inside, whole.weights, 0.0).sum(axis=1)
    spread = np.sqrt(np.maximum(share * (1.0 - share), 0.0) + 2.0**-45 * share)
    # Two sums, and an exponential of the difference of their maxima.
    rounded = 2 * whole.rounded + 3 * rounding.kept * (math.log(whole.weights.shape[1] + 1) + 1)
    off = whole.growth * whole.root * spread + rounded * share + 3 * rounding.kept + rounding.tiny
    return share, np.minimum(off + around.doubted, 1.0)


def most(bounds: Mapping[str, Array]) -> dict[str, float]:
    """The largest of each; a NaN is where float64 itself had no number to give, and means no bound."""
    largest = {name: float(np.max(off, initial=0.0)) for name, off in bounds.items()}
    return {name: math.inf if math.isnan(off) else off for name, off in largest.items()}
