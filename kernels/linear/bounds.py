"""How far rounding alone may take a linear recurrence from its float64 reference.

To be held by every correct order of the sums. a = 2⁻²⁴ is the unit roundoff of float32, in which sums are
kept, u that of the dtype of the result, p = 2⁻¹⁰ what TF32 may lose of a factor where inputs have 16 bits, 0
where they have 32; λ = 4 as in ``kernels/bounds.py``. With the names of ``recurrence.py``, and G_ij the sum
of log decays whose exponential is D_ij:

* A term D_ij (q_i·k_j) u_j is wrong by at most ρ_ij = a·(8 + λ√d + λ√n·(4 + |G_ij|)) + 5p of W̄_ij |u_j|,
  W̄_ij = D_ij |q_i|·|k_j|: the products of q·k (λ√d), the sum over j (λ√n), the exponents (λ√n |G|), their
  exponentials and the products of them from chunk to chunk (3λ√n), and TF32 of both factors of three
  products, of which inputs are exact (5p, with a margin for φ). A term that goes through a state loses no
  more: |q|·(Σ |k| |u|) is the same sum in another order.
* By the delta rule u solves (I + L) u = r. What is computed solves a system whose L is wrong by ρ L̄ and
  whose r is wrong by ρ r̄, with L̄ and r̄ made of sizes as W̄ is. To first order
      |δu| ≤ M (ρ L̄ |u| + ρ r̄),   M = |(I + L)⁻¹|,
  and |δo| is at most ρ W̄ |u| + |W (I + L)⁻¹| (ρ L̄ |u| + ρ r̄).
* A normalised output N/T errs by (δN + |N/T|·δT)/(|T| − δT), T being the output whose values are 1; where
  rounding may take all of T, anything may come out, and there is no bound.
* Row r of the last state is what a query e_r would read after the last token.
* Each product, decay or feature that is below the smallest normal number τ of float32 may vanish. Of a term
  that is τ times ((d + |q_i| + |k_j|)·D_ij + 1)·|u_j| + W̄_ij; of the state, whose numbers lose τ when a token
  is written and when they decay, Σ_c |q_ic|·2 Σ_j D_ij; of a state to start from, its numbers; and of the
  sums of all that, d + n. A result loses what is below the range of its dtype.

Second-order terms of the delta rule are left out: its bound means something where it is small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kernels.arrays import Array
from kernels.bounds import LAMBDA, TAU, UNIT_ROUNDOFF, vanishing
from kernels.linear.inputs import Recurrence, Result, State
from kernels.linear.recurrence import Tokens, between, products, start, tokens

TF32_LOSS = 2.0**-10


def error_bounds(given: Recurrence, state: State | None, dtype: str) -> Result:
    """The bound of each element of a result, in its shapes. ``given`` holds the inputs as a kernel gets them,
    rounded to ``dtype``, in arrays of any precision."""
    x, s = tokens(given), start(given, state)
    (n, d), sizes = x.k.shape[2:], given.sizes
    if not n:
        unmoved = _Read(x.q @ s, np.zeros_like(x.q @ s), np.zeros_like(x.q @ s))
        return _finished(given, unmoved, np.zeros_like(s), dtype)
    walk = _Walk(x, s, _Loss(n, d, 0.0 if dtype == "float32" else TF32_LOSS))
    last_token = np.full(sizes.q_len, n - 1)
    read = walk.read(x.q, np.arange(n) if given.causal else last_token)
    rows = walk.read(np.broadcast_to(np.eye(d), (*s.shape[:2], d, d)), np.full(d, n - 1))
    return _finished(given, read, rows.moved + rows.lost, dtype)


class _Read(NamedTuple):
    """What queries read, how far rounding may take it, and how much of it may vanish: all [.., m, e]."""

    value: Array
    moved: Array
    lost: Array


@dataclass(frozen=True)
class _Loss:
    """ρ: what products of ``n`` tokens, ``d`` wide, lose of the sizes of their terms."""

    n: int
    d: int
    lossy: float

    def of(self, decay: Array) -> Array:
        """ρ D of products of decays."""
        a = UNIT_ROUNDOFF["float32"]
        exponent = np.abs(np.log(np.where(decay > 0, decay, 1.0)))
        root = LAMBDA * math.sqrt(self.n)
        return decay * (a * (8 + LAMBDA * math.sqrt(self.d) + root * (4 + exponent)) + 5 * self.lossy)


class _Walk:
    """What is written to the state, and how wrong it may be: δu = ``inverse`` · δr, |δr| ≤ ``slack``."""

    def __init__(self, x: Tokens, s: Array, loss: _Loss) -> None:
        self.x, self.s, self.loss = x, s, loss
        self.decay, self.from_first = between(x.log_decay), np.exp(x.log_decay.cumsum(-2))
        self.u, self.inverse, self.slack = x.v, None, None
        if x.beta is None:
            return
        lower = np.tril(x.beta * products(x.k, x.k, self.decay), -1)
        self.inverse = np.linalg.inv(np.eye(loss.n) + lower)
        self.u = self.inverse @ (x.beta * (x.v - (self.from_first * x.k) @ s))
        sizes, blurred = np.abs(x.k), loss.of(self.decay)
        self.slack = np.abs(x.beta) * (
            np.tril(products(sizes, sizes, blurred), -1) @ np.abs(self.u)
            + (loss.of(self.from_first) * sizes) @ np.abs(s)
            + float(loss.of(np.ones(()))) * np.abs(x.v)
            + self._lost(sizes, self.decay, self.from_first)
            + TAU
        )

    def read(self, q: Array, at: Array) -> _Read:
        """What queries [.., m, d] read after the tokens ``at`` [m]."""
        decay, from_first = self.decay[..., at, :, :], self.from_first[..., at, :]
        sizes = np.abs(q)
        made = products(q, self.x.k, decay)
        value = made @ self.u + (from_first * q) @ self.s
        bound = products(sizes, np.abs(self.x.k), self.loss.of(decay)) @ np.abs(self.u)
        bound += (self.loss.of(from_first) * sizes) @ np.abs(self.s)
        if self.inverse is not None and self.slack is not None:
            bound += np.abs(made @ self.inverse) @ self.slack
        return _Read(value, bound, self._lost(sizes, decay, from_first))

    def _lost(self, sizes: Array, decay: Array, from_first: Array) -> Array:
        """What vanishes of what queries read whose numbers have these sizes [.., m, d]."""
        u, keys = np.abs(self.u), np.abs(self.x.k)
        reach, started = decay.max(-1), from_first.max(-1, keepdims=True)  # [.., m, n], [.., m, 1]
        query = sizes.sum(-1, keepdims=True)
        terms = reach * (self.loss.d + query + keys.sum(-1)[..., None, :]) + 1 + products(sizes, keys, decay)
        written = 2 * query * (reach.sum(-1, keepdims=True) + started)
        from_start = np.abs(self.s).sum(-2, keepdims=True)
        return np.asarray(TAU * (terms @ u + written + from_start + self.loss.d + self.loss.n))


def _finished(given: Recurrence, read: _Read, moved_state: Array, dtype: str) -> Result:
    """As outputs are, scaled or divided, and rounded to ``dtype``."""
    sizes, u, a = given.sizes, UNIT_ROUNDOFF[dtype], UNIT_ROUNDOFF["float32"]
    value, moved, lost = read
    states = moved_state[:, :: sizes.heads // sizes.state_heads]
    if not given.normalised:
        scale = abs(given.scale)
        rounded = scale * (moved + (u + a) * np.abs(value)) + max(scale, 1.0) * lost
        return Result(rounded + vanishing(dtype), State(states))
    total, off = np.abs(value[..., -1:]), moved[..., -1:] + lost[..., -1:]
    unseen = moved[..., -1:] == 0.0  # of no weight at all: 0, whatever is rounded
    out = np.abs(value[..., :-1]) / np.where(total == 0.0, 1.0, total)
    least = np.where(unseen, 1.0, total - off)
    apart = (moved + lost)[..., :-1] + out * off
    apart = np.where(least > 0.0, apart / np.where(least > 0.0, least, 1.0), np.inf) + (u + 2 * a) * out
    return Result(np.where(unseen, 0.0, apart) + vanishing(dtype), State(states[..., :-1], states[..., -1]))
