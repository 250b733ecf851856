"""Attention in torch as textbooks write it: one operation after another, the whole score matrix in memory.

Softmax and sums are float32 (float64 for dtype float64), whatever the inputs; ``out`` is rounded to the
dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kernels import positions
from kernels.engines import Array, Prepared
from kernels.engines.tensors import TORCH_DTYPES, compute_dtype, repeat_heads, to_numpy, to_tensor
from kernels.spec.model import RunSpec


def prepare(spec: RunSpec, arrays: Mapping[str, Array], device: str) -> Prepared:
    """Move the inputs to ``device`` and bind them."""
    q, k, v = (to_tensor(arrays[name], device, spec.dtype) for name in ("q", "k", "v"))
    working = compute_dtype(spec.dtype)
    allowed, bias = allowed_and_bias(spec, arrays.get("attn_mask"), device, working)
    sinks = None
    if spec.attention.sinks is not None:
        # [heads, 1, 1]
        sinks = torch.tensor(spec.attention.sinks, dtype=torch.float32, device=device).to(working)[
            :, None, None
        ]
    wanted = tuple(dict.fromkeys(("out", *spec.returns)))

    def compute() -> Mapping[str, Any]:
        results = attend(
            q.to(working),
            k.to(working),
            v.to(working),
            scale=spec.scale,
            softcap=spec.attention.softcap,
            allowed=allowed,
            bias=bias,
            sinks=sinks,
        )
        results["out"] = results["out"].to(TORCH_DTYPES[spec.dtype])
        return {name: results[name] for name in wanted}

    return Prepared(compute, to_numpy)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float,
    softcap: float = 0.0,
    allowed: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> dict[str, torch.Tensor]:
    """q [b, h, n, d], k [b, h_kv, m, d], v [b, h_kv, m, e] → out [b, h, n, e], lse [b, h, n], matrices [b,
    h, n, m].

    ``allowed`` (bool) and ``bias`` broadcast to [b, h, n, m]; ``sinks`` is [h, 1, 1].
    """
    group = q.shape[1] // k.shape[1] if k.shape[1] else 1
    scores = scale * (q @ repeat_heads(k, group).transpose(-2, -1))
    softcapped = softcap * torch.tanh(scores / softcap) if softcap else scores
    masked = softcapped if bias is None else softcapped + bias
    if allowed is not None:
        masked = masked.masked_fill(~allowed, float("-inf"))

    # The maximum of a row without keys is −∞: subtract 0 there, and its weights come out as exp(−∞) = 0.
    empty = masked.new_full((*masked.shape[:-1], 1), float("-inf"))
    largest = torch.cat([masked, empty if sinks is None else sinks.expand(empty.shape)], dim=-1).amax(
        -1, keepdim=True
    )
    largest = largest.masked_fill(largest == float("-inf"), 0.0)
    exponentials = torch.exp(masked - largest)
    total = exponentials.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks - largest)
    weights = exponentials / total.masked_fill(total == 0.0, 1.0)
    return {
        "out": weights @ repeat_heads(v, group),
        "lse": (torch.log(total) + largest).squeeze(-1),
        "scores": scores,
        "softcapped_scores": softcapped,
        "masked_scores": masked,
        "weights": weights,
    }


def allowed_and_bias(
    spec: RunSpec, attn_mask: Array | None, device: str, dtype: torch.dtype
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """What may be seen (bool) and what is added to the scores, each broadcasting to [b, h, n, m], or None."""
    attention = spec.attention
    left, right = attention.window
    slopes = positions.alibi_slopes(spec)
    allowed: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    if attention.is_causal or (left, right) != (None, None) or slopes is not None:
        queries = to_tensor(positions.query_positions(spec), device)
        keys = to_tensor(positions.key_positions(spec), device)
        # [b or 1, 1, n, m]
        distance = (keys[:, None, :] - queries[:, :, None])[:, None]
        limits = []
        if attention.is_causal:
            limits.append(distance <= 0)
        if left is not None:
            limits.append(distance >= -left)
        if right is not None:
            limits.append(distance <= right)
        for limit in limits:
            allowed = limit if allowed is None else allowed & limit
        if slopes is not None:
            bias = to_tensor(slopes, device).to(dtype)[:, :, None, None] * distance
    if attn_mask is not None:
        mask = to_tensor(attn_mask, device)
        if mask.dtype == torch.bool:
            allowed = mask if allowed is None else allowed & mask
        else:
            bias = mask.to(dtype) if bias is None else bias + mask.to(dtype)
    return allowed, bias
