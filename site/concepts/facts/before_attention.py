"""Numbers of the page on what came before attention."""

import math

from concepts.facts import fact
from concepts.figures.before_attention import FIGURES, alignment, slopes

PATHS, ALIGNMENT = (figure.usual for figure in FIGURES)
TOKENS = int(PATHS["tokens"])
FOUND = alignment(ALIGNMENT["sharpness"], ALIGNMENT["by"])
VECTOR, BITS, VOCABULARY = 1000, 16, 30_000
FADES = 0.8


@fact("before-left", ".2f")
def left() -> float:
    """Of the slope by the first of 50 states, in millionths."""
    return 1e6 * slopes(TOKENS, PATHS["gain"])[-1]


@fact("before-equal", ".2f")
def equal() -> float:
    return 1 / TOKENS


@fact("before-half", ".2f")
def half() -> float:
    return slopes(TOKENS, 1.5)[-1]


@fact("before-two", ".0f")
def two() -> float:
    return slopes(TOKENS, 2.0)[-1]


@fact("before-vector", ",d")
def vector() -> int:
    return VECTOR


@fact("before-vocabulary", ",d")
def vocabulary() -> int:
    return VOCABULARY


@fact("before-bits", ".1f")
def bits() -> float:
    """Of one word."""
    return math.log2(VOCABULARY)


@fact("before-words", ",.0f")
def words() -> float:
    """How many words a vector can tell apart, if every bit counts."""
    return math.floor(VECTOR * BITS / math.log2(VOCABULARY))


@fact("before-ten", ".3f")
def ten() -> float:
    return FADES**10


@fact("before-fifty", ".6f")
def fifty() -> float:
    return FADES**50


@fact("before-fifty-times", ",.0f")
def fifty_times() -> float:
    """What a weight of 1/50 is beside it."""
    return 1 / 50 / FADES**50


@fact("before-la-area", ".2f")
def la_area() -> float:
    return float(FOUND.weights[0, 3])


@fact("before-area", ".2f")
def area() -> float:
    """What “Area” collects of all words."""
    return float(FOUND.collected[3])
