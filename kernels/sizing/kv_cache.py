"""What a model keeps between two tokens: keys and values that grow with the sequence, states that do not.

Bytes of one sequence, exact. A layer with a window keeps only its window; an encoder-decoder also keeps keys
and values of the encoder's tokens; state spaces and linear attention keep a state of fixed size, in the
format of the activations (its convolution with the full width of its kernel, as the usual implementations).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from kernels.integers import ceil_div
from kernels.sizing.layers import Attention, LatentAttention, LinearAttention, Mamba, Mamba2, Mixer, Model
from kernels.sizing.storage import CacheFormat

STATE_BYTES = 2  # a number of a state; they are not quantised with the cache


@dataclass(frozen=True)
class CacheLayer:
    """What one mixer of one layer keeps for the whole batch."""

    layer: int
    mixer: Mixer
    kind: str
    kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int | None
    tokens: int  # kept of each sequence
    bytes: int
    state_bytes: int


@dataclass(frozen=True)
class KvCache:
    """What all layers keep, for the whole batch but where ``per_token`` is said."""

    bytes: int
    bytes_unwindowed: int  # if every layer kept every token
    bytes_per_token: int  # of one sequence, in every layer that keeps it
    bytes_per_next_token: int  # what one more token of one sequence takes: windows that are full take none
    state_bytes: int  # of states; the same for every length
    layers: tuple[CacheLayer, ...]


def kv_cache(model: Model, stored: CacheFormat, length: int, batch: int = 1, encoder_len: int = 0) -> KvCache:
    """The cache after ``length`` tokens of each of ``batch`` sequences, ``encoder_len`` in their encoder."""
    layers = tuple(
        _layer(index, mixer, stored, batch, tokens_kept(mixer, length, encoder_len))
        for index, layer in enumerate(model.layers)
        for mixer in layer.mixers
    )
    mixers = [entry.mixer for entry in layers]
    return KvCache(
        bytes=sum(entry.bytes for entry in layers),
        bytes_unwindowed=batch * sum(_everything(m, stored, length, encoder_len) for m in mixers),
        bytes_per_token=sum(token_bytes(m, stored) for m in mixers if not _is_cross(m)),
        bytes_per_next_token=sum(
            token_bytes(m, stored) * (tokens_kept(m, length + 1, 0) - tokens_kept(m, length, 0))
            for m in mixers
            if not _is_cross(m)
        ),
        state_bytes=sum(entry.state_bytes for entry in layers),
        layers=layers,
    )


def total_bytes(
    model: Model, stored: CacheFormat, length: int, batch: int, *, encoder_len: int = 0, gpus: int = 1
) -> int:
    """Cache and states, on the fullest of ``gpus`` that share the heads: what a search asks many times."""
    each = 0
    for mixer, times in Counter(mixer for layer in model.layers for mixer in layer.mixers).items():
        kept = tokens_kept(mixer, length, encoder_len) * token_bytes(mixer, stored, gpus)
        each += times * (kept + ceil_div(state_numbers(mixer), gpus) * STATE_BYTES)
    return batch * each


def token_bytes(mixer: Mixer, stored: CacheFormat, gpus: int = 1) -> int:
    """Bytes of one token in one layer; heads are shared out whole, a latent is on every GPU."""
    match mixer:
        case Attention(is_causal=True, reuses_cache=False) | Attention(is_cross=True):
            heads = ceil_div(mixer.kv_heads, gpus)
            return heads * (stored.vector(mixer.head_dim) + stored.vector(mixer.v_head_dim))
        case LatentAttention():
            return sum(map(stored.vector, (mixer.kv_rank, mixer.rope_dim, mixer.index_dim)))
        case _:
            return 0


def tokens_kept(mixer: Mixer, length: int, encoder_len: int) -> int:
    """Tokens of one sequence whose keys and values the layer still holds."""
    match mixer:
        case Attention(is_cross=True):
            return encoder_len
        case Attention(window=int() as window):
            return min(length, window)
        case _:
            return length


def state_numbers(mixer: Mixer) -> int:
    """Numbers in the state of one sequence."""
    return sum(state_parts(mixer))


def state_parts(mixer: Mixer) -> tuple[int, int]:
    """Those that recur, and those that a convolution slides over."""
    match mixer:
        case Mamba():
            return mixer.inner * mixer.state, mixer.inner * mixer.kernel
        case Mamba2():
            inner = mixer.heads * mixer.head_dim
            return inner * mixer.state, (inner + 2 * mixer.groups * mixer.state) * mixer.kernel
        case LinearAttention():
            convolved = 2 * mixer.key_heads * mixer.key_dim + mixer.value_heads * mixer.value_dim
            return mixer.value_heads * mixer.key_dim * mixer.value_dim, convolved * mixer.kernel
        case _:
            return 0, 0


def _layer(index: int, mixer: Mixer, stored: CacheFormat, batch: int, kept: int) -> CacheLayer:
    each = token_bytes(mixer, stored)
    tokens = kept if each else 0
    kv_heads = head_dim = v_head_dim = 0
    match mixer:
        case Attention():
            kv_heads, head_dim, v_head_dim = mixer.kv_heads, mixer.head_dim, mixer.v_head_dim
        case LatentAttention():
            kv_heads, head_dim = 1, mixer.kv_rank + mixer.rope_dim  # one vector is both key and value
    return CacheLayer(
        layer=index,
        mixer=mixer,
        kind=mixer.kind,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        window=mixer.window if isinstance(mixer, Attention) else None,
        tokens=tokens,
        bytes=batch * tokens * each,
        state_bytes=batch * state_numbers(mixer) * STATE_BYTES,
    )


def _everything(mixer: Mixer, stored: CacheFormat, length: int, encoder_len: int) -> int:
    return token_bytes(mixer, stored) * (encoder_len if _is_cross(mixer) else length)


def _is_cross(mixer: Mixer) -> bool:
    return isinstance(mixer, Attention) and mixer.is_cross
