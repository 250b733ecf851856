"""Estimates as the OpenAPI document describes them."""

from api.openapi import JsonSchema, closed, component, described, ref
from kernels.sizing.inverse import MAX_BATCH, MAX_LEN
from kernels.sizing.questions import (
    ATTENTION,
    FINDS,
    GPU_FIGURES,
    KV_SCALES,
    LOGITS,
    MAX_GPUS,
    MAX_OVERHEAD,
)
from kernels.sizing.storage import CACHE_DTYPES, WEIGHT_DTYPES

BYTES: JsonSchema = {"type": "integer", "minimum": 0}
COUNT: JsonSchema = {"type": "integer", "minimum": 0}
SECONDS: JsonSchema = {"type": "number", "minimum": 0}
STRINGS: JsonSchema = {"type": "array", "items": {"type": "string"}}
BYTES_BY_NAME: JsonSchema = {"type": "object", "additionalProperties": BYTES}
READABLE: JsonSchema = {
    "type": "object",
    "description": "The same sizes for people, in GiB (2³⁰) and GB (10⁹).",
    "additionalProperties": {"type": "string"},
}


def _choice(values: tuple[str, ...], default: str, description: str) -> JsonSchema:
    return {"type": "string", "enum": list(values), "default": default, "description": description}


def _nullable(schema: JsonSchema) -> JsonSchema:
    return {**schema, "nullable": True}


# --- Requests --------------------------------------------------------------------------------

OwnGpu = component(
    "OwnGpu",
    closed(
        {name: {"type": "number", "minimum": 1e-3, "maximum": 1e9} for name in GPU_FIGURES},
        required=GPU_FIGURES[:3],
        description="The figures of a GPU that is not in the table, from its data sheet.",
    ),
)
CACHE: dict[str, JsonSchema] = {
    "model": described("string", "A name that GET /models lists, however it is spelt."),
    "config": described(
        "object", "The content of a Hugging Face config.json, instead of model.", additionalProperties=True
    ),
    "len": described("integer", "Tokens of each sequence.", minimum=0, maximum=MAX_LEN),
    "batch": described("integer", "Sequences at once.", minimum=1, maximum=MAX_BATCH, default=1),
    "encoder_len": described(
        "integer",
        "Tokens that an encoder has read, for models with one beside a decoder; null: as many as len.",
        minimum=0,
        maximum=MAX_LEN,
        nullable=True,
    ),
    "dtype": _choice(CACHE_DTYPES, "float16", "Of keys and values in the cache."),
    "kv_scale": _choice(KV_SCALES, "per_token_head", "Quantised caches: a float32 scale to each, or one."),
}
WEIGHTS: dict[str, JsonSchema] = {
    "weights_dtype": _choice(
        WEIGHT_DTYPES,
        "bfloat16",
        "Of the matrices in the layers; embeddings, head and norms stay in 16 bits where this is fewer. "
        "If left out, what the config's quantization_config says.",
    ),
    "group_size": described(
        "integer", "Inputs that share a scale, where weights are quantised.", minimum=1, nullable=True
    ),
    "gpu": {
        "description": "A name that GET /gpus lists, or the figures of another.",
        "anyOf": [{"type": "string"}, ref(OwnGpu)],
    },
    "gpus": described(
        "integer", "How many share the model, heads and widths.", minimum=1, maximum=MAX_GPUS, default=1
    ),
}
STEP: dict[str, JsonSchema] = {
    "q_len": {
        "description": 'Tokens of each sequence that one step computes; 1 is decoding, "len" a whole prompt.',
        "default": 1,
        "anyOf": [{"type": "integer", "minimum": 1, "maximum": MAX_LEN}, {"type": "string", "enum": ["len"]}],
    },
    "logits": _choice(LOGITS, "last", "Of which of these tokens; they are float32."),
    "attention": _choice(ATTENTION, "fused", "Materialised attention keeps scores and weights of a layer."),
    "overhead_bytes": described(
        "integer",
        "Of each GPU, set aside for CUDA, framework and fragmentation.",
        minimum=0,
        maximum=MAX_OVERHEAD,
        default=0,
    ),
}
ONE_MODEL = {"oneOf": [{"required": ["model"]}, {"required": ["config"]}]}
KvCacheRequest = component("KvCacheRequest", closed(CACHE, required=("len",), **ONE_MODEL))
MemoryRequest = component(
    "MemoryRequest", closed({**CACHE, **WEIGHTS, **STEP}, required=("len",), **ONE_MODEL), OwnGpu
)
RooflineRequest = component(
    "RooflineRequest",
    closed(
        {
            **CACHE,
            **WEIGHTS,
            "compute_bits": {
                "type": "integer",
                "enum": [8, 16],
                "default": 16,
                "description": "Which tensor cores multiply; 8 needs activations in 8 bits too.",
            },
        },
        required=("len", "gpu"),
        **ONE_MODEL,
    ),
    OwnGpu,
)
FitRequest = component(
    "FitRequest",
    closed(
        {
            **CACHE,
            **WEIGHTS,
            **STEP,
            "find": {
                "type": "string",
                "enum": list(FINDS),
                "description": "len and batch need a gpu; what is looked for is left out.",
            },
        },
        required=("find",),
        **ONE_MODEL,
    ),
    OwnGpu,
)

