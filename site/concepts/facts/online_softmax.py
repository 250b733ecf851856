"""Numbers of the page on softmax in one pass."""

import math
from functools import cache, partial

import numpy as np

from concepts.facts import fact
from concepts.figures.online_softmax import KEYS, ROWS, Row, row
from kernels.arrays import generate
from kernels.engines.reference import attend
from kernels.flash.online import merge, one_pass, state_of
from kernels.flash.steps import State
from kernels.mistakes import online_softmax

OPENS = {"s": ROWS, "tile": 2, "shift": 0, "masked": 0, "format": "float32", "way": "right"}


def shown(**changed: object) -> Row:
    """What the figure shows with some of its values changed."""
    return row(OPENS | changed)


# -- what a format holds -------------------------------------------------------------------------------------


def lowest(dtype: str) -> float:
    """The exponential of anything further below 0 is rounded to 0."""
    return -math.log(float(np.finfo(dtype).smallest_subnormal) / 2)


for kind in ("float16", "float32"):
    fact(f"online-{kind}-zero", ".0f")(partial(lowest, kind))


@fact("online-e11", ",.0f")
def e11() -> float:
    return math.exp(11)


@fact("online-e11-e10", ",.0f")
def e11_e10() -> float:
    return math.exp(11) + math.exp(10)


# -- two tiles by hand ---------------------------------------------------------------------------------------


TABLE = np.array(ROWS, dtype=np.float64)


def held(tile: int) -> State:
    return one_pass(TABLE[:, 0], TABLE[:, 1:], 2)[tile].after


@fact("online-l1", ".4f")
def l1() -> float:
    return held(0).l


@fact("online-o1", ".4f")
def o1() -> float:
    return float(held(0).o[0])


@fact("online-factor", ".4f")
def factor() -> float:
    return shown().tiles[1].rescale


@fact("online-l2", ".4f")
def l2() -> float:
    return held(1).l


@fact("online-o2", ".4f")
def o2() -> float:
    return float(held(1).o[0])


@fact("online-out2", ".4f")
def out2() -> float:
    return float(held(1).out[0])


@fact("online-out", ".4f")
def out() -> float:
    return shown().exact


def wrong(way: str) -> float:
    return shown(way=way).result


for way in ("out", "sum", "both"):
    fact(f"online-wrong-{way}", ".2f")(partial(wrong, way))


# -- two halves, merged --------------------------------------------------------------------------------------


@cache
def halves() -> tuple[State, State, State]:
    """Of the first four keys, of the others, and of all."""
    middle = KEYS // 2
    one, other = (state_of(part[:, 0], part[:, 1:]) for part in (TABLE[:middle], TABLE[middle:]))
    return one, other, merge(one, other)


def lse_of(number: int) -> float:
    return halves()[number].lse


def out_of(number: int) -> float:
    return float(halves()[number].out[0])


def share_of(number: int) -> float:
    return math.exp(lse_of(number) - lse_of(2))


for number, name in enumerate(("first", "second", "whole")):
    fact(f"online-lse-{name}", ".4f")(partial(lse_of, number))
    fact(f"online-out-{name}", ".4f")(partial(out_of, number))
for number, name in enumerate(("first", "second")):
    fact(f"online-share-{name}", ".4f")(partial(share_of, number))


# -- a program in circulation --------------------------------------------------------------------------------


@cache
def error_of(mistake: str) -> float:
    """Relative, of 1,024 random keys of 64 numbers in blocks of 128."""
    q, k, v = (generate(f"online/{name}", 0, (1024, 64), "normal", "float64") for name in "qkv")
    exact = attend(q, k, v, scale=1 / 8)["out"]
    found = online_softmax(q, k, v, scale=1 / 8, block=128, mistake=mistake)
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


for mistake in ("unfinished", "block_not_rescaled"):
    fact(f"online-{mistake.replace('_', '-')}", ".2f")(partial(error_of, mistake))
