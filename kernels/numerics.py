"""How far a result is from the float64 reference, beside how far rounding may have taken it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from kernels.bounds import TAU, Bounds, error_bound, error_bounds
from kernels.engines import Array
from kernels.operands import Operands, zero_beyond
from kernels.spec.model import RunSpec

__all__ = ["Bounds", "compare", "error_bound", "error_bounds", "errors", "fits_float32"]


def compare(
    spec: RunSpec, results: Mapping[str, Array], reference: Mapping[str, Array], bounds: Mapping[str, float]
) -> dict[str, Any]:
    """The ``numerics`` object of a run: errors of ``out``, and of each other result under ``arrays``.

    ``max_rel_err`` is the largest error over the largest |reference|. Non-finite values that agree are no
    error. A NaN is counted and puts the result outside its bound, and so does an infinite error, even where
    the bound itself is beyond float64 ("inf").
    """
    others = [name for name in spec.returns if name in results and name != "out"]
    return {
        "reference": "float64",
        **_judged(results["out"], reference["out"], bounds["out"]),
        "arrays": {name: _judged(results[name], reference[name], bounds[name]) for name in others},
    }


def _judged(result: Array, reference: Array, bound: float) -> dict[str, Any]:
    found = errors(result, reference)
    error = found["max_abs_err"]
    within = found["nan_count"] == 0 and isinstance(error, float) and error <= bound
    return {**found, "bound": _json(bound), "within_bound": bool(within)}


def errors(result: Array, reference: Array) -> dict[str, Any]:
    """max_abs_err, max_rel_err, rmse and nan_count of one array against its reference."""
    wide = result.astype(np.float64)
    nan = np.isnan(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.where((wide == reference) | nan, 0.0, np.abs(wide - reference))
    finite = np.abs(reference[np.isfinite(reference)])
    largest = float(finite.max()) if finite.size else 0.0
    max_abs = float(error.max()) if error.size else 0.0
    return {
        "max_abs_err": _json(max_abs),
        "max_rel_err": _json(max_abs / largest if largest else (0.0 if max_abs == 0.0 else math.inf)),
        "rmse": _json(_root_mean_square(error, max_abs)),
        "nan_count": int(np.count_nonzero(nan)),
    }


def _root_mean_square(error: Array, largest: float) -> float:
    """Of errors up to ``largest``, by which they are divided before they are squared: 1e200² overflows."""
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    return largest * math.sqrt(float(np.mean((error / largest) ** 2)))


def fits_float32(given: Operands, dout: Array | None = None) -> bool:
    """Whether no product, sum or scale on the way to the results leaves the range of float32. ``given`` is
    without padding.

    An additive mask or a sink may be as large as float32 has it, since nothing up to 2¹⁰⁰ moves it further.
    """
    q, k, v = (_largest_norm(array) for array in (given.q, given.k, given.v))
    scale = abs(given.scale)
    logit = _product(scale, q, k)
    if given.slopes is not None and given.q_positions.size and given.kv_positions.size:
        far = max(abs(int(a) - int(b)) for a in _ends(given.kv_positions) for b in _ends(given.q_positions))
        logit += float(np.abs(given.slopes).max(initial=0.0)) * far
    sizes = [_product(1.0, q, k), v]
    if dout is not None:
        upstream = _largest_norm(zero_beyond(dout, given.q_lens))
        many = max(given.q.shape[2] * given.group, 1)
        sizes += [
            _product(many, upstream, max(v, 1.0)),
            _product(many * upstream * v, max(scale, 1.0), max(q, k)),
            _product(2.0, upstream * v, given.softcap),  # autograd multiplies by c before it divides by it
        ]
    return max(sizes) < 2.0**126 and logit < 2.0**100 and (scale == 0.0 or scale >= TAU)


def _ends(given: Array) -> tuple[int, int]:
    return int(given.min()), int(given.max())


def _largest_norm(array: Array) -> float:
    """The largest Euclidean norm of a row."""
    largest = float(np.max(np.abs(array), initial=0.0))
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    scaled = array.astype(np.float64) / largest
    return largest * math.sqrt(float(np.einsum("...i,...i->...", scaled, scaled).max(initial=0.0)))


def _product(*factors: float) -> float:
    """Of factors ≥ 0, infinite only if the product itself is; 0 with a factor 0, even beside ∞."""
    low, middle, high = sorted(factors)
    return low * high * middle if low else 0.0


def _json(value: float) -> float | str:
    return value if math.isfinite(value) else "inf"
