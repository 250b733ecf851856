"""Between arrays as users send them (rank 2, 3, 4 or packed) and the canonical ``[batch, heads, len,
dim]``."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.spec.model import RunSpec

Array = np.ndarray[Any, np.dtype[Any]]


def to_canonical(spec: RunSpec, name: str, array: Array) -> Array:
    """q, k or v as [batch, heads, len, dim]; a mask and anything else as it is."""
    if name not in {"q", "k", "v"}:
        return array
    batch, heads, length, dim = spec.canonical_shape(name)
    if spec.is_packed:
        return np.ascontiguousarray(array.reshape(batch, length, heads, dim).transpose(0, 2, 1, 3))
    return array.reshape(batch, heads, length, dim)


def from_canonical(spec: RunSpec, name: str, array: Array) -> Array:
    """A result with the rank of the input; packed input gives packed ``out`` and [batch, heads, …] for the
    rest."""
    if spec.is_packed:
        if name != "out":
            return array
        batch, heads, length, dim = array.shape
        return np.ascontiguousarray(array.transpose(0, 2, 1, 3).reshape(batch, length, heads * dim))
    return array.reshape(array.shape[4 - spec.rank :])
