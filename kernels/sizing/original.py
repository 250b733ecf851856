"""The Transformer of 2017 and what its training took (Vaswani et al. 2017, §5, Tables 2 and 3).

Figures of the paper stand in ``ORIGINALS``; what follows from them is computed. Both models have six layers a
stack and one table of about 37,000 words, which is embedding of both stacks and head at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.sizing.layers import Attention, Layer, Mlp, Model
from kernels.sizing.training import training_flops
from kernels.sizing.weights import weigh

LAYERS, VOCABULARY = 6, 37_000
TOKENS = 25_000  # in a batch, about; of the source, and as many of the target
GPUS = 8
P100_TFLOPS = 9.5  # what the paper takes for the sustained rate of one


@dataclass(frozen=True)
class Original:
    """What the paper says of one of its two models. ``bleu``: newstest2014, English to German."""

    width: int
    wide: int
    heads: int
    steps: int
    hours: float
    params: int
    flops: float
    bleu: float


ORIGINALS = {
    "base": Original(512, 2048, 8, 100_000, 12, 65_000_000, 3.3e18, 27.3),
    "big": Original(1024, 4096, 16, 300_000, 84, 213_000_000, 2.3e19, 28.4),
}


def model_of(one: Original) -> Model:
    each = one.width // one.heads
    itself, network = (
        Attention(one.heads, one.heads, each, each),
        Mlp(one.wide, is_gated=False, has_bias=True),
    )
    reader = Attention(one.heads, one.heads, each, each, is_causal=False)
    across = Attention(one.heads, one.heads, each, each, is_causal=False, is_cross=True)
    norm = 2 * one.width
    return Model(
        one.width,
        VOCABULARY,
        layers=(Layer((itself, across), network, 3 * norm),) * LAYERS,
        encoder=(Layer((reader,), network, 2 * norm),) * LAYERS,
        is_tied=True,
    )


def params(one: Original) -> int:
    return weigh(model_of(one)).params


def counted_flops(one: Original) -> int:
    """6·N·D: a token of the source goes through the encoder, one of the target through decoder and head, and
    there are as many of both. Scores and averages, a few per cent, are left out."""
    return training_flops(weigh(model_of(one)).multiplied_params, TOKENS * one.steps)


def timed_flops(gpus: float, hours: float, tflops: float) -> float:
    """What so many GPUs do in that time if they never wait: the paper's way to estimate."""
    return gpus * hours * 3600 * tflops * 1e12
