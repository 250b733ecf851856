"""Numbers of the page on positions."""

import math
from functools import partial

import numpy as np

from concepts.facts import fact
from concepts.figures.positions import FIGURES
from kernels.sinusoids import sinusoids
from kernels.sizing.models import models

WAVES, _TABLE, SEGMENTS = FIGURES

# -- the figure as the page opens with it --------------------------------------------------------------------


def product(distance: int) -> float:
    """Of two positions that are this far apart."""
    values = WAVES.data({})["values"]
    return float(WAVES.products(values)[values["p"] + distance])


for name, distance in (("itself", 0), ("near", 1), ("far", 10)):
    fact(f"positions-{name}", ".3g")(partial(product, distance))


# -- four numbers by hand ------------------------------------------------------------------------------------


def hand(position: int) -> tuple[float, ...]:
    return tuple(sinusoids(np.array([position]), 4)[0].tolist())


for position in (1, 3, 11, 13):
    fact(f"positions-hand-{position}", ".4f")(partial(hand, position))


def hand_product(one: int, other: int) -> float:
    return float(np.dot(hand(one), hand(other)))


fact("positions-hand-product", ".4f")(partial(hand_product, 1, 3))
fact("positions-hand-far-product", ".4f")(partial(hand_product, 11, 13))

# -- sizes ---------------------------------------------------------------------------------------------------


@fact("positions-length", ".0f")
def length() -> float:
    """Of any position's vector, with 512 numbers."""
    return float(np.linalg.norm(sinusoids(np.array([77]), 512)))


@fact("positions-embedding-factor", ".1f")
def embedding_factor() -> float:
    return math.sqrt(512)


@fact("positions-gpt2-table", ",d")
def gpt2_table() -> int:
    config = models()["gpt2"].config
    return int(config["n_positions"] * config["n_embd"])


@fact("positions-gpt2-rows", ",d")
def gpt2_rows() -> int:
    return int(models()["gpt2"].config["n_positions"])


@fact("positions-reach", "d")
def reach() -> int:
    """Tokens before its own segment that the last one hears of in the figure."""
    return SEGMENTS.before(SEGMENTS.usual)
