"""Numbers of the worked example."""

from itertools import product

import numpy as np

from concepts.facts import fact
from concepts.figures.by_hand import KEYS, QUERIES, VALUES, steps

EXAMPLE = steps(QUERIES, KEYS, VALUES)


def _shown(values: np.ndarray) -> np.ndarray:
    """The values as they are displayed, with four decimals."""
    return np.round(values, 4)


@fact("by-hand-root", ".4f")
def root() -> float:
    return float(np.sqrt(2))


@fact("by-hand-s33", ".0f")
def s33() -> float:
    return float(EXAMPLE.scores[2, 2])


@fact("by-hand-t31", ".4f")
def t31() -> float:
    return float(EXAMPLE.scaled[2, 0])


@fact("by-hand-t33", ".4f")
def t33() -> float:
    return float(EXAMPLE.scaled[2, 2])


@fact("by-hand-e31", ".4f")
def e31() -> float:
    return float(EXAMPLE.powers[2, 0])


@fact("by-hand-sum3", ".4f")
def sum3() -> float:
    return float(EXAMPLE.sums[2])


@fact("by-hand-w31", ".4f")
def w31() -> float:
    return float(EXAMPLE.weights[2, 0])


@fact("by-hand-w33", ".4f")
def w33() -> float:
    return float(EXAMPLE.weights[2, 2])


@fact("by-hand-z1", ".4f")
def z1() -> tuple[float, ...]:
    return tuple(float(x) for x in EXAMPLE.out[0])


@fact("by-hand-z2", ".4f")
def z2() -> tuple[float, ...]:
    return tuple(float(x) for x in EXAMPLE.out[1])


@fact("by-hand-z3", ".4f")
def z3() -> tuple[float, ...]:
    return tuple(float(x) for x in EXAMPLE.out[2])


@fact("by-hand-z3-from-shown", ".4f")
def z3_from_shown() -> tuple[float, ...]:
    """z₃ as someone gets it who copies the displayed weights into a calculator."""
    return tuple(float(x) for x in _shown(EXAMPLE.weights)[2] @ np.array(VALUES))


@fact("by-hand-shown-sum3", ".4f")
def shown_sum3() -> float:
    return float(_shown(EXAMPLE.weights)[2].sum())


@fact("by-hand-columns", ".4f")
def columns() -> tuple[float, ...]:
    return tuple(float(x) for x in EXAMPLE.weights.sum(axis=0))


@fact("by-hand-column-total", ".0f")
def column_total() -> float:
    return float(EXAMPLE.weights.sum())


@fact("by-hand-unscaled-w33", ".4f")
def unscaled_w33() -> float:
    """The largest weight of row 3 when the division by √d is left out."""
    powers = np.exp(EXAMPLE.scores[2])
    return float(powers[2] / powers.sum())


@fact("by-hand-overflow", ".2f")
def overflow() -> float:
    """The largest x whose exp fits a float32."""
    return float(np.log(np.finfo(np.float32).max))


@fact("by-hand-half-overflow", ".2f")
def half_overflow() -> float:
    """The largest x whose exp fits a float16."""
    return float(np.log(float(np.finfo(np.float16).max)))


@fact("by-hand-ratio", ".4f")
def ratio() -> float:
    """How many times the weight of key 1 query 3 gives to key 3."""
    return float(np.exp(EXAMPLE.scaled[2, 2] - EXAMPLE.scaled[2, 0]))


@fact("by-hand-w13", ".4f")
def w13() -> float:
    return float(EXAMPLE.weights[0, 2])


@fact("by-hand-pairs", "d")
def pairs_of_matrices() -> int:
    """How many matrices Q and K of whole numbers from −2 to 2 have the weights of the example: those whose
    scores differ from its scores by a constant in each row. So each query can be looked for by itself."""
    numbers = range(-2, 3)
    queries = np.array([*product(numbers, repeat=2)])
    keys = np.array([*product(numbers, repeat=6)]).reshape(-1, 3, 2)
    found = np.einsum("qd,kjd->kqj", queries, keys - keys[:, :1])
    wanted = EXAMPLE.scores - EXAMPLE.scores[:, :1]
    fits = (found[:, None] == wanted[None, :, None]).all(axis=-1)  # matrix K, row of the example, query
    return int(fits.sum(axis=-1).prod(axis=-1).sum())


@fact("by-hand-zero-key-row", ".4f")
def zero_key_row() -> tuple[float, ...]:
    """Weights of query 1 when the third key is (0, 0)."""
    return tuple(float(x) for x in steps(QUERIES, [[1, 0], [0, 1], [0, 0]], VALUES).weights[0])


@fact("by-hand-zero-key-old-row", ".4f")
def zero_key_old_row() -> tuple[float, ...]:
    return tuple(float(x) for x in EXAMPLE.weights[0])
