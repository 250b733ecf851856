"""Hybrid stacks estimated: request and answer as the OpenAPI document has them, and the answer itself."""

from typing import Any

from api.openapi import JsonSchema, closed, component, described
from kernels.sizing.fields import MAX_LAYERS, MAX_WIDTH
from kernels.sizing.hybrid import Hybrid, StateMixer
from kernels.sizing.hybrid_questions import (
    DEFAULT_STATE_DTYPE,
    STATE_DTYPES,
    STATES,
    HybridQuestion,
    Width,
    parse_hybrid_question,
)
from kernels.sizing.inverse import MAX_BATCH, MAX_LEN
from kernels.sizing.layers import Attention
from kernels.sizing.mixers import MAX_HEADS, MAX_WINDOW
from kernels.sizing.questions import KV_SCALES
from kernels.sizing.storage import CACHE_DTYPES, readable

Json = dict[str, Any]

LIMITS = {
    "len": MAX_LEN,
    "batch": MAX_BATCH,
    "layers": MAX_LAYERS,
    "heads": MAX_HEADS,
    "width": MAX_WIDTH,
    "window": MAX_WINDOW,
}
EXAMPLE: Json = {
    "num_layers": 32,
    "attention_every": 8,
    "attention": {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128},
    "state": {"kind": "mamba", "d_inner": 8192, "d_state": 16, "d_conv": 4},
    "len": 262144,
}

# --- The document ----------------------------------------------------------------------------

COUNT: JsonSchema = {"type": "integer", "minimum": 0}
NUMBER: JsonSchema = {"type": "number"}


def _nullable(schema: JsonSchema) -> JsonSchema:
    return {**schema, "nullable": True}


def _choice(values: tuple[str, ...], default: str, description: str) -> JsonSchema:
    return {"type": "string", "enum": list(values), "default": default, "description": description}


def _counted(high: int, description: str, low: int = 1, **more: Any) -> JsonSchema:
    return described("integer", description, minimum=low, maximum=high, **more)


def _width(width: Width) -> JsonSchema:
    usual = {} if width.default is None else {"default": width.default}
    return _counted(width.most, f"{width.meaning[0].upper()}{width.meaning[1:]}.", width.least, **usual)


def _state(kind: str, widths: dict[str, Width]) -> JsonSchema:
    return closed(
        {
            "kind": {"type": "string", "enum": [kind]},
            **{name: _width(width) for name, width in widths.items()},
            "dtype": _choice(STATE_DTYPES, DEFAULT_STATE_DTYPE, "Of the numbers that recur."),
            "conv_dtype": _choice(STATE_DTYPES, DEFAULT_STATE_DTYPE, "Of what a convolution slides over."),
        },
        required=("kind", *(name for name, width in widths.items() if width.default is None)),
        title=kind,
    )


HybridRequest = component(
    "HybridRequest",
    closed(
        {
            "num_layers": _counted(MAX_LAYERS, "Layers of the stack."),
            "attention_layers": _counted(MAX_LAYERS, "How many of them are attention.", 0, nullable=True),
            "attention_every": _counted(
                MAX_LAYERS, "Or every how many layers one is: 8 is 1:7, as in Jamba.", nullable=True
            ),
            "windowed_layers": _counted(
                MAX_LAYERS, "How many layers of attention have a window.", 0, default=0
            ),
            "window": _counted(MAX_WINDOW, "Tokens that such a window holds.", nullable=True),
            "attention": closed(
                {
                    "num_heads": _counted(
                        MAX_HEADS, "Query heads; null: as many as key heads.", nullable=True
                    ),
                    "num_kv_heads": _counted(MAX_HEADS, "Heads of keys and values."),
                    "head_dim": _counted(MAX_WIDTH, "Width of a key."),
                    "v_head_dim": _counted(MAX_WIDTH, "Width of a value; null: as wide.", nullable=True),
                    "dtype": _choice(CACHE_DTYPES, "float16", "Of keys and values in the cache."),
                    "kv_scale": _choice(
                        KV_SCALES, "per_token_head", "Quantised caches: a float32 scale to each, or one."
                    ),
                },
                required=("num_kv_heads", "head_dim"),
            ),
            "state": {
                "anyOf": [_state(kind, widths) for kind, widths in STATES.items()],
                "description": "What the other layers keep.",
            },
            "len": _counted(MAX_LEN, "Tokens of each sequence.", 0),
            "batch": _counted(MAX_BATCH, "Sequences at once.", default=1),
        },
        required=("num_layers", "attention", "state", "len"),
        description="Either `attention_layers` or `attention_every`.",
    ),
)
FLOPS = closed(
    {
        "per_token": described("integer", "To make the last of len tokens."),
        "prefill": described("integer", "To take in all len tokens."),
        "order": described("string", "How a token's grow: n·d with the tokens, d·N with nothing."),
    },
    required=("per_token", "prefill", "order"),
)
CURVES = ("len", "cache_bytes", "bytes", "all_attention_bytes", "attention_flops")
HybridEstimate = component(
    "HybridEstimate",
    closed(
        {
            "num_layers": COUNT,
            "attention_layers": COUNT,
            "windowed_layers": COUNT,
            "window": _nullable(COUNT),
            "state_layers": COUNT,
            "attention": {"type": "object", "additionalProperties": True},
            "state": {"type": "object", "additionalProperties": True},
            "len": COUNT,
            "batch": COUNT,
            "cache_bytes": described("integer", "Keys and values of the batch; windows keep their window."),
            "state_bytes": described("integer", "States of the batch, whatever the length."),
            "bytes": described("integer", "Both."),
            "all_attention_bytes": described(
                "integer", "Of a stack as deep that is all attention, without windows."
            ),
            "ratio": _nullable(described("number", "bytes / all_attention_bytes; null: of no token.")),
            "bytes_per_token": described("integer", "Of one sequence, in all layers that keep it."),
            "bytes_per_next_token": described("integer", "What one token more takes: full windows add none."),
            "all_attention_bytes_per_token": COUNT,
            "break_even_tokens": _nullable(
                described("integer", "From how many on the cache is larger than the states; null: never.")
            ),
            "layer_break_even_tokens": described("integer", "The same of one layer of each; no window."),
            "readable": {"type": "object", "additionalProperties": {"type": "string"}},
            "flops": closed(
                {
                    "attention": FLOPS,
                    "windowed": _nullable(FLOPS),
                    "state": FLOPS,
                    "break_even_tokens": described(
                        "integer", "From how many on the next one takes more in attention than in a state."
                    ),
                },
                required=("attention", "windowed", "state", "break_even_tokens"),
                description="Of one layer and sequence, beside its projections; two to a multiply-add.",
            ),
            "series": closed(
                {name: {"type": "array", "items": COUNT} for name in CURVES},
                required=CURVES,
                description="The same at powers of two, one list for each figure; what a state takes is the "
                "same at all.",
            ),
        },
        required=(
            "num_layers", "attention_layers", "state_layers", "len", "batch", "cache_bytes", "state_bytes",
            "bytes", "all_attention_bytes", "ratio", "bytes_per_token", "bytes_per_next_token",
            "break_even_tokens", "flops", "series",
        ),
    ),
)  # fmt: skip


