"""The body of a run and the run itself, as the OpenAPI document describes them."""

from collections.abc import Mapping
from typing import Any

from api.openapi import JsonSchema, Problem, closed, component, described, ref
from kernels.arrays import DISTRIBUTIONS
from kernels.limits import MAX_BLOCK, MAX_SEED, MIN_BLOCK
from kernels.registry import ENGINES, declared
from kernels.spec.array_input import BASE64_DTYPES
from kernels.spec.attention import KV_DTYPES, MAX_ITERS, MAX_WARMUP
from kernels.spec.kinds import BOOLEAN, INTEGER, LIST, NUMBER, Field, Kinds
from kernels.spec.patterns import PATTERNS
from kernels.spec.results import RESULTS
from kernels.spec.rope import ROPE_SCALINGS
from kernels.spec.run import DEVICES, DTYPES, INPUTS, LENGTHS
from workers.models import Status

SHAPE: JsonSchema = {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 8}
WHEN: JsonSchema = {"type": "string", "format": "date-time"}
URL: JsonSchema = {"type": "string", "format": "uri"}


NULL: JsonSchema = {"enum": [None]}


def nullable(schema: JsonSchema) -> JsonSchema:
    """In OpenAPI 3.0 `nullable` belongs to a `type`; of anything else null is one more alternative."""
    return {**schema, "nullable": True} if "type" in schema else {"anyOf": [NULL, schema]}


def choice(*values: str, **more: Any) -> JsonSchema:
    return {"type": "string", "enum": list(values), **more}


# --- The request -----------------------------------------------------------------------------

Number = component(
    "Number",
    {
        "description": "A number; a non-finite one as a string. Booleans only where a mask is meant.",
        "oneOf": [{"type": "number"}, choice("inf", "-inf", "nan"), {"type": "boolean"}],
    },
)
Nested = component(
    "NestedList",
    {
        "type": "array",
        "description": "Numbers, or lists of equal length of the same; rank 2, 3 or 4 for q, k and v.",
        "items": {
            "anyOf": [{"$ref": "#/components/schemas/Number"}, {"$ref": "#/components/schemas/NestedList"}]
        },
    },
    Number,
)
Base64Array = component(
    "Base64Array",
    closed(
        {
            "b64": described(
                "string", "Little-endian, C order, standard alphabet with padding.", format="byte"
            ),
            "dtype": choice(*BASE64_DTYPES),
            "shape": SHAPE,
        },
        required=("b64", "dtype", "shape"),
    ),
)
SeededArray = component(
    "SeededArray",
    closed(
        {
            "seed": {"type": "integer", "minimum": 0, "maximum": MAX_SEED},
            "shape": SHAPE,
            "distribution": choice(*DISTRIBUTIONS, default="normal"),
        },
        required=("seed", "shape"),
        description="Made on the worker by numpy's Philox keyed by (seed, array name), alike everywhere.",
    ),
)
UploadedMember = component(
    "UploadedMember",
    closed(
        {
            "upload": described("string", "The id that POST /api/v1/uploads answered with."),
            "name": described("string", "The array in that file."),
        },
        required=("upload", "name"),
    ),
)
Array = component(
    "Array",
    {"anyOf": [ref(used) for used in (Nested, Base64Array, SeededArray, UploadedMember)]},
    Nested,
    Base64Array,
    SeededArray,
    UploadedMember,
)

INTEGERS: JsonSchema = {"type": "array", "items": {"type": "integer"}}
NUMBERS: JsonSchema = {"type": "array", "items": {"type": "number"}}
POSITIONS: JsonSchema = {
    "description": "Position of the first, a list, or one list per batch row.",
    "anyOf": [NULL, {"type": "integer"}, INTEGERS, {"type": "array", "items": INTEGERS}],
}
WORDS: dict[str, JsonSchema] = {
    NUMBER: {"type": "number"},
    INTEGER: {"type": "integer"},
    BOOLEAN: {"type": "boolean"},
    LIST: {"type": "array", "items": {}},
}


