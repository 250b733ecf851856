"""Sparse masks estimated: request and answer as the OpenAPI document has them, and the answer itself."""

from typing import Any

from api.openapi import JsonSchema, closed, component, described, ref
from api.runs.schema import typed
from kernels.limits import MAX_BLOCK, MAX_EXACT, MIN_BLOCK
from kernels.sparse.figures import (
    MAX_CONE,
    MAX_PAIRS,
    MAX_RUNS,
    MAX_STEPS,
    LayerFigures,
    PatternFigures,
    pattern_figures,
)
from kernels.sparse.questions import (
    DEFAULT_BLOCK,
    ITEM_BYTES,
    MAX_DRAWN,
    MAX_HEAD_DIM,
    MAX_LAYERS,
    MAX_LEN,
    MAX_LISTED,
    PatternQuestion,
    Seeing,
    parse_pattern_question,
)
from kernels.sparse.receptive import MAX_TOKENS
from kernels.spec.patterns import PATTERNS

Json = dict[str, Any]

LIMITS = {
    "len": MAX_LEN,
    "layers": MAX_LAYERS,
    "numbers_in_lists": MAX_LISTED,
    "pairs_of_random_blocks": MAX_DRAWN,
    "len_with_masks": MAX_TOKENS,
    "pairs_with_masks": MAX_PAIRS,
    "steps": MAX_STEPS,
    "places_in_cone": MAX_CONE,
    "runs_in_cone": MAX_RUNS,
}
EXAMPLE: Json = {
    "len": 1024,
    "layers": [
        {"pattern": {"type": "dilated", "window": 1, "stride": 1}, "is_causal": True},
        {"pattern": {"type": "dilated", "window": 1, "stride": 2}, "is_causal": True},
        {"pattern": {"type": "dilated", "window": 1, "stride": 4}, "is_causal": True},
        {"pattern": {"type": "longformer", "window": 64, "global": [0]}, "is_causal": True, "repeat": 2},
    ],
    "block_m": 64,
    "block_n": 64,
    "head_dim": 64,
}

# --- The document ----------------------------------------------------------------------------

COUNT: JsonSchema = {"type": "integer", "minimum": 0}
SIDE: JsonSchema = {"type": "integer", "minimum": 0, "maximum": MAX_EXACT, "nullable": True}
SEEING: dict[str, JsonSchema] = {
    "pattern": typed(PATTERNS),
    "window": {
        "type": "array",
        "items": SIDE,
        "minItems": 2,
        "maxItems": 2,
        "nullable": True,
        "description": "Tokens before and after that are seen, [left, right]; null: all of them.",
    },
    "is_causal": described("boolean", "Whether no token sees one after it.", default=False),
}
LAYERS = {"minimum": 1, "maximum": MAX_LAYERS, "default": 1}
BLOCK = {"minimum": MIN_BLOCK, "maximum": MAX_BLOCK, "default": DEFAULT_BLOCK, "nullable": True}
PatternLayerRequest = component(
    "PatternLayerRequest",
    closed({**SEEING, "repeat": described("integer", "Layers like this, one after the other.", **LAYERS)}),
)
PatternRequest = component(
    "PatternRequest",
    closed(
        {
            "len": described("integer", "Tokens, which see each other.", minimum=1, maximum=MAX_LEN),
            **SEEING,
            "num_layers": described("integer", "Layers like this, one on the other.", **LAYERS),
            "layers": {
                "type": "array",
                "items": ref(PatternLayerRequest),
                "minItems": 1,
                "maxItems": MAX_LAYERS,
                "description": "Layers that differ, the lowest first, such as dilated ones with a stride "
                "each; instead of pattern, window, is_causal and num_layers.",
            },
            "token": described(
                "integer",
                "Whose cone is followed, from 0; unless said, the last where no layer sees ahead, else one "
                "in the middle.",
                minimum=0,
                maximum=MAX_LEN,
                nullable=True,
            ),
            "block_m": described("integer", "Queries of a tile, a power of two.", **BLOCK),
            "block_n": described("integer", "Keys of a tile, a power of two.", **BLOCK),
            "head_dim": described("integer", "Width of a key.", minimum=1, maximum=MAX_HEAD_DIM, default=128),
            "v_head_dim": described(
                "integer", "Width of a value; null: as wide.", minimum=1, maximum=MAX_HEAD_DIM, nullable=True
            ),
            "dtype": {
                "type": "string",
                "enum": list(ITEM_BYTES),
                "default": "float16",
                "description": "Of queries, keys and values.",
            },
        },
        required=("len",),
    ),
    PatternLayerRequest,
)