# --- Answers ---------------------------------------------------------------------------------

Assumption = component(
    "Assumption",
    closed(
        {
            "field": {"type": "string"},
            "value": {"anyOf": [{"type": "integer"}, {"type": "boolean"}, {"type": "string"}]},
            "why": {"type": "string"},
        },
        required=("field", "value", "why"),
    ),
)
ACCOUNT: dict[str, JsonSchema] = {
    "dtype": {"type": "string"},
    "kv_scale_bytes": BYTES,
    "len": COUNT,
    "batch": COUNT,
    "encoder_len": _nullable(COUNT),
    "weights_dtype": described("string", "`config`: as its quantization_config says."),
    "model": _nullable({"type": "string"}),
    "model_type": _nullable({"type": "string"}),
    "understood": {**STRINGS, "description": "Fields of the config that the answer rests on."},
    "ignored": {**STRINGS, "description": "Fields that had no part in it."},
    "unknown": {**STRINGS, "description": "Those of the ignored that we have never heard of."},
    "assumed": {
        "type": "array",
        "items": ref(Assumption),
        "description": "What the config does not say, what it was taken to be, and why.",
    },
    "notes": STRINGS,
}
ALWAYS = ("model", "understood", "ignored", "unknown", "assumed", "notes")
CacheLayer = component(
    "CacheLayer",
    closed(
        {
            "layer": COUNT,
            "kind": described("string", "`full_attention`, `sliding_attention`, `mla`, `mamba` …"),
            "kv_heads": described("integer", "1 for latents, which all heads share; 0 for states."),
            "head_dim": COUNT,
            "v_head_dim": described("integer", "0 where one vector is both key and value."),
            "window": _nullable(COUNT),
            "tokens": described("integer", "Kept of each sequence."),
            "bytes": BYTES,
            "state_bytes": BYTES,
        },
        required=("layer", "kind", "kv_heads", "head_dim", "window", "bytes"),
    ),
)
KvCacheEstimate = component(
    "KvCacheEstimate",
    closed(
        {
            "bytes": described("integer", "Keys and values of the whole batch; windows keep their window."),
            "bytes_unwindowed": described("integer", "If every layer kept every token."),
            "bytes_per_token": described("integer", "Of one token, in every layer that keeps it."),
            "bytes_per_next_token": described("integer", "What one token more takes: full windows add none."),
            "state_bytes": described("integer", "Of states, whatever the length; not part of bytes."),
            "readable": READABLE,
            "layers": {"type": "array", "items": ref(CacheLayer)},
            **ACCOUNT,
        },
        required=("bytes", "bytes_unwindowed", "bytes_per_token", "state_bytes", "layers", *ALWAYS),
    ),
    CacheLayer,
    Assumption,
)
Gpu = component(
    "Gpu",
    closed(
        {
            "slug": {"type": "string"},
            "title": {"type": "string"},
            "memory_gb": described("number", "As sold."),
            "memory_bytes": described(
                "integer", "The same at 10⁹ bytes to the GB: what fits is judged by it."
            ),
            "physical_gb": _nullable({"type": "number"}),
            "bandwidth_gb_s": {"type": "number"},
            "tflops_16bit": {"type": "number"},
            "tflops_8bit": _nullable({"type": "number"}),
            "ridge_flop_per_byte": described("number", "Intensity from which arithmetic is the bound."),
            "sms": _nullable(COUNT),
            "shared_kb_per_sm": _nullable(COUNT),
            "max_shared_kb": _nullable(COUNT),
            "l2_mb": _nullable({"type": "number"}),
            "source": {"type": "string"},
            "note": {"type": "string"},
        },
        required=("slug", "title", "memory_gb", "memory_bytes", "bandwidth_gb_s", "tflops_16bit", "source"),
    ),
)
SHARED: dict[str, JsonSchema] = {
    "gpu": {"anyOf": [{"enum": [None]}, ref(Gpu)]},
    "gpus": {"type": "integer", "minimum": 1},
}
MemoryEstimate = component(
    "MemoryEstimate",
    closed(
        {
            "bytes": described("integer", "The sum of the parts."),
            "per_gpu_bytes": described("integer", "On the fullest of gpus; a latent cache is on each."),
            "parts": {
                **BYTES_BY_NAME,
                "description": "weights, cache, states, activations (a model), logits, scores, overhead.",
            },
            "readable": READABLE,
            "params": COUNT,
            "active_params": described("integer", "Without the experts that a token does not use."),
            "weights_by_part": BYTES_BY_NAME,
            **SHARED,
            "fits": _nullable({"type": "boolean"}),
            "free_bytes": _nullable(described("integer", "Negative: so much is missing.")),
            **ACCOUNT,
        },
        required=("bytes", "per_gpu_bytes", "parts", "params", "active_params", "fits", *ALWAYS),
    ),
    Gpu,
    Assumption,
)
Bound = component(
    "Bound",
    closed(
        {
            "tokens": COUNT,
            "flops": COUNT,
            "bytes": BYTES,
            "traffic": {**BYTES_BY_NAME, "description": "weights, cache_read, cache_written, states."},
            "arithmetic_intensity": _nullable({"type": "number"}),
            "compute_seconds": SECONDS,
            "memory_seconds": SECONDS,
            "seconds": SECONDS,
            "bound": {"type": "string", "enum": ["compute", "memory"]},
            "tokens_per_second": _nullable({"type": "number"}),
        },
        required=("flops", "bytes", "compute_seconds", "memory_seconds", "seconds", "bound"),
    ),
)
RooflineEstimate = component(
    "RooflineEstimate",
    closed(
        {
            "method": {"type": "string", "enum": ["roofline"]},
            "measured": {"type": "boolean", "enum": [False]},
            "prefill": ref(Bound),
            "decode": {"anyOf": [{"enum": [None]}, ref(Bound)]},
            **SHARED,
            "compute_bits": {"type": "integer"},
            **ACCOUNT,
        },
        required=("method", "measured", "prefill", "decode", "gpu", *ALWAYS),
    ),
    Bound,
    Gpu,
    Assumption,
)
FittingGpu = component(
    "FittingGpu",
    closed(
        {
            "gpu": {"type": "string"},
            "title": {"type": "string"},
            "fits": {"type": "boolean"},
            "gpus": _nullable(described("integer", "The fewest that hold it; null if 16 do not.")),
            "per_gpu_bytes": BYTES,
            "memory_bytes": BYTES,
            "readable": {"type": "string"},
        },
        required=("gpu", "title", "fits", "gpus", "per_gpu_bytes", "memory_bytes"),
    ),
)
FitEstimate = component(
    "FitEstimate",
    closed(
        {
            "find": {"type": "string", "enum": list(FINDS)},
            "context": _nullable(described("integer", "Tokens that the model was made for.")),
            "within_context": _nullable({"type": "boolean"}),
            "per_gpu_bytes": BYTES,
            "one_more_bytes": described("integer", "The same with one token or one sequence more."),
            "budget_bytes": BYTES,
            "readable": READABLE,
            **SHARED,
            "fitting": {"type": "array", "items": ref(FittingGpu)},
            **ACCOUNT,
        },
        required=("find", *ALWAYS),
    ),
    FittingGpu,
    Gpu,
    Assumption,
)
Model = component(
    "Model",
    closed(
        {
            "slug": {"type": "string"},
            "title": {"type": "string"},
            "aliases": STRINGS,
            "params": COUNT,
            "active_params": COUNT,
            "published_params": described("string", "As its authors say it."),
            "layers": COUNT,
            "context": _nullable(COUNT),
            "kv_bytes_per_token": described("integer", "In 16 bits, in every layer that keeps it."),
            "state_bytes": BYTES,
            "config": {"type": "object", "additionalProperties": True},
            "source": {"type": "string"},
            "note": {"type": "string"},
        },
        required=("slug", "title", "params", "kv_bytes_per_token", "config", "source"),
    ),
)
ModelList = component(
    "ModelList", closed({"models": {"type": "array", "items": ref(Model)}}, required=("models",)), Model
)
GpuList = component(
    "GpuList", closed({"gpus": {"type": "array", "items": ref(Gpu)}}, required=("gpus",)), Gpu
)

