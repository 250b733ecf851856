"""A layer of a model in the lab: the fields of its form, as large as the lab takes them."""

from typing import Any

from kernels.sizing.layers import Attention, LatentAttention, Mamba, Mixer, Model
from kernels.sizing.models import read_model
from kernels.spec.run import MAX_ELEMENTS

RUN_LENGTH = 4096  # tokens of a cache at most, of those that the lab is given
READ_AT_ONCE = 64  # tokens at most, where a layer reads all of them
CHANNELS = 32  # of a state-space layer, of as many as it has


def fields(model: str, tokens: int = RUN_LENGTH, cache: str = "float16") -> list[tuple[str, str]]:
    """Of the model with this slug: its first attention, with a cache of so many tokens in this format."""
    mixer = mixer_of(read_model(model).model)
    pairs = {"source": "seed", "seed": 1, "batch": 1, "dtype": "float16", **shape_of(mixer, tokens, cache)}
    return [(name, str(value)) for name, value in pairs.items()]


def mixer_of(model: Model) -> Mixer:
    """The first attention of a model, or what it has in its place."""
    mixers: list[Mixer] = [mixer for layer in model.layers for mixer in layer.mixers]
    return next((mixer for mixer in mixers if isinstance(mixer, Attention | LatentAttention)), mixers[0])


def shape_of(mixer: Mixer, tokens: int, cache: str) -> dict[str, Any]:
    """The lab's fields: one token that meets the cache of a layer, or a text that is read at once. Raises
    TypeError for a layer that no engine computes."""
    if isinstance(mixer, LatentAttention):
        return {
            "engine": "mla", "heads": mixer.heads // 4, "q_len": 1, "kv_len": min(tokens, 256),
            "d_nope": mixer.nope_dim, "d_rope": mixer.rope_dim, "d_c": mixer.kv_rank, "d_v": mixer.v_head_dim,
        }  # fmt: skip
    if isinstance(mixer, Mamba):
        shown = {"engine": "scan", "heads": 1, "q_len": min(tokens, READ_AT_ONCE), "dtype": "float32"}
        return shown | {"channels": CHANNELS, "states": mixer.state}
    if not isinstance(mixer, Attention):
        raise TypeError(f"the lab has no example of {mixer.kind}")
    shown = {"heads": mixer.heads, "kv_heads": mixer.kv_heads, "head_dim": mixer.head_dim}
    if not mixer.is_causal:
        length = min(tokens, READ_AT_ONCE)
        return {"engine": "flash", "q_len": length, "kv_len": length, **shown}
    shown |= {"engine": "decode", "q_len": 1, "kv_len": min(tokens, runnable(mixer))}
    if cache == "fp8_e4m3":
        shown["option_kv_dtype"] = cache
    return shown


def runnable(mixer: Attention) -> int:
    """How many tokens of a layer the lab takes, of as many as this figure sends."""
    length = RUN_LENGTH
    while 2 * length * mixer.kv_heads * mixer.head_dim >= MAX_ELEMENTS:
        length //= 2
    return length
