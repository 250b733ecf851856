"""Numbers of the page on the quadratic cost."""

from functools import partial

from concepts.facts import fact
from concepts.figures.multi_head import heads_of
from kernels.sizing.kv_cache import token_bytes
from kernels.sizing.layers import Layer
from kernels.sizing.lengths import LayerCost, crossing, layer_cost, score_bytes, textbook_cost
from kernels.sizing.memory import HALF_CACHE
from kernels.sizing.models import read_model

GIB = 1024**3


@fact("quadratic-scores", ",.0f")
def scores() -> int:
    return 4096 * 4096


@fact("quadratic-bytes", ".0f")
def bytes_of_scores() -> float:
    """MiB."""
    return score_bytes(4096) / 1024**2


@fact("quadratic-bytes-layer", ".0f")
def bytes_of_a_layer() -> float:
    """GiB."""
    return score_bytes(4096, 32) / GIB


@fact("quadratic-share", ".1f")
def share() -> float:
    return 100 * textbook_cost(4096, 4096).share


@fact("quadratic-double", ".2f")
def double() -> float:
    return textbook_cost(8192, 4096).total / textbook_cost(4096, 4096).total


@fact("quadratic-far", ".2f")
def far() -> float:
    """The same step from 131,072 tokens."""
    return textbook_cost(262_144, 4096).total / textbook_cost(131_072, 4096).total


@fact("quadratic-crossing", ",.0f")
def where_equal() -> float:
    return crossing(textbook_cost(1, 4096))


# -- a layer by hand: n = 6, d = 2 ---------------------------------------------------------------------------


@fact("quadratic-hand-pairs", ".0f")
def hand_pairs() -> int:
    return textbook_cost(6, 2).pairs


@fact("quadratic-hand-projections", ".0f")
def hand_projections() -> int:
    return textbook_cost(6, 2).projections


@fact("quadratic-hand-mlp", ".0f")
def hand_mlp() -> int:
    return textbook_cost(6, 2).mlp


# -- models --------------------------------------------------------------------------------------------------


def layer_of(slug: str) -> tuple[Layer, int, int]:
    """A layer, the width of the model, and how many layers there are."""
    model = read_model(slug).model
    layers = model.layers or model.encoder
    return layers[0], model.hidden, len(layers)


def cost_of(slug: str, n: int) -> LayerCost:
    layer, hidden, _count = layer_of(slug)
    return layer_cost(layer, hidden, n)


def share_of(slug: str, n: int) -> float:
    """Per cent of a layer's operations that are in its pairs."""
    return 100 * cost_of(slug, n).share


for name, slug, length in (
    ("bert", "bert-base", 512),
    ("gpt2", "gpt2", 1024),
    ("llama2", "llama-2-7b", 4096),
    ("llama3", "llama-3-8b", 8192),
    ("llama31", "llama-3.1-8b", 131_072),
    ("405b", "llama-3.1-405b", 131_072),
):
    fact(f"quadratic-share-{name}", ".1f")(partial(share_of, slug, length))


@fact("quadratic-kept-llama2", ".0f")
def kept() -> float:
    """GiB of the weights of all heads and layers of Llama-2 7B, at 4,096 tokens."""
    _layer, _hidden, count = layer_of("llama-2-7b")
    return count * score_bytes(4096, heads_of("llama-2-7b").heads) / GIB


@fact("quadratic-kept-flash", ",.0f")
def kept_by_flash() -> float:
    """MiB of what flash keeps in their place: a float32 log-sum-exp to a query, head and layer."""
    _layer, _hidden, count = layer_of("llama-2-7b")
    return count * heads_of("llama-2-7b").heads * 4096 * 4 / 1024**2


@fact("quadratic-cache-token", ".0f")
def cache_token() -> float:
    """KiB of the cache to a token, of Llama-3.1 8B."""
    layer, _hidden, count = layer_of("llama-3.1-8b")
    return count * token_bytes(layer.mixers[0], HALF_CACHE) / 1024


@fact("quadratic-cache-full", ".0f")
def cache_full() -> float:
    """GiB of it at 131,072 tokens."""
    layer, _hidden, count = layer_of("llama-3.1-8b")
    return count * 131_072 * token_bytes(layer.mixers[0], HALF_CACHE) / GIB
