"""The bodies and answers of the simulators, as the OpenAPI document describes them."""

from api.openapi import Component, JsonSchema, closed, component, described, ref
from kernels.limits import MAX_SEED
from kernels.scan.recall_body import DTYPES, LARGEST, MEMORIES, TASKS
from kernels.serving.batching import POLICIES
from kernels.serving.paging import RESERVATIONS
from kernels.simulators import SIMULATORS

PAGED, BATCHING, SPECULATIVE, PREFIX, RECALL = (SIMULATORS[name].limits for name in SIMULATORS)

COUNT: JsonSchema = {"type": "integer", "minimum": 0}
NUMBER: JsonSchema = {"type": "number"}
SEED = described("integer", "Decides all that is drawn.", minimum=0, maximum=MAX_SEED, default=0)
NAME: JsonSchema = {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,31}$"}


def counted(high: int, description: str, low: int = 1, **more: object) -> JsonSchema:
    return described("integer", description, minimum=low, maximum=high, **more)


def lengths(high: int, description: str, low: int = 1) -> JsonSchema:
    end: JsonSchema = {"type": "integer", "minimum": low, "maximum": high}
    both: JsonSchema = {"type": "array", "items": end, "minItems": 2, "maxItems": 2}
    return {"oneOf": [end, both], "description": f"{description}: one for all, or [least, most]."}


def listed(items: JsonSchema, **more: object) -> JsonSchema:
    return {"type": "array", "items": items, **more}


def figures(**properties: JsonSchema) -> JsonSchema:
    return {"type": "object", "properties": properties, "additionalProperties": True}


Event = component(
    "SimulationEvent",
    closed(
        {
            "time": described("number", "Seconds of the simulation, or the number of a step."),
            "kind": {"type": "string"},
            "ids": described("object", "Who is concerned.", additionalProperties=True),
            "details": described("object", "What happened to them.", additionalProperties=True),
        },
        required=("time", "kind", "ids", "details"),
    ),
)


def answer(
    name: str, *, summary: JsonSchema, uses: tuple[type[Component], ...] = (), **properties: JsonSchema
) -> type[Component]:
    """An answer: what was simulated, figures, and the log of all events."""
    every = {"summary": summary, **properties, "events": listed(ref(Event))}
    return component(name, closed(every, required=tuple(every)), Event, *uses)


# --- The paged allocator ---------------------------------------------------------------------

TOKENS = counted(PAGED["max_len"], "How many; of a fork, how many of the first it shares (default: all).", 0)
Operation = component(
    "PagedOperation",
    closed(
        {
            "op": {"type": "string", "enum": ["allocate", "append", "fork", "free"]},
            "sequence": NAME,
            "from": {**NAME, "description": "The sequence that a fork begins like."},
            "tokens": TOKENS,
        },
        required=("op", "sequence"),
    ),
)
PagedRequest = component(
    "PagedAllocatorRequest",
    closed(
        {
            "num_blocks": counted(PAGED["num_blocks"], "Blocks of the cache.", default=64),
            "block_size": counted(PAGED["block_size"], "Tokens of a block.", default=16),
            "max_len": counted(
                PAGED["max_len"],
                "What a contiguous cache reserves; null: the longest that a sequence gets.",
                nullable=True,
            ),
            "operations": listed(ref(Operation), minItems=1, maxItems=PAGED["operations"]),
            "workload": closed(
                {
                    "seed": SEED,
                    "requests": counted(PAGED["operations"], "How many come.", default=8),
                    "running": counted(PAGED["sequences"], "How many at once.", default=4),
                    "samples": counted(PAGED["sequences"], "Answers to each prompt, by forks.", default=1),
                    "prompt_len": lengths(PAGED["max_len"], "Tokens of a prompt"),
                    "output_len": lengths(PAGED["operations"], "Tokens of an answer"),
                }
            ),
        },
        description="Either `operations` of your own, or a `workload` that is drawn.",
    ),
    Operation,
)
PagedAnswer = answer(
    "PagedAllocatorAnswer",
    num_blocks=COUNT,
    block_size=COUNT,
    max_len=COUNT,
    summary=figures(
        operations=COUNT,
        slots=COUNT,
        paged=figures(
            refused=COUNT,
            copies=described("integer", "Blocks copied because two sequences shared them."),
            peak_blocks=COUNT,
            peak_tokens=COUNT,
            wasted_share=described("number", "Empty slots of blocks in use, over all steps."),
            saved_by_sharing=described("number", "Blocks that would be needed besides, without sharing."),
            external_fragmentation=NUMBER,
        ),
        contiguous=figures(**{name: figures(refused=COUNT, wasted_share=NUMBER) for name in RESERVATIONS}),
    ),
    timeline=described("object", "Figures after every operation, one list each.", additionalProperties=True),
    sequences=described("object", "Length and block table of those left.", additionalProperties=True),
    free_blocks=listed(COUNT),
)

