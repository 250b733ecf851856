"""Numbers of the page on soft, hard and local attention."""

import numpy as np

from concepts.facts import fact
from concepts.figures.soft_hard_local import FIGURES, SOFT, drawn, views
from kernels.scoring.hard import reinforce

HARD, WINDOW = (figure.usual for figure in FIGURES)
DRAWN = drawn(HARD["draws"], HARD["seed"], HARD["constant"])
VIEWS = views(WINDOW["centre"], WINDOW["reach"])
HALVES, REWARDS = np.array([[0.5, 0.5]]), np.array([[11.0, 9.0]])


def _variance(baseline: str) -> float:
    return float(DRAWN.by_baseline[baseline].variance.sum())


@fact("hard-soft", ".3f")
def soft() -> float:
    return SOFT


@fact("hard-none", ".1f")
def none() -> float:
    return _variance("none")


@fact("hard-expected", ".2f")
def expected() -> float:
    return _variance("expected")


@fact("hard-optimal", ".2f")
def optimal() -> float:
    return _variance("optimal")


@fact("hard-times", ".0f")
def times() -> float:
    return _variance("none") / _variance("expected")


@fact("hard-coin-exact", ".1f")
def coin_exact() -> float:
    return float(reinforce(HALVES, REWARDS, np.array([[0]])).exact[0, 0])


@fact("hard-coin-first", ".1f")
def coin_first() -> float:
    """What a draw of the first key says of the first score."""
    return float(reinforce(HALVES, REWARDS, np.array([[0]])).estimate[0, 0])


@fact("hard-coin-second", ".1f")
def coin_second() -> float:
    return float(reinforce(HALVES, REWARDS, np.array([[1]])).estimate[0, 0])


@fact("hard-coin-variance", ".0f")
def coin_variance() -> float:
    return float(reinforce(HALVES, REWARDS, np.array([[0]])).variance[0, 0])


@fact("hard-coin-with", ".0f")
def coin_with() -> float:
    """The variance with the expected reward, which is 10, as the baseline."""
    return float(reinforce(HALVES, REWARDS, np.array([[0]]), "expected").variance[0, 0])


@fact("window-keys", "d")
def window_keys() -> int:
    return VIEWS.plain.pairs


@fact("window-share", ".2f")
def window_share() -> float:
    return float(VIEWS.plain.inside[0, 0, 0])


@fact("window-sum", ".2f")
def window_sum() -> float:
    return float(VIEWS.faded.weights.sum())


@fact("window-paper", "d")
def window_paper() -> int:
    """Keys within 10 of a whole number."""
    return len(range(-10, 11))


@fact("window-pairs", ",d")
def window_pairs() -> int:
    """Scores of 4,096 queries in a window of 10 to either side of their own number."""
    return sum(min(t + 10, 4095) - max(t - 10, 0) + 1 for t in range(4096))


@fact("window-all", ",d")
def window_all() -> int:
    return 4096**2
