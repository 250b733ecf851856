"""What a text longer than those of the training asks of rotary positions (numpy, float64).

**Angles.** In n tokens the pair i of a head turns by as much as n·ωᵢ. A training on L tokens has shown it the
angles up to L·ωᵢ, and all there are once that is a whole circle. So a pair meets *new* angles in a longer
text if it did not turn once in the training and n·ω′ᵢ > L·ωᵢ, where ω′ are the frequencies in use, perhaps
stretched (``kernels.rope``). That is what Chen et al. (2023, arXiv 2306.15595, §2.3) and Peng et al. (2023,
arXiv 2309.00071, §3.2) reason with. It says what is unlike the training, not how well a model copes with it.

**Scores.** As a function of the distance t, a score is a(t) = Σ cᵢ cos tωᵢ + dᵢ sin tωᵢ, whose coefficients
are made by query and key. Figure 2 of Chen et al. fits them by least squares to random scores at the
distances 0 … L − 1: the fit is tame there and may be anything beyond. ``fit`` does the same, with a price on
the square of each coefficient (a ridge), without which the answer is a matter of rounding.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from kernels.arrays import Array, generate
from kernels.rope import frequencies
from kernels.spec.model import Rope

SAME = 1e-9  # relative: what differs by no more differs by rounding
LIMIT = 2**40  # tokens; a text that is longer is as good as endless
WHOLE = 2 * np.pi


def omegas(rope: Rope, dim: int, length: int) -> Array:
    """Radians a token of each pair in a text of so many tokens, [dim/2]."""
    return np.asarray(frequencies(rope, dim, length)[0])


def unturned(rope: Rope, dim: int, length: int) -> Array:
    """Which pairs do not turn once within so many tokens, bool [dim/2]."""
    return np.asarray(length * omegas(rope, dim, length) < WHOLE * (1 - SAME))


def new_angles(trained: Rope, used: Rope, dim: int, trained_length: int, length: int) -> Array:
    """Which pairs meet angles in a text of ``length`` tokens that they did not in training, bool [dim/2]."""
    seen = trained_length * omegas(trained, dim, trained_length)
    needed = length * omegas(used, dim, length)
    return np.asarray(unturned(trained, dim, trained_length) & (needed > seen * (1 + SAME)))


def reach(trained: Rope, used: Rope, dim: int, trained_length: int) -> int | None:
    """The longest text without a new angle, in tokens; None where there is no longest.

    By halving: a text that has new angles has them still when it goes on. Of ``dynamic`` that is so as well:
    how much slower a pair turns is a concave function of the length.
    """

    def is_new(length: int) -> bool:
        return bool(new_angles(trained, used, dim, trained_length, length).any())

    if not is_new(LIMIT):
        return None
    good, bad = 0, LIMIT
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (good, middle) if is_new(middle) else (middle, bad)
    return good


def waves(distances: Array, rope: Rope, dim: int) -> Array:
    """Sines and cosines of the angles at each distance, [n, dim]: a score is a sum of such."""
    angles = distances.astype(np.float64)[:, None] * omegas(rope, dim, 1)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def fit(seed: int, price: float, dim: int, base: float, length: int) -> Array:
    """Coefficients [dim] of a score that comes near to random numbers at the distances 0 … length − 1.

    They minimise Σ (a(t) − yₜ)² + price · Σ c², for a price above 0.
    """
    left, sizes, right = _decomposed(dim, base, length)
    wanted = generate("scores", seed, (length,), "normal", "float64")
    return np.asarray(right.T @ (sizes / (sizes**2 + price) * (left.T @ wanted)))


@lru_cache(maxsize=4)
def _decomposed(dim: int, base: float, length: int) -> tuple[Array, Array, Array]:
    found = np.linalg.svd(waves(np.arange(length), Rope("half", theta=base), dim), full_matrices=False)
    return found.U, found.S, found.Vh
