"""Numbers of the page on many heads."""

from functools import partial
from itertools import product

import numpy as np

from concepts.facts import fact
from concepts.figures.multi_head import TEXT, cost, embedded, heads_of, layer, reach
from concepts.figures.parse import is_tree

USUAL = layer(embedded(TEXT), 2)
SHE, HIM, TEA = (TEXT.index(word) for word in ("she", "him", "tea"))
TREE_WORDS = 5
PAPER_WIDTH, PAPER_HEADS, TOKENS = 512, 8, 1024


def _numbers(row: np.ndarray) -> tuple[float, ...]:
    return tuple(float(x) for x in row)


@fact("heads-tea-she", ".2f")
def tea_she() -> float:
    return float(USUAL.weights[0, TEA, SHE])


@fact("heads-tea-him", ".2f")
def tea_him() -> float:
    return float(USUAL.weights[1, TEA, HIM])


@fact("heads-tea-query", ".2f")
def tea_query() -> tuple[float, ...]:
    return _numbers(USUAL.q[0, TEA])


@fact("heads-she-key", ".2f")
def she_key() -> tuple[float, ...]:
    return _numbers(USUAL.k[0, SHE])


@fact("heads-tea-she-score", ".3f")
def tea_she_score() -> float:
    return float(USUAL.scores[0, TEA, SHE])


@fact("heads-tea-row", ".3f")
def tea_row() -> tuple[float, ...]:
    return _numbers(USUAL.weights[0, TEA])


@fact("heads-tea-first", ".2f")
def tea_first() -> tuple[float, ...]:
    return _numbers(USUAL.parts[0, TEA])


@fact("heads-tea-second", ".2f")
def tea_second() -> tuple[float, ...]:
    return _numbers(USUAL.parts[1, TEA])


@fact("heads-unreached", "d")
def unreached() -> int:
    """Pairs of words that no longer reach each other when both reshapes lack their transpose."""
    return int((~reach(embedded(TEXT), 2, "both")).sum())


@fact("heads-parameters", ",")
def parameters() -> int:
    return cost(PAPER_WIDTH, PAPER_HEADS, TOKENS).parameters


@fact("heads-products", ",")
def products() -> int:
    return cost(PAPER_WIDTH, PAPER_HEADS, TOKENS).products


@fact("heads-scores-one", ",")
def scores_of_one() -> int:
    return cost(PAPER_WIDTH, 1, TOKENS).scores


@fact("heads-scores-eight", ",")
def scores_of_eight() -> int:
    return cost(PAPER_WIDTH, PAPER_HEADS, TOKENS).scores


@fact("heads-tree-all", ",")
def every_way() -> int:
    return int(TREE_WORDS**TREE_WORDS)


@fact("heads-tree-count", ",")
def trees() -> int:
    """Counted, one by one."""
    return sum(is_tree(way) for way in product(range(TREE_WORDS), repeat=TREE_WORDS))


def of_model(slug: str, what: str) -> int:
    return int(getattr(heads_of(slug), what))


for slug in ("bert-base", "bert-large", "llama-7b", "llama-65b", "gpt3"):
    for what in ("width", "heads", "each"):
        fact(f"heads-{slug}-{what}", ",")(partial(of_model, slug, what))


@fact("heads-t5-width", ",")
def t5_width() -> int:
    return heads_of("t5-11b").width


@fact("heads-t5-together", ",")
def t5_together() -> int:
    return heads_of("t5-11b").together


@fact("heads-qwen-width", ",")
def qwen_width() -> int:
    return heads_of("qwen3-32b").width


@fact("heads-qwen-together", ",")
def qwen_together() -> int:
    return heads_of("qwen3-32b").together
