"""Numbers of the page on rotary positions."""

from functools import cache, partial

import numpy as np

from concepts.facts import fact
from concepts.figures.rope import FIGURES, HEAD_DIM, MOVES, wavelengths
from kernels.arrays import round_to_dtype
from kernels.mistakes import rounded_angles
from kernels.rope import cos_sin, rotate
from kernels.sizing.models import models
from kernels.spec.model import Rope

ROTATION = FIGURES[0]
USUAL = ROTATION.usual

# -- the figure as the page opens with it --------------------------------------------------------------------


@fact("rope-score", ".3f")
def score() -> float:
    return ROTATION.score(USUAL)


@fact("rope-key-low", ".2f")
def key_low() -> float:
    """The least score where the key alone is moved."""
    return float(ROTATION.apart(USUAL).min())


@fact("rope-key-high", ".2f")
def key_high() -> float:
    return float(ROTATION.apart(USUAL).max())


@cache
def mixed_lengths() -> np.ndarray:
    """Of the key that is cut as neighbours and joined as halves, beside its own."""
    found = np.linalg.norm(ROTATION.keys(USUAL | {"pairs": "mixed"}, MOVES), axis=1)
    return np.asarray(found / np.linalg.norm(USUAL["k"]))


@fact("rope-mixed-short", ".2f")
def mixed_short() -> float:
    return float(mixed_lengths().min())


@fact("rope-mixed-long", ".2f")
def mixed_long() -> float:
    return float(mixed_lengths().max())


# -- one pair by hand: (1, 0) and (1, 0), one radian to a position -------------------------------------------


def hand(position: int) -> tuple[float, ...]:
    cos, sin = cos_sin(Rope("half"), 2, np.array([[position]]))
    turned = rotate(np.array([[[[1.0, 0.0]]]]), cos, sin, style="half", dim_offset=0)
    return tuple(turned.ravel().tolist())


for name, position in (("q", 2), ("k", 1), ("far-q", 12), ("far-k", 11)):
    fact(f"rope-hand-{name}", ".4f")(partial(hand, position))


@fact("rope-hand-score", ".4f")
def hand_score() -> float:
    return float(np.dot(hand(2), hand(1)))


@fact("rope-hand-far-score", ".4f")
def hand_far_score() -> float:
    return float(np.dot(hand(12), hand(11)))


# -- how slowly pairs turn -----------------------------------------------------------------------------------


@cache
def waves_of(slug: str) -> np.ndarray:
    config = models()[slug].config
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    return wavelengths(head_dim // 2, config["rope_theta"])


def unturned(slug: str, length: int) -> int:
    """Pairs that take more tokens for a turn than there are."""
    return int((waves_of(slug) > length).sum())


@fact("rope-fastest", ".2f")
def fastest() -> float:
    return float(waves_of("llama-2-7b")[0])


@fact("rope-slowest", ",.0f")
def slowest() -> float:
    return float(waves_of("llama-2-7b")[-1])


fact("rope-unturned", "d")(partial(unturned, "llama-2-7b", 4096))
fact("rope-unturned-llama3", "d")(partial(unturned, "llama-3-8b", 8192))


@fact("rope-slowest-llama3", ",.0f")
def slowest_llama3() -> float:
    return float(waves_of("llama-3-8b")[-1])


# -- few bits ------------------------------------------------------------------------------------------------


def rounded(position: int, dtype: str) -> float:
    return float(round_to_dtype(np.array([float(position)]), dtype)[0])


fact("rope-bfloat16-key", ",.0f")(partial(rounded, 1001, "bfloat16"))
fact("rope-bfloat16-query", ",.0f")(partial(rounded, 1003, "bfloat16"))
fact("rope-float16-key", ",.0f")(partial(rounded, 2049, "float16"))


@fact("rope-float32-angle", ".3f")
def float32_angle() -> float:
    """By how many radians an angle of the fastest pairs is off at most, in the last 1,000 of 131,072
    positions."""
    positions = 131_072 - np.arange(1, 1001)
    found, exact = (rounded_angles(positions, HEAD_DIM, dtype) for dtype in ("float32", "float64"))
    return float(np.abs(found - exact).max())
