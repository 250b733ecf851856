"""The bounds of a spec without a run, which has the heads of the reference already."""

from collections.abc import Mapping

import numpy as np

from kernels.arrays import Array
from kernels.bounds import Bounds
from kernels.engines.reference import heads
from kernels.operands import operands
from kernels.spec import RunSpec


def error_bounds(spec: RunSpec, arrays: Mapping[str, Array], *, gradients: bool = False) -> dict[str, float]:
    """How far each result may be from the reference by rounding alone; see ``kernels.bounds``."""
    given = operands(spec, arrays, dtype=np.float64)
    dout = arrays["dout"] if gradients else None
    bounds = Bounds(spec, given, dout)
    for head in heads(given, dout):
        bounds.observe(head)
    return bounds.found(arrays)


def error_bound(spec: RunSpec, arrays: Mapping[str, Array]) -> float:
    """How far ``out`` may be from the reference by rounding alone."""
    return error_bounds(spec, arrays)["out"]
