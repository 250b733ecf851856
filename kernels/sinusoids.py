"""Positions as vectors of sines and cosines (Vaswani et al. 2017, §3.5; numpy, float64).

The numbers 2i and 2i + 1 of the vector of position p are sin pωᵢ and cos pωᵢ, with the frequencies of RoPE,
ωᵢ = b^(−2i/d). So the product of two such vectors is Σ cos (m − n)ωᵢ: d/2 for the same position, and the same
for any two that are as far apart.
"""

from __future__ import annotations

import numpy as np

from kernels.arrays import Array
from kernels.rope import frequencies
from kernels.spec.model import Rope


def sinusoids(positions: Array, dim: int, base: float = 10_000.0) -> Array:
    """[n, dim] of positions [n]; dim is even."""
    omega, _ = frequencies(Rope("interleaved", theta=base), dim, 1)
    angles = positions.astype(np.float64)[:, None] * omega
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(len(positions), dim)