# --- Batching --------------------------------------------------------------------------------

SECONDS: JsonSchema = {"type": "number", "minimum": 0, "maximum": 1e6, "default": 0}
BatchedRequest = component(
    "BatchedRequest",
    closed(
        {
            "name": NAME,
            "arrival": {**SECONDS, "description": "Seconds."},
            "prompt_len": counted(BATCHING["prompt_len"], "Tokens."),
            "output_len": counted(BATCHING["output_tokens"], "Tokens."),
        },
        required=("prompt_len", "output_len"),
    ),
)
BatchingRequest = component(
    "BatchingRequest",
    closed(
        {
            "requests": listed(ref(BatchedRequest), minItems=1, maxItems=BATCHING["requests"]),
            "trace": closed(
                {
                    "seed": SEED,
                    "requests": counted(BATCHING["requests"], "How many come.", default=20),
                    "rate": described(
                        "number", "Requests a second (Poisson).", minimum=1e-3, maximum=1e6, default=1
                    ),
                    "prompt_len": lengths(BATCHING["prompt_len"], "Tokens of a prompt"),
                    "output_len": lengths(BATCHING["output_tokens"], "Tokens of an answer"),
                }
            ),
            "policies": listed(
                {"type": "string", "enum": list(POLICIES)},
                minItems=1,
                uniqueItems=True,
                default=["static", "continuous"],
            ),
            "max_batch": counted(BATCHING["max_batch"], "Sequences at once.", default=8),
            "token_budget": counted(
                BATCHING["token_budget"], "Tokens of an iteration of `chunked`, at least `max_batch`."
            ),
            "kv_capacity": counted(
                BATCHING["kv_capacity"], "Tokens of the cache; null: no limit.", nullable=True
            ),
            "cost": closed(
                {
                    "fixed": {**SECONDS, "description": "Seconds of an iteration, whatever it computes."},
                    "per_token": {**SECONDS, "description": "And for every token computed."},
                    "per_context_token": {**SECONDS, "description": "And for every token of cache read."},
                    "combine": {
                        "type": "string",
                        "enum": ["sum", "max"],
                        "default": "sum",
                        "description": "`max`: max(fixed + per_context_token·context, per_token·tokens).",
                    },
                },
                description="How long an iteration takes: not a claim of ours, but your model of a server.",
            ),
        },
        required=("cost",),
        description="Either `requests` of your own, or a `trace` that is drawn.",
    ),
    BatchedRequest,
)
Spread = component(
    "Spread",
    closed(
        {name: {**NUMBER, "nullable": True} for name in ("mean", "p50", "p90", "p99", "max")},
        required=("mean", "p50", "p90", "p99", "max"),
        description="Nearest-rank percentiles; null where there is nothing to measure.",
    ),
)
LATENCIES = {
    "ttft": "Seconds from arrival to the first token.",
    "tpot": "Seconds per token after the first, of each request.",
    "itl": "Seconds between two tokens: every gap.",
    "e2e": "Seconds from arrival to the end; a static batch returns whole.",
}
Schedule = component(
    "ScheduleSummary",
    closed(
        {
            "makespan": described("number", "Seconds from the first arrival to the last end."),
            "busy": described("number", "Seconds of iterations."),
            "iterations": COUNT,
            "output_tokens": COUNT,
            "computed_tokens": described("integer", "With padding, and with what was computed again."),
            "padding_tokens": COUNT,
            "recomputed_tokens": COUNT,
            "preemptions": COUNT,
            "throughput_tokens": described("number", "Tokens of output a second."),
            "throughput_requests": NUMBER,
            "mean_batch": described("number", "Sequences computed in an iteration."),
            "peak_held": described("integer", "Tokens in the cache, at most."),
            **{name: {"allOf": [ref(Spread)], "description": text} for name, text in LATENCIES.items()},
        },
        required=("makespan", "throughput_tokens", *LATENCIES),
    ),
    Spread,
)
BatchingAnswer = answer(
    "BatchingAnswer",
    max_batch=COUNT,
    token_budget=COUNT,
    kv_capacity={**COUNT, "nullable": True},
    cost=figures(fixed=NUMBER, per_token=NUMBER, per_context_token=NUMBER, combine={"type": "string"}),
    summary=described("object", "Of each policy.", additionalProperties=ref(Schedule)),
    timeline=described(
        "object",
        "Of each policy: its requests with the time of every token, and its iterations, one list for each "
        "figure.",
        additionalProperties=figures(requests=listed(figures()), iterations=figures()),
    ),
    uses=(Schedule,),
)

