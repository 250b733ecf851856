"""What a spec amounts to: operations, numbers and bytes, counted from its shapes. No torch, no constants that
were measured.

``softmax_flops`` counts the two matrix products over the pairs that the mask lets through, 2·pairs·(d + d_v);
with nothing masked and d_v = d that is the familiar 4·B·H·Lq·Lk·d. Gradients are two and a half times as much
again. The lengths of a ragged batch are data: every row counts as full. ``bytes_min`` reads each input and
writes each result once.
"""

from __future__ import annotations

import math

from kernels.flash.tiles import choose_tiles
from kernels.integers import ceil_div
from kernels.mla.forms import chosen_form, multiply_adds
from kernels.positions import visible_pairs
from kernels.registry import ENGINES, option
from kernels.spec.model import RunSpec
from kernels.spec.results import BUCKETS, DRAWN, GRADIENTS, HELD, MATRICES, PRESENT, ROWS, TRACE
from kernels.spec.values import ROUNDED

ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
CACHED = ("k", "v", "past_key", "past_value")  # what a kv_dtype makes bytes of
SCALE_BYTES = {"per_tensor": 0, "per_token_head": 4}  # of each token and head; one for all is no array
GRADIENT_FACTOR = 3.5  # forward and backward, in multiply-adds of the forward pass


def softmax_flops(spec: RunSpec) -> int:
    """Of one call of an engine that computes softmax attention; all but ``mla`` expand latents."""
    if spec.is_latent:
        products = multiply_adds(spec, chosen_form(spec) if spec.engine == "mla" else "expanded")
    else:
        products = visible_pairs(spec) * (spec.head_dim + spec.v_head_dim)
    return int(2 * products * GRADIENT_FACTOR) if spec.differentiates else 2 * products


def state_numbers(spec: RunSpec) -> int:
    """Of all states together: one for the heads that share keys and values."""
    heads = spec.num_heads if spec.engine == "scan" else spec.num_kv_heads
    return spec.batch * heads * spec.head_dim * spec.v_head_dim


def input_bytes(spec: RunSpec, name: str) -> int:
    """Of an input, read once, as engines read it: keys and values as the cache has them, a boolean in a byte,
    lengths and tables in 32 bits."""
    given = spec.inputs[name]
    if name in CACHED and spec.options.kv_dtype is not None:
        return given.elements + SCALE_BYTES[spec.options.kv_scale] * math.prod(spec.canonical_shape(name)[:3])
    if name in ROUNDED:
        return given.elements * ITEM_BYTES[spec.dtype]
    return given.elements * (1 if given.dtype == "bool" else 4)


def cached_bytes(spec: RunSpec, width: int) -> int:
    """Of the key or of the value of one token in one head, ``width`` numbers, as the cache has them."""
    if spec.options.kv_dtype is None:
        return width * ITEM_BYTES[spec.dtype]
    return width + SCALE_BYTES[spec.options.kv_scale]


def result_elements(spec: RunSpec, name: str) -> int:
    """How many numbers a result has."""
    rows = spec.batch * spec.num_heads * spec.q_len
    if name in (*MATRICES, *DRAWN):
        return rows * spec.kv_len
    if name in ("dk", "dv"):
        return spec.inputs[GRADIENTS[name]].elements
    if name in ROWS:
        return rows
    if name in TRACE:
        return rows * key_tiles(spec) * (spec.v_head_dim if name == "trace_out" else 1)
    if name in BUCKETS:
        tokens = rows if name == "q_buckets" else spec.batch * spec.num_kv_heads * spec.kv_len
        return tokens * int(option(spec, "rounds"))
    keys = spec.batch * spec.num_kv_heads * spec.kv_len
    return {
        "out": rows * spec.v_head_dim,
        HELD: keys * spec.q_len,
        "state": state_numbers(spec),
        "normaliser": spec.batch * spec.num_kv_heads * spec.head_dim,
        "lse": rows,
        "dq": rows * spec.head_dim,
        "present_key": keys * spec.head_dim,
        "present_value": keys * spec.v_head_dim,
    }[name]


def key_tiles(spec: RunSpec) -> int:
    """How many tiles of keys a trace has, that of a run in the interpreter."""
    return ceil_div(spec.kv_len, choose_tiles(spec, interpreted=True)[1])


def result_bytes(spec: RunSpec, name: str) -> int:
    """Of a result, as the engine makes it."""
    return result_elements(spec, name) * item_bytes(spec, name)


def item_bytes(spec: RunSpec, name: str) -> int:
    """Of one number of a result."""
    if name in (HELD, "trace_tiles"):
        return 1
    if ENGINES[spec.engine].is_double:
        return 8
    is_rounded = name == "out" or name in PRESENT or name in GRADIENTS
    return ITEM_BYTES[spec.dtype] if is_rounded else max(4, ITEM_BYTES[spec.dtype])


def bytes_min(spec: RunSpec) -> int:
    """Each input read and each result written once; a trace is written by nobody, but overheard."""
    read = sum(input_bytes(spec, name) for name in spec.inputs)
    return read + sum(result_bytes(spec, name) for name in spec.returns if name not in TRACE)
