"""Numbers of the pages of models and of accelerators."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from concepts.facts import fact
from concepts.figures.gpu_table import cards, chip_mib
from concepts.figures.layer_run import mixer_of
from kernels.sizing.gpus import gpus
from kernels.sizing.kv_cache import kv_cache
from kernels.sizing.layers import Attention, Mixer, Model
from kernels.sizing.models import models, read_model
from kernels.sizing.storage import GB, GIB, cache_format
from kernels.sizing.weights import weigh

HALF = cache_format("float16")
LONG = 131_072  # tokens
LONGER = 262_144


def say(name: str, format: str, value: Callable[[], object]) -> None:
    fact(f"tables-{name}", format)(value)


# -- models --------------------------------------------------------------------------------------------------

LLAMA = read_model("llama-3-8b").model


def token_kib(slug: str) -> float:
    return kv_cache(read_model(slug).model, HALF, 1).bytes_per_token / 1024


def cache_gib(model: Model, length: int) -> float:
    return kv_cache(model, HALF, length).bytes / GIB


def opened(mixer: Mixer) -> Mixer:
    """Without its window."""
    return replace(mixer, window=None) if isinstance(mixer, Attention) else mixer


def as_attention(model: Model) -> Model:
    """With its first attention in the place of whatever its layers have."""
    attention = mixer_of(model)
    return model.with_mixers(lambda _mixer: attention)


LAYER = weigh(replace(LLAMA, layers=LLAMA.layers[:1])).part_params

say("models", "d", lambda: len(models()))
say("projections", ",", lambda: LAYER["attention"])
say("mlp", ",", lambda: LAYER["mlp"])
say("norms", ",", lambda: LLAMA.layers[0].norms)
say("layer", ",", lambda: LAYER["attention"] + LAYER["mlp"] + LLAMA.layers[0].norms)
say("tables", ",", lambda: 2 * LLAMA.vocab * LLAMA.hidden)
say("params", ",", lambda: weigh(LLAMA).params)
say("gpt3-token", ",.0f", partial(token_kib, "gpt3"))
say("llama-70b-token", ",.0f", partial(token_kib, "llama-3-70b"))
say("falcon-180b-token", ",.0f", partial(token_kib, "falcon-180b"))
say("llama-2-70b-params", ".2f", lambda: weigh(read_model("llama-2-70b").model).params / 1e9)
say("t5-11b-params", ".2f", lambda: weigh(read_model("t5-11b").model).params / 1e9)
say("mixtral-params", ".2f", lambda: weigh(read_model("mixtral-8x7b").model).params / 1e9)
say("mixtral-active", ".2f", lambda: weigh(read_model("mixtral-8x7b").model).active_params / 1e9)
say("gemma-all", ".0f", lambda: cache_gib(read_model("gemma-3-27b").model.with_mixers(opened), LONG))
say("gemma", ".1f", lambda: cache_gib(read_model("gemma-3-27b").model, LONG))
say("jamba-all", ".0f", lambda: cache_gib(as_attention(read_model("jamba-v0.1").model), LONGER))
say("jamba", ".0f", lambda: cache_gib(read_model("jamba-v0.1").model, LONGER))

# -- accelerators --------------------------------------------------------------------------------------------

A100, H100, L4 = gpus()["a100-80-sxm"], gpus()["h100-sxm"], gpus()["l4"]


def token_ms(gpu: str) -> float:
    return (
        next(card.token_ms for card in cards("llama-3-8b", "bfloat16", 4096) if card.gpu.slug == gpu) or 0.0
    )


say("gpus", "d", lambda: len(gpus()))
say("a100-ridge", ".0f", lambda: A100.ridge)
say("l4-ridge", ".0f", lambda: L4.ridge)
say("h100-ridge", ".0f", lambda: H100.ridge)
say("a100-chip", ".2f", lambda: chip_mib(A100))
say("a100-share", ",.0f", lambda: A100.memory_bytes / (A100.shared_bytes or 1))
say("a100-token", ".1f", partial(token_ms, "a100-80-sxm"))
say("l4-token", ".0f", partial(token_ms, "l4"))
say("a100-all-ms", ".0f", lambda: 1e3 * A100.memory_bytes / A100.bandwidth)
say("compute-times", ".2f", lambda: H100.tflops_16bit / A100.tflops_16bit)
say("bandwidth-times", ".2f", lambda: H100.bandwidth / A100.bandwidth)
say("gib", ".1f", lambda: 80 * GB / GIB)


def tile_kib(rows: int, head_dim: int) -> float:
    """Of a block of vectors in 16 bits."""
    return 2 * rows * head_dim / 1024


def blocks_kib(head_dim: int, stages: int) -> float:
    """A block of 128 queries, and `stages` pairs of blocks of 64 keys and values."""
    return tile_kib(128, head_dim) + stages * 2 * tile_kib(64, head_dim)


say("block-q", ".0f", lambda: tile_kib(128, 128))
say("block-kv", ".0f", lambda: 2 * tile_kib(64, 128))
say("block-sum", ".0f", lambda: blocks_kib(128, 1))
say("block-two", ".0f", lambda: blocks_kib(128, 2))
say("block-256", ".0f", lambda: blocks_kib(256, 1))
say("a100-shared", "d", lambda: A100.max_shared_kb)
say("4090-shared", "d", lambda: gpus()["rtx-4090"].max_shared_kb)
say("a100-sms", "d", lambda: A100.sms)
