"""The catalog, as the OpenAPI document describes it."""

from api.openapi import JsonSchema, closed, component, described

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
            "computes": described(
                "string", "Engines that compute the same can stand in for each other; others approximate it."
            ),
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
URL: JsonSchema = {"type": "string", "format": "uri"}
INDEX = {
    "docs": "This description of the API, to be read and tried out in a browser.",
    "schema": "The same as an OpenAPI document.",
    "engines": "What each engine can be asked for, and the limits in force.",
    "runs": "POST: submit a run.",
    "sweeps": "POST: submit a run with some of its fields varied.",
    "compiles": "POST: compile the kernels of a run for a GPU.",
    "uploads": "POST: send arrays in a file.",
    "problems": "Problems to be graded; POST: author one.",
    "grade": "POST: have answers graded at once.",
    "assignments": "POST: give a problem to students.",
    "webhooks": "POST: be told of verdicts.",
    "simulations": "Paging, batching, speculative decoding, prefix caches and recall, simulated.",
    "estimates": "What memory and time a model needs; what sparse layers and hybrid stacks amount to.",
    "models": "The models that are known by name.",
    "gpus": "The GPUs that are known by name.",
    "healthz": "Is the web process alive?",
    "readyz": "Can runs be submitted and carried out?",
}
Index = component(
    "Index",
    closed({name: {**URL, "description": text} for name, text in INDEX.items()}, required=tuple(INDEX)),
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