# --- The answer ------------------------------------------------------------------------------


def estimate(body: object) -> Json:
    """What the body asks for."""
    asked = parse_hybrid_question(body)
    stack, length, batch = asked.stack, asked.length, asked.batch
    cache, state = batch * stack.cache_bytes(length), batch * stack.state_bytes
    dense = batch * stack.all_attention_bytes(length)
    sizes = {
        "cache_bytes": cache,
        "state_bytes": state,
        "bytes": cache + state,
        "all_attention_bytes": dense,
        "bytes_per_token": stack.attention_layers * stack.layer_token_bytes,
        "bytes_per_next_token": stack.cache_bytes(length + 1) - stack.cache_bytes(length),
        "all_attention_bytes_per_token": stack.num_layers * stack.layer_token_bytes,
    }
    return {
        **_asked(asked),
        **sizes,
        "ratio": (cache + state) / dense if dense else None,
        "break_even_tokens": stack.break_even(),
        "layer_break_even_tokens": stack.layer_break_even(),
        "readable": {name: readable(size) for name, size in sizes.items()},
        "flops": _flops(stack, length),
        "series": _series(stack, length, batch),
    }


def _asked(asked: HybridQuestion) -> Json:
    """The question, its defaults filled in."""
    stack, mixer = asked.stack, asked.stack.attention
    return {
        "num_layers": stack.num_layers,
        "attention_layers": stack.attention_layers,
        "windowed_layers": stack.windowed_layers,
        "window": stack.window if stack.windowed_layers else None,
        "state_layers": stack.state_layers,
        "attention": {
            "num_heads": mixer.heads,
            "num_kv_heads": mixer.kv_heads,
            "head_dim": mixer.head_dim,
            "v_head_dim": mixer.v_head_dim,
            "dtype": stack.cache.name,
            "kv_scale_bytes": stack.cache.scale_bytes,
        },
        "state": {
            "kind": asked.kind,
            **asked.widths,
            "dtype": asked.state_dtype,
            "conv_dtype": asked.conv_dtype,
        },
        "len": asked.length,
        "batch": asked.batch,
    }


def _flops(stack: Hybrid, length: int) -> Json:
    def of(mixer: Attention | StateMixer, order: str) -> Json:
        per_token, prefill = stack.flops(mixer, length), stack.flops(mixer, length, None)
        return {"per_token": per_token, "prefill": prefill, "order": order}

    return {
        "attention": of(stack.attention, "n·d"),
        "windowed": of(stack.windowed, "w·d") if stack.windowed_layers else None,
        "state": of(stack.state, "d_k·d_v" if stack.state.kind == "linear_attention" else "d·N"),
        "break_even_tokens": stack.flops_break_even(),
    }


def _series(stack: Hybrid, length: int, batch: int) -> Json:
    lengths = stack.lengths(length)
    cache = [batch * stack.cache_bytes(each) for each in lengths]
    return {
        "len": lengths,
        "cache_bytes": cache,
        "bytes": [each + batch * stack.state_bytes for each in cache],
        "all_attention_bytes": [batch * stack.all_attention_bytes(each) for each in lengths],
        "attention_flops": [stack.flops(stack.attention, each) for each in lengths],
    }
