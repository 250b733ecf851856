"""Numbers of the page on attention in code."""

import math

import numpy as np

from concepts.facts import fact
from concepts.figures.sdpa_in_code import CASES, met_by, outcome
from kernels.snippet import REPAIRS

EVERY = frozenset(REPAIRS)


def found(case: str, *repaired: str) -> np.ndarray:
    """Weights of a case where the program does not stop."""
    weights = outcome(case, frozenset(repaired)).found
    if weights is None:
        raise ValueError(f"{case} stops")
    return weights


@fact("snippet-inputs", ".0f")
def inputs() -> int:
    return len(CASES)


@fact("snippet-right", ".0f")
def right_as_found() -> int:
    return sum(outcome(name, frozenset()).is_right for name in CASES)


@fact("snippet-most", ".0f")
def most_met() -> int:
    """How many repairs the most demanding input needs."""
    return max(len(met_by(name)) for name in CASES)


# -- booleans that are added, with five equal scores of which two are padding --------------------------------


def added() -> np.ndarray:
    powers = np.exp([1.0, 1.0, 1.0, 0.0, 0.0])
    return np.asarray(powers / powers.sum())


@fact("snippet-added-sum", ".3f")
def added_sum() -> float:
    return 3 * math.e + 2


@fact("snippet-added-real", ".3f")
def added_real() -> float:
    return float(added()[0])


@fact("snippet-added-padding", ".3f")
def added_padding() -> float:
    return float(added()[4])


@fact("snippet-added-leak", ".0f")
def added_leak() -> float:
    """Per cent of the output that is padding."""
    return 100 * float(added()[3:].sum())


@fact("snippet-padding-leak", ".2f")
def padding_leak() -> float:
    """What the second query of the figure gives to padding."""
    return float(found("padding")[1, 3:].sum())


# -- one repair uncovers the next ----------------------------------------------------------------------------


@fact("snippet-bias-lost", ".3f")
def bias_lost() -> float:
    """What the last query gives to its own key, where the bias is lost."""
    return float(found("bias")[3, 3])


@fact("snippet-bias-twice", ".3f")
def bias_twice() -> float:
    return float(found("bias", "keep")[3, 3])


@fact("snippet-bias-right", ".3f")
def bias_right() -> float:
    return float(found("bias", *EVERY)[3, 3])


# -- precision -----------------------------------------------------------------------------------------------


@fact("snippet-half-largest", ",.0f")
def half_largest() -> float:
    return float(np.finfo(np.float16).max)


@fact("snippet-large-product", ",.0f")
def large_product() -> float:
    return 256.0**2


@fact("snippet-large-scaled", ",.0f")
def large_scaled() -> float:
    return 256.0**2 / math.sqrt(2)


@fact("snippet-large-grain", ".0f")
def large_grain() -> float:
    """How far apart float16 numbers are there."""
    return float(np.spacing(np.float16(large_scaled())))


@fact("snippet-bfloat-grain", ",.0f")
def bfloat_grain() -> float:
    """The distance of neighbouring bfloat16 numbers at −10⁹: 8 significant bits."""
    return 2.0 ** (math.floor(math.log2(1e9)) - 7)


# -- dropout -------------------------------------------------------------------------------------------------


@fact("snippet-dropped", ".0f")
def dropped() -> int:
    """How many of the 16 weights of the figure are 0 in evaluation."""
    return int((found("dropout") == 0).sum())


@fact("snippet-dropout-sums", ".2f")
def dropout_sums() -> tuple[float, ...]:
    """What its rows add up to."""
    return tuple(float(x) for x in found("dropout").sum(axis=1))
