"""How far answers are from what is expected: one case and one result of many attempts, all at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.arrays import Array, float32_to_bfloat16, largest
from kernels.bounds import UNIT_ROUNDOFF

WORST = 5  # cells that are shown of a wrong answer
SAME = 8.0  # roundings that a constant may stand for


@dataclass(frozen=True)
class Measured:
    """Figures of each attempt, [attempts], and of each of its numbers, [attempts, numbers]."""

    actual: Array  # [attempts, numbers] float64
    expected: Array
    errors: Array  # inf where one of the two is not finite and they differ
    allowed: Array
    share: Array  # errors in terms of what is allowed; inf of a NaN
    wrong: Array  # bool: a NaN, or further off than allowed
    atol: Array  # the largest error that is allowed anywhere
    severity: Array  # the largest of ``share``
    max_abs: Array
    max_rel: Array
    rmse: Array
    max_ulp: Array
    mismatched: Array
    nan_count: Array
    infinite: Array  # bool: an infinity that is not right
    is_constant: Array  # bool: one number throughout, which cannot be right

    def passes(self, max_mismatch_ratio: float) -> Array:
        """[attempts] bool."""
        few = self.mismatched <= max_mismatch_ratio * self.actual.shape[1]
        return np.asarray(few & (self.nan_count == 0) & ~self.infinite & ~self.is_constant)

    def worst(self, row: int, count: int) -> list[int]:
        """The numbers that are furthest off in terms of what they may be."""
        share = self.share[row]
        if count == 1:
            found = [int(share.argmax())]
        else:
            few = np.argpartition(-share, min(count, len(share) - 1))[:count]
            found = sorted(few.tolist(), key=lambda i: (-share[i], i))
        return [i for i in found if share[i] > 0.0]


def measure(actual: Array, expected: Array, allowed: Array, dtype: str) -> Measured:
    """``actual`` and ``expected`` [attempts, …] alike, ``allowed`` broadcasts to them."""
    rows = len(actual)
    allowed = np.broadcast_to(allowed, actual.shape).reshape(rows, -1)
    actual, expected = actual.reshape(rows, -1), expected.reshape(rows, -1)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        errors = np.abs(actual - expected)
        odd = ~np.isfinite(errors)
        if odd.any():
            errors = np.where(actual == expected, 0.0, errors)
            nan = np.isnan(actual)
            errors = np.where(np.isnan(errors) & ~nan, np.inf, errors)
            nan_count = nan.sum(1)
            errors = np.where(nan, 0.0, errors)
            wrong = nan | (errors > allowed)
            infinite = np.isinf(errors).any(1) | (np.isinf(actual) & (actual != expected)).any(1)
        else:
            nan_count, infinite = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.bool_)
            wrong = errors > allowed
        share = errors / allowed
        if odd.any() or not allowed.min(initial=1.0) > 0.0:
            share = np.where(errors == 0.0, 0.0, np.nan_to_num(share, nan=np.inf, posinf=np.inf))
            share = np.where(np.isnan(actual), np.inf, share)
        max_abs = errors.max(1, initial=0.0)
        sizes = np.where(np.isfinite(expected), np.abs(expected), 0.0).max(1, initial=0.0)
        max_rel = np.where(max_abs == 0.0, 0.0, max_abs / sizes)
        divisor = np.where((max_abs == 0.0) | ~np.isfinite(max_abs), 1.0, max_abs)
        scaled = errors / divisor[:, None]
        rmse = divisor * np.sqrt(np.einsum("ij,ij->i", scaled, scaled) / actual.shape[1])
        rmse = np.where(np.isfinite(max_abs), rmse, max_abs)
    return Measured(
        actual,
        expected,
        errors,
        allowed,
        share,
        wrong,
        allowed.max(1, initial=0.0),
        share.max(1, initial=0.0),
        max_abs,
        max_rel,
        rmse,
        _max_ulp(actual, expected, dtype),
        wrong.sum(1),
        nan_count,
        infinite,
        _constant(actual, expected, dtype),
    )


def _constant(actual: Array, expected: Array, dtype: str) -> Array:
    """One number throughout, where what is expected varies by more than rounding makes equal."""
    if actual.shape[1] < 2:
        return np.zeros(len(actual), dtype=np.bool_)
    same = (actual == actual[:, :1]).all(1)
    if not same.any():
        return np.asarray(same)
    finite = np.where(np.isfinite(expected), expected, 0.0)
    spread = finite.max(1) - finite.min(1)
    unit = SAME * UNIT_ROUNDOFF[dtype] * np.abs(finite).max(1)
    return np.asarray(same & (spread > unit))


def _max_ulp(actual: Array, expected: Array, dtype: str) -> Array:
    """The largest distance [attempts] in numbers of the dtype, counted between the two rounded to it."""
    with np.errstate(over="ignore", invalid="ignore"):
        one, other = _ordered(actual, dtype), _ordered(expected, dtype)
    apart = np.abs((one - other).astype(np.float64))
    across = (one < 0) != (other < 0)  # whose difference may be beyond 64 bits
    if across.any():
        apart = np.where(across, np.abs(one.astype(np.float64)) + np.abs(other.astype(np.float64)), apart)
    apart[~(np.isfinite(actual) & np.isfinite(expected))] = 0.0
    return np.asarray(apart.max(1, initial=0.0))


def _ordered(array: Array, dtype: str) -> Array:
    """Numbers of a dtype, counted from 0 upwards and downwards: int64."""
    most = largest(dtype)
    clipped = np.clip(array, -most, most)
    bits: Array = float32_to_bfloat16(clipped) if dtype == "bfloat16" else clipped.astype(dtype)
    width = bits.dtype.itemsize
    bits = bits.view(f"i{width}").astype(np.int64)
    return np.where(bits < 0, -(bits & ((1 << (8 * width - 1)) - 1)), bits)


def figure(value: Any) -> float | int | str:
    """A number as JSON has it."""
    number = float(value)
    if np.isnan(number):
        return "nan"
    if np.isinf(number):
        return "inf" if number > 0 else "-inf"
    return number