def _nullable(schema: JsonSchema) -> JsonSchema:
    return {**schema, "nullable": True}


Tiles = closed(
    {
        "all": COUNT,
        "occupied": described("integer", "Those that hold a visible pair."),
        "full": described("integer", "Those that hold no other."),
        "visited": described(
            "integer",
            "Those that the kernel loads: it asks the pattern by itself, and causality with the window, so "
            "that a tile may be loaded in which only both together leave nothing.",
        ),
    },
    required=("all", "occupied", "full", "visited"),
)
BYTES_READ = described(
    "integer",
    "By the flash forward kernel, of one head and batch row: queries, keys and values of visited tiles, and "
    "what it reads of the pattern to know them.",
)
PatternLayer = component(
    "PatternLayer",
    closed(
        {
            "layers": {"type": "array", "items": COUNT, "description": "Which layers are like this, from 0."},
            "type": _nullable(described("string", "Of its pattern.")),
            "window": SEEING["window"],
            "is_causal": {"type": "boolean"},
            "pairs": _nullable(described("integer", "Of query and key that are visible: exact.")),
            "density": _nullable(described("number", "The share of all len² pairs.")),
            "closed_form": _nullable(described("string", "Formula of the pairs, n being len; null: none.")),
            "tiles": _nullable(Tiles),
            "bytes_read": _nullable(BYTES_READ),
        },
        required=(
            "layers", "type", "window", "is_causal", "pairs", "density", "closed_form", "tiles",
            "bytes_read",
        ),
    ),
)  # fmt: skip
Field = closed(
    {
        "layers": described("integer", "After so many."),
        "pairs": described("integer", "Of tokens of which one depends on the other."),
        "share": described("number", "Of possible_pairs."),
        "before": described("integer", "How far before itself the token hears."),
        "after": COUNT,
    },
    required=("layers", "pairs", "share", "before", "after"),
)
RUN: JsonSchema = {"type": "array", "items": COUNT, "minItems": 2, "maxItems": 2}
PatternStack = component(
    "PatternStack",
    closed(
        {
            "possible_pairs": described(
                "integer", "len², or those of query and earlier key where no layer sees ahead."
            ),
            "fields": _nullable(
                {
                    "type": "array",
                    "items": Field,
                    "description": "Receptive fields after each layer, through those below it and residual "
                    "connections; fewer where more would take too long.",
                }
            ),
            "cone": _nullable(
                {
                    "type": "array",
                    "items": {"type": "array", "items": RUN},
                    "description": "On which tokens the output of `token` depends: in the output of the last "
                    "layer, of each below it, and in the input; as runs, [first, last].",
                }
            ),
            "layers_to_hear_all": _nullable(
                described(
                    "integer",
                    "After how many layers all possible pairs are heard: of these, or, where all are alike, "
                    "of any number; null: not after them, as notes say.",
                )
            ),
            "reach": _nullable(
                closed(
                    {
                        "before": _nullable(described("integer", "null: to the first token.")),
                        "after": _nullable(described("integer", "null: to the last token.")),
                        "has_gaps": described("boolean", "Whether nearer tokens are passed over."),
                    },
                    required=("before", "after", "has_gaps"),
                    description="In closed form, far from both ends: L·w for windows, w·Σ s for strides. An "
                    "upper bound on what a model makes of it. null: layers are of other forms.",
                )
            ),
            "gap_free_strides": _nullable(
                {
                    "type": "array",
                    "items": COUNT,
                    "description": "The largest strides below len that layers of as many steps may have "
                    "without gaps; null: their steps differ.",
                }
            ),
        },
        required=(
            "possible_pairs", "fields", "cone", "layers_to_hear_all", "reach", "gap_free_strides",
        ),
    ),
)  # fmt: skip
PatternEstimate = component(
    "PatternEstimate",
    closed(
        {
            "len": COUNT,
            "num_layers": COUNT,
            "token": COUNT,
            "block_m": COUNT,
            "block_n": COUNT,
            "head_dim": COUNT,
            "v_head_dim": COUNT,
            "dtype": {"type": "string"},
            "layers": {
                "type": "array",
                "items": ref(PatternLayer),
                "description": "Each kind of layer once.",
            },
            "full": closed(
                {"pairs": COUNT, "tiles": COUNT, "bytes_read": BYTES_READ},
                required=("pairs", "tiles", "bytes_read"),
                description="The same where everyone sees everyone.",
            ),
            "stack": ref(PatternStack),
            "notes": {
                "type": "array",
                "items": {"type": "string"},
                "description": "What is left out, and why.",
            },
        },
        required=("len", "num_layers", "token", "layers", "full", "stack", "notes"),
    ),
    PatternLayer,
    PatternStack,
)


