"""The reference: the equations of attention in numpy, double precision, every intermediate kept.

Independent of torch and of Triton, one head at a time, no trick that is not in the equations:

    scores            = scale · Q Kᵀ
    softcapped_scores = c · tanh(scores / c)                       where a softcap c is set
    masked_scores     = softcapped + slope · (key pos − query pos) + mask,  −∞ where forbidden
    lse               = ln(Σ_j exp(masked_scores_j) + exp(sink))
    weights           = exp(masked_scores − lse)
    out               = weights V
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernels import positions
from kernels.engines import Array, Prepared
from kernels.spec.model import RunSpec

MATRICES = ("scores", "softcapped_scores", "masked_scores", "weights")


def attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    softcap: float = 0.0,
    bias: Array | float = 0.0,
    allowed: Array | bool = True,
    sink: float = -np.inf,
) -> dict[str, Array]:
    """One head: q [n, d], k [m, d], v [m, e] float64 → out [n, e], lse [n] and the four matrices [n, m]."""
    scores = scale * (q @ k.T)
    softcapped = softcap * np.tanh(scores / softcap) if softcap else scores
    masked = np.where(allowed, softcapped + bias, -np.inf)
    lse = _log_sum_exp(masked, sink)
    # A row that sees nothing has lse −∞; all its weights are 0.
    weights = np.exp(masked - np.where(np.isneginf(lse), 0.0, lse)[:, None])
    return {
        "out": weights @ v,
        "lse": lse,
        "scores": scores,
        "softcapped_scores": softcapped,
        "masked_scores": masked,
        "weights": weights,
    }


def _log_sum_exp(masked: Array, sink: float) -> Array:
    """ln(Σ exp(row) + exp(sink)) of each row, the largest term taken out so that nothing overflows."""
    largest = np.max(masked, axis=1, initial=sink)
    finite = np.where(np.isneginf(largest), 0.0, largest)
    total = np.exp(masked - finite[:, None]).sum(axis=1) + np.exp(sink - finite)
    with np.errstate(divide="ignore"):
        return np.asarray(np.where(total == 0.0, -np.inf, np.log(total) + finite))


def reference(
    spec: RunSpec,
    arrays: Mapping[str, Array],
    wanted: tuple[str, ...],
    checkpoint: Callable[[], None] = lambda: None,
) -> dict[str, Array]:
    """All heads of a spec: canonical arrays in, the ``wanted`` results out, float64.

    ``checkpoint`` is called between heads; it may raise to stop.
    """
    q, k, v = (np.asarray(arrays[name], dtype=np.float64) for name in ("q", "k", "v"))
    batch, heads, n, m = spec.batch, spec.num_heads, spec.q_len, spec.kv_len
    group = heads // spec.num_kv_heads if spec.num_kv_heads else 1
    shapes = {"out": (spec.v_head_dim,), "lse": ()} | dict.fromkeys(MATRICES, (m,))
    results = {name: np.zeros((batch, heads, n, *shapes[name])) for name in wanted}
    sinks = spec.attention.sinks
    slopes = positions.alibi_slopes(spec)
    mask = _full_mask(spec, arrays.get("attn_mask"))
    for b in range(batch):
        distance = _distance(spec, b)
        visible = _visible(spec, distance)
        for h in range(heads):
            checkpoint()
            bias: Array | float = 0.0
            if slopes is not None and distance is not None:
                bias = float(slopes[b % len(slopes), h]) * distance
            allowed = visible
            if mask is not None and mask.dtype == np.bool_:
                allowed = visible & mask[b, h]
            elif mask is not None:
                bias = bias + mask[b, h].astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                head = attend(
                    q[b, h],
                    k[b, h // group],
                    v[b, h // group],
                    scale=spec.scale,
                    softcap=spec.attention.softcap,
                    bias=bias,
                    allowed=allowed,
                    sink=float(np.float32(sinks[h])) if sinks is not None else -np.inf,
                )
            for name in wanted:
                results[name][b, h] = head[name]
    return results


def _distance(spec: RunSpec, b: int) -> Array | None:
    """[n, m] key position − query position of batch row b, or None where nothing depends on it."""
    attention = spec.attention
    if not attention.is_causal and attention.window == (None, None) and attention.alibi_slopes is None:
        return None
    queries, keys = positions.query_positions(spec), positions.key_positions(spec)
    distance: Array = keys[b % len(keys)][None, :] - queries[b % len(queries)][:, None]
    return distance


def _visible(spec: RunSpec, distance: Array | None) -> Array | bool:
    """Which key each query may see by causality and window."""
    if distance is None:
        return True
    left, right = spec.attention.window
    visible = np.ones(distance.shape, dtype=np.bool_)
    if spec.attention.is_causal:
        visible &= distance <= 0
    if left is not None:
        visible &= distance >= -left
    if right is not None:
        visible &= distance <= right
    return visible


def _full_mask(spec: RunSpec, mask: Array | None) -> Array | None:
    """``attn_mask`` as a view of [batch, heads, n, m]."""
    if mask is None:
        return None
    return np.broadcast_to(mask, (spec.batch, spec.num_heads, spec.q_len, spec.kv_len))


def prepare(spec: RunSpec, arrays: Mapping[str, Array], device: str) -> Prepared:
    """As an engine: the results themselves, in float64."""
    del device  # numpy computes on the host

    def compute() -> Mapping[str, Any]:
        return reference(spec, arrays, tuple(dict.fromkeys(("out", *spec.returns))))

    return Prepared(compute, dict)
