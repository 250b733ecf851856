"""Figures that engines find beside their arrays, as JSON has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.arrays import Array, to_jsonable


def number(value: float) -> Any:
    """Itself, or "inf", "-inf" or "nan"."""
    return to_jsonable(np.asarray(value))


def mean(numbers: Array) -> Any:
    """Of all; None of none."""
    with np.errstate(over="ignore", invalid="ignore"):
        return number(float(np.mean(numbers, dtype=np.float64))) if numbers.size else None


def largest(numbers: Array) -> Any:
    """Of all; None of none."""
    return number(float(np.max(numbers))) if numbers.size else None
