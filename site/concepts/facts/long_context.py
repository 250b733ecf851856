"""Numbers of the page on longer texts."""

from functools import partial
from typing import Any

import numpy as np

from concepts.facts import fact
from concepts.figures.long_context import FIGURES, rope_of
from kernels.rope import rotation_index, stretched_base
from kernels.sizing.models import models
from kernels.spec.rope import BETA_FAST, BETA_SLOW, ORIGINAL
from kernels.stretching import omegas

STRETCH, WILD = FIGURES
USUAL = STRETCH.usual  # a head of Llama 2, and a text of 8 times 4,096
LENGTH, FACTOR, DIM, BASE = (USUAL[name] for name in ("length", "s", "d", "b"))
PLACE = 8191  # of the query in the example by hand


def of_pair(way: str, pair: int) -> float:
    return float(STRETCH.omegas(USUAL, way)[pair])


# -- the figure as the page opens with it --------------------------------------------------------------------


@fact("long-unturned", "d")
def unturned() -> int:
    return int(STRETCH.slow(USUAL).sum())


@fact("long-first-slow", "d")
def first_slow() -> int:
    return int(np.flatnonzero(STRETCH.slow(USUAL))[0])


@fact("long-slowest-degrees", ".0f")
def slowest_degrees() -> float:
    """How far the last pair turns in training."""
    return float(np.degrees(LENGTH * of_pair("plain", -1)))


@fact("long-ntk-new", "d")
def ntk_new() -> int:
    return int(STRETCH.new(USUAL, "ntk").sum())


fact("long-ntk-reach", ",")(partial(STRETCH.reach, USUAL, "ntk"))

# -- one pair by hand ----------------------------------------------------------------------------------------


def angle(way: str, position: int) -> float:
    return position * of_pair(way, USUAL["pair"])


def in_degrees(way: str, position: int) -> float:
    return float(np.degrees(angle(way, position)))


def score(way: str, position: int) -> float:
    """Of two vectors of length 1, alike."""
    return float(np.cos(angle(way, position)))


PLACES = {"training": ("plain", LENGTH - 1), "far": ("plain", PLACE), "pi": ("pi", PLACE)}
for name, (way, position) in PLACES.items():
    fact(f"long-hand-{name}", ".1f")(partial(in_degrees, way, position))
    fact(f"long-hand-{name}-score", ".3f")(partial(score, way, position))


@fact("long-hand-place", ",.1f")
def place() -> float:
    """Where PI puts the query."""
    return float(PLACE / FACTOR)


@fact("long-near", ".3f")
def near() -> float:
    """The score of a neighbour in the fastest pair, beside 1 for the key at the same place."""
    return float(np.cos(of_pair("plain", 0)))


@fact("long-near-pi", ".3f")
def near_pi() -> float:
    return float(np.cos(of_pair("pi", 0)))


# -- another base --------------------------------------------------------------------------------------------

fact("long-ntk-base", ",.0f")(partial(stretched_base, BASE, FACTOR, DIM))


@fact("long-ntk-first", ".2f")
def ntk_first() -> float:
    """How much slower NTK-aware scaling makes the first of the slow pairs."""
    return of_pair("plain", first_slow()) / of_pair("ntk", first_slow())


@fact("long-ntk-needed", ".2f")
def ntk_needed() -> float:
    """The factor with which even that one is slowed down enough."""
    return float(FACTOR ** ((DIM - 2) / (2 * first_slow())))


# -- by parts ------------------------------------------------------------------------------------------------

MIDDLE = 33
fact("long-ramp-start", ".1f")(partial(rotation_index, BETA_FAST, BASE, DIM, LENGTH))
fact("long-ramp-end", ".1f")(partial(rotation_index, BETA_SLOW, BASE, DIM, LENGTH))


def kept(way: str) -> np.ndarray:
    """γ of each pair: 1 where it turns as in training, 0 where it is slowed down by s."""
    share = STRETCH.omegas(USUAL, way) / STRETCH.omegas(USUAL, "plain")
    return np.asarray((share - 1 / FACTOR) / (1 - 1 / FACTOR))


@fact("long-yarn-kept", "d")
def yarn_kept() -> int:
    return int((kept("yarn") > 1 - 1e-9).sum())


@fact("long-yarn-divided", "d")
def yarn_divided() -> int:
    return int((kept("yarn") < 1e-9).sum())


@fact("long-middle-turns", ".1f")
def middle_turns() -> float:
    return float(LENGTH * of_pair("plain", MIDDLE) / (2 * np.pi))


@fact("long-middle-paper", ".2f")
def middle_paper() -> float:
    """γ of the paper, for α = 1 and β = 32."""
    turns = middle_turns()
    return float(np.clip((turns - BETA_SLOW) / (BETA_FAST - BETA_SLOW), 0, 1))


@fact("long-middle-programs", ".2f")
def middle_programs() -> float:
    return float(kept("yarn")[MIDDLE])


@fact("long-yarn-root", ".3f")
def yarn_root() -> float:
    return float(np.sqrt(STRETCH.factor(USUAL, "yarn")))


@fact("long-yarn-scores", ".3f")
def yarn_scores() -> float:
    return STRETCH.factor(USUAL, "yarn")


# -- other ways ----------------------------------------------------------------------------------------------


@fact("long-dynamic-factor", ".0f")
def dynamic_factor() -> float:
    """What programs make of a factor of 8 at 8 times the length."""
    return of_pair("plain", -1) / of_pair("dynamic", -1)


def llama31() -> dict[str, Any]:
    config = models()["llama-3.1-8b"].config
    scaling = config["rope_scaling"]
    return {
        **USUAL,
        "b": config["rope_theta"],
        "length": scaling[ORIGINAL],
        "s": scaling["factor"],
        "n": config["max_position_embeddings"],
    }


@fact("long-llama-unturned", "d")
def llama_unturned() -> int:
    return int(STRETCH.slow(llama31()).sum())


@fact("long-llama-longer", ".0f")
def llama_longer() -> float:
    return float(llama31()["n"] / llama31()["length"])


@fact("long-llama-beyond", ".0f")
def llama_beyond() -> float:
    """How many times the angle of its first training the slowest pair of Llama 3.1 reaches at the end."""
    values = llama31()
    used = omegas(rope_of(values, "llama3"), values["d"], values["n"])[-1]
    return float(values["n"] * used / (values["length"] * STRETCH.omegas(values, "plain")[-1]))


# -- a score that nothing held -------------------------------------------------------------------------------

OPENED = WILD.largest(WILD.usual)


@fact("long-wild-training", ".2f")
def wild_training() -> float:
    return OPENED["training"]


@fact("long-wild-beyond", ",.0f")
def wild_beyond() -> float:
    """To hundreds: which random scores it are decides about the rest."""
    return round(OPENED["beyond"], -2)


@fact("long-wild-pi", ".2f")
def wild_pi() -> float:
    return OPENED["pi"]
