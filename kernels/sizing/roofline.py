"""How fast a model can at most be on a GPU: the longer of what its arithmetic and its memory traffic take.

A bound from the figures of a data sheet, never a measurement: kernels reach a part of it. Weights are read
once for all sequences of a step (of experts, those that the step's tokens are expected to choose if each is
as likely as any other); the cache is read once, and what is new written. Activations are taken to stay on the
chip, and GPUs that share a model to exchange nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kernels.integers import ceil_div
from kernels.sizing.gpus import Gpu
from kernels.sizing.kv_cache import STATE_BYTES, state_parts, token_bytes, tokens_kept
from kernels.sizing.layers import Attention, LatentAttention, Layer, Mixer, Model
from kernels.sizing.memory import Workload
from kernels.sizing.weights import Array, Matrix, arrays, copy_bytes, layer_arrays


@dataclass(frozen=True)
class Bound:
    """The least time of one step, and which of the two says so."""

    tokens: int  # that the step computes, of all sequences
    flops: int
    traffic: dict[str, float]  # by what is read or written: weights, cache, states
    compute_seconds: float
    memory_seconds: float

    @property
    def bytes(self) -> float:
        """Everything read and written."""
        return sum(self.traffic.values())

    @property
    def seconds(self) -> float:
        """The longer of the two."""
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def bound(self) -> str:
        """``compute`` or ``memory``."""
        return "compute" if self.compute_seconds >= self.memory_seconds else "memory"


def bound(model: Model, load: Workload, gpu: Gpu, bits: int = 16) -> Bound:
    """The least time of the step that ``load`` describes. Raises ValueError if the GPU has no such cores."""
    operations = flops(model, load)
    peak = gpu.peak(bits)
    if peak is None:
        raise ValueError(f"{gpu.title} has no figure for {bits}-bit arithmetic")
    alone = traffic_of(model, load)
    each = traffic_of(model, load, gpus=load.gpus)
    return Bound(
        tokens=load.batch * load.queries,
        flops=operations,
        traffic=alone,
        compute_seconds=operations / load.gpus / peak,
        memory_seconds=sum(each.values()) / gpu.bandwidth,
    )


@dataclass(frozen=True)
class Intensities:
    """FLOP to each byte read: of all products with weights, and of attention with what is cached."""

    weights: float
    cache: float


def intensities(model: Model, load: Workload) -> Intensities:
    """Of the step that ``load`` describes. ValueError for a model that caches nothing."""
    traffic = traffic_of(model, load)
    if not traffic["cache_read"]:
        raise ValueError("a model without a cache reads none")
    mixers = Counter(mixer for layer in model.layers for mixer in layer.mixers)
    pairs = load.batch * sum(times * mixer_flops(mixer, load) for mixer, times in mixers.items())
    products = flops(model, load) - pairs
    return Intensities(products / traffic["weights"], pairs / traffic["cache_read"])


def prefill(load: Workload) -> Workload:
    """The step that takes in the whole prompt."""
    return replace(load, q_len=None)


def decode(load: Workload) -> Workload:
    """The step that makes one more token of every sequence, the encoder's work being done."""
    return replace(load, q_len=1)


def flops(model: Model, load: Workload) -> int:
    """Operations of a step, two to a multiply-add, masked pairs not counted."""
    tokens = load.batch * load.queries
    total = _stack_flops(model.layers, model.hidden, load, tokens)
    if model.encoder and _is_first(load):
        inside = replace(load, length=load.encoded, q_len=None)
        total += _stack_flops(model.encoder, model.hidden, inside, load.batch * load.encoded)
    for array, times in arrays(model).items():
        if isinstance(array, Matrix) and array.part == "head":
            total += 2 * times * load.logit_rows * array.outputs * array.inputs
    return total


def _stack_flops(layers: Iterable[Layer], hidden: int, load: Workload, tokens: int) -> int:
    total = 0
    for layer, times in Counter(layers).items():
        total += times * load.batch * sum(mixer_flops(mixer, load) for mixer in layer.mixers)
        for array in layer_arrays(layer, hidden):
            if isinstance(array, Matrix):
                multiplied = _encoder_tokens(load) if array.of_encoder else tokens
                total += times * 2 * multiplied * array.outputs * array.inputs * array.used
    return total