# --- The answer ------------------------------------------------------------------------------


def estimate(body: object) -> Json:
    """What the body asks for."""
    asked = parse_pattern_question(body)
    found = pattern_figures(asked)
    layers = zip(asked.kinds, found.layers, strict=True)
    return {
        "len": asked.length,
        "num_layers": len(asked.order),
        "token": asked.token,
        "block_m": asked.block_m,
        "block_n": asked.block_n,
        "head_dim": asked.head_dim,
        "v_head_dim": asked.v_head_dim,
        "dtype": asked.dtype,
        "layers": [_layer(number, kind, layer, asked) for number, (kind, layer) in enumerate(layers)],
        "full": {
            "pairs": found.full.pairs,
            "tiles": found.full.visited,
            "bytes_read": found.full.bytes_read,
        },
        "stack": _stack(found),
        "notes": found.notes,
    }


def _layer(number: int, kind: Seeing, layer: LayerFigures, asked: PatternQuestion) -> Json:
    tiles = layer.tiles and {
        "all": layer.tiles.all,
        "occupied": layer.tiles.visited,
        "full": layer.tiles.full,
        "visited": layer.visited,
    }
    return {
        "layers": [index for index, each in enumerate(asked.order) if each == number],
        "type": kind.pattern["type"] if kind.pattern else None,
        "window": list(kind.window),
        "is_causal": kind.is_causal,
        "pairs": layer.pairs,
        "density": None if layer.pairs is None else layer.pairs / asked.length**2,
        "closed_form": layer.closed_form,
        "tiles": tiles,
        "bytes_read": layer.bytes_read,
    }


def _stack(found: PatternFigures) -> Json:
    stack = found.stack
    fields = (
        None
        if stack.fields is None
        else [
            {
                "layers": number,
                "pairs": heard.pairs,
                "share": heard.pairs / stack.possible_pairs,
                "before": heard.before,
                "after": heard.after,
            }
            for number, heard in enumerate(stack.fields, 1)
        ]
    )
    return {
        "possible_pairs": stack.possible_pairs,
        "fields": fields,
        "cone": stack.cone,
        "layers_to_hear_all": stack.layers_to_hear_all,
        "reach": stack.reach and stack.reach._asdict(),
        "gap_free_strides": stack.gap_free_strides,
    }
