"""Memory of the past, in bytes: a state that never grows beside a cache that always does.

    state   layers · (channels · states · bytes of a number  +  channels · (width − 1) · bytes of an input)
    cache   layers · tokens · KV heads · (d_k + d_v) · bytes of a number

The state's second term are the last inputs of the short causal convolution before the scan, ``width`` wide (4
in Mamba; 0: none). Linear attention has heads · d_k · d_v numbers for channels · states.
"""

from __future__ import annotations


def state_bytes(
    *, layers: int, channels: int, states: int, item: int = 4, width: int = 0, input_item: int = 2
) -> int:
    """Of one sequence, however long."""
    kept_inputs = max(0, width - 1)
    return layers * channels * (states * item + kept_inputs * input_item)


def kv_cache_bytes(*, layers: int, tokens: int, kv_heads: int, d_k: int, d_v: int, item: int = 2) -> int:
    """Of one sequence."""
    return layers * tokens * kv_heads * (d_k + d_v) * item


def break_even_tokens(state: int, cache_per_token: int) -> int:
    """The shortest sequence whose cache is larger than the state."""
    if cache_per_token < 1:
        raise ValueError(f"cache_per_token must be at least 1 byte, not {cache_per_token}")
    return state // cache_per_token + 1
