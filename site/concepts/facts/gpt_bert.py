"""Numbers of the page on GPT and BERT."""

import math

from concepts.facts import fact
from concepts.figures.gpt_bert import FIGURE

CHOSEN, MASKED, OTHERWISE = 0.15, 0.8, 0.1  # of all tokens; of the chosen ones, and each of the other two
CONTEXT = 512  # tokens that BERT reads at once


def _open(kind: str) -> int:
    return int(FIGURE.task(_state(kind)).allowed.sum())


def _state(kind: str) -> dict[str, object]:
    return dict(FIGURE.data({"kind": kind})["values"])


def _chances(kind: str) -> list[float]:
    return [chance for chance in FIGURE.chances(_state(kind)) if chance is not None]


@fact("objectives-open-gpt", ".0f")
def open_gpt() -> int:
    return _open("gpt")


@fact("objectives-open-prefix", ".0f")
def open_prefix() -> int:
    return _open("prefix")


@fact("objectives-predictions-prefix", ".0f")
def predictions_prefix() -> int:
    return FIGURE.task(_state("prefix")).predictions


@fact("objectives-chances", ".3f")
def chances() -> tuple[float, ...]:
    """That GPT gives to the five words that come."""
    return tuple(_chances("gpt"))


@fact("objectives-losses", ".2f")
def losses() -> tuple[float, ...]:
    return tuple(-math.log(chance) for chance in _chances("gpt"))


@fact("objectives-loss", ".2f")
def loss() -> float:
    return float(sum(losses()))


@fact("objectives-product", ".6f")
def product() -> float:
    return math.prod(_chances("gpt"))


@fact("objectives-even", ".2f")
def even() -> float:
    """The loss of a word when all are given the same probability."""
    return math.log(len(FIGURE.vocabulary(_state("gpt"))))


@fact("objectives-chosen", ".1f")
def chosen() -> float:
    return CHOSEN * CONTEXT


@fact("objectives-masked", ".1f")
def masked() -> float:
    return MASKED * CHOSEN * CONTEXT


@fact("objectives-otherwise", ".1f")
def otherwise() -> float:
    return OTHERWISE * CHOSEN * CONTEXT
