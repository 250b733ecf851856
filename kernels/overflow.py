"""Whether float32 holds whatever attention computes on the way to its results."""

from __future__ import annotations

import numpy as np

from kernels.arrays import Array, largest_norm
from kernels.limits import SMALLEST_NORMAL
from kernels.operands import Operands, zero_beyond


def fits_float32(given: Operands, dout: Array | None = None) -> bool:
    """Whether no product, sum or scale on the way to the results leaves the range of float32. ``given`` is
    without padding.

    An additive mask or a sink may be as large as float32 has it, since nothing up to 2¹⁰⁰ moves it further.
    """
    q, k, v = (largest_norm(array) for array in (given.q, given.k, given.v))
    scale = abs(given.scale)
    logit = _product(scale, q, k)
    if given.slopes is not None and given.q_positions.size and given.kv_positions.size:
        far = max(abs(int(a) - int(b)) for a in _ends(given.kv_positions) for b in _ends(given.q_positions))
        logit += float(np.abs(given.slopes).max(initial=0.0)) * far
    sizes = [_product(1.0, q, k), v]
    if dout is not None:
        upstream = largest_norm(zero_beyond(dout, given.q_lens))
        many = max(given.q.shape[2] * given.group, 1)
        sizes += [
            _product(many, upstream, max(v, 1.0)),
            _product(many * upstream * v, max(scale, 1.0), max(q, k)),
            _product(2.0, upstream * v, given.softcap),  # autograd multiplies by c before it divides by it
        ]
    return max(sizes) < 2.0**126 and logit < 2.0**100 and (scale == 0.0 or scale >= SMALLEST_NORMAL)


def _ends(given: Array) -> tuple[int, int]:
    return int(given.min()), int(given.max())


def _product(*factors: float) -> float:
    """Of factors ≥ 0, infinite only if the product itself is; 0 with a factor 0, even beside ∞."""
    low, middle, high = sorted(factors)
    return low * high * middle if low else 0.0
