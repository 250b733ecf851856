"""Between arrays as users send them (rank 2, 3, 4 or packed) and the canonical ``[batch, heads, len,
dim]``."""

from __future__ import annotations

import numpy as np

from kernels.arrays import Array
from kernels.spec.model import RunSpec
from kernels.spec.values import HEADED

PACKED = ("q", "k", "v", "dout")


def to_canonical(spec: RunSpec, name: str, array: Array) -> Array:
    """q, k, v and whatever else has heads as [batch, heads, len, dim], with axes of 1 for those that it
    lacks; pages, a mask and lengths as they are."""
    if name not in HEADED or (spec.is_paged and name in {"k", "v"}):
        return array
    batch, heads, length, dim = spec.canonical_shape(name)
    if spec.is_packed and name in PACKED:
        return np.ascontiguousarray(array.reshape(batch, length, heads, dim).transpose(0, 2, 1, 3))
    return array.reshape(batch, heads, length, dim)


def from_canonical(spec: RunSpec, name: str, array: Array) -> Array:
    """A result with the rank of the input; packed input gives packed ``out`` and [batch, heads, …] for the
    rest. The gradients of pages are pages."""
    if spec.is_packed:
        if name != "out":
            return array
        return packed(array)
    if spec.is_paged and name in {"dk", "dv"}:
        return array
    return array.reshape(array.shape[4 - spec.rank :])


def packed(array: Array) -> Array:
    """[batch, heads, len, dim] → [batch, len, heads·dim]."""
    batch, heads, length, dim = array.shape
    return np.ascontiguousarray(array.transpose(0, 2, 1, 3).reshape(batch, length, heads * dim))
