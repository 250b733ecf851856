"""Numbers of the page on the division by √d."""

import math
from collections import Counter
from functools import cache
from itertools import product

import numpy as np

from concepts.facts import fact
from concepts.figures.sqrt_dk import FIGURES, LAYERS, SURE, spreads
from kernels.scoring.softness import gap_needed, largest_weights, leading_weight, score_deviation

USUAL = FIGURES[0].usual
RAW, SCALED, _BY_D = spreads(int(USUAL["d"]), int(USUAL["draw"]))
COINS = Counter(abs(sum(signs)) for signs in product((1, -1), repeat=4))


@cache
def many() -> np.ndarray:
    """The largest weights of 4,096 rows of unscaled scores, d = 64 and 64 keys."""
    return largest_weights(64, 64, scale=1.0, sets=64, seed=1)


@fact("sqrt-d", ".0f")
def usual_d() -> float:
    return float(USUAL["d"])


@fact("sqrt-raw-deviation", ".2f")
def raw_deviation() -> float:
    return float(RAW.scores.std())


@fact("sqrt-raw-largest", ".2f")
def raw_largest() -> float:
    return float(RAW.largest.mean())


@fact("sqrt-scaled-largest", ".2f")
def scaled_largest() -> float:
    return float(SCALED.largest.mean())


@fact("sqrt-coins-0", "d")
def coins_0() -> int:
    """Of the 16 choices of four signs, how many sum to 0."""
    return COINS[0]


@fact("sqrt-coins-2", "d")
def coins_2() -> int:
    return COINS[2]


@fact("sqrt-coins-4", "d")
def coins_4() -> int:
    return COINS[4]


@fact("sqrt-coins-variance", ".0f")
def coins_variance() -> float:
    return sum(count * size**2 for size, count in COINS.items()) / COINS.total()


@fact("sqrt-pair-ratio", ",.0f")
def pair_ratio() -> float:
    return math.exp(16)


@fact("sqrt-pair-weight", ".8f")
def pair_weight() -> float:
    return leading_weight(16, 2)


@fact("sqrt-pair-slope", ".2f")
def pair_slope() -> float:
    """p(1 − p), in millionths."""
    return 1e6 * leading_weight(16, 2) * leading_weight(-16, 2)


@fact("sqrt-by-hand", ".4f")
def by_hand() -> float:
    return leading_weight(1 / math.sqrt(2), 3)


@fact("sqrt-ln-32", ".2f")
def ln_32() -> float:
    return gap_needed(0.5, 131_073) - gap_needed(0.5, 4097)


@fact("sqrt-stack", ",.0f")
def stack() -> float:
    return score_deviation(64) ** LAYERS


@fact("sqrt-many-largest", ".2f")
def many_largest() -> float:
    return float(many().mean())


@fact("sqrt-many-sure", ".0f")
def many_sure() -> float:
    return 100 * float((many() > SURE).mean())


@fact("sqrt-lead-4k", ".3f")
def lead_4k() -> float:
    return leading_weight(10, 4096)


@fact("sqrt-lead-131k", ".3f")
def lead_131k() -> float:
    return leading_weight(10, 131_072)


@fact("sqrt-needed-4k", ".1f")
def needed_4k() -> float:
    return gap_needed(0.99, 4096)


@fact("sqrt-needed-131k", ".1f")
def needed_131k() -> float:
    return gap_needed(0.99, 131_072)


@fact("sqrt-matched", ".3f")
def matched() -> float:
    """Of a key whose score is √64 above those of 63 others."""
    return leading_weight(score_deviation(64), 64)
