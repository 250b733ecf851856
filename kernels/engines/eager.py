"""Attention in torch as textbooks write it: one operation after another, the whole score matrix in memory.

Softmax and sums are float32 whatever the inputs; float64 for dtype float64, and for float32 numbers so large
that a score would overflow, since ∞ − ∞ is NaN. Gradients are torch's own, by autograd. ``out`` and gradients
are rounded to the dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np
import torch

from kernels.arrays import Array
from kernels.engines import Prepared
from kernels.engines.tensors import TORCH_DTYPES, as_inputs, compute_dtype, repeat_heads, to_numpy, to_tensor
from kernels.operands import Operands, group_of, operands, without_padding, zero_beyond
from kernels.overflow import fits_float32
from kernels.quantise import held, quantised_cache
from kernels.spec.model import RunSpec
from kernels.spec.results import GRADIENTS

SIMULATED = "The quantised cache is simulated: keys and values are quantised, and decoded first of all."


def prepare(spec: RunSpec, arrays: Mapping[str, Array], device: str) -> Prepared:
    """Move the inputs to ``device`` and bind them."""
    given = without_padding(operands(spec, arrays, dtype=np.float64))
    given = held(given, quantised_cache(spec, given))
    dout = arrays.get("dout")
    working = compute_dtype(spec.dtype) if fits_float32(given, dout) else torch.float64
    q, k, v = (to_tensor(array, device).to(working) for array in (given.q, given.k, given.v))
    allowed, bias = allowed_and_bias(given, device, working)
    sinks = None
    if given.sinks is not None:
        # [heads, 1, 1]
        sinks = to_tensor(given.sinks, device).to(working)[:, None, None]
    wanted = tuple(dict.fromkeys(("out", *(name for name in spec.returns if not name.startswith("present")))))
    upstream = None
    if spec.differentiates and dout is not None:
        upstream = to_tensor(zero_beyond(dout, given.q_lens), device).to(working)

    def compute() -> Mapping[str, Any]:
        with torch.set_grad_enabled(spec.differentiates):
            leaves = [tensor.requires_grad_(spec.differentiates) for tensor in (q, k, v)]
            results = attend(
                *leaves,
                scale=given.scale,
                softcap=given.softcap,
                allowed=allowed,
                bias=bias,
                sinks=sinks,
            )
            if upstream is not None:
                results |= dict(
                    zip(GRADIENTS, torch.autograd.grad(results["out"], leaves, upstream), strict=True)
                )
        results["out"] = results["out"].to(TORCH_DTYPES[spec.dtype])
        return {name: results[name].detach() for name in wanted}

    notes = (SIMULATED,) if spec.options.kv_dtype else ()
    return Prepared(compute, lambda results: as_inputs(spec, arrays, given, to_numpy(results)), notes)


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
    group = group_of(q.shape[1], k.shape[1])
    scores = scale * (q @ repeat_heads(k, group).transpose(-2, -1))
    softcapped = softcap * torch.tanh(scores / softcap) if softcap else scores
    masked = softcapped if bias is None else softcapped + bias
    if allowed is not None:
        masked = masked.masked_fill(~allowed, float("-inf"))

    # The maximum of a row without keys is −∞: subtract 0 there, and its weights come out as exp(−∞) = 0. What
    # is subtracted cancels, so that gradients need not know of it.
    empty = masked.new_full((*masked.shape[:-1], 1), float("-inf"))
    largest = torch.cat([masked, empty if sinks is None else sinks.expand(empty.shape)], dim=-1).amax(
        -1, keepdim=True
    )
    largest = largest.detach().masked_fill(largest == float("-inf"), 0.0)
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
    given: Operands, device: str, dtype: torch.dtype
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """What may be seen (bool) and what is added to the scores, each broadcasting to [b, h, n, m], or None."""
    limits, biases = [], []
    if given.left is not None or given.right is not None or given.slopes is not None:
        queries, keys = to_tensor(given.q_positions, device), to_tensor(given.kv_positions, device)
        # [b or 1, 1, n, m]
        distance = (keys[:, None, :] - queries[:, :, None])[:, None]
        if given.left is not None:
            limits.append(distance >= -given.left)
        if given.right is not None:
            limits.append(distance <= given.right)
        if given.slopes is not None:
            biases.append(to_tensor(given.slopes, device).to(dtype)[:, :, None, None] * distance)
    if given.mask is not None:
        limits.append(to_tensor(given.mask, device))
    if given.q_lens is not None:
        limits.append(_within(given.q_lens, given.q.shape[2], device)[:, None, :, None])
    if given.kv_lens is not None:
        limits.append(_within(given.kv_lens, given.k.shape[2], device)[:, None, None, :])
    if given.bias is not None:
        biases.append(to_tensor(given.bias, device).to(dtype))
    allowed = reduce(torch.logical_and, limits) if limits else None
    return allowed, sum(biases[1:], biases[0]) if biases else None


def _within(lens: Array, length: int, device: str) -> torch.Tensor:
    """[b, length] booleans."""
    return to_tensor(np.arange(length) < lens[:, None], device)
