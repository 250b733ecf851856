"""Numbers of the page on the Transformer."""

import numpy as np

from concepts.facts import fact
from concepts.figures.depth import mean_of_draws
from concepts.figures.transformer import FIGURE
from concepts.figures.walk import Place, attended, walk
from kernels.blocks import deviation
from kernels.sizing.layers import Model
from kernels.sizing.original import (
    GPUS,
    LAYERS,
    ORIGINALS,
    Original,
    counted_flops,
    model_of,
    params,
    timed_flops,
)
from kernels.sizing.weights import weigh

BASE, BIG = ORIGINALS["base"], ORIGINALS["big"]
PLACES = walk(FIGURE.data({})["values"])


def _place(stack: str, part: str, kind: str) -> Place:
    return next(one for one in PLACES if (one.stack, one.part, one.kind) == (stack, part, kind))


def _numbers(row: np.ndarray) -> tuple[float, ...]:
    return tuple(float(x) for x in np.round(row, 9) + 0.0)


ADDED, NORMED = _place("encoder", "self", "add"), _place("encoder", "self", "norm")
ACROSS = _place("decoder", "cross", "sub")


@fact("walk-cross-drinks", ".2f")
def cross_drinks() -> float:
    return float(attended(ACROSS).weights[0, ACROSS.row, ACROSS.source.index("drinks")])


@fact("walk-cross-tea", ".2f")
def cross_tea() -> float:
    return float(attended(ACROSS).weights[1, ACROSS.row, ACROSS.source.index("tea")])


@fact("walk-around", ".2f")
def around() -> tuple[float, ...]:
    """“drinks” as it enters the encoder."""
    return _numbers(_place("encoder", "in", "in").vector)


@fact("walk-made", ".2f")
def made() -> tuple[float, ...]:
    """What self-attention makes of it."""
    return _numbers(_place("encoder", "self", "sub").vector)


@fact("walk-added", ".2f")
def added() -> tuple[float, ...]:
    return _numbers(ADDED.vector)


@fact("walk-mean", ".2f")
def mean() -> float:
    return float(ADDED.vector.mean())


@fact("walk-deviation", ".2f")
def sigma() -> float:
    return float(deviation(ADDED.vector)[0])


@fact("walk-normed", ".2f")
def normed() -> tuple[float, ...]:
    return _numbers(NORMED.vector)


# -- depth ---------------------------------------------------------------------------------------------------


@fact("depth-pre-six", ".1f")
def pre_six() -> float:
    """The mean size of the stream after six layers."""
    return mean_of_draws(6, norm_first=True)[0]


@fact("depth-pre-deep", ".1f")
def pre_deep() -> float:
    return mean_of_draws(24, norm_first=True)[0]


@fact("depth-post-six-slope", ".1f")
def post_six_slope() -> float:
    """The mean gradient of the last of six layers."""
    return mean_of_draws(6, norm_first=False)[1]


@fact("depth-post-deep-slope", ".1f")
def post_deep_slope() -> float:
    return mean_of_draws(24, norm_first=False)[1]


@fact("depth-pre-six-slope", ".2f")
def pre_six_slope() -> float:
    return mean_of_draws(6, norm_first=True)[1]


@fact("depth-pre-deep-slope", ".2f")
def pre_deep_slope() -> float:
    return mean_of_draws(24, norm_first=True)[1]


# -- what the first one weighs and took ----------------------------------------------------------------------


def _stack(one: Original, name: str) -> int:
    """Parameters of one layer of a stack."""
    whole = model_of(one)
    layers = whole.layers if name == "decoder" else whole.encoder
    return weigh(Model(one.width, 0, layers=layers[:1], is_tied=True)).params


@fact("original-encoder-layer", ",")
def encoder_layer() -> int:
    return _stack(BASE, "encoder")


@fact("original-decoder-layer", ",")
def decoder_layer() -> int:
    return _stack(BASE, "decoder")


@fact("original-base", ",")
def base() -> int:
    return params(BASE)


@fact("original-big-millions", ".1f")
def big_millions() -> float:
    return params(BIG) / 1e6


def _rows(one: Original) -> float:
    """How many thousand words would make the count that the paper states."""
    return (one.params - LAYERS * (_stack(one, "encoder") + _stack(one, "decoder"))) / one.width / 1000


@fact("original-base-rows", ".1f")
def base_rows() -> float:
    return _rows(BASE)


@fact("original-big-rows", ".1f")
def big_rows() -> float:
    return _rows(BIG)


@fact("original-attention-weights", ",")
def attention_weights() -> int:
    return weigh(Model(BASE.width, 0, layers=model_of(BASE).encoder[:1])).part_params["attention"]


@fact("original-network-weights", ",")
def network_weights() -> int:
    return weigh(Model(BASE.width, 0, layers=model_of(BASE).encoder[:1])).part_params["mlp"]


@fact("original-base-gpu-hours", ".0f")
def base_gpu_hours() -> float:
    return GPUS * BASE.hours


@fact("original-big-gpu-hours", ".0f")
def big_gpu_hours() -> float:
    return GPUS * BIG.hours


def _rate(one: Original) -> float:
    return one.flops / (GPUS * one.hours * 3600) / 1e12


@fact("original-base-rate", ".2f")
def base_rate() -> float:
    return _rate(BASE)


@fact("original-big-rate", ".2f")
def big_rate() -> float:
    return _rate(BIG)


def _share(one: Original) -> float:
    return 100 * counted_flops(one) / timed_flops(GPUS, one.hours, 9.5)


@fact("original-base-share", ".0f")
def base_share() -> float:
    return _share(BASE)


@fact("original-big-share", ".0f")
def big_share() -> float:
    return _share(BIG)
