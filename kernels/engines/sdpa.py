"""torch's own ``scaled_dot_product_attention``: a fused kernel where torch has one, and only ``out`` and its
gradients come back.

Its ``is_causal`` is aligned top-left and excludes a mask, so everything but a plain square causal mask is
passed as a mask tensor: boolean, or float32 with −∞ where forbidden when something is added. So is a causal
mask beside a scale that is not positive. A sink is one more key, of zeros, whose score is in the mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels.arrays import Array
from kernels.engines import Prepared
from kernels.engines.eager import allowed_and_bias
from kernels.engines.tensors import as_inputs, compute_dtype, to_numpy, to_tensor
from kernels.limits import SMALLEST_NORMAL
from kernels.operands import Operands, operands, without_padding, zero_beyond
from kernels.spec.model import RunSpec
from kernels.spec.results import GRADIENTS


def prepare(spec: RunSpec, arrays: Mapping[str, Array], device: str) -> Prepared:
    """Move the inputs to ``device`` and bind them."""
    given = without_padding(operands(spec, arrays, dtype=np.float64))
    top_left = _is_plain_causal(given)
    mask = None if top_left else _mask(given, device, compute_dtype(spec.dtype))
    with_sinks = given if given.sinks is None else _with_a_key_of_zeros(given)
    q, k, v = (to_tensor(array, device, spec.dtype) for array in (with_sinks.q, with_sinks.k, with_sinks.v))
    grouped = spec.num_kv_heads != spec.num_heads
    dout = None
    if spec.differentiates:
        dout = to_tensor(zero_beyond(arrays["dout"], given.q_lens), device, spec.dtype)

    def compute() -> Mapping[str, Any]:
        with torch.set_grad_enabled(dout is not None):
            leaves = [tensor.requires_grad_(dout is not None) for tensor in (q, k, v)]
            out = scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=top_left, scale=given.scale, enable_gqa=grouped
            )
            if dout is None:
                return {"out": out}
            gradients = torch.autograd.grad(out, leaves, dout)
        return {"out": out.detach(), **dict(zip(GRADIENTS, gradients, strict=True))}

    def collect(results: Mapping[str, Any]) -> dict[str, Array]:
        found = to_numpy(results)
        for name in {"dk", "dv"} & found.keys():
            found[name] = found[name][:, :, : given.k.shape[2]]
        return as_inputs(spec, arrays, given, found)

    return Prepared(compute, collect)


def _is_plain_causal(given: Operands) -> bool:
    """Causal, query i sees keys 0 … i, and nothing else: what ``is_causal`` means to torch.

    Its CPU kernel adds −∞ to the scores before it scales them, in float32: a negative scale makes that +∞,
    and one that is 0 there makes it NaN.
    """
    n, m = given.q.shape[2], given.k.shape[2]
    others = (given.slopes, given.sinks, given.mask, given.bias, given.q_lens, given.kv_lens)
    return (
        (given.left, given.right) == (None, 0)
        and all(other is None for other in others)
        and given.scale >= SMALLEST_NORMAL
        and 0 < n <= m
        and bool((given.q_positions - given.q_positions[:, :1] == np.arange(n)).all())
        and bool((given.kv_positions - given.q_positions[:, :1] == np.arange(m)).all())
    )


def _with_a_key_of_zeros(given: Operands) -> Operands:
    """One more key and value, which is what a sink attends to."""
    k, v = (
        np.concatenate([x, np.zeros_like(x, shape=(*x.shape[:2], 1, x.shape[3]))], 2)
        for x in (given.k, given.v)
    )
    return replace(given, k=k, v=v)


def _mask(given: Operands, device: str, dtype: torch.dtype) -> torch.Tensor | None:
    """One mask tensor that says everything, [b or 1, h or 1, n, m], with a column for the sinks."""
    allowed, bias = allowed_and_bias(given, device, dtype)
    if bias is None and given.sinks is not None:
        bias = torch.zeros((1, 1, 1, 1), dtype=dtype, device=device)
    mask = allowed if bias is None else bias
    if bias is not None and allowed is not None:
        mask = bias.masked_fill(~allowed, float("-inf"))
    if mask is None:
        return None
    n, m = given.q.shape[2], given.k.shape[2]
    mask = mask.expand(*mask.shape[:2], n, m)
    if given.sinks is None:
        return mask
    heads = len(given.sinks)
    column = to_tensor(given.sinks, device).to(dtype)[None, :, None, None]
    batch = mask.shape[0]
    return torch.cat([mask.expand(batch, heads, n, m), column.expand(batch, heads, n, 1)], dim=3)
