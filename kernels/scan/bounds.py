"""How far rounding alone may take a selective scan from its float64 reference.

a = 2⁻²⁴, u the unit roundoff of y's dtype, λ = 4 as in ``kernels/bounds.py``; sums are kept in float32. A
number of the state is a sum over tokens j of terms e^G_tj Δ_j B_j x_j, G_tj the sum of Δ A after j up to t.
Each is wrong by at most

    a·(8 + λ√n·(4 + |G_tj|))

of its size: the products (8), the sum over j and the product of exponentials (4λ√n), their exponents (λ√n
|G|). y adds λ√N·a for the sum over a state's numbers, 2a·|D x|, and u·|y|. The sums of sizes, H̄ of all terms
and H̄_G of those times |G|, obey recurrences like that of h:

    H̄ ← e^{ΔA} H̄ + |Δ B x|            H̄_G ← e^{ΔA} (H̄_G + |ΔA| H̄)

Each product or decay that is below the smallest normal number τ of float32 may vanish. A number of the state
loses τ times L, L ← e^{ΔA} L + |Δ| + |B| + |x| + 2, and a decay that vanished takes τ of all that it would
have kept, Σ_j |Δ_j B_j x_j| and the first state; y loses these times |C|, τ·(N·(1 + Σ_j e^G_tj |Δ_j x_j|) +
Σ H̄ + 1), and what is below the range of its dtype.
"""

from __future__ import annotations

import math

import numpy as np

from kernels.arrays import Array
from kernels.bounds import LAMBDA, TAU, UNIT_ROUNDOFF, vanishing
from kernels.linear.recurrence import spread
from kernels.scan.inputs import Scanned, SelectiveScan
from kernels.scan.recurrence import recurrent, start, steps


def error_bounds(given: SelectiveScan, state: Array | None, dtype: str) -> Scanned:
    """The bound of each element of y and of the last state. ``given`` holds the inputs as a kernel gets them,
    rounded to ``dtype``, in arrays of any precision."""
    a, u, (_, heads, n, _, states) = UNIT_ROUNDOFF["float32"], UNIT_ROUNDOFF[dtype], given.sizes
    decay, into = steps(given)
    with np.errstate(divide="ignore"):
        exponents = np.where(decay > 0, np.abs(np.log(decay)), 0.0)
    x, delta, b, c = (np.abs(spread(array, heads)) for array in (given.x, given.delta, given.b, given.c))
    entering, driven = (delta + x)[..., None] + b[..., None, :] + 2, delta * x
    sizes = kept = np.abs(start(given, state))
    times_exponent = lost = np.zeros_like(sizes)
    summed = np.zeros(sizes.shape[:3])
    root = LAMBDA * math.sqrt(n)
    y = np.empty(given.x.shape)
    for t in range(n):
        decayed, entered = decay[:, :, t], np.abs(into[:, :, t])
        times_exponent = decayed * (times_exponent + exponents[:, :, t] * sizes)
        sizes, kept = decayed * sizes + entered, kept + entered
        lost = decayed * lost + entering[:, :, t]
        summed = decayed.max(-1, initial=0.0) * summed + driven[:, :, t]
        moved = (8 + LAMBDA * math.sqrt(states) + 4 * root) * sizes + root * times_exponent
        off = a * moved + TAU * (lost + kept)
        y[:, :, t] = np.einsum("bhpn,bhn->bhp", off, c[:, :, t])
        y[:, :, t] += TAU * (sizes.sum(-1) + states * (1 + summed) + 1)
    if given.skip is not None:
        y += 2 * a * np.abs(np.asarray(given.skip, np.float64)[:, None] * given.x)
    y += (u + a) * np.abs(recurrent(given, state).y) + vanishing(dtype)
    return Scanned(y, a * ((8 + 4 * root) * sizes + root * times_exponent) + TAU * (lost + kept))
