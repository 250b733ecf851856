"""Figures that engines find beside their arrays."""

from __future__ import annotations

import numpy as np

from kernels.arrays import Array


def mean(numbers: Array) -> float | None:
    """Of all; None of none."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.mean(numbers, dtype=np.float64)) if numbers.size else None


def largest(numbers: Array) -> float | None:
    """Of all; None of none."""
    return float(np.max(numbers)) if numbers.size else None
