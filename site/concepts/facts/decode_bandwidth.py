"""Numbers of the page on the bandwidth of decoding: bounds from published figures."""

from functools import partial

from concepts.facts import fact
from concepts.facts.kv_cache import token_of
from concepts.figures.decode_bandwidth import LATENT, MILLI, intensity, model_of, pace
from kernels.sizing.gpus import gpus
from kernels.sizing.memory import Workload, per_gpu_bytes
from kernels.sizing.roofline import traffic_of
from kernels.sizing.storage import GB

MODEL, CARD, LENGTH = "llama-3-8b", "h100-sxm", 8192
LARGE, OLDER = "llama-2-70b", "a100-80-sxm"


def _weights(model: str) -> float:
    """Bytes that a step reads of the weights."""
    return traffic_of(model_of(model), Workload(length=LENGTH))["weights"]


def _cache(length: int = LENGTH) -> int:
    return token_of(MODEL) * length


@fact("bw-weights", ".1f")
def weights() -> float:
    """GB."""
    return _weights(MODEL) / GB


@fact("bw-cache", ".2f")
def cache() -> float:
    """GB of one sequence."""
    return _cache() / GB


fact("bw-hand-weights", ".2f")(weights)
fact("bw-hand-cache", ".3f")(cache)


@fact("bw-hand-sum", ".2f")
def hand_sum() -> float:
    return float(weights() + 16 * cache())


def _step(batch: int) -> float:
    return pace(MODEL, CARD, 1, batch, LENGTH).least


def _rate(batch: int) -> float:
    return pace(MODEL, CARD, 1, batch, LENGTH).tokens


for batch in (1, 16):
    fact(f"bw-step-{batch}", ".1f")(partial(_step, batch))
    fact(f"bw-rate-{batch}", ",.0f")(partial(_rate, batch))


@fact("bw-times-tokens", ".0f")
def times_tokens() -> float:
    """How many times the tokens of one sequence sixteen have, in a second."""
    return _rate(16) / _rate(1)


@fact("bw-equal", ".0f")
def equal() -> float:
    """Sequences whose caches are as many bytes as the weights."""
    return _weights(MODEL) / _cache()


@fact("bw-limit", ",.0f")
def limit() -> float:
    """Tokens a second, of all sequences, however many there are."""
    return gpus()[CARD].bandwidth / _cache()


@fact("bw-room", "d")
def room() -> int:
    """Sequences that fit beside the weights."""
    model, found = model_of(MODEL), 0
    while per_gpu_bytes(model, Workload(length=LENGTH, batch=found + 1)) <= gpus()[CARD].memory_bytes:
        found += 1
    return found


@fact("bw-ridge", ".0f")
def ridge() -> float:
    return gpus()[CARD].ridge


def _attention(slug: str) -> float:
    return intensity(slug, 1).cache


for name, slug in (
    ("mha", "llama-2-7b"),
    ("gqa", MODEL),
    ("large", LARGE),
    ("mqa", "falcon-7b"),
    ("mla", LATENT),
):
    fact(f"bw-intensity-{name}", ".0f")(partial(_attention, slug))


# -- an eighth of the cache ----------------------------------------------------------------------------------


def _read(count: float) -> float:
    """Milliseconds of so many bytes."""
    return MILLI * count / gpus()[OLDER].bandwidth


@fact("bw-large-weights", ".1f")
def large_weights() -> float:
    return _read(_weights(LARGE))


def _large_cache(kv: int | None) -> float:
    """Of 4,096 tokens."""
    return _read(token_of(LARGE, kv) * 4096)


fact("bw-large-mha", ".2f")(partial(_large_cache, 64))
fact("bw-large-gqa", ".2f")(partial(_large_cache, None))


def _gain(batch: int) -> float:
    """How many times faster the bound is with eight heads of keys than with 64."""
    mha, gqa = (batch * _large_cache(kv) for kv in (64, None))
    return float((large_weights() + mha) / (large_weights() + gqa))


for batch in (1, 64):
    fact(f"bw-gain-{batch}", ".2f")(partial(_gain, batch))


# -- accelerators --------------------------------------------------------------------------------------------


def _bandwidth(slug: str) -> float:
    return gpus()[slug].bandwidth_gb_s


def _peak(slug: str) -> float:
    return gpus()[slug].tflops_16bit


def _ridge(slug: str) -> float:
    return gpus()[slug].ridge


def _first(slug: str) -> float:
    return pace(MODEL, slug, 1, 1, LENGTH).least


for slug, name in ((OLDER, "a100"), (CARD, "h100"), ("h200", "h200"), ("b200", "b200")):
    fact(f"bw-{name}-bandwidth", ",.0f")(partial(_bandwidth, slug))
    fact(f"bw-{name}-peak", ",.0f")(partial(_peak, slug))
    fact(f"bw-{name}-ridge", ".0f")(partial(_ridge, slug))
    fact(f"bw-{name}-step", ".1f")(partial(_first, slug))


@fact("bw-h200-gain", ".2f")
def h200_gain() -> float:
    return _first(CARD) / _first("h200")
