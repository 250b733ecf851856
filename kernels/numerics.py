"""How far a result is from the float64 reference, beside how far rounding may have taken it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from kernels.arrays import Array, largest
from kernels.registry import ENGINES, SOFTMAX
from kernels.spec.model import RunSpec
from kernels.spec.results import GRADIENTS, PRESENT


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
    most = float(finite.max()) if finite.size else 0.0
    max_abs = float(error.max()) if error.size else 0.0
    return {
        "max_abs_err": _json(max_abs),
        "max_rel_err": _json(max_abs / most if most else (0.0 if max_abs == 0.0 else math.inf)),
        "rmse": _json(_root_mean_square(error, max_abs)),
        "nan_count": int(np.count_nonzero(nan)),
    }


def _root_mean_square(error: Array, largest: float) -> float:
    """Of errors up to ``largest``, by which they are divided before they are squared: 1e200² overflows."""
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    return largest * math.sqrt(float(np.mean((error / largest) ** 2)))


def overflow_notes(spec: RunSpec, results: Mapping[str, Array], reference: Mapping[str, Array]) -> list[str]:
    """In words, for each result: how many of its numbers are not finite where those of the reference are, and
    how many of the reference's are no numbers themselves."""
    notes, softmax = [], ENGINES[spec.engine].computes == SOFTMAX
    for name in dict.fromkeys(("out", *spec.returns)):
        lost = np.isfinite(reference[name]) & ~np.isfinite(results[name])
        if lost.any():
            smallest = float(np.abs(reference[name][lost]).min())
            notes.append(
                f"{np.count_nonzero(lost):,} of {lost.size:,} numbers of {name} are not finite, though in "
                f"float64 they are: {_exceeded(spec.dtype, name, smallest)}."
                + (" Engine reference computes in float64." if softmax else "")
            )
        unknown = np.count_nonzero(np.isnan(reference[name]))
        if unknown:
            notes.append(
                f"{unknown:,} of {lost.size:,} numbers of {name} are not known in float64 either: what they "
                f"are computed from is beyond its largest number, {largest('float64'):g}."
            )
    return notes


def _exceeded(dtype: str, name: str, smallest: float) -> str:
    """What numbers whose sizes are ``smallest`` at least have exceeded."""
    rounded = name == "out" or name in GRADIENTS or name in PRESENT
    if rounded and smallest > largest(dtype):
        return f"they are beyond {dtype}, whose largest number is {largest(dtype):g}"
    kept = dict.fromkeys((dtype, "float64" if dtype == "float64" else "float32"))
    ranges = " or ".join(f"{one}, whose largest number is {largest(one):g}" for one in kept)
    return f"they, or what they are computed from, are beyond {ranges}"


def _json(value: float) -> float | str:
    return value if math.isfinite(value) else "inf"
