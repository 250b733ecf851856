"""Between numpy and torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from kernels.engines import Array

TORCH_DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


def to_tensor(array: Array, device: str, dtype: str | None = None) -> torch.Tensor:
    """A contiguous tensor with its own memory; ``dtype="bfloat16"`` takes float32 that holds bfloat16
    values."""
    tensor = torch.from_numpy(np.array(array, order="C", copy=True))
    return tensor.to(device=device, dtype=TORCH_DTYPES[dtype] if dtype else None)


def to_numpy(results: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    """Back on the host; bfloat16, which numpy lacks, as float32."""
    return {
        name: (result.float() if result.dtype == torch.bfloat16 else result).cpu().numpy()
        for name, result in results.items()
    }


def compute_dtype(dtype: str) -> torch.dtype:
    """What softmax and sums are computed in: float32 or better."""
    return torch.float64 if dtype == "float64" else torch.float32


def repeat_heads(tensor: Any, group: int) -> torch.Tensor:
    """[b, kv_heads, n, d] → [b, heads, n, d]: query head h reads key head h // group."""
    repeated: torch.Tensor = torch.repeat_interleave(tensor, group, dim=1) if group != 1 else tensor
    return repeated
