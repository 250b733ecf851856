"""Numbers of the page on masks."""

import numpy as np

from concepts.facts import fact
from concepts.figures.masks import Rules, allowed_by, scores_of
from kernels.mistakes import masked_weights


def _causal(queries: int, keys: int, mistake: str | None = None) -> np.ndarray:
    allowed = allowed_by(queries, keys, Rules(is_causal=True))
    return masked_weights(scores_of(queries, keys), allowed, mistake)


@fact("masks-open", ".0f")
def open_pairs() -> int:
    return int(allowed_by(5, 5, Rules(is_causal=True)).sum())


@fact("masks-first-sum", ".2f")
def first_sum() -> float:
    """What row 1 adds up to where 0 is written after the softmax."""
    return float(_causal(5, 5, "zero_after")[0].sum())


@fact("masks-first-of-three", ".2f")
def first_of_three() -> float:
    """The same weight when the text has three tokens: it knew of those that came later."""
    return float(_causal(3, 3, "zero_after")[0, 0])


@fact("masks-wide-bottom", ".0f")
def wide_bottom() -> int:
    """What the first of 4 queries sees of 16 keys, from the bottom right."""
    return int(allowed_by(4, 16, Rules(is_causal=True, window=16, real=16), "bottom_right")[0].sum())


@fact("masks-row-two", ".2f")
def row_two() -> tuple[float, ...]:
    return tuple(float(x) for x in _causal(5, 5)[1, :2])


@fact("masks-row-two-scores", ".2f")
def row_two_scores() -> tuple[float, ...]:
    return tuple(float(x) for x in scores_of(5, 5)[1])


@fact("masks-row-two-powers", ".3f")
def row_two_powers() -> tuple[float, ...]:
    """Exponentials of the scores that query 2 may see, less the largest of them."""
    scores = scores_of(5, 5)[1, :2]
    return tuple(float(x) for x in np.exp(scores - scores.max()))


@fact("masks-added-leak", ".2f")
def added_leak() -> float:
    """What query 2 gives to key 4, which comes later, where the mask is added as 1 and 0."""
    return float(_causal(5, 5, "added")[1, 3])


@fact("masks-lost-gap", ".0f")
def lost_gap() -> float:
    """How far below the largest score a float32 exponential is 0."""
    return float(-np.log(float(np.finfo(np.float32).smallest_subnormal) / 2))


@fact("masks-grain", ".0f")
def grain() -> float:
    """The distance between neighbouring float32 numbers at −10⁹."""
    return float(np.spacing(np.float32(1e9)))


@fact("masks-share", ".2f")
def share() -> float:
    """Per cent of all pairs that a causal mask leaves of a text of 4,096 tokens."""
    return 100 * (4096 + 1) / (2 * 4096)
