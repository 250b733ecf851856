"""Numbers of the page on scores."""

import numpy as np

from concepts.facts import fact
from concepts.figures.scoring import FIGURES, KEYS, QUERY, W_K, W_Q, costs, every_score
from kernels.scoring.softness import gap_needed, leading_weight

MATCHES, COSTS = FIGURES
USUAL = MATCHES.usual
FOUND = every_score(USUAL)
COST = costs(*(int(one.usual) for one in COSTS.controls))
HIDDEN = W_Q @ np.array(QUERY[0]) + W_K @ np.array(KEYS[0])


def _of(name: str, key: int) -> float:
    return float(FOUND[name][key - 1])


@fact("scoring-dot-1", ".0f")
def dot_1() -> float:
    return _of("dot", 1)


@fact("scoring-dot-2", ".0f")
def dot_2() -> float:
    return _of("dot", 2)


@fact("scoring-scaled-1", ".3f")
def scaled_1() -> float:
    return _of("scaled_dot", 1)


@fact("scoring-cosine-1", ".3f")
def cosine_1() -> float:
    return _of("cosine", 1)


@fact("scoring-cosine-2", ".3f")
def cosine_2() -> float:
    return _of("cosine", 2)


@fact("scoring-general-1", ".1f")
def general_1() -> float:
    return _of("general", 1)


@fact("scoring-additive-1", ".3f")
def additive_1() -> float:
    return _of("additive", 1)


@fact("scoring-hidden", ".1f")
def hidden() -> tuple[float, ...]:
    return tuple(HIDDEN.tolist())


@fact("scoring-tanh", ".4f")
def tanh() -> tuple[float, ...]:
    return tuple(np.tanh(HIDDEN).tolist())


@fact("scoring-length-q", ".3f")
def length_q() -> float:
    return float(np.linalg.norm(QUERY[0]))


@fact("scoring-length-k", ".3f")
def length_k() -> float:
    return float(np.linalg.norm(KEYS[0]))


@fact("scoring-length-k2", ".3f")
def length_k2() -> float:
    return float(np.linalg.norm(KEYS[1]))


@fact("scoring-stretched", ".0f")
def stretched() -> float:
    """The dot product of key 1 once it is twice as long."""
    return float(every_score({**USUAL, "stretch": 2.0})["dot"][0])


@fact("scoring-cosine-most", ".3f")
def cosine_most() -> float:
    """What a key at cosine 1 gets beside 63 at −1."""
    return leading_weight(2.0, 64)


@fact("scoring-beta", ".2f")
def beta() -> float:
    """β for which it gets 0.9."""
    return gap_needed(0.9, 64) / 2.0


@fact("scoring-thin", ",d")
def thin() -> int:
    return 2 * 768 * 64


@fact("scoring-square", ",d")
def square() -> int:
    return 768 * 768


@fact("scoring-times", ".2f")
def times() -> float:
    return COST["additive"].multiply_adds / COST["dot"].multiply_adds


@fact("scoring-share", ".1f")
def share() -> float:
    return 100 * COST["additive"].in_products / COST["additive"].multiply_adds


@fact("scoring-tanh-count", ",d")
def tanh_count() -> int:
    return COST["additive"].functions


@fact("scoring-concat-times", ".0f")
def concat_times() -> float:
    return COST["concat"].multiply_adds / COST["dot"].multiply_adds