def typed(kinds: Kinds) -> JsonSchema:
    """An object whose `type` decides its other fields."""
    variants = [
        closed(
            {"type": choice(kind), **{name: _field(field) for name, field in fields.items()}},
            required=("type", *(name for name, field in fields.items() if field.is_required)),
            title=kind,
        )
        for kind, fields in kinds.items()
    ]
    return {"anyOf": [NULL, *variants], "default": None}


def _field(field: Field) -> JsonSchema:
    """What it means, and how large it may be."""
    limits = {} if field.limits is None else dict(zip(("minimum", "maximum"), field.limits, strict=True))
    return {**WORDS[field.wanted], "description": f"{field.meaning[0].upper()}{field.meaning[1:]}.", **limits}


Rope = component(
    "Rope",
    closed(
        {
            "style": choice(
                "interleaved", "half", description="interleaved: GPT-J; half: NeoX, Llama in HF."
            ),
            "theta": {"type": "number", "default": 10000},
            "dim": nullable(described("integer", "Rotated dimensions; null: all.", minimum=2)),
            "dim_offset": {"type": "integer", "minimum": 0, "default": 0},
            "positions": POSITIONS,
            "scaling": typed(ROPE_SCALINGS),
        },
        required=("style",),
    ),
)
WINDOW_SIDE: JsonSchema = {"type": "integer", "minimum": 0, "nullable": True}
Attention = component(
    "Attention",
    closed(
        {
            "scale": nullable(described("number", "Factor on q·k; null: 1/√head_dim.", default=None)),
            "is_causal": described("boolean", "Key position ≤ query position.", default=False),
            "causal_alignment": choice("bottom_right", "top_left", default="bottom_right"),
            "q_positions": POSITIONS,
            "kv_positions": POSITIONS,
            "window": {
                "type": "array",
                "description": "Inclusive [left, right] distances in positions; null: unbounded.",
                "items": WINDOW_SIDE,
                "minItems": 2,
                "maxItems": 2,
                "nullable": True,
                "default": [None, None],
            },
            "softcap": described("number", "c > 0: c·tanh(s/c) on the scaled score.", minimum=0, default=0.0),
            "alibi_slopes": {
                "description": "auto, one slope per head, or one list per batch row.",
                "anyOf": [NULL, choice("auto"), NUMBERS, {"type": "array", "items": NUMBERS}],
            },
            "rope": nullable(ref(Rope)),
            "sinks": {
                "type": "array",
                "description": "One logit per head, in the softmax's denominator only.",
                "items": {"anyOf": [{"type": "number"}, choice("-inf")]},
                "nullable": True,
            },
            "pattern": typed(PATTERNS),
            "num_heads": nullable(
                described("integer", "For packed [batch, len, heads·dim] only.", minimum=1)
            ),
            "num_kv_heads": nullable({"type": "integer", "minimum": 1}),
        }
    ),
    Rope,
)


def declared_option(schemas: Mapping[str, JsonSchema]) -> JsonSchema:
    """An option as its engines declare it in JSON Schema: what any of them takes."""
    of = "; ".join(f"{engine}: {schema['description']}" for engine, schema in schemas.items())
    enums = [value for schema in schemas.values() for value in schema.get("enum", [])]
    if enums:
        kind: JsonSchema = {"enum": list(dict.fromkeys(enums)), "nullable": None in enums}
        kind["type"] = "integer" if any(isinstance(value, int) for value in enums) else "string"
        return {**kind, "description": of}
    schema = next(iter(schemas.values()))
    types = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    limits: JsonSchema = {n: schema[n] for n in ("minimum", "maximum", "default") if n in schema}
    return {"type": types[0], "nullable": "null" in types, **limits, "description": of}


