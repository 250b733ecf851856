"""Numbers of the page on self-attention and cross-attention."""

import numpy as np

from concepts.facts import fact
from concepts.figures.projections import FIGURE, KEY_WIDTH, OTHER, TEXT, W_K, W_Q, steps

USUAL = steps(TEXT, TEXT)
BIT, DOG, MAN = TEXT.index("bit"), TEXT.index("dog"), TEXT.index("man")


def _numbers(row: np.ndarray) -> tuple[float, ...]:
    return tuple(float(x) for x in np.round(row, 9) + 0.0)


@fact("projections-bit-x", ".1f")
def bit_x() -> tuple[float, ...]:
    return _numbers(USUAL.x[BIT])


@fact("projections-bit-q", ".2f")
def bit_q() -> tuple[float, ...]:
    return _numbers(USUAL.q[BIT])


@fact("projections-dog-k", ".2f")
def dog_k() -> tuple[float, ...]:
    return _numbers(USUAL.k[DOG])


@fact("projections-bit-dog-score", ".3f")
def bit_dog_score() -> float:
    return float(USUAL.q[BIT] @ USUAL.k[DOG] / KEY_WIDTH**0.5)


@fact("projections-dog-bit-score", ".3f")
def dog_bit_score() -> float:
    return float(USUAL.q[DOG] @ USUAL.k[BIT] / KEY_WIDTH**0.5)


@fact("projections-bit-dog", ".3f")
def bit_dog() -> float:
    return float(USUAL.weights[BIT, DOG])


@fact("projections-bit-man", ".3f")
def bit_man() -> float:
    return float(USUAL.weights[BIT, MAN])


@fact("projections-the", ".2f")
def the() -> tuple[float, ...]:
    return _numbers(USUAL.out[0])


@fact("projections-causal-change", ".3f")
def causal_change() -> float:
    """By how much the output of “bit” changes when a causal text is read backwards."""
    state = FIGURE.data({"kind": "causal"})["values"]
    return float(FIGURE.differences(state)[BIT])


@fact("projections-merged-rank", ".0f")
def merged_rank() -> int:
    """Of the 4 × 4 matrix that the two projections amount to."""
    return int(np.linalg.matrix_rank(W_Q @ W_K.T))


@fact("projections-cross-weights", ".0f")
def cross_weights() -> int:
    return int(steps(TEXT, OTHER).weights.size)
