"""The catalog, as the OpenAPI document describes it."""

from api.openapi import closed, component, described

Engine = component(
    "Engine",
    {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "title": {"type": "string"},
            "summary": {"type": "string"},
            "features": described(
                "object",
                "What it can do beyond softmax(scale·QKᵀ)V.",
                additionalProperties={"type": "string"},
            ),
            "returns": {"type": "array", "items": {"type": "string"}},
            "dtypes": {"type": "array", "items": {"type": "string"}},
            "devices": {"type": "array", "items": {"type": "string"}},
            "inputs": {"type": "array", "items": {"type": "string"}},
            "inputs_schema": described(
                "object",
                "A JSON Schema of the inputs that it understands: which it needs, and their shapes.",
                additionalProperties=True,
            ),
            "options": described(
                "object", "A JSON Schema of the options that it uses.", additionalProperties=True
            ),
            "max_head_dim": {"type": "integer", "nullable": True},
            "max_latent_dim": {"type": "integer", "nullable": True},
            "max_q_len": {"type": "integer", "nullable": True},
            "notes": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["name", "title", "summary", "features", "returns", "dtypes", "devices", "options"],
        "additionalProperties": True,
    },
)
Catalog = component(
    "Catalog",
    closed(
        {
            "engines": {"type": "array", "items": {"$ref": "#/components/schemas/Engine"}},
            "limits": described("object", "The limits in force.", additionalProperties=True),
        },
        required=("engines", "limits"),
    ),
    Engine,
)
Liveness = component("Liveness", closed({"status": {"type": "string", "enum": ["ok"]}}, required=("status",)))
Readiness = component(
    "Readiness",
    closed(
        {
            "ready": {"type": "boolean"},
            "database": {"type": "boolean"},
            "broker": {"type": "boolean"},
            "queues": described(
                "object", "Whether each queue has a live worker.", additionalProperties={"type": "boolean"}
            ),
        },
        required=("ready", "database", "broker", "queues"),
    ),
)