Estimates = component(
    "Estimates",
    closed(
        {
            "estimates": {
                "type": "array",
                "items": closed(
                    {
                        "name": {"type": "string"},
                        "url": {"type": "string", "format": "uri"},
                        "title": {"type": "string"},
                        "example": {"type": "object", "additionalProperties": True},
                        "limits": {"type": "object", "additionalProperties": COUNT},
                    },
                    required=("name", "url", "title", "example", "limits"),
                ),
            },
            "limits": {
                "type": "object",
                "description": "The most of each that estimates of a model take.",
                "additionalProperties": COUNT,
            },
        },
        required=("estimates", "limits"),
    ),
)

EXAMPLES: dict[str, JsonSchema] = {
    "kv-cache": {"model": "gemma-3-27b", "len": 131072},
    "memory": {"model": "llama-3-8b", "len": 4096, "gpu": "rtx-4090"},
    "roofline": {"model": "llama-2-70b", "len": 4096, "gpu": "a100-80-sxm", "gpus": 2},
    "fit": {"model": "llama-2-70b", "find": "batch", "len": 4096, "gpu": "a100-80-sxm", "gpus": 2},
}
CONFIG_EXAMPLE: JsonSchema = {
    "config": {
        "model_type": "falcon",
        "hidden_size": 14848,
        "num_hidden_layers": 80,
        "num_attention_heads": 232,
        "num_kv_heads": 8,
        "multi_query": True,
        "new_decoder_architecture": True,
        "vocab_size": 65024,
    },
    "len": 2048,
    "dtype": "float16",
}