# --- Speculative decoding --------------------------------------------------------------------

PROBABILITIES = listed(
    {"type": "number", "minimum": 0, "maximum": 1}, minItems=1, maxItems=SPECULATIVE["vocabulary"]
)
TABLE: JsonSchema = {
    "oneOf": [PROBABILITIES, listed(PROBABILITIES, minItems=1, maxItems=SPECULATIVE["positions"])],
    "description": "Probabilities of the tokens, the same at every position or a list for each.",
}
SpeculativeRequest = component(
    "SpeculativeRequest",
    closed(
        {
            "target": TABLE,
            "draft": TABLE,
            "gamma": counted(SPECULATIVE["gamma"], "Tokens drafted in each run.", 0, default=4),
            "tokens": counted(
                SPECULATIVE["tokens"], "Length of a sequence (default: 100, or that of the tables)."
            ),
            "sequences": counted(SPECULATIVE["tokens"], "How many are written.", default=1),
            "draft_cost": described(
                "number", "Time of a token of the draft in runs of the target.",
                minimum=0, maximum=1e6, default=0.1,
            ),
            "seed": SEED,
        },
        required=("target", "draft"),
    ),
)  # fmt: skip
SpeculativeAnswer = answer(
    "SpeculativeAnswer",
    gamma=COUNT,
    draft_cost=NUMBER,
    tokens=COUNT,
    sequences=COUNT,
    seed=COUNT,
    summary=figures(
        alpha=described("number", "How often a drafted token is accepted: Σ min(p, q)."),
        expected=described(
            "object", "Exactly, for sequences of this length.", additionalProperties=NUMBER
        ),
        closed_form=described(
            "object", "Without end: (1 − α^(γ+1)) / (1 − α) and what follows; null for tables.",
            additionalProperties=NUMBER, nullable=True,
        ),
        measured=described("object", "What was drawn.", additionalProperties=True),
        best_gamma=described("integer", "The γ with the greatest expected speed-up."),
    ),
    speedup_by_gamma=listed(NUMBER, description="Expected for γ = 0, 1, …"),
    alpha=listed(NUMBER),
    distribution=described(
        "object", "What was written against what the target alone would write.", additionalProperties=True
    ),
    tokens_written=listed(listed(COUNT)),
)  # fmt: skip

# --- The prefix cache ------------------------------------------------------------------------

TOKEN_LIST = listed(
    {"oneOf": [COUNT, {"type": "string", "maxLength": PREFIX["characters"]}]},
    description="Numbers or words.",
)
PROMPT: JsonSchema = {**TOKEN_LIST, "minItems": 1}
PrefixRequest = component(
    "PrefixCacheRequest",
    closed(
        {
            "capacity": counted(PREFIX["capacity"], "Tokens of the cache; null: no limit.", 0, nullable=True),
            "requests": listed(
                {"oneOf": [PROMPT, closed({"prompt": PROMPT, "output": TOKEN_LIST}, required=("prompt",))]},
                minItems=1,
                maxItems=PREFIX["requests"],
            ),
            "conversations": closed(
                {
                    "seed": SEED,
                    "conversations": counted(PREFIX["requests"], "How many at once.", default=8),
                    "turns": counted(PREFIX["requests"], "Requests of each.", default=3),
                    "systems": counted(PREFIX["requests"], "System prompts that they share.", default=2),
                    "system_len": lengths(PREFIX["tokens"], "Tokens of a system prompt", 0),
                    "message_len": lengths(PREFIX["tokens"], "Tokens of a message"),
                    "answer_len": lengths(PREFIX["tokens"], "Tokens of an answer"),
                }
            ),
        },
        description="Either `requests` of your own, or `conversations` that are drawn.",
    ),
)
PrefixAnswer = answer(
    "PrefixCacheAnswer",
    capacity={**COUNT, "nullable": True},
    summary=figures(
        hit_rate=described("number", "Tokens of prompts that were in the cache, of all."),
        saved_tokens=described(
            "integer", "Tokens not computed. The last of a prompt always is: its output is what is wanted."
        ),
        computed_tokens=COUNT,
        evicted_tokens=COUNT,
        peak_size=COUNT,
        unlimited=described("object", "The same with no limit.", additionalProperties=True),
    ),
    timeline=described("object", "Figures of every request, one list each.", additionalProperties=True),
    tree=listed(
        figures(node=COUNT, parent=COUNT, tokens=TOKEN_LIST, last_used=COUNT),
        description="The radix tree that is left, parents before children; node 0 is the root.",
    ),
)

