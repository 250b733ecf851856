"""Bodies of POST /api/v1/runs to begin with, as the OpenAPI document shows them."""

from collections.abc import Iterable
from typing import Any

from drf_spectacular.utils import OpenApiExample


def _example(title: str, description: str, body: dict[str, Any]) -> OpenApiExample:
    return OpenApiExample(title, body, description=description, request_only=True)


def _seeded(names: Iterable[str], *shape: int) -> dict[str, Any]:
    return {name: {"seed": 1, "shape": list(shape)} for name in names}


EXAMPLES = [
    _example(
        "Attention by hand",
        "Three tokens, small enough for paper.",
        {
            "engine": "flash",
            "inputs": {
                "q": [[1, 0], [0, 1], [1, 1]],
                "k": [[1, 0], [0, 1], [1, 1]],
                "v": [[1, 0], [0, 2], [2, 2]],
            },
            "return": ["out", "lse", "weights"],
        },
    ),
    _example(
        "Linear attention",
        "`comparison` says how far it is from softmax attention on the same inputs.",
        {
            "engine": "linear",
            "inputs": _seeded("qkv", 2, 32, 8),
            "attention": {"is_causal": True},
            "options": {"feature_map": "elu1", "form": "chunked", "chunk_size": 16},
            "return": ["out", "state", "normaliser"],
        },
    ),
    _example(
        "Multi-head latent attention",
        "Four heads, six tokens, latents 16 wide: every engine but mla expands them.",
        {
            "engine": "mla",
            "inputs": {
                "q_nope": {"seed": 1, "shape": [4, 6, 8]},
                "q_rope": {"seed": 1, "shape": [4, 6, 4]},
                "c_kv": {"seed": 1, "shape": [6, 16]},
                "k_rope": {"seed": 1, "shape": [6, 4]},
                "w_uk": {"seed": 1, "shape": [4, 16, 8]},
                "w_uv": {"seed": 1, "shape": [4, 16, 8]},
            },
            "attention": {"is_causal": True},
            "options": {"form": "absorbed"},
            "return": ["out", "lse"],
        },
    ),
    _example(
        "Additive attention around a predicted position",
        "Bahdanau's score in Luong's window. `findings` counts what it takes beside scaled dot products.",
        {
            "engine": "scoring",
            "inputs": {
                **_seeded("qkv", 2, 32, 8),
                **_seeded(("w_q", "w_k", "w_p"), 1, 16, 8),
                **_seeded(("v_a", "v_p"), 1, 16),
            },
            "options": {"score": "additive", "span": "predictive", "half_width": 4},
            "return": ["out", "weights", "centres", "kept_weight"],
        },
    ),
    _example(
        "A cache that forgets",
        "64 tokens through room for 16, of which 4 are for sinks; `findings` has the bytes and the error.",
        {
            "engine": "cache",
            "inputs": _seeded("qkv", 2, 64, 16),
            "attention": {"rope": {"style": "half"}},
            "options": {"policy": "streaming", "budget": 16, "sinks": 4},
            "return": ["out", "held", "kept_weight", "row_error"],
        },
    ),
    _example(
        "Attention within hash buckets",
        "`recall` is the share of the eight best keys that a query finds in its buckets.",
        {
            "engine": "lsh",
            "inputs": _seeded("qkv", 2, 64, 16),
            "attention": {"is_causal": True},
            "options": {"rounds": 4, "buckets": 8, "top": 8},
            "return": ["out", "recall", "kept_weight", "q_buckets", "k_buckets"],
        },
    ),
    _example(
        "Hard attention",
        "100 keys drawn for each query. `findings.baselines` compares what estimates its gradient.",
        {
            "engine": "hard",
            "inputs": _seeded(("q", "k", "v", "dout"), 2, 16, 8),
            "options": {"draws": 100, "baseline": "expected"},
            "return": ["out", "weights", "chosen", "dscores", "dscores_estimate", "dscores_variance"],
        },
    ),
]
