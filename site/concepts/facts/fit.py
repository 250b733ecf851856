"""Numbers of the page on what a model needs in memory."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from concepts.facts import fact
from concepts.figures.fit import ASIDE, FIGURE, answer
from concepts.figures.layer_run import mixer_of
from kernels.sizing.gpus import gpus
from kernels.sizing.inverse import most_sequences
from kernels.sizing.kv_cache import kv_cache, token_bytes
from kernels.sizing.layers import Attention, Mixer, Model
from kernels.sizing.memory import Workload, memory
from kernels.sizing.models import read_model
from kernels.sizing.storage import GB, GIB, SIXTEEN, WEIGHT_FORMATS, cache_format, weight_format
from kernels.sizing.training import BYTES_TO_A_PARAMETER, training_bytes
from kernels.sizing.weights import Weights, weigh

LENGTH = 4096
HALF = cache_format("float16")
INT4 = WEIGHT_FORMATS["int4"]
V100_BEFORE = 1343 * 2**20  # bytes in use before a model was loaded: Hugging Face's page, cited beside it
RTX_4090_SHOWN = 24_564 * 2**20  # bytes that the driver shows: cited beside it


def model_of(slug: str) -> Model:
    return read_model(slug).model


def weights_of(slug: str, dtype: str = "bfloat16") -> Weights:
    return weigh(model_of(slug), weight_format(dtype))


LLAMA = model_of("llama-3-8b")
TOKEN, PROMPT = Workload(LENGTH), Workload(LENGTH, q_len=None, all_logits=True)
CACHE = kv_cache(LLAMA, HALF, LENGTH)
SUM = weights_of("llama-3-8b").bytes + CACHE.bytes


def say(name: str, format: str, value: Callable[[], object]) -> None:
    fact(f"fit-{name}", format)(value)


# -- Llama 3 8B ----------------------------------------------------------------------------------------------

say("params", ",", lambda: weights_of("llama-3-8b").params)
say("weights-bytes", ",", lambda: weights_of("llama-3-8b").bytes)
say("weights", ".2f", lambda: weights_of("llama-3-8b").bytes / GB)
say("weights-gib", ".2f", lambda: weights_of("llama-3-8b").bytes / GIB)
say("cache-bytes", ",", lambda: CACHE.bytes)
say("cache", ".2f", lambda: CACHE.bytes / GB)
say("cache-gib", ".2f", lambda: CACHE.bytes / GIB)
say("sum-bytes", ",", lambda: SUM)
say("sum", ".2f", lambda: SUM / GB)
say("sum-gib", ".2f", lambda: SUM / GIB)
say("token", ",", lambda: CACHE.bytes_per_token)
say("layer-mib", ".0f", lambda: LENGTH * token_bytes(mixer_of(LLAMA), HALF) / 2**20)
say("context", ",", lambda: LLAMA.context)
say("step-kib", ".0f", lambda: memory(LLAMA, TOKEN).activations / 2**10)
say("prompt", ".2f", lambda: memory(LLAMA, PROMPT).activations / GB)
say("logits-mb", ".1f", lambda: memory(LLAMA, TOKEN).logits / 10**6)
say("logits-all", ".2f", lambda: memory(LLAMA, PROMPT).logits / GB)
say("logits-all-gib", ".2f", lambda: memory(LLAMA, PROMPT).logits / GIB)

# -- the figure as it opens, and what its links show ---------------------------------------------------------

USUAL = FIGURE.usual


def shown(**changed: object) -> dict[str, object]:
    return {**USUAL, **changed}


say("aside", ".1f", lambda: ASIDE)
say("needed", ".2f", lambda: answer(USUAL).needed / GB)
say("longest", ",", lambda: answer(USUAL).longest)
say("longest-64", ",", lambda: answer(shown(batch=64)).longest)
say("cache-64", ".1f", lambda: answer(shown(batch=64)).sizes["cache"] / GB)
say("cache-64-int4", ".1f", lambda: answer(shown(batch=64, cache="int4")).sizes["cache"] / GB)
say("cache-64-llama2", ".1f", lambda: answer(shown(batch=64, model="llama-2-7b")).sizes["cache"] / GB)
say("cache-512", ".1f", lambda: answer(shown(batch=64, n=512)).sizes["cache"] / GB)
say("missing-64", ".1f", lambda: -answer(shown(batch=64)).left / GB)
say("saved-int4", ".1f", lambda: (answer(USUAL).needed - answer(shown(weights="int4")).needed) / GB)
say("longest-int4", ",", lambda: answer(shown(weights="int4")).longest)

# -- other models --------------------------------------------------------------------------------------------


def billions(slug: str) -> float:
    return weights_of(slug).params / 1e9


def gigabytes(slug: str, dtype: str) -> float:
    return weights_of(slug, dtype).bytes / GB


for name, slug in (
    ("8b", "llama-3-8b"), ("70b", "llama-2-70b"), ("405b", "llama-3.1-405b"), ("mixtral", "mixtral-8x7b"),
):  # fmt: skip
    say(f"{name}-params", ".2f", partial(billions, slug))
    say(f"{name}-16", ".2f", partial(gigabytes, slug, "bfloat16"))
    say(f"{name}-8", ".2f", partial(gigabytes, slug, "int8"))
    say(f"{name}-4", ".2f", partial(gigabytes, slug, "int4"))

LLAMA_2 = model_of("llama-2-70b")


def as_mha(model: Model) -> Model:
    """With as many heads of keys and values as of queries."""
    return model.with_mixers(separate)


def separate(mixer: Mixer) -> Attention:
    if not isinstance(mixer, Attention):
        raise TypeError("a mixer without heads of keys")
    return replace(mixer, kv_heads=mixer.heads)


def left_of_two() -> int:
    """Bytes that the weights of Llama 2 70B leave on two cards of 80 GB."""
    return 2 * gpus()["a100-80-sxm"].memory_bytes - weights_of("llama-2-70b").bytes


def texts_on_two(model: Model) -> int:
    """Texts of 4,096 tokens that two cards hold beside the weights, all else left out; weights of the model
    as it is, whatever heads its cache is counted with."""
    return left_of_two() // kv_cache(model, HALF, LENGTH).bytes


say("two-left", ".1f", lambda: left_of_two() / GB)
say("two-gqa", "d", lambda: texts_on_two(LLAMA_2))
say("two-mha", "d", lambda: texts_on_two(as_mha(LLAMA_2)))
say("two-real", "d", lambda: most_sequences(
    LLAMA_2, Workload(LENGTH, gpus=2, overhead_bytes=round(ASIDE * GB)), gpus()["a100-80-sxm"].memory_bytes
))  # fmt: skip

# -- bits ----------------------------------------------------------------------------------------------------


def matrix_bits() -> float:
    """Of a number of a matrix in int4, with its part of a scale and zero point."""
    return INT4.bits + INT4.scale_bits / INT4.columns


def percent_of_16(slug: str) -> float:
    """What weights in int4 take of those in 16 bits."""
    return 100 * gigabytes(slug, "int4") / gigabytes(slug, "bfloat16")


def tables() -> int:
    """Bytes of the table of embeddings and that of the head, which stay at 16 bits."""
    found = weights_of("llama-3-8b").parts
    return found["embedding"] + found["head"]


say("int4-bits", ".2f", matrix_bits)
say("int4-group", "d", lambda: INT4.columns)
say("int4-mean", ".2f", lambda: 8 * weights_of("llama-3-8b", "int4").bytes / weights_of("llama-3-8b").params)
say("int4-percent", ".0f", partial(percent_of_16, "llama-3-8b"))
say("int4-70b-percent", ".0f", partial(percent_of_16, "llama-2-70b"))
say("int4-all-percent", ".0f", lambda: 100 * answer(shown(weights="int4")).needed / answer(USUAL).needed)
say("tables", ".2f", lambda: tables() / GB)
say("tables-percent", ".0f", lambda: 100 * tables() / weights_of("llama-3-8b").bytes)

# -- ties, experts, training, units --------------------------------------------------------------------------


TRAINED = training_bytes(weights_of("llama-3-8b").params)


def untied() -> Weights:
    return weigh(replace(model_of("gemma-2b"), is_tied=False), SIXTEEN)


say("gemma-16", ".2f", partial(gigabytes, "gemma-2b", "bfloat16"))
say("gemma-untied", ".2f", lambda: untied().bytes / GB)
say("mixtral-active", ".2f", lambda: weights_of("mixtral-8x7b").active_params / 1e9)
say("mixtral-active-gb", ".2f", lambda: 2 * weights_of("mixtral-8x7b").active_params / GB)
say("training-bytes", "d", lambda: BYTES_TO_A_PARAMETER)
say("training", ".1f", lambda: TRAINED / GB)
say("training-times", ".0f", lambda: TRAINED / weights_of("llama-3-8b").bytes)
say("gib-percent", ".1f", lambda: 100 * (GIB / GB - 1))
say("v100-before", ".1f", lambda: V100_BEFORE / GB)
say("4090-shown", ".2f", lambda: RTX_4090_SHOWN / GB)
