"""What a penalty for distance leaves of far keys: ALiBi (Press, Smith and Lewis, ICLR 2022), by arithmetic.

A key t positions away loses m·t of its score, so that its exponential shrinks by e^(−m·t). Of equal scores
the weights are a geometric series. Of an endless text

    the nearest w keys have 1 − e^(−m·w),    what lies further back e^(−m·w),

and a key whose score leads by g weighs as much as the query's own key at the distance g/m. Scores that lie
within b of 0 change the far share by a factor of e^(2b) at most: the exponentials of far keys grow by e^b
and those of all keys shrink by e^(−b), no more. Slopes are those of ``kernels.positions.automatic_slopes``.
"""

from __future__ import annotations

import math

import numpy as np

from kernels.arrays import Array, bfloat16_to_float32, float32_to_bfloat16
from kernels.positions import automatic_slopes

FORMS = ("causal", "symmetric", "halves", "signed")


def remains(slope: float, distance: Array | float) -> Array:
    """What is left of the exponential of a key at that distance: e^(−m·t)."""
    return np.exp(-slope * np.asarray(distance, dtype=np.float64))


def beyond(slope: float, near: int, keys: int | None = None) -> float:
    """The share of the weight that keys further back than the nearest ``near`` have, of ``keys`` with equal
    scores; None: of an endless text."""
    if keys is not None and keys <= near:
        return 0.0
    whole = 1.0 if keys is None else -math.expm1(-slope * keys)
    left = math.exp(-slope * near) - (0.0 if keys is None else math.exp(-slope * keys))
    return left / whole


def nearest(slope: float, share: float) -> int:
    """How many of the nearest keys together have that share of the weight, of an endless text with equal
    scores. ValueError unless 0 < share < 1 and slope > 0."""
    if not 0.0 < share < 1.0 or slope <= 0.0:
        raise ValueError(
            f"a slope above 0 and a share between 0 and 1 have a window, not {slope:g}, {share:g}"
        )
    return math.ceil(-math.log1p(-share) / slope)


def reach(slope: float, lead: float) -> float:
    """The distance at which a key that leads by ``lead`` weighs as much as the query's own."""
    return lead / slope


def biases(heads: int, query: int, keys: int, form: str = "causal") -> Array:
    """What the heads add to the scores of one query with its keys, both counted from 0: [heads, keys].

    * ``causal``: −m·(i − j), and −∞ for what comes later;
    * ``symmetric``: −m·|i − j| on both sides;
    * ``halves``: the slopes of half as many heads, twice: one half looks back as in ``causal``, the other
      ahead (the authors' issue 5). ``heads`` is even;
    * ``signed``: −m·(i − j) without a mask, by which later keys gain.

    ValueError for any other ``form``.
    """
    if form not in FORMS:
        raise ValueError(f"form is one of {', '.join(FORMS)}, not {form!r}")
    ahead = np.arange(keys, dtype=np.float64) - query
    slopes = automatic_slopes(heads // 2) * 2 if form == "halves" else automatic_slopes(heads)
    m = np.array(slopes)[:, None]
    if form == "signed":
        return np.asarray(m * ahead)
    penalty = 0.0 - m * np.abs(ahead)  # no −0 at the query
    if form == "symmetric":
        return np.asarray(penalty)
    looks_ahead = np.arange(heads)[:, None] >= (heads // 2 if form == "halves" else heads)
    return np.where(np.where(looks_ahead, ahead >= 0, ahead <= 0), penalty, -np.inf)


def distinct_in_bfloat16(slope: float, positions: Array) -> int:
    """How many different numbers slope · position are, once rounded to bfloat16."""
    products = (slope * np.asarray(positions)).astype(np.float32)
    return len(np.unique(bfloat16_to_float32(float32_to_bfloat16(products))))