BLOCK: JsonSchema = {
    "type": "integer",
    "minimum": MIN_BLOCK,
    "maximum": MAX_BLOCK,
    "nullable": True,
    "default": None,
}
Options = component(
    "Options",
    closed(
        {
            "block_m": BLOCK,
            "block_n": BLOCK,
            "num_splits": nullable({"type": "integer", "minimum": 1}),
            "page_size": nullable({"type": "integer", "minimum": 1}),
            "kv_dtype": {**choice(*KV_DTYPES), "enum": [*KV_DTYPES, None], "nullable": True, "default": None},
            "kv_scale": choice("per_tensor", "per_token_head", default="per_token_head"),
            **{name: declared_option(schemas) for name, schemas in declared().items()},
        },
        description="How to compute, never what. Options that the engine does not use are refused.",
    ),
)
Timing = component(
    "Timing",
    closed(
        {
            "warmup": {"type": "integer", "minimum": 0, "maximum": MAX_WARMUP, "default": 1},
            "iters": {"type": "integer", "minimum": 1, "maximum": MAX_ITERS, "default": 5},
        }
    ),
)
RunRequest = component(
    "RunRequest",
    closed(
        {
            "engine": described("string", f"One of those of GET /api/v1/engines, now {', '.join(ENGINES)}."),
            "device": choice(*DEVICES, default="auto"),
            "dtype": choice(*DTYPES, default="float32"),
            "inputs": {
                "type": "object",
                "properties": {name: INTEGERS if name in LENGTHS else ref(Array) for name in INPUTS},
                "additionalProperties": False,
            },
            "attention": ref(Attention),
            "return": {
                "description": (
                    "What to answer with. The notes of engine flash (GET /api/v1/engines) say how the trace_ "
                    "results, the state of its kernel after each tile of keys, are laid out."
                ),
                "type": "array",
                "items": choice(*RESULTS),
                "default": ["out"],
            },
            "options": ref(Options),
            "timing": ref(Timing),
        },
        required=("engine", "inputs"),
    ),
    Array,
    Attention,
    Options,
    Timing,
)

# --- The answer ------------------------------------------------------------------------------

ResultNumber: JsonSchema = {"anyOf": [{"type": "number"}, choice("inf", "-inf", "nan")]}
ArtifactLink = component(
    "ArtifactLink",
    closed(
        {"artifact": URL, "shape": SHAPE, "dtype": {"type": "string"}},
        required=("artifact", "shape", "dtype"),
    ),
)
ResultArray = component(
    "ResultArray",
    {
        "description": "Nested lists up to 65,536 elements, else a link.",
        "anyOf": [ref(Nested), ref(ArtifactLink)],
    },
    Nested,
    ArtifactLink,
)
InputInfo = component(
    "InputInfo",
    {
        "type": "object",
        "properties": {
            "shape": SHAPE,
            "dtype": {"type": "string"},
            "source": choice("inline", "seed", "upload"),
            "seed": {"type": "integer"},
            "distribution": choice(*DISTRIBUTIONS),
            "sha256": described("string", "Of the elements as the engine saw them, once it has."),
        },
        "required": ["shape", "dtype", "source"],
    },
)


def open_object(description: str, **properties: JsonSchema) -> JsonSchema:
    return {
        "type": "object",
        "description": description,
        "properties": properties,
        "additionalProperties": True,
    }


