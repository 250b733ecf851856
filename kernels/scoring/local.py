"""Global and local attention (Luong, Pham & Manning 2015, EMNLP, arXiv 1508.04025, §3.1 and 3.2).

Global attention looks at every key. Local attention looks at those within D of a position p_t, which each
query t has:

    local-m    p_t = t                              source and target run side by side (monotonic)
    local-p    p_t = S · σ(v_p · tanh(W_p h_t))     predicted from the query; S keys, 0 < p_t < S

    α_t(s) = softmax over |s − p_t| ≤ D of the scores                               local-m
    α_t(s) = the same · exp(−(s − p_t)² / 2σ²),    σ = D/2                          local-p

The Gaussian is what makes p_t learnable: ∂α_t(s) / ∂p_t = α_t(s) (s − p_t) / σ², whereas the edges of the
window give no gradient. The weights of local-p are not divided by their sum again and sum to less than 1, as
in the paper. Keys count from 0; a window that reaches beyond the keys is cut off there, and a query whose
window holds none has weights 0. The paper's D is 10: 21 keys however long the source.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.arrays import Array
from kernels.scoring.attention import softmax, summed


@dataclass(frozen=True)
class Local:
    """Attention around positions. b batch, h heads, n queries, m keys, e width of a value."""

    centres: Array  # [b or 1, h or 1, n] float64: p_t
    weights: Array  # [b, h, n, m]
    out: Array  # [b, h, n, e]
    pairs: int  # that had to be scored, of all b·h·n·m
    inside: Array  # [b, h, n]: the share of the global weights that the window holds


def monotonic_centres(q_len: int) -> Array:
    """p_t = t: [1, 1, q_len]."""
    return np.arange(q_len, dtype=np.float64)[None, None]


def predicted_centres(h: Array, w_p: Array, v_p: Array, kv_len: int) -> Array:
    """p_t = S · σ(v_p · tanh(W_p h_t)): h [b, h, n, d], w_p [1 or h, a, d], v_p [1 or h, a] → [b, h, n].

    ValueError where the widths do not fit.
    """
    if w_p.shape[-1] != h.shape[3] or v_p.shape[-1] != w_p.shape[-2]:
        a, d = w_p.shape[-2:]
        raise ValueError(
            f"w_p is [{a}, {d}] and v_p has {v_p.shape[-1]}: they must be [a, {h.shape[3]}], of the width of "
            "the queries, and a"
        )
    hidden = np.tanh(h @ np.swapaxes(w_p, -1, -2))
    return kv_len * sigmoid((hidden @ v_p[:, :, None])[..., 0])


def sigmoid(x: Array) -> Array:
    """1 / (1 + e⁻ˣ), which as (1 + tanh(x/2)) / 2 does not overflow."""
    return np.asarray((1.0 + np.tanh(0.5 * x)) / 2.0)


def local_attention(
    scores: Array,
    v: Array,
    centres: Array,
    half_width: float,
    *,
    gaussian: bool,
    allowed: Array | bool = True,
) -> Local:
    """Attention within D = ``half_width`` of the centres [b or 1, h or 1, n], by any scores [b, h, n, m].

    ``gaussian``: as local-p; without it as local-m. ``allowed`` broadcasts to the scores. ValueError for a
    half width that is negative, or 0 with a Gaussian, which would have no width.
    """
    if half_width < 0 or (gaussian and half_width == 0):
        least = "more than 0 with a Gaussian, whose σ is half of it" if gaussian else "0 or more"
        raise ValueError(f"half_width must be {least}; not {half_width:g}")
    distance = np.arange(scores.shape[3]) - centres[..., None]  # [b, h, n, m]
    window = np.broadcast_to(np.abs(distance) <= half_width, scores.shape) & allowed
    weights, everywhere = softmax(scores, window), softmax(scores, allowed)
    if gaussian:
        weights = weights * np.exp(-np.square(distance) / (2.0 * (half_width / 2.0) ** 2))
    return Local(
        centres=centres,
        weights=weights,
        out=summed(weights, v),
        pairs=int(np.count_nonzero(window)),
        inside=(everywhere * window).sum(axis=-1),
    )


def centre_gradient(found: Local, v: Array, dout: Array, half_width: float) -> Array:
    """The gradient of Σ u · out by the centres of local-p, for upstream u [b, h, n, e]: [b, h, n].

    Σ_s α_t(s) (s − p_t) / σ² · u · v_s.
    """
    distance = np.arange(found.weights.shape[3]) - found.centres[..., None]
    moved = found.weights * distance / (half_width / 2.0) ** 2
    return np.asarray((summed(moved, v) * dout).sum(axis=-1))
