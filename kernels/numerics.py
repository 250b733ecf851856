"""How far a result is from the float64 reference, and how far rounding alone may have taken it.

The bound. With unit roundoff u of the dtype (2⁻²⁴ float32, 2⁻¹¹ float16, 2⁻⁸ bfloat16, 2⁻⁵³ float64), and a
= 2⁻²⁴ of what sums are kept in (2⁻⁵³ for float64), to first order:

* a score is a sum of d products, so that its error is at most
  ε = a·|scale|·‖q‖·‖k‖·(2 + λ√d) + 4a·max|s|, with ‖q‖‖k‖ ≥ Σ|q·k| (Cauchy–Schwarz) and the largest row
  norms;
* an error ε in every logit changes each softmax weight by a factor within 1 ± 2ε, and the sums over n keys
  add λ√n·a;
* out is a weighted mean of v, so that it moves by at most max|v| times that, plus the rounding of weights
  and result to the dtype, 2u·max|v| (and n·2⁻²⁵ for weights below the range of float16).

λ√n instead of n is the growth of rounding errors that are not all of one sign; λ = 4 is exceeded with a
probability below 10⁻³ (Higham and Mary 2019, *A new approach to probabilistic rounding error analysis*). The
formula is an error bound for any correct kernel on these inputs, not a fit to ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from kernels import positions
from kernels.engines import Array
from kernels.spec.model import RunSpec

UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
LAMBDA = 4.0
COMPARED = ("lse", "scores", "softcapped_scores", "masked_scores", "weights")


def compare(
    spec: RunSpec, results: Mapping[str, Array], reference: Mapping[str, Array], bound: float
) -> dict[str, Any]:
    """The ``numerics`` object of a run: errors of ``out``, and of each other result under ``arrays``.

    ``max_rel_err`` is the largest error over the largest |reference|. Non-finite values that agree are no
    error. A NaN is counted and puts the result outside its bound, and so does an infinite error, even where
    the bound itself is beyond float64 ("inf").
    """
    numerics = {"reference": "float64", **errors(results["out"], reference["out"])}
    numerics["bound"] = _json(bound)
    numerics["within_bound"] = bool(_within(numerics, bound))
    numerics["arrays"] = {
        name: errors(results[name], reference[name])
        for name in COMPARED
        if name in results and name in spec.returns
    }
    return numerics


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


def error_bound(spec: RunSpec, arrays: Mapping[str, Array]) -> float:
    """How far ``out`` may be from the reference by rounding alone; the formula is at the top of this
    module."""
    if spec.engine == "reference":
        return 0.0
    unit = UNIT_ROUNDOFF[spec.dtype]
    kept = min(unit, UNIT_ROUNDOFF["float32"])
    product = _product(abs(spec.scale), _largest_norm(arrays["q"]), _largest_norm(arrays["k"]))
    largest_v = float(np.max(np.abs(arrays["v"]), initial=0.0))
    score = kept * product * (2 + LAMBDA * math.sqrt(spec.head_dim))
    logit = score + 4 * kept * (product + _largest_bias(spec, arrays))
    relative = 2 * logit + kept * LAMBDA * math.sqrt(spec.kv_len) + 4 * kept + 2 * unit
    underflow = spec.kv_len * 2.0**-25 if spec.dtype == "float16" else 0.0
    return float(f"{largest_v * (min(relative, 2.0) + underflow):.3g}")


def _largest_norm(array: Array) -> float:
    """The largest Euclidean norm of a row."""
    # In float64 the square of a float32 neither overflows nor vanishes; that of a float64 may.
    largest = float(np.max(np.abs(array), initial=0.0)) if array.dtype == np.float64 else 1.0
    if largest == 0.0:
        return 0.0
    scaled = array if largest == 1.0 else array / largest
    squares = np.einsum("...i,...i->...", scaled, scaled, dtype=np.float64, casting="unsafe")
    return largest * math.sqrt(float(squares.max(initial=0.0)))


def _product(*factors: float) -> float:
    """Of three factors ≥ 0, infinite only if the product itself is; 0 with a factor 0, even beside ∞."""
    low, middle, high = sorted(factors)
    return low * high * middle if low else 0.0


def _largest_bias(spec: RunSpec, arrays: Mapping[str, Array]) -> float:
    """The largest finite amount that ALiBi and an additive mask add to a score, roughly."""
    total = 0.0
    slopes = positions.alibi_slopes(spec)
    if slopes is not None and spec.q_len and spec.kv_len:
        queries, keys = positions.query_positions(spec), positions.key_positions(spec)
        reach = max(int(keys.max() - queries.min()), int(queries.max() - keys.min()), 0)
        total += float(np.abs(slopes).max(initial=0.0)) * reach
    mask = arrays.get("attn_mask")
    if mask is not None and mask.dtype != np.bool_:
        total += float(np.abs(mask[np.isfinite(mask)]).max(initial=0.0))
    return total


def _within(numerics: Mapping[str, Any], bound: float) -> bool:
    error = numerics["max_abs_err"]
    return numerics["nan_count"] == 0 and isinstance(error, float) and error <= bound


def _json(value: float) -> float | str:
    return value if math.isfinite(value) else "inf"