COUNT: JsonSchema = {"type": "integer", "nullable": True}
RunResult = component(
    "RunResult",
    {
        "type": "object",
        "description": "The arrays asked for, and how good and how fast they are.",
        "properties": {
            **{name: ref(ResultArray) for name in RESULTS},
            "numerics": open_object(
                "Against the float64 reference.",
                reference={"type": "string"},
                max_abs_err=nullable(ResultNumber),
                max_rel_err=nullable(ResultNumber),
                rmse=nullable(ResultNumber),
                bound=nullable(ResultNumber),
                within_bound={"type": "boolean", "nullable": True},
                nan_count={"type": "integer"},
                arrays={
                    "type": "object",
                    "description": "The same of every other result, each with its own bound.",
                    "additionalProperties": True,
                },
            ),
            "comparison": {
                **open_object(
                    "How far the output is from exact softmax attention on the same inputs, in float64, "
                    "where an engine computes something else, or a pattern or a window leaves pairs out; "
                    "null otherwise, and where a state came from before.",
                    **{"with": {"type": "string"}},
                    max_abs_err=ResultNumber,
                    max_rel_err=ResultNumber,
                    rmse=ResultNumber,
                    rel_err={**ResultNumber, "description": "‖out − exact‖ / ‖exact‖, Frobenius."},
                ),
                "nullable": True,
            },
            "findings": described(
                "object",
                "What the engine found beside its arrays, as `GET /engines` declares it.",
                additionalProperties=True,
            ),
            "timing": open_object(
                "How long one execution took, and what that says about real hardware.",
                method=choice("cuda_event", "wall", "interpreter"),
                representative={"type": "boolean"},
                warmup={"type": "integer"},
                samples_ns={"type": "array", "items": {"type": "number"}},
                median_ns={"type": "number"},
                p10_ns={"type": "number"},
                p90_ns={"type": "number"},
                worker_ns={
                    "type": "number",
                    "description": "Inputs, warm-up, every execution and the comparison with float64.",
                },
            ),
            "memory": open_object(
                "Bytes.", peak_bytes=COUNT, method={"type": "string"}, predicted_bytes=COUNT
            ),
            "traffic": open_object(
                "Bytes to and from memory.", bytes_read=COUNT, bytes_written=COUNT, method={"type": "string"}
            ),
            "cost": open_object(
                "By arithmetic alone.",
                flops=COUNT,
                bytes_min=COUNT,
                arithmetic_intensity=nullable(ResultNumber),
            ),
            "notes": {"type": "array", "items": {"type": "string"}},
        },
        "additionalProperties": True,
    },
    ResultArray,
)
RunError = component(
    "RunError",
    {
        "type": "object",
        "description": "A problem object, and whose fault it was.",
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "detail": {"type": "string"},
            "fault": choice("user", "platform"),
        },
        "required": ["type", "title", "detail", "fault"],
        "additionalProperties": True,
    },
)
RUN_FIELDS = [
    "id",
    "url",
    "sweep",
    "engine",
    "status",
    "created_at",
    "started_at",
    "finished_at",
    "expires_at",
    "attempt",
    "queue",
    "spec",
    "inputs",
    "result",
    "environment",
    "error",
    "artifacts",
]
Run = component(
    "Run",
    {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "url": described("string", "The page of the run.", format="uri"),
            "sweep": nullable(described("string", "The sweep of which it is a point.")),
            "engine": {"type": "string"},
            "status": choice(*(str(status.value) for status in Status)),
            "created_at": WHEN,
            "started_at": nullable(WHEN),
            "finished_at": nullable(WHEN),
            "expires_at": WHEN,
            "attempt": {"type": "integer"},
            "queue": closed({"ahead": COUNT}, description="Runs that go first; null in lists."),
            "spec": {
                "type": "object",
                "description": "The request, normalised, arrays described.",
                "properties": {},
            },
            "inputs": {"type": "object", "additionalProperties": ref(InputInfo)},
            "result": nullable(ref(RunResult)),
            "environment": {
                **open_object(
                    "What computed it.",
                    device=nullable({"type": "string"}),
                    gpu_name=nullable({"type": "string"}),
                    torch=nullable({"type": "string"}),
                    triton=nullable({"type": "string"}),
                    kernel_version=nullable({"type": "string"}),
                    interpreter=nullable({"type": "boolean"}),
                    version=described("string", "Of the product."),
                    commit=nullable({"type": "string"}),
                ),
                "nullable": True,
            },
            "error": nullable(ref(RunError)),
            "artifacts": {
                "type": "object",
                "additionalProperties": URL,
                "description": "File name → address.",
            },
        },
        "required": RUN_FIELDS,
    },
    InputInfo,
    RunResult,
    RunError,
    Problem,
)
RunPage = component(
    "RunPage",
    closed(
        {
            "next": nullable(URL),
            "previous": nullable(URL),
            "results": {"type": "array", "items": ref(Run)},
        },
        required=("next", "previous", "results"),
    ),
    Run,
)
