"""Linear recurrences in numpy, double precision: three ways to compute the same thing.

A state S [d, e] takes in a token's key and value, and the token's query reads it:

    S_t = a_t · S_{t−1} + k_t u_tᵀ          o_t = scale · q_tᵀ S_t

    a_t = exp(log_decay_t), or 1            u_t = v_t, or, by the delta rule, β_t (v_t − a_t S_{t−1}ᵀ k_t)

The delta rule looks up what k_t retrieves already and writes only what is missing: a step of gradient
descent, of size β_t, on ½‖Sᵀ k_t − v_t‖². Within the family lie

    φ(q), φ(k), φ = elu + 1, normalised      Katharopoulos et al. 2020, *Transformers are RNNs*, ICML
    a_t = exp(Δ_t A), q = C, k = B, v = Δx   Mamba-2: Dao and Gu 2024, *Transformers are SSMs*, ICML
    β_t                                      DeltaNet: Schlag et al. 2021, *Linear Transformers Are Secretly
                                             Fast Weight Programmers*, ICML; Yang et al. 2024, NeurIPS
    a_t and β_t                              Gated DeltaNet: Yang et al. 2025, ICLR (Qwen3-Next)
    a_t for each row of S                    GLA: Yang et al. 2024, ICML; with β_t, Kimi Delta Attention 2025

A normalised recurrence divides o_t by scale · q_tᵀ z_t, z_t = a_t z_{t−1} + k_t: the output that it would
have if all values were 1, so here z is one more column of S and 1 one more column of v.

*Recurrent* is the above, token by token. *Parallel* writes the sums out. With D_ij = Π_{j<t≤i} a_t for j ≤ i,
else 0, and D_i0 the product from the first token on,

    O = scale · [(Q Kᵀ ∘ D) U + (D_·0 ∘ Q) S_0]
    U = V,  or  (I + L) U = β ∘ (V − (D_·0 ∘ K) S_0),  L = β ∘ (K Kᵀ ∘ D) below the diagonal
    S_n = D_n0 S_0 + (D_n· ∘ K)ᵀ U

which is masked attention without a softmax; the delta rule becomes a triangular system, since each u needs
those before it. *Chunked* is parallel within chunks and recurrent from one to the next: chunks of one token
are the first, one chunk of all tokens the second.

The products D are exponentials of sums over just the tokens between j and i: differences of running sums
would cancel digits, and −∞ − (−∞) would be NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kernels.arrays import Array
from kernels.linear.features import elu_plus_one
from kernels.linear.inputs import Recurrence, Result, State


@dataclass(frozen=True)
class Tokens:
    """A stretch of tokens as all output heads read them, float64: [b, h, n, ·]."""

    q: Array
    k: Array
    v: Array  # with a last column of ones where the recurrence is normalised
    log_decay: Array  # [b, h, n, 1 or d]
    beta: Array | None  # [b, h, n, 1]

    def part(self, first: int, last: int) -> Tokens:
        """Tokens first to last − 1."""
        cut = {name: getattr(self, name)[:, :, first:last] for name in ("q", "k", "v", "log_decay")}
        return Tokens(**cut, beta=None if self.beta is None else self.beta[:, :, first:last])


def recurrent(given: Recurrence, state: State | None = None) -> Result:
    """Token by token; ``state`` is what came before. Results are float64."""
    x, s = tokens(given), start(given, state)
    out = np.empty((*s.shape[:2], x.q.shape[2], s.shape[3]))
    for t in range(x.k.shape[2]):
        k, u = x.k[:, :, t, :, None], x.v[:, :, t, None]
        s = np.exp(x.log_decay[:, :, t])[..., None] * s
        if x.beta is not None:
            u = x.beta[:, :, t, None] * (u - k.mT @ s)
        s = s + k * u
        if given.causal:
            out[:, :, t] = (x.q[:, :, t, None] @ s)[:, :, 0]
    return _result(given, out if given.causal else x.q @ s, s)


def parallel(given: Recurrence, state: State | None = None) -> Result:
    """All tokens at once, by matrices of n × n."""
    x, s = tokens(given), start(given, state)
    if not x.k.shape[2]:
        return _result(given, x.q @ s, s)
    if given.causal:
        return _result(given, *_at_once(x, s))
    return _result(given, (x.q @ x.k.mT) @ x.v + x.q @ s, s + x.k.mT @ x.v)


def chunked(given: Recurrence, state: State | None = None, *, chunk: int) -> Result:
    """``chunk`` tokens at a time."""
    x, s = tokens(given), start(given, state)
    outs = [np.empty((*s.shape[:2], 0, s.shape[3]))]
    for first in range(0, x.k.shape[2], chunk):
        part = x.part(first, first + chunk)
        if given.causal:
            out, s = _at_once(part, s)
            outs.append(out)
        else:
            s = s + part.k.mT @ part.v
    return _result(given, np.concatenate(outs, 2) if given.causal else x.q @ s, s)


def weights(given: Recurrence) -> Array:
    """The matrix [b, h, m, n] by which the outputs are made of the values, O = W V: the outputs of the
    identity."""
    batch, _, n, _ = given.v.shape
    return np.asarray(parallel(replace(given, v=np.broadcast_to(np.eye(n), (batch, 1, n, n)))).out)


def between(log_decay: Array) -> Array:
    """D [.., i, j, 1 or d] of log decays [.., n, 1 or d]."""
    n = log_decay.shape[-2]
    not_after = np.tril(np.ones((n, n), bool))[..., None]
    before = np.tril(np.ones((n, n), bool), -1)[..., None]
    sums = np.where(before, log_decay[..., :, None, :], 0.0).cumsum(-3)
    return np.where(not_after, np.exp(sums), 0.0)


def products(x: Array, k: Array, d: Array) -> Array:
    """Σ_c x_ic k_jc D_ijc: [.., m, n], where D may be the same for all c."""
    if d.shape[-1] == 1:
        return np.asarray((x @ k.mT) * d[..., 0])
    return np.asarray(np.einsum("...ic,...jc,...ijc->...ij", x, k, d, optimize=True))


def _at_once(x: Tokens, s: Array) -> tuple[Array, Array]:
    """(outputs, state) of tokens that find the state ``s``."""
    d, from_first = between(x.log_decay), np.exp(x.log_decay.cumsum(-2))
    u = x.v
    if x.beta is not None:
        lower = np.tril(x.beta * products(x.k, x.k, d), -1)
        u = np.linalg.solve(np.eye(lower.shape[-1]) + lower, x.beta * (x.v - (from_first * x.k) @ s))
    out = products(x.q, x.k, d) @ u + (from_first * x.q) @ s
    return out, from_first[..., -1, :, None] * s + (d[..., -1, :, :] * x.k).mT @ u


def tokens(given: Recurrence) -> Tokens:
    """What every output head reads."""
    heads = given.sizes.heads
    q, k, v = (spread(x, heads) for x in (given.q, given.k, given.v))
    if given.features == "elu":
        q, k = elu_plus_one(q), elu_plus_one(k)
    if given.normalised:
        v = np.concatenate([v, np.ones((*v.shape[:-1], 1))], -1)
    decay = np.zeros((*k.shape[:-1], 1)) if given.log_decay is None else spread(given.log_decay, heads)
    return Tokens(q, k, v, decay, None if given.beta is None else spread(given.beta, heads))


def start(given: Recurrence, state: State | None) -> Array:
    """What every output head starts from: [b, h, d, e, or e + 1 with z]."""
    sizes = given.sizes
    given.check_state(state)
    if state is None:
        return np.zeros((sizes.batch, sizes.heads, sizes.d, sizes.e + given.normalised))
    s = state.s if state.z is None else np.concatenate([state.s, state.z[..., None]], -1)
    return spread(s, sizes.heads)


def _result(given: Recurrence, out: Array, s: Array) -> Result:
    """Scaled or divided; the states of heads that share one, once."""
    sizes = given.sizes
    s = s[:, :: sizes.heads // sizes.state_heads]
    if not given.normalised:
        return Result(given.scale * out, State(s))
    total = out[..., -1:]
    # A row without weight sees nothing: 0, as a fully masked row of softmax attention.
    out = np.where(total == 0.0, 0.0, out[..., :-1] / np.where(total == 0.0, 1.0, total))
    return Result(out, State(s[..., :-1], s[..., -1]))


def spread(array: Array, heads: int) -> Array:
    """[b, ·, ..] → [b, heads, ..] float64, each head repeated for the consecutive ones that share it."""
    return np.repeat(np.asarray(array, np.float64), heads // array.shape[1], axis=1)
