"""Numbers of the page on a penalty for distance."""

from functools import partial

import numpy as np

from concepts.facts import fact
from concepts.figures.alibi import FIGURES, LISTED, SHARE
from kernels.alibi import beyond, biases, distinct_in_bfloat16, nearest, reach
from kernels.positions import automatic_slopes
from kernels.scoring.attention import softmax
from kernels.sizing.models import models

PENALTY, ROW = FIGURES
MILDEST = automatic_slopes(LISTED)[-1]


def row_weight(head: int) -> float:
    """Of the key that matches, as the figure opens."""
    values = ROW.data({})["values"]
    return float(ROW.weights(values)[head, values["far"] - 1])


fact("alibi-row-first", ".3f")(partial(row_weight, 0))
fact("alibi-row-last", ".3f")(partial(row_weight, -1))


# -- a row by hand: head 2 of 8, the fifth token, equal scores -----------------------------------------------


def hand_biases() -> np.ndarray:
    return np.asarray(biases(8, 4, 5)[1])


@fact("alibi-hand-biases", ".2f")
def hand_penalties() -> tuple[float, ...]:
    return tuple(hand_biases().tolist())


@fact("alibi-hand-powers", ".4f")
def hand_powers() -> tuple[float, ...]:
    return tuple(np.exp(hand_biases()).tolist())


@fact("alibi-hand-sum", ".4f")
def hand_sum() -> float:
    return float(np.exp(hand_biases()).sum())


@fact("alibi-hand-weights", ".4f")
def hand_weights() -> tuple[float, ...]:
    return tuple(softmax(hand_biases()).tolist())


# -- slopes and windows --------------------------------------------------------------------------------------


@fact("alibi-twelve", ".4f")
def slopes_nine_to_twelve() -> tuple[float, ...]:
    return tuple(automatic_slopes(12)[8:])


@fact("alibi-window-first", ",.0f")
def narrowest() -> int:
    return nearest(automatic_slopes(8)[0], SHARE)


@fact("alibi-window-last", ",.0f")
def widest() -> int:
    return nearest(MILDEST, SHARE)


def percent_beyond(length: int) -> float:
    """Of the mildest head."""
    return 100 * beyond(MILDEST, length)


for length in (512, 1024):
    fact(f"alibi-beyond-{length}", ".1f")(partial(percent_beyond, length))

fact("alibi-reach-first", ",.0f")(partial(reach, automatic_slopes(8)[0], 10.0))
fact("alibi-reach-last", ",.0f")(partial(reach, MILDEST, 10.0))


@fact("alibi-bloom", ",.0f")
def heads_of_bloom() -> int:
    return int(models()["bloom"].config["num_attention_heads"])


@fact("alibi-bloom-window", ",.0f")
def widest_of_bloom() -> int:
    return max(nearest(slope, SHARE) for slope in automatic_slopes(heads_of_bloom()))


@fact("alibi-bloom-tokens", ",.0f")
def tokens_of_bloom() -> int:
    return int(models()["bloom"].config["seq_length"])


@fact("alibi-story", ",.0f")
def widest_with_sixteen() -> int:
    """With exponents down to −16 for −8."""
    return nearest(2.0**-16, SHARE)


@fact("alibi-bf16", ".0f")
def told_apart() -> int:
    """Of the last 64 keys of 2,048, by slope 1/2 times position in bfloat16."""
    return distinct_in_bfloat16(0.5, np.arange(1984, 2048))


# -- what other schemes learn --------------------------------------------------------------------------------


@fact("alibi-learned", ",.0f")
def learned_by_gpt2() -> int:
    config = models()["gpt2"].config
    return int(config["n_positions"] * config["n_embd"])


@fact("alibi-buckets", ",.0f")
def learned_by_t5() -> int:
    """A number for each bucket and head, in the encoder."""
    config = models()["t5-base"].config
    return int(config["relative_attention_num_buckets"] * config["num_heads"])
