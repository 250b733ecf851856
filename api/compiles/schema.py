"""The body of a compilation and what it found, as the OpenAPI document describes them."""

from api.openapi import JsonSchema, Problem, closed, component, described, ref
from api.runs import schema as runs
from kernels.targets import TARGETS

COUNT: JsonSchema = {"type": "integer", "minimum": 0}
CompileRequest = component(
    "CompileRequest",
    closed(
        {
            **runs.RunRequest.json_schema["properties"],
            "targets": {
                "type": "array",
                "items": runs.choice(*TARGETS),
                "minItems": 1,
                "description": "The GPUs to compile for. None of them needs to be there.",
            },
        },
        required=("engine", "inputs", "targets"),
        description=(
            "A run body and targets. Only the shapes of the inputs matter. A run's data can make it launch "
            "other kernels: −∞ in a float mask adds a look at which tiles it forbids, and float16 whose "
            "products might be beyond it is computed in float32."
        ),
    ),
    *runs.RunRequest.uses,
)
SourceLine = component(
    "SourceLine",
    closed(
        {
            "file": described(
                "string", "From the root of the sources, or of Triton's: kernels/flash/kernel.py."
            ),
            "line": described("integer", "From 1."),
            "instructions": {
                "type": "object",
                "additionalProperties": COUNT,
                "description": "How often each kind stands there, those that do; and total.",
            },
        },
        required=("file", "line", "instructions"),
    ),
)
FIGURES: dict[str, JsonSchema] = {
    "target": runs.choice(*TARGETS),
    "gpu": {"type": "string"},
    "kernel": {"type": "string"},
    "registers": described("integer", "Per thread."),
    "stack_bytes": described("integer", "Local memory, per thread."),
    "spills_bytes": described("integer", "Stores and loads of spilled registers, per thread."),
    "shared_bytes": described("integer", "Shared memory per block."),
    "shared_limit_bytes": described("integer", "The most that a block may have on this target."),
    "tmem_bytes": described("integer", "Tensor memory per block."),
    "num_warps": COUNT,
    "num_stages": COUNT,
    "blocks_per_sm": described("integer", "Blocks of this kernel that one multiprocessor holds."),
    "block_limits": {
        "type": "object",
        "additionalProperties": COUNT,
        "description": "How many blocks each resource leaves room for: registers, shared, warps, blocks, and "
        "tmem where it is used. The least of them is blocks_per_sm.",
    },
    "limited_by": runs.choice("registers", "shared", "warps", "blocks", "tmem"),
    "occupancy": described("number", "Resident warps over the most that are possible."),
    "fits": described("boolean", "Whether at least one block fits."),
    "instructions": {
        "type": "object",
        "additionalProperties": COUNT,
        "description": "How often each kind stands in the machine code (not how often it runs).",
    },
    "source_lines": {
        "type": "array",
        "items": ref(SourceLine),
        "description": "The same by the source line that it came of. What was inlined belongs to the line of "
        "the helper itself.",
    },
    "sources": {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "description": "SHA-256 of each source file of ours that is among them, as it was compiled.",
    },
}
REQUIRED = ("target", "kernel", "registers", "shared_bytes", "fits", "instructions")
FurtherKernel = component("FurtherKernel", closed(FIGURES, required=REQUIRED), SourceLine)
CompiledKernel = component(
    "CompiledKernel",
    closed(
        {
            **FIGURES,
            "others": {
                "type": "array",
                "items": ref(FurtherKernel),
                "description": "The other kernels that such a run launches.",
            },
        },
        required=(*REQUIRED, "others"),
    ),
    FurtherKernel,
    SourceLine,
)
CompileResult = component(
    "CompileResult",
    closed(
        {"targets": {"type": "object", "additionalProperties": ref(CompiledKernel)}}, required=("targets",)
    ),
    CompiledKernel,
)
SHARED_FIELDS = [
    field for field in runs.RUN_FIELDS if field not in {"url", "sweep", "inputs", "result"}
]  # a compilation has no page of its own, is no point, and keeps no inputs
Compile = component(
    "Compile",
    {
        "type": "object",
        "properties": {
            **{field: runs.Run.json_schema["properties"][field] for field in SHARED_FIELDS},
            "targets": {"type": "array", "items": runs.choice(*TARGETS)},
            "result": runs.nullable(ref(CompileResult)),
        },
        "required": [*SHARED_FIELDS, "targets", "result"],
    },
    CompileResult,
    runs.RunError,
    Problem,
)
EXAMPLE: JsonSchema = {
    "engine": "flash",
    "dtype": "float16",
    "inputs": {name: {"seed": 1, "shape": [1, 8, 1024, 64]} for name in ("q", "k", "v")},
    "attention": {"is_causal": True},
    "targets": ["sm_80", "sm_90"],
}
