"""torch's own ``scaled_dot_product_attention``: a fused kernel where torch has one, and only ``out`` comes
back.

Its ``is_causal`` is aligned top-left and excludes a mask, so everything but a plain square causal mask is
passed as a mask tensor: boolean, or float32 with −∞ where forbidden when something is added. So is a causal
mask beside a scale that is not positive.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels import positions
from kernels.engines import Array, Prepared
from kernels.engines.eager import allowed_and_bias
from kernels.engines.tensors import compute_dtype, to_numpy, to_tensor
from kernels.spec.model import RunSpec

SMALLEST_FLOAT32 = float(np.finfo(np.float32).tiny)  # of those that no processor takes for 0


def prepare(spec: RunSpec, arrays: Mapping[str, Array], device: str) -> Prepared:
    """Move the inputs to ``device`` and bind them."""
    q, k, v = (to_tensor(arrays[name], device, spec.dtype) for name in ("q", "k", "v"))
    top_left = _is_plain_causal(spec, arrays)
    mask = None if top_left else _mask(spec, arrays.get("attn_mask"), device)
    grouped = spec.num_kv_heads != spec.num_heads

    def compute() -> Mapping[str, Any]:
        out = scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=top_left, scale=spec.scale, enable_gqa=grouped
        )
        return {"out": out}

    return Prepared(compute, to_numpy)


def _is_plain_causal(spec: RunSpec, arrays: Mapping[str, Array]) -> bool:
    """Causal, query i sees keys 0 … i, and nothing else: what ``is_causal`` means to torch.

    Its CPU kernel adds −∞ to the scores before it scales them, in float32: a negative scale makes that +∞,
    and one that is 0 there makes it NaN.
    """
    attention = spec.attention
    nothing_else = (
        attention.window == (None, None) and attention.alibi_slopes is None and "attn_mask" not in arrays
    )
    return (
        attention.is_causal
        and nothing_else
        and spec.scale >= SMALLEST_FLOAT32
        and positions.query_offset(spec) == 0
        and spec.q_len <= spec.kv_len
    )


def _mask(spec: RunSpec, attn_mask: Array | None, device: str) -> torch.Tensor | None:
    """One mask tensor that says everything, [b or 1, h or 1, n, m]."""
    working = compute_dtype(spec.dtype)
    allowed, bias = allowed_and_bias(spec, attn_mask, device, working)
    mask = allowed if bias is None else bias
    if bias is not None and allowed is not None:
        mask = bias.masked_fill(~allowed, float("-inf"))
    if mask is None:
        return None
    full = (mask.shape[0] if mask.ndim == 4 else 1, mask.shape[-3] if mask.ndim >= 3 else 1)
    return mask.expand(*full, spec.q_len, spec.kv_len)