# --- Recall ----------------------------------------------------------------------------------

SHARE: JsonSchema = {"type": "number", "minimum": 0, "maximum": 1}
RecallRequest = component(
    "RecallRequest",
    closed(
        {
            "task": {
                "type": "string",
                "enum": list(TASKS),
                "description": "`recall`: of pairs, by their keys; `copy`: of a sequence, by its positions.",
            },
            "pairs": counted(RECALL["pairs"], "Pairs that are drawn (`recall`).", default=64),
            "tokens": counted(RECALL["pairs"], "Tokens that are drawn (`copy`).", default=64),
            "d_k": counted(RECALL["d_k"], "Dimensions of a key; even for `copy`.", default=16),
            "vocabulary": counted(
                RECALL["vocabulary"],
                "Different symbols; null (`copy` alone): no two of a sequence are the same. Of symbols of "
                "your own, one more than the largest unless it is said.",
                default=32,
                nullable=True,
            ),
            "seed": SEED,
            "keys": listed(
                listed(
                    {"type": "number", "minimum": -LARGEST, "maximum": LARGEST},
                    minItems=1,
                    maxItems=RECALL["d_k"],
                ),
                minItems=1,
                maxItems=RECALL["pairs"],
                description="Your own, a list of numbers each, of which only the direction counts.",
            ),
            "symbols": listed(
                {"type": "integer", "minimum": 0, "maximum": RECALL["vocabulary"] - 1},
                minItems=1,
                maxItems=RECALL["pairs"],
                description="Your own: of each key, or, for `copy`, the sequence.",
            ),
            "dtype": {
                "type": "string",
                "enum": list(DTYPES),
                "default": DTYPES[0],
                "description": "In which state and cache are priced; all is computed in float64.",
            },
            "sweep": closed(
                {
                    "counts": listed(
                        {"type": "integer", "minimum": 1, "maximum": RECALL["pairs"]},
                        minItems=1,
                        maxItems=RECALL["counts"],
                    )
                },
                required=("counts",),
                description="The same with other numbers of pairs, drawn anew.",
            ),
        },
        required=("task",),
        description="Pairs or a sequence that are drawn, or `keys` and `symbols` of your own.",
    ),
)
Memory = closed(
    {
        "accuracy": {**SHARE, "description": "The share of pairs that came back."},
        "squared_error": described("number", "‖output − value‖², the mean over pairs."),
    },
    required=("accuracy", "squared_error"),
)
CURVE = listed(NUMBER)
RecallAnswer = answer(
    "RecallAnswer",
    task={"type": "string", "enum": list(TASKS)},
    pairs=COUNT,
    d_k=COUNT,
    vocabulary=COUNT,
    seed=described("integer", "null: nothing was drawn.", nullable=True),
    dtype={"type": "string"},
    summary=figures(
        memories=closed(dict.fromkeys(MEMORIES, Memory), required=MEMORIES),
        expected_accuracy={
            **SHARE,
            "nullable": True,
            "description": "Of the linear state: 1 for orthonormal keys, in closed form for random ones; "
            "null for others.",
        },
        least_squared_error=described(
            "number", "Of any state with d_k rows, however it is written (Eckart and Young)."
        ),
        sharpness=described("number", "β of softmax(β K k), as these keys need it."),
        state=figures(numbers=COUNT, bits=COUNT, bytes=COUNT),
        kv_cache=figures(bytes=COUNT, bytes_per_pair=COUNT),
        break_even_pairs=described("integer", "From how many on the cache is larger than the state."),
        needed_bits=described("number", "To tell all sequences of so many symbols apart."),
        copied_fraction={**SHARE, "description": "Of these sequences, at most, with the bits of the state."},
    ),
    sweep={
        **figures(counts=listed(COUNT), **dict.fromkeys(MEMORIES, CURVE)),
        "nullable": True,
        "description": "One list for each figure.",
    },
)

# --- What there is ---------------------------------------------------------------------------

Simulations = component(
    "Simulations",
    closed(
        {
            "simulations": listed(
                closed(
                    {
                        "name": {"type": "string", "enum": list(SIMULATORS)},
                        "url": {"type": "string", "format": "uri"},
                        "title": {"type": "string"},
                        "summary": {"type": "string"},
                        "limits": {"type": "object", "additionalProperties": COUNT},
                        "example": described("object", "A body to begin with.", additionalProperties=True),
                    },
                    required=("name", "url", "title", "summary", "limits", "example"),
                )
            )
        },
        required=("simulations",),
    ),
)
