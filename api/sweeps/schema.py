"""The body of a sweep and the sweep itself, as the OpenAPI document describes them."""

from api.openapi import FieldError, JsonSchema, closed, component, described, ref
from api.runs import schema as runs
from api.runs.schema import COUNT, ResultNumber, choice, nullable
from api.sweeps.representation import FIGURES
from kernels.sweeps.exponents import QUANTITIES
from kernels.sweeps.points import AXES, FIELDS, MAX_POINTS, SEEDED_FIELDS
from workers.models import Status, Sweep

VARY: JsonSchema = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": {"type": "array", "items": {}, "minItems": 1},
    "description": (
        f"Lists of values by field; every combination is a point, at most {MAX_POINTS}. A field is one of a "
        f"run ({', '.join(FIELDS)}, or by its path attention/softcap, options/block_m, timing/iters); of all "
        f"seeded inputs ({', '.join(SEEDED_FIELDS)}); or the length of an axis ({', '.join(AXES)}), which "
        "every seeded input that has it follows. len is q_len and kv_len together; kv_len is that of k and "
        "v, beside past_len that of a past. num_kv_heads and v_head_dim follow num_heads and head_dim where "
        "the body has them equal."
    ),
}
SweepRequest = component(
    "SweepRequest",
    closed(
        {
            **runs.RunRequest.json_schema["properties"],
            "vary": VARY,
            "skip_refused": {
                "type": "boolean",
                "default": False,
                "description": "Leave out the points that are refused, and list them under `refused`.",
            },
        },
        required=("inputs", "vary"),
        description="A run body and what varies. What varies may be left out of the body.",
    ),
    *runs.RunRequest.uses,
)
VALUES: JsonSchema = {
    "type": "object",
    "additionalProperties": True,
    "description": "Of each varied field.",
}
FIGURE_SCHEMAS: dict[str, JsonSchema] = {
    "median_ns": {"type": "number", "nullable": True},
    "representative": {
        "type": "boolean",
        "nullable": True,
        "description": "Whether the time says anything about real hardware.",
    },
    "peak_bytes": COUNT,
    "predicted_bytes": COUNT,
    "traffic_bytes": {**COUNT, "description": "Read and written."},
    "bytes_min": {**COUNT, "description": "The least that must be read and written."},
    "flops": COUNT,
    "max_abs_err": nullable(ResultNumber),
    "bound": nullable(ResultNumber),
}
SweepFigures = component("SweepFigures", closed(FIGURE_SCHEMAS, required=FIGURES))
SweepPoint = component(
    "SweepPoint",
    closed(
        {
            "id": described("string", "Of its run, which is one as any other."),
            "url": described("string", "The page of the run.", format="uri"),
            "status": choice(*(str(status.value) for status in Status)),
            "values": VALUES,
            "figures": nullable(ref(SweepFigures)),
            "error": nullable(ref(runs.RunError)),
        },
        required=("id", "url", "status", "values", "figures", "error"),
    ),
    SweepFigures,
    runs.RunError,
)
RefusedPoint = component(
    "RefusedPoint",
    closed(
        {
            "values": VALUES,
            "errors": {
                "type": "array",
                "items": ref(FieldError),
                "description": "With pointers into the body of the run that the point would have been.",
            },
        },
        required=("values", "errors"),
    ),
    FieldError,
)
Exponent = component(
    "Exponent",
    closed(
        {
            "over": choice(*AXES),
            "at": {**VALUES, "description": "Of the other varied fields."},
            "quantity": choice(*QUANTITIES),
            "exponent": {"type": "number"},
            "r_squared": {
                "type": "number",
                "nullable": True,
                "description": "Of the logarithms; null with two points, or where nothing varies.",
            },
            "points": {"type": "integer", "minimum": 2},
            "standard_error": {
                "type": "number",
                "nullable": True,
                "description": "Of the exponent; null with two points.",
            },
        },
        required=("over", "at", "quantity", "exponent", "r_squared", "points", "standard_error"),
    ),
)
SWEEP_FIELDS = (
    "id", "url", "status", "progress", "created_at", "finished_at", "expires_at", "body", "vary", "refused",
    "runs", "exponents",
)  # fmt: skip
SweepDocument = component(
    "Sweep",
    closed(
        {
            "id": {"type": "string"},
            "url": {**runs.URL, "description": "The page, which opens for whoever has its address."},
            "status": choice(*Sweep.STATUSES),
            "progress": closed(
                {"done": {"type": "integer"}, "total": {"type": "integer"}}, required=("done", "total")
            ),
            "created_at": runs.WHEN,
            "finished_at": {**runs.WHEN, "nullable": True, "description": "Null in lists."},
            "expires_at": runs.WHEN,
            "body": described(
                "object", "Of a run, arrays that were sent described.", additionalProperties=True
            ),
            "vary": VARY,
            "refused": {"type": "array", "items": ref(RefusedPoint)},
            "runs": {
                "type": "array",
                "nullable": True,
                "items": ref(SweepPoint),
                "description": "The points, in the order in which they run: small ones first. Null in lists.",
            },
            "exponents": {
                "type": "array",
                "nullable": True,
                "items": ref(Exponent),
                "description": (
                    "p in y ≈ c·xᵖ, by least squares on logarithms: of each figure against each length that "
                    "varied, at every combination of the other values. Of times only those that are "
                    "representative. Null in lists."
                ),
            },
        },
        required=SWEEP_FIELDS,
    ),
    RefusedPoint,
    SweepPoint,
    Exponent,
)
SweepPage = component(
    "SweepPage",
    closed(
        {
            "next": nullable(runs.URL),
            "previous": nullable(runs.URL),
            "results": {"type": "array", "items": ref(SweepDocument)},
        },
        required=("next", "previous", "results"),
    ),
    SweepDocument,
)
SweepResults = component(
    "SweepResults",
    closed(
        {
            "sweep": {"type": "string"},
            "columns": {"type": "array", "items": {"type": "string"}},
            "results": {"type": "array", "items": {"type": "object", "additionalProperties": True}},
        },
        required=("sweep", "columns", "results"),
    ),
)
EXAMPLE: JsonSchema = {
    "inputs": {name: {"seed": 1, "shape": [1, 2, 64, 32]} for name in ("q", "k", "v")},
    "timing": {"warmup": 0, "iters": 1},
    "vary": {"engine": ["eager", "flash"], "len": [64, 128, 256]},
}
