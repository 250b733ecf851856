"""Between numpy and torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from kernels.arrays import Array, round_to_dtype
from kernels.operands import Operands, input_gradient, zero_beyond
from kernels.quantise import QuantisedCache, held
from kernels.spec.model import RunSpec
from kernels.spec.results import GRADIENTS, PRESENT

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


def as_inputs(
    spec: RunSpec,
    arrays: Mapping[str, Array],
    given: Operands,
    results: Mapping[str, Array],
    cache: QuantisedCache | None = None,
) -> dict[str, Array]:
    """An engine's results as the contract has them: gradients of the operands become gradients of the inputs,
    the present is added where it was asked for, as the ``cache`` has it, both rounded to the dtype; the LSE
    of padding is −∞, whatever its sink."""
    finished = dict(results)
    if "lse" in results and given.q_lens is not None:
        padding = np.arange(given.q.shape[2]) >= given.q_lens[:, None]
        finished["lse"] = np.where(padding[:, None], -np.inf, results["lse"]).astype(results["lse"].dtype)
    for name, of in GRADIENTS.items():
        if name in results:
            gradient = input_gradient(spec, arrays, of, results[name])
            finished[name] = round_to_dtype(gradient, spec.dtype)
    present = [name for name in PRESENT if name in spec.returns]
    whole = held(given, cache) if present else given
    for name in present:
        kept = zero_beyond(getattr(whole, PRESENT[name]), given.kv_lens)
        finished[name] = round_to_dtype(kept, spec.dtype)
    return finished


def compute_dtype(dtype: str) -> torch.dtype:
    """What softmax and sums are computed in: float32 or better."""
    return torch.float64 if dtype == "float64" else torch.float32


def repeat_heads(tensor: Any, group: int) -> torch.Tensor:
    """[b, kv_heads, n, d] → [b, heads, n, d]: query head h reads key head h // group."""
    repeated: torch.Tensor = torch.repeat_interleave(tensor, group, dim=1) if group != 1 else tensor
    return repeated
