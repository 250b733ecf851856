"""Engine ``performer``: softmax attention by random features (``kernels.linear.favor``), in torch.

Features are float32, or float64 for dtype float64; sums are taken a chunk of tokens at a time, so that no
matrix of all pairs is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from kernels.arrays import Array
from kernels.bounds import LAMBDA, UNIT_ROUNDOFF, vanishing
from kernels.engines import Checkpoint, Prepared
from kernels.engines.tensors import TORCH_DTYPES, compute_dtype, repeat_heads, to_numpy, to_tensor
from kernels.limits import SMALLEST_NORMAL
from kernels.linear.comparison import Exact
from kernels.linear.favor import directions, positive_features
from kernels.linear.findings import error_by_features, feature_counts, mean_ranks, memory_of_the_past
from kernels.linear.inputs import Recurrence
from kernels.linear.recurrence import chunked
from kernels.recurrent import is_ranked
from kernels.registry import option
from kernels.spec.model import RunSpec

CHUNK = 64


def prepare(spec: RunSpec, arrays: Mapping[str, Array], device: str) -> Prepared:
    """Move the inputs to ``device`` and draw the features."""
    working = compute_dtype(spec.dtype)
    q, k, v = (to_tensor(arrays[name], device).to(working) for name in "qkv")
    w = to_tensor(drawn(spec), device).to(working)
    q, k = (factor * x for factor, x in zip(_shares(spec), (q, k), strict=True))
    group = spec.num_heads // spec.num_kv_heads

    def compute() -> Mapping[str, Any]:
        keys, values = repeat_heads(_features(k, w, shared=True), group), repeat_heads(v, group)
        out = _attend(_features(q, w, shared=False), keys, values, causal=spec.attention.is_causal)
        return {"out": out.to(TORCH_DTYPES[spec.dtype])}

    def findings(raw: Mapping[str, Any], checkpoint: Checkpoint) -> dict[str, Any]:
        return {
            **memory_of_the_past(spec),
            "ranks": mean_ranks(_pairs(spec, arrays), checkpoint) if is_ranked(spec) else None,
            "error_by_features": _errors(spec, arrays, checkpoint),
        }

    return Prepared(compute, to_numpy, findings=findings)


def expected(
    spec: RunSpec, arrays: Mapping[str, Array], wanted: tuple[str, ...], checkpoint: Callable[[], None]
) -> tuple[dict[str, Array], dict[str, float]]:
    """The same features in float64, and how far from their attention rounding may take the engine's."""
    w, shares = drawn(spec), _shares(spec)
    out, bound = np.zeros((spec.batch, spec.num_heads, spec.q_len, spec.v_head_dim)), 0.0
    for head in _heads(spec, arrays):
        checkpoint()
        queries, keys = shares[0] * head.exact.q, shares[1] * head.exact.k
        row = _recurrence(head.exact, queries, keys, w)
        out[head.b, head.heads] = chunked(row, chunk=CHUNK).out[0]
        bound = max(bound, error_bound(row, queries, keys, w, spec.dtype))
    return {"out": out}, {"out": bound}


class _Head(NamedTuple):
    """A key head of a row, and the query heads that share it."""

    b: int
    heads: slice
    exact: Exact  # all [1, ·, n, ·] float64


def _heads(spec: RunSpec, arrays: Mapping[str, Array]) -> Iterator[_Head]:
    q, k, v = (arrays[name].astype(np.float64) for name in "qkv")
    group = spec.num_heads // spec.num_kv_heads
    for b, h in np.ndindex(k.shape[:2]):
        row, one, heads = slice(b, b + 1), slice(h, h + 1), slice(h * group, (h + 1) * group)
        exact = Exact(q[row, heads], k[row, one], v[row, one], spec.scale, causal=spec.attention.is_causal)
        yield _Head(b, heads, exact)


def _recurrence(exact: Exact, queries: Array, keys: Array, w: Array) -> Recurrence:
    """By the features of queries and keys that have the scale already."""
    return Recurrence(
        positive_features(queries, w, shared=False),
        positive_features(keys, w, shared=True),
        exact.v,
        normalised=True,
        causal=exact.causal,
    )


def _pairs(spec: RunSpec, arrays: Mapping[str, Array]) -> Iterator[tuple[Exact, Recurrence]]:
    """Softmax attention, and what stands for it, head by head."""
    w, shares = drawn(spec), _shares(spec)
    for _, _, exact in _heads(spec, arrays):
        yield exact, _recurrence(exact, shares[0] * exact.q, shares[1] * exact.k, w)


