"""Numbers of the page on weighted averages."""

import numpy as np

from concepts.facts import fact
from concepts.figures.average import FIGURE, KEYS, RIGHT, VALUES, averages


def _at(query: float, sharpness: float) -> tuple[np.ndarray, float]:
    found = averages(np.array([query]), sharpness)
    return found.weights[0], float(found.out[0])


@fact("average-usual-out", ".3f")
def usual_out() -> float:
    return _at(0.5, 2.0)[1]


@fact("average-usual-weight", ".3f")
def usual_weight() -> float:
    """What the keys at 0 and 1 get, which are equally near to 0.5."""
    return float(_at(0.5, 2.0)[0][2])


@fact("average-mean", ".0f")
def mean() -> float:
    return float(VALUES.mean())


@fact("average-sharp-weight", ".4f")
def sharp_weight() -> float:
    """What the nearest key gets of a query at 0.75 with sharpness 20."""
    return float(_at(0.75, 20.0)[0].max())


@fact("average-twin-before", ".3f")
def twin_before() -> float:
    return float(_at(1.0, 2.0)[0][3])


@fact("average-twin-after", ".3f")
def twin_after() -> float:
    """The share of the key at 1 once there are two of it: both together get more than the one did."""
    scores = 2.0 * (KEYS - KEYS**2 / 2)
    powers = np.exp(np.append(scores, scores[3]))
    return float(2 * powers[3] / powers.sum())


@fact("average-usual-query", ".1f")
def usual_query() -> float:
    return float(next(control for control in FIGURE.controls if control.name == "query").usual)


@fact("average-far-query", ".0f")
def far_query() -> float:
    return RIGHT