def mixer_flops(mixer: Mixer, load: Workload) -> int:
    """What a mixer computes for one sequence beside its projections."""
    match mixer:
        case Attention():
            return 2 * mixer.heads * (mixer.head_dim + mixer.v_head_dim) * visible_pairs(mixer, load)
        case LatentAttention():
            return _latent_flops(mixer, load)
        case _:
            recurrent, convolved = state_parts(mixer)
            return load.queries * (6 * recurrent + 2 * convolved)  # a state decays, is added to and read


def visible_pairs(mixer: Attention | LatentAttention, load: Workload) -> int:
    """Pairs of a query of this step and a key that it sees."""
    if isinstance(mixer, Attention) and mixer.is_cross:
        return load.queries * load.encoded
    if isinstance(mixer, Attention) and not mixer.is_causal:
        return load.queries * load.length
    return _pairs_up_to(load.length, mixer) - _pairs_up_to(load.length - load.queries, mixer)


def _pairs_up_to(length: int, mixer: Attention | LatentAttention) -> int:
    """Pairs of the first ``length`` tokens, each seeing itself and what is before it as far as it may."""
    window = mixer.window if isinstance(mixer, Attention) else mixer.index_top
    if isinstance(mixer, Attention) and mixer.is_chunked and window is not None:
        chunks, rest = divmod(length, window)
        return chunks * (window * (window + 1) // 2) + rest * (rest + 1) // 2
    reach = length if window is None else min(length, window)
    return reach * (reach + 1) // 2 + (length - reach) * reach


def _latent_flops(mixer: LatentAttention, load: Workload) -> int:
    """The cheaper of the two forms: latents expanded to keys and values, or weights absorbed into queries."""
    pairs = visible_pairs(mixer, load)
    absorbed = 2 * mixer.heads * (2 * mixer.kv_rank + mixer.rope_dim) * pairs
    expanded = 2 * mixer.heads * (mixer.nope_dim + mixer.rope_dim + mixer.v_head_dim) * pairs
    again = 2 * mixer.heads * (mixer.nope_dim + mixer.v_head_dim) * mixer.kv_rank
    found = 2 * mixer.index_heads * mixer.index_dim * visible_pairs(replace(mixer, index_top=None), load)
    return found + min(absorbed, expanded + again * (load.length - load.queries))


def _encoder_tokens(load: Workload) -> int:
    """Tokens whose cross-attention keys and values the step makes: all of the encoder's, or none."""
    return load.batch * load.encoded if _is_first(load) else 0


def _is_first(load: Workload) -> bool:
    """Whether the step takes in whole sequences, and so what an encoder has to read."""
    return load.queries == load.length


def traffic_of(model: Model, load: Workload, gpus: int = 1) -> dict[str, float]:
    """Bytes that a step reads and writes on the busiest of ``gpus``."""
    tokens = load.batch * load.queries
    met = model if _is_first(load) else replace(model, encoder=())
    weights = sum(_read(array, load, tokens) * times for array, times in arrays(met).items())
    cache = written = states = 0
    for mixer, times in Counter(mixer for layer in model.layers for mixer in layer.mixers).items():
        each = token_bytes(mixer, load.cache, gpus)
        kept = tokens_kept(mixer, load.length, load.encoded)
        is_cross = isinstance(mixer, Attention) and mixer.is_cross
        new = load.encoded * _is_first(load) if is_cross else load.queries
        cache += times * (each * kept - _unread(mixer, load))
        written += times * each * min(new, kept)
        states += times * 2 * STATE_BYTES * ceil_div(sum(state_parts(mixer)), gpus)
    return {
        "weights": weights / gpus,
        "cache_read": load.batch * cache,
        "cache_written": load.batch * written,
        "states": load.batch * states,
    }


def _unread(mixer: Mixer, load: Workload) -> int:
    """Bytes of the cache of one sequence that a step leaves alone: latents that an index did not find."""
    if not isinstance(mixer, LatentAttention) or mixer.index_top is None:
        return 0
    each = load.cache.vector(mixer.kv_rank) + load.cache.vector(mixer.rope_dim)
    return each * max(0, load.length - mixer.index_top * load.queries)


def _read(array: Array, load: Workload, tokens: int) -> float:
    """Bytes of an array that a step of so many tokens reads."""
    if array.part == "positions":
        return 0
    one = copy_bytes(array, load.weights)
    if isinstance(array, Matrix):
        if array.of_encoder and not _is_first(load):
            return 0
        if array.part == "embedding" and array.used == 0:
            return tokens * one / array.inputs  # a row to each token
    if array.copies <= 1:
        return one
    return one * array.copies * (1 - (1 - array.used / array.copies) ** tokens)