def _errors(spec: RunSpec, arrays: Mapping[str, Array], checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """How far fewer features are from softmax attention, by draws of them."""
    trials = option(spec, "trials")
    if not trials:
        return []
    q, k, v = (arrays[name] for name in "qkv")
    exact = Exact(q, k, v, spec.scale, causal=spec.attention.is_causal)
    counts = feature_counts(option(spec, "num_features"))
    orthogonal = option(spec, "orthogonal")
    return error_by_features(exact, counts, trials, orthogonal=orthogonal, checkpoint=checkpoint)


def drawn(spec: RunSpec) -> Array:
    """w_1 … w_m: [num_features, d] float64."""
    count, seed = option(spec, "num_features"), option(spec, "features_seed")
    return directions(seed, count, spec.head_dim, orthogonal=option(spec, "orthogonal"))


def _shares(spec: RunSpec) -> tuple[float, float]:
    """The scale, shared out to queries and keys."""
    share = math.sqrt(abs(spec.scale))
    return math.copysign(share, spec.scale), share


def _features(x: torch.Tensor, w: torch.Tensor, *, shared: bool) -> torch.Tensor:
    """``favor.positive_features`` in torch: [.., n, d] → [.., n, m]."""
    exponents = x @ w.T - x.square().sum(-1, keepdim=True) / 2
    if not exponents.numel():
        return exponents
    largest = exponents.amax((-2, -1) if shared else -1, keepdim=True)
    return torch.exp(exponents - largest) / math.sqrt(len(w))


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> torch.Tensor:
    """[b, h, n, e] of features [b, h, n, m] and values; 0 for a row whose weights have all vanished."""
    v = torch.cat([v, v.new_ones(*v.shape[:-1], 1)], -1)
    if not causal:
        return _divided(q @ (k.transpose(-2, -1) @ v))
    state = k.new_zeros((*k.shape[:2], k.shape[3], v.shape[3]))
    outs = [v[:, :, :0]]
    for first in range(0, k.shape[2], CHUNK):
        queries, keys, values = (x[:, :, first : first + CHUNK] for x in (q, k, v))
        weights = torch.tril(queries @ keys.transpose(-2, -1))
        outs.append(weights @ values + queries @ state)
        state = state + keys.transpose(-2, -1) @ values
    return _divided(torch.cat(outs, 2))


def _divided(sums: torch.Tensor) -> torch.Tensor:
    """By their last column, the sum of the weights."""
    total = sums[..., -1:]
    return torch.where(total == 0, 0.0, sums[..., :-1] / torch.where(total == 0, 1.0, total))


def error_bound(row: Recurrence, q: Array, k: Array, w: Array, dtype: str) -> float:
    """How far rounding may take outputs, which are means of values with weights φ(q)·φ(k) > 0.

    The exponents of both features err by a·(8 + (12 + λ√d)·(‖x‖‖w‖ + ‖x‖²/2)) each, and the sums over
    features and tokens by a·(8 + λ√m + 4λ√n) of theirs: a weight is multiplied by e^δ, |δ| ≤ ε, which moves
    the mean by at most 2 (e^ε − 1) max |v|. Features and products below τ vanish, which counts beside the sum
    of the weights; and the output is rounded, and may vanish.
    """
    a, tau = (2.0**-53, 2.0**-1022) if dtype == "float64" else (UNIT_ROUNDOFF["float32"], SMALLEST_NORMAL)
    (n, d), m = k.shape[2:], len(w)
    if not n or not q.size:
        return 0.0
    longest = float(np.linalg.norm(w, axis=1).max())
    norms = [float(np.linalg.norm(x, axis=-1).max()) for x in (q, k)]
    exponents = sum(norm * longest + norm * norm / 2 for norm in norms)
    summed = LAMBDA * (math.sqrt(m) + 4 * math.sqrt(n))
    moved = math.expm1(min(a * (24 + summed + (12 + LAMBDA * math.sqrt(d)) * exponents), 700.0))
    reached = row.k.cumsum(2) if row.causal else row.k.sum(2, keepdims=True)
    least = float((row.q * reached).sum(-1).min())
    vanished = tau * n * (2 * math.sqrt(m) + m)
    moved += vanished / least if least else math.inf
    largest = float(np.abs(row.v).max(initial=0.0))
    return (2 * moved + UNIT_ROUNDOFF[dtype]) * largest + vanishing(dtype) if largest else 0.0
