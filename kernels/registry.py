"""The engines and what each can do, in one table. What is asked beyond it ``kernels.refusals`` refuses.

Data only: importing this module imports no engine (and so neither torch nor triton).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from kernels.limits import (
    MAX_BLOCK,
    MAX_BLOCK_ELEMENTS,
    MAX_BUCKETS,
    MAX_DECODE_LEN,
    MAX_ROUNDS,
    MAX_SEED,
    MIN_BLOCK,
)
from kernels.spec.attention import KV_DTYPES, KV_SCALES, MAX_PAGE_SIZE, MAX_SPLITS
from kernels.spec.declared import SHARED
from kernels.spec.families import (
    FAMILIES,
    MLA,
    MLA_INPUTS,
    PARAMETERS,
    PLAIN_INPUTS,
    SCAN,
    SCAN_INPUTS,
    Family,
)
from kernels.spec.model import Options, RunSpec
from kernels.spec.problems import FieldProblem
from kernels.spec.results import DRAWN, GRADIENTS, MATRICES, PRESENT, RESULTS, STATES, TRACE

# What a spec may ask for beyond softmax(scale·QKᵀ)V, in the words of an error message.
FEATURES: dict[str, str] = {
    "scale": "a scale of one's own, zero and negative included",
    "causal": "causal masking, both alignments",
    "position_offset": "positions given as the integer of the first",
    "positions": "positions given as lists",
    "window": "sliding windows",
    "softcap": "logit softcapping",
    "attn_mask": "boolean and additive masks",
    "alibi": "ALiBi slopes",
    "rope": "rotary position embedding",
    "sinks": "attention sinks",
    "pattern": "compact mask patterns",
    "gqa": "grouped key/value heads",
    "v_head_dim": "values of another width than keys",
    "packed": "packed [batch, len, heads·dim] inputs",
    "ragged": "ragged batches (q_lens, kv_lens)",
    "past": "past keys and values",
    "paged": "paged key/value caches",
    "kv_dtype": "quantised key/value caches",
    "gradients": "gradients",
    "mla": "multi-head latent attention",
    "decay": "decays of a state",
    "delta_rule": "the delta rule",
    "state": "a state to start from",
    "normaliser": "a normaliser to start from",
    "scan": "a selective scan",
    "parameters": "learnt parameters",
}
# Which inputs beside q, k and v belong to which feature.
INPUT_FEATURES: dict[str, str] = {
    "attn_mask": "attn_mask",
    "q_lens": "ragged",
    "kv_lens": "ragged",
    "past_key": "past",
    "past_value": "past",
    "block_table": "paged",
    "dout": "gradients",
    **dict.fromkeys(MLA.axes, "mla"),
    **dict.fromkeys(SCAN.axes, "scan"),
    "log_decay": "decay",
    "beta": "delta_rule",
    "initial_state": "state",
    "initial_normaliser": "normaliser",
    **dict.fromkeys(PARAMETERS, "parameters"),
}
INPUT_SHAPES: dict[str, str] = {
    "q": "[batch, heads, q_len, dim]; without batch, or batch and heads; or packed [batch, q_len, heads·dim]",
    "k": "[batch, kv_heads, kv_len, dim], or pages [num_blocks, page_size, kv_heads, dim]",
    "v": "as k, of any dim",
    "attn_mask": "what broadcasts to [batch, heads, q_len, kv_len]; booleans, or floats to be added",
    "q_lens": "[batch] integers: what lies beyond is never read",
    "kv_lens": "[batch] integers: what lies beyond is never read",
    "past_key": "[batch, kv_heads, past, dim]",
    "past_value": "[batch, kv_heads, past, dim of v]",
    "block_table": "[batch, max_blocks] integers: which page; -1: none",
    "dout": "as out",
}
INPUT_MEANINGS: dict[str, str] = {
    "log_decay": "by exp of it the state has shrunk when a token arrives; -inf forgets everything",
    "beta": "the rate at which the delta rule corrects what a key retrieves",
    "initial_state": "the state that an earlier run returned",
    "initial_normaliser": "the normaliser that an earlier run returned",
    "x": "what drives the states",
    "b": "what of it goes into them; consecutive heads share a group",
    "c": "what is read of them",
    "delta": "step sizes, positive (after their softplus); channels 1: one for all channels of a head",
    "a": "rates, negative; channels 1 and states 1: one for all",
    "d_skip": "how much of x is added to the output",
    "w_q": "from a query to the hidden numbers of score additive; heads 1, here and below: one for all",
    "w_k": "from a key to them",
    "v_a": "how much each hidden number counts, in additive and concat",
    "w_general": "what stands between q and k in score general",
    "w_concat": "w_q and w_k side by side, of score concat",
    "w_p": "from a query to the hidden numbers of its predicted centre",
    "v_p": "how much each of these counts",
}
MAX_BETA, MAX_HALF_WIDTH = 10**6, 2**30
MAX_FEATURES = 4096  # of a performer: each is a number for every query and key
MAX_TOKENS = 2**24  # that an option may name
MAX_DRAWS = 2**20  # of hard attention
SOFTMAX = "softmax attention"


@dataclass(frozen=True)
class Engine:
    """One named way to compute a spec."""

    name: str
    title: str
    summary: str
    module: str
    features: frozenset[str]
    returns: frozenset[str]
    dtypes: tuple[str, ...]
    devices: tuple[str, ...]
    options: dict[str, dict[str, Any]] = field(default_factory=dict)  # name -> JSON Schema
    takes: tuple[str, ...] = PLAIN_INPUTS  # what it cannot do without
    computes: str = SOFTMAX  # engines that compute the same can stand in for each other
    # Inputs that a choice takes beside these: option → its value → their names.
    taken_by: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    findings: dict[str, str] = field(default_factory=dict)  # figures beside its arrays: name -> meaning
    is_double: bool = False  # computes in float64, so that its results are their own yardstick
    is_always_causal: bool = False  # with or without is_causal
    # Modules without torch, of engines that compute anything but softmax attention: ``Rules``, ``Pricing``.
    rules: str | None = None
    pricing: str | None = None
    max_head_dim: int | None = None
    max_latent_dim: int | None = None  # of the latents of MLA
    max_q_len: int | None = None
    is_triton: bool = False
    notes: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        """JSON-ready, as ``GET /engines`` shows it."""
        return {
            "name": self.name,
            "title": self.title,
            "summary": self.summary,
            "features": {name: text for name, text in FEATURES.items() if name in self.features},
            "returns": sorted(self.returns, key=RESULTS.index),
            "findings": dict(self.findings),
            "dtypes": list(self.dtypes),
            "devices": list(self.devices),
            "inputs": list(self._inputs()),
            "inputs_schema": self._inputs_schema(),
            "options": {
                "type": "object",
                "additionalProperties": False,
                "properties": {name: dict(schema) for name, schema in self.options.items()},
            },
            "max_head_dim": self.max_head_dim,
            "max_latent_dim": self.max_latent_dim,
            "max_q_len": self.max_q_len,
            "computes": self.computes,
            "notes": list(self.notes),
        }

    def inputs_taken(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """All inputs that it cannot do without, with such ``options``; what is left out has its default."""
        chosen = {name: options.get(name, self.options[name]["default"]) for name in self.taken_by}
        more = (name for option, value in chosen.items() for name in self.taken_by[option].get(value, ()))
        return tuple(dict.fromkeys((*self.takes, *more)))

    @property
    def family(self) -> Family:
        """The inputs that it cannot do without, and those that go with them."""
        return next(family for family in FAMILIES if family.required == self.takes)

    def _inputs(self) -> tuple[str, ...]:
        """The inputs that it understands."""
        more = (name for name, of in INPUT_FEATURES.items() if of in self.features)
        return tuple(dict.fromkeys((*self.takes, *more)))

    def _inputs_schema(self) -> dict[str, Any]:
        """A JSON Schema of ``inputs``; each property is an array as the contract has them, of the shape that
        its description says."""
        names = self._inputs()
        ways = [self.takes] if "mla" not in self.features else list(dict.fromkeys((self.takes, MLA_INPUTS)))
        return {
            "type": "object",
            "additionalProperties": False,
            "properties": {name: {"description": self._described(name)} for name in names},
            "anyOf": [{"required": list(way)} for way in ways],
        }

    def _described(self, name: str) -> str:
        """The shape of an input, and what it means."""
        if name in INPUT_SHAPES:
            return INPUT_SHAPES[name]
        family = self.family if name in self.family.axes else MLA
        meaning = INPUT_MEANINGS.get(name)
        return f"[{', '.join(family.axes[name])}]" + (f": {meaning}" if meaning else "")


_RECURRENT = frozenset({"decay", "delta_rule", "state", "normaliser", "scan"})
_WHOLE_SPEC = frozenset(FEATURES) - {"kv_dtype", "parameters"} - _RECURRENT
_FLOATS = ("float32", "float16", "bfloat16", "float64")


def _block_option(text: str) -> dict[str, Any]:
    powers = [size for size in (16, 32, 64, 128, 256, 512, 1024) if MIN_BLOCK <= size <= MAX_BLOCK]
    return {"description": text, "enum": [None, *powers], "default": None}


_SPLITS_OPTION = {
    "description": "Splits of the keys; null: chosen for the machine. No more are made than there are tiles.",
    "type": ["integer", "null"],
    "minimum": 1,
    "maximum": MAX_SPLITS,
    "default": None,
}
_QUANTISED_OPTIONS: dict[str, dict[str, Any]] = {
    "kv_dtype": {
        "description": (
            "Keys (past and fresh, rotated) and values are kept as codes of 8 bits; null: as numbers. The "
            "errors reported are against the numbers before they were quantised."
        ),
        "enum": [None, *KV_DTYPES],
        "default": None,
    },
    "kv_scale": {
        "description": "What shares a scale with kv_dtype: all keys (all values), or a token in a head.",
        "enum": list(KV_SCALES),
        "default": Options().kv_scale,
    },
}
_DOUBLE_NOTE = "The inputs are rounded to dtype; everything after that is float64, and so are the results."
_CACHE_NOTE = "With kv_dtype, present_key and present_value are what the cache holds, decoded."
# What our Triton kernels share.
_INTERPRETER_NOTES = (
    "On a CPU the kernel runs in Triton's interpreter; its timings say nothing about a GPU.",
    "Under the interpreter bfloat16 inputs are computed in float32 and out is rounded back.",
)
_SOFTMAX = _WHOLE_SPEC - {"paged", "gradients", "mla"}
_QUANTISED = frozenset({"kv_dtype"})
_OF_SOFTMAX = frozenset({"out", "lse", *MATRICES, *PRESENT, *GRADIENTS})
_OF_STATES: dict[str, Any] = {"rules": "kernels.recurrent", "pricing": "kernels.recurrent_pricing"}
_PAST = {
    "state_bytes": "what remains of all tokens, in float32",
    "cache_bytes": "what attention would keep of them: keys and values in the dtype of the run",
    "break_even_tokens": "the shortest text whose keys and values are more than the state",
}
_RANKS = {
    "ranks": "rank and effective rank (exp of the entropy of the singular values) of the weights by which "
    "outputs are made of values, and of those of softmax attention; means of all heads; null where a state "
    "came from before, or for more than 2²⁰ weights",
}
_CHUNKS = {
    "description": "Tokens to a chunk; null: what suits the machine.",
    "enum": [None, 16, 32, 64],
    "default": None,
}
ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine(
            name="reference",
            title="Reference (float64)",
            summary="The equations in numpy, double precision, every intermediate. The yardstick.",
            module="kernels.engines.reference",
            features=_WHOLE_SPEC,
            returns=_OF_SOFTMAX,
            dtypes=_FLOATS,
            devices=("cpu",),
            is_double=True,
            notes=(_DOUBLE_NOTE,),
        ),
        Engine(
            name="eager",
            title="Eager (torch)",
            summary="The same equations, one torch operation after another, whole score matrices in memory.",
            module="kernels.engines.eager",
            features=_WHOLE_SPEC | _QUANTISED,
            returns=_OF_SOFTMAX,
            dtypes=_FLOATS,
            devices=("cpu", "cuda"),
            options=_QUANTISED_OPTIONS,
            notes=(
                "float16 and bfloat16 inputs are computed in float32; out is rounded back to dtype.",
                "A quantised cache is simulated: keys and values are quantised, and decoded first of all.",
                _CACHE_NOTE,
            ),
        ),
        Engine(
            name="sdpa",
            title="SDPA (torch)",
            summary="torch.nn.functional.scaled_dot_product_attention, which picks a fused kernel by itself.",
            module="kernels.engines.sdpa",
            features=_WHOLE_SPEC - {"softcap"},
            returns=frozenset({"out", *PRESENT, *GRADIENTS}),
            dtypes=_FLOATS,
            devices=("cpu", "cuda"),
            notes=(
                "Returns out and gradients: its LSE is private and the score matrix never exists.",
                "Windows, ALiBi, positions, ragged lengths, patterns, and causal masks that are not square "
                "or have a scale ≤ 0, are passed as a mask tensor; sinks as one more key of zeros.",
            ),
        ),
        Engine(
            name="flash",
            title="Flash (our Triton kernel)",
            summary="FlashAttention, forward and backward: tiles stream past one another, softmax online.",
            module="kernels.flash.launch",
            features=_SOFTMAX | _QUANTISED | {"gradients"},
            returns=_OF_SOFTMAX | frozenset(TRACE),
            dtypes=("float32", "float16", "bfloat16"),
            devices=("cpu", "cuda"),
            options={
                "block_m": _block_option("Queries per tile; null: chosen for the machine."),
                "block_n": _block_option(
                    f"Keys per tile; null: chosen for the machine. block_m·block_n ≤ {MAX_BLOCK_ELEMENTS:,}."
                ),
                "num_warps": {
                    "description": (
                        "Warps of a program of the forward kernels on a GPU; null: chosen for the tile. The "
                        "interpreter has none."
                    ),
                    "enum": [None, 1, 2, 4, 8, 16],
                    "default": None,
                },
                "num_stages": {
                    "description": (
                        "Tiles of keys and values that these load or wait for at a time on a GPU; null: "
                        "chosen for the machine."
                    ),
                    "type": ["integer", "null"],
                    "minimum": 1,
                    "maximum": 5,
                    "default": None,
                },
                **_QUANTISED_OPTIONS,
            },
            max_head_dim=256,
            is_triton=True,
            notes=(
                *_INTERPRETER_NOTES,
                _CACHE_NOTE,
                "The score matrices are rebuilt from Q and K by a second kernel, and the weights from these "
                "with the maximum and the sum of each row.",
                "Gradients rebuild the weights likewise. Each is summed in one order, without atomics: equal "
                "inputs give equal bits.",
                "A trace is what the kernel itself holds of each query after each tile of block_n keys, "
                "[batch, heads, q_len, key tiles]; tile t has the keys from t·block_n on, and tiles are "
                "visited in this order. trace_tiles: 0 the tile was skipped (never loaded), 1 taken with "
                "a look at the mask, 2 taken without. trace_max: the running maximum m, -inf before any "
                "key. trace_sum: the running sum l of exp(s - m). trace_out, each of v_head_dim numbers: "
                "the sum of exp(s - m)·v. trace_rescale: exp(m_old - m_new), by which l and that sum were "
                "multiplied; 1 where the tile was skipped, which leaves all as it was. After the last "
                "tile comes the one division: out is trace_out / l, and lse is m + ln(l).",
                "A trace is recorded on a CPU, in Triton's interpreter, by one more launch after those that "
                "are timed and counted.",
            ),
        ),
        Engine(
            name="decode",
            title="Decode (our Triton kernels)",
            summary="Split-KV decoding: few queries, the keys cut into splits whose states are merged.",
            module="kernels.decode.launch",
            features=_SOFTMAX | _QUANTISED,
            returns=frozenset({"out", "lse", *PRESENT}),
            dtypes=("float32", "float16", "bfloat16"),
            devices=("cpu", "cuda"),
            options={
                "block_n": _block_option("Keys per tile; null: chosen for the machine."),
                "num_splits": _SPLITS_OPTION,
                **_QUANTISED_OPTIONS,
            },
            max_head_dim=256,
            max_q_len=MAX_DECODE_LEN,
            is_triton=True,
            notes=(
                *_INTERPRETER_NOTES,
                _CACHE_NOTE,
                "The query heads that share a key head are rows of one tile: each key and value is read once "
                "for all of them, as far as their rows fit in a tile (16 to 64 on a GPU).",
            ),
        ),
        Engine(
            name="paged",
            title="Paged (our Triton kernels)",
            summary="Attention over a cache in pages, found by block tables; new tokens are appended to it.",
            module="kernels.paged.launch",
            features=_SOFTMAX | _QUANTISED | {"paged"},
            returns=frozenset({"out", "lse", *PRESENT}),
            dtypes=("float32", "float16", "bfloat16"),
            devices=("cpu", "cuda"),
            options={
                "block_n": _block_option("Keys per tile; null: chosen for the machine."),
                "num_splits": {
                    **_SPLITS_OPTION,
                    "description": f"As for decode, up to {MAX_DECODE_LEN} queries.",
                },
                "page_size": {
                    "description": "Tokens per page of contiguous k and v; null: 16, or those of the pages.",
                    "type": ["integer", "null"],
                    "minimum": 1,
                    "maximum": MAX_PAGE_SIZE,
                    "default": None,
                },
                **_QUANTISED_OPTIONS,
            },
            max_head_dim=256,
            is_triton=True,
            notes=(
                *_INTERPRETER_NOTES,
                _CACHE_NOTE,
                f"Up to {MAX_DECODE_LEN} queries are the decode kernels' work, more the flash kernel's; both "
                "read the pages where they lie.",
                "Contiguous k and v are put in pages in a shuffled order. With a past, it is what the pages "
                "hold, and the new tokens are appended by a kernel.",
                "RoPE turns the k of a block_table as any other: each row gets rotated pages of its own.",
                "With kv_dtype each row of a block_table gets pages of its own, of codes; the scales of "
                "tokens are in pages too.",
            ),
        ),
        Engine(
            name="mla",
            title="MLA (our Triton kernels)",
            summary="Multi-head latent attention: per token one latent and one rotated key for all heads.",
            module="kernels.mla.launch",
            features=_SOFTMAX - {"gqa", "packed", "past"} | {"mla"},
            returns=frozenset({"out", "lse"}),
            dtypes=("float32", "float16", "bfloat16"),
            devices=("cpu", "cuda"),
            options={
                "form": {
                    "description": (
                        "expanded: keys and values of every head are made from the latents, then flash runs. "
                        "absorbed: w_uk goes into the queries and w_uv into the output, and every head "
                        "attends to the latents themselves. null: the one with fewer multiply-adds, which is "
                        "absorbed while queries are few."
                    ),
                    "enum": [None, "expanded", "absorbed"],
                    "default": None,
                },
                "block_m": _block_option(
                    "Queries per tile, or (query, head) pairs if absorbed; null: chosen for the machine."
                ),
                "block_n": _block_option(
                    f"Keys per tile; null: chosen for the machine. block_m·block_n ≤ {MAX_BLOCK_ELEMENTS:,}."
                ),
            },
            takes=MLA_INPUTS,
            max_head_dim=256,
            max_latent_dim=512,
            is_triton=True,
            notes=(
                *_INTERPRETER_NOTES,
                "q_rope and k_rope are rotated already, unless attention.rope is given: then all of both are "
                "rotated here. The scale is 1/√(d_nope + d_rope) unless it is given.",
                "Absorbed, each latent is read once for a tile of (query, head) pairs, and is key and value "
                "of all its heads.",
            ),
        ),
        Engine(
            name="linear",
            title="Linear attention (our Triton kernels)",
            summary="Products of features in the place of exponentials: a state of fixed size is all memory.",
            module="kernels.engines.linear",
            features=frozenset({"scale", "causal", "gqa", "v_head_dim", "packed"}) | _RECURRENT - {"scan"},
            returns=frozenset({"out", *STATES}),
            dtypes=("float32", "float16", "bfloat16"),
            devices=("cpu", "cuda"),
            options={
                "feature_map": {
                    "description": "What q and k become first: elu(x) + 1, or they themselves.",
                    "enum": ["elu1", "identity"],
                    "default": "elu1",
                },
                "normalise": {
                    "description": (
                        "Divide by the sum of the weights, as a softmax does; null: unless there is a beta."
                    ),
                    "type": ["boolean", "null"],
                    "default": None,
                },
                "form": {
                    "description": (
                        "Three ways to the same numbers. recurrent: token by token. parallel: all pairs, "
                        "without a state. chunked: pairs within chunks, a state between them."
                    ),
                    "enum": ["chunked", "recurrent", "parallel"],
                    "default": "chunked",
                },
                "chunk_size": _CHUNKS,
            },
            computes="linear attention",
            **_OF_STATES,
            findings={**_PAST, **_RANKS},
            max_head_dim=256,
            is_triton=True,
            notes=(
                *_INTERPRETER_NOTES,
                "log_decay makes it gated (RetNet, Mamba-2), beta a delta rule (DeltaNet), both are Gated "
                "DeltaNet. They order the tokens, and need attention.is_causal; causal, q and k have one "
                "length.",
                "state and normaliser are what a run leaves behind; sent as initial_state and "
                "initial_normaliser they continue it. The scale matters only without normalise.",
                "A delta rule is stable while beta·‖k‖² stays below 2: keys of length 1 are usual.",
            ),
        ),
        Engine(
            name="performer",
            title="Performer (torch)",
            summary="FAVOR+: random features whose products are the exponentials of softmax, on average.",
            module="kernels.engines.performer",
            features=frozenset({"scale", "causal", "gqa", "v_head_dim", "packed"}),
            returns=frozenset({"out"}),
            dtypes=_FLOATS,
            devices=("cpu", "cuda"),
            options={
                "num_features": {
                    "description": "Random features of each query and key; the error falls as 1/√ of it.",
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_FEATURES,
                    "default": 256,
                },
                "features_seed": {
                    "description": "Which features are drawn.",
                    "type": "integer",
                    "minimum": 0,
                    "maximum": MAX_SEED,
                    "default": 0,
                },
                "orthogonal": {
                    "description": "Directions orthogonal to each other, which lowers the error.",
                    "type": "boolean",
                    "default": True,
                },
                "trials": {
                    "description": (
                        "Draws, by seeds 0, 1, 2 and on, for each of several numbers of features, to see how "
                        "the error falls with them; 0, or 6 and more."
                    ),
                    "type": "integer",
                    "minimum": 0,
                    "maximum": 64,
                    "default": 0,
                },
            },
            computes="linear attention with random features",
            **_OF_STATES,
            findings={
                **_PAST,
                **_RANKS,
                "error_by_features": "with trials: for numbers of features up to num_features the median of "
                "the relative errors of their draws, and an interval low to high that holds the median of "
                "all draws with the given confidence",
            },
            notes=(
                "numerics is the error of the arithmetic, with the same features; comparison that of the "
                "features. It grows as an exponential of the size of q and k.",
                "Causal, q and k have one length.",
            ),
        ),
        Engine(
            name="scan",
            title="Selective scan (our Triton kernels)",
            summary="Mamba: a state that each token decays, writes to and reads, as the token decides.",
            module="kernels.engines.scan",
            features=frozenset({"causal", "gqa", "v_head_dim", "scan", "state"}),
            returns=frozenset({"out", "state"}),
            dtypes=("float32", "float16", "bfloat16"),
            devices=("cpu", "cuda"),
            options={
                "form": {
                    "description": (
                        "Ways to the same numbers. recurrent: token by token. scan: all steps composed by a "
                        "parallel prefix. chunked: a prefix within chunks, a state between them. quadratic: "
                        "the dual, masked attention over all pairs, without a state; where delta and a are "
                        "one number to a head."
                    ),
                    "enum": ["chunked", "recurrent", "scan", "quadratic"],
                    "default": "chunked",
                },
                "chunk_size": _CHUNKS,
            },
            takes=SCAN_INPUTS,
            computes="a selective scan",
            is_always_causal=True,
            **_OF_STATES,
            findings=_PAST,
            is_triton=True,
            notes=(
                *_INTERPRETER_NOTES,
                "Mamba has one head of all its channels; Mamba-2 heads of channels with one delta and one "
                "rate. A scan is causal with or without attention.is_causal.",
                "With one delta and one rate a scan is linear attention with decays: c are its queries, b "
                "its keys, delta·x its values. The comparison is with causal softmax attention of c, b, x.",
            ),
        ),
        Engine(
            name="scoring",
            title="Attention by other scores (our Triton kernels)",
            summary="Additive, bilinear and cosine scores instead of q·k, over all keys or near a position.",
            module="kernels.engines.scoring",
            features=frozenset({"scale", "causal", "window", "attn_mask", "pattern", "parameters"})
            | {"position_offset", "positions", "gqa", "v_head_dim", "packed"},
            returns=frozenset({"out", "lse", "scores", "weights", "centres", "kept_weight"}),
            dtypes=("float32", "float16", "bfloat16"),
            devices=("cpu", "cuda"),
            options={
                "score": {
                    "description": (
                        "How well a key fits a query. additive: v_a·tanh(w_q q + w_k k) (Bahdanau). dot: "
                        "q·k. scaled_dot: scale·q·k. general: q·w_general k. concat: v_a·tanh(w_concat "
                        "[q; k]) (Luong). cosine: beta·cos(q, k)."
                    ),
                    "enum": ["additive", "dot", "scaled_dot", "general", "concat", "cosine"],
                    "default": "additive",
                },
                "beta": {
                    "description": "The factor of score cosine, its key strength; null: 1.",
                    "type": ["number", "null"],
                    "minimum": -MAX_BETA,
                    "maximum": MAX_BETA,
                    "default": None,
                },
                "span": {
                    "description": (
                        "Which keys a query looks at. global: all. monotonic: those around its own number "
                        "(Luong's local-m). predictive: those around kv_len·sigmoid(v_p·tanh(w_p q)), "
                        "weighted by a Gaussian (local-p)."
                    ),
                    "enum": ["global", "monotonic", "predictive"],
                    "default": "global",
                },
                "half_width": {
                    "description": (
                        "How far from its centre a window reaches on either side, in keys; the σ of a "
                        "Gaussian is half of it. Null: 10."
                    ),
                    "type": ["number", "null"],
                    "minimum": 0,
                    "maximum": MAX_HALF_WIDTH,
                    "default": None,
                },
            },
            taken_by={
                "score": {
                    "additive": ("w_q", "w_k", "v_a"),
                    "dot": (),
                    "scaled_dot": (),
                    "general": ("w_general",),
                    "concat": ("w_concat", "v_a"),
                    "cosine": (),
                },
                "span": {"global": (), "monotonic": (), "predictive": ("w_p", "v_p")},
            },
            computes="attention by other scores",
            findings={
                "pairs_scored": "pairs of query and key within windows and masks, in all heads",
                "share_scored": "their share of all pairs",
                "score_cost": "what their scores take, as they are written: multiply_adds, those "
                "in_matrix_products among them, which tensor cores can do, and functions, tanh or roots",
                "scaled_dot_cost": "the same of scaled dot products of all pairs",
            },
            rules="kernels.scoring.rules",
            pricing="kernels.scoring.pricing",
            max_head_dim=256,
            is_triton=True,
            notes=(
                *_INTERPRETER_NOTES,
                "Parameters are rounded to dtype as q, k and v are; those that score and span take, and no "
                "others, belong to a request. attention.scale is the factor of score scaled_dot alone.",
                "What additive attention makes of a query or a key alone is made once; concat makes it again "
                "for each tile of pairs, and so computes the same in another way.",
                "Windows count keys, and queries of a monotonic one, from 0. Weights of a predicted window "
                "sum to less than 1: the Gaussian stays out of the denominator, and of lse.",
                "kept_weight is the share of the global weights that a window holds. It takes the scores of "
                "all pairs, which windows otherwise save.",
            ),
        ),
        Engine(
            name="cache",
            title="Forgetful cache (float64)",
            summary="A text read token by token through a KV cache that evicts, beside one that keeps all.",
            module="kernels.engines.cache",
            features=frozenset({"scale", "causal", "rope", "gqa", "v_head_dim", "packed"}) | _QUANTISED,
            returns=frozenset({"out", "weights", "held", "kept_weight", "row_error"}),
            dtypes=_FLOATS,
            devices=("cpu",),
            options={
                "policy": {
                    "description": (
                        "Who is evicted. full: nobody. sliding: the oldest. streaming: the oldest but for "
                        "the first tokens, the attention sinks. heavy_hitters: of all but the newest the one "
                        "with the least attention so far, in each head its own (H2O)."
                    ),
                    "enum": ["streaming", "full", "sliding", "heavy_hitters"],
                    "default": "streaming",
                },
                "budget": {
                    "description": (
                        "Tokens that a head holds at most, the newest and the sinks included; null: half of "
                        "the text, and one more than the sinks at least. Not with policy full."
                    ),
                    "type": ["integer", "null"],
                    "minimum": 1,
                    "maximum": MAX_TOKENS,
                    "default": None,
                },
                "sinks": {
                    "description": "First tokens that stay, with policy streaming; null: 4.",
                    "type": ["integer", "null"],
                    "minimum": 0,
                    "maximum": MAX_TOKENS,
                    "default": None,
                },
                "recent": {
                    "description": (
                        "Newest tokens that are safe, with policy heavy_hitters; null: half of the budget."
                    ),
                    "type": ["integer", "null"],
                    "minimum": 1,
                    "maximum": MAX_TOKENS,
                    "default": None,
                },
                "cache_positions": {
                    "description": (
                        "What attention.rope counts: places in the text, or in the cache, where keys are "
                        "kept unrotated; null: in the cache with policy streaming, else in the text."
                    ),
                    "enum": [None, "text", "cache"],
                    "default": None,
                },
                "kv_dtype": {
                    **_QUANTISED_OPTIONS["kv_dtype"],
                    "description": (
                        "Keys, as the cache keeps them, and values are codes of 8 bits; null: numbers of "
                        "dtype. The full cache beside it is not quantised."
                    ),
                },
                "kv_scale": _QUANTISED_OPTIONS["kv_scale"],
            },
            computes="attention over a cache that forgets",
            findings={
                "budget": "the most tokens that a head may hold; null: no limit",
                "tokens_held": "how many a head holds at the end",
                "cache_bytes": "of all heads and batch rows at the end, which is when a cache is largest: "
                "keys, values, scales, and sums of weights where the policy needs them",
                "full_cache_bytes": "of as many tokens with nothing evicted or quantised, in dtype",
                "mean_row_error": "mean of ‖out − exact‖ / ‖exact‖ of all rows",
                "worst_row_error": "the largest of them",
                "mean_kept_weight": "mean share of the exact weights that falls on what is held",
            },
            is_double=True,
            is_always_causal=True,
            rules="kernels.cache_policies.rules",
            pricing="kernels.cache_policies.pricing",
            notes=(
                _DOUBLE_NOTE,
                "Causal with or without attention.is_causal; q, k and v have one length, that of the text.",
                "A token comes in, others go, then its query looks: it sees budget tokens at most, itself "
                "among them.",
                "kept_weight is the share of the exact weights that falls on what is held; row_error is how "
                "far each row of out is from that of a full cache, relative to it.",
                "A call reads the full cache too: its time says nothing of a server's. traffic is of the "
                "cache with the policy, as a server would read it.",
            ),
        ),
        Engine(
            name="lsh",
            title="Hashed attention (float64)",
            summary="Reformer: queries see the keys that fall into their bucket, in any of several rounds.",
            module="kernels.engines.lsh",
            features=frozenset(
                {"scale", "causal", "position_offset", "positions", "window", "pattern", "attn_mask"}
            )
            | {"gqa", "v_head_dim", "packed"},
            returns=frozenset({"out", "weights", "recall", "kept_weight", "q_buckets", "k_buckets"}),
            dtypes=_FLOATS,
            devices=("cpu",),
            options={
                "rounds": {
                    "description": "Hashes, each with directions of its own; more find more keys.",
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_ROUNDS,
                    "default": 4,
                },
                "buckets": {
                    "description": "Buckets of a hash, an even number; more hold fewer keys each.",
                    "type": "integer",
                    "minimum": 2,
                    "maximum": MAX_BUCKETS,
                    "default": 8,
                },
                "hash_seed": {
                    "description": "Which directions are drawn.",
                    "type": "integer",
                    "minimum": 0,
                    "maximum": MAX_SEED,
                    "default": 0,
                },
                "top": {
                    "description": "How many of the keys with the highest scores the recall looks for.",
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_TOKENS,
                    "default": 8,
                },
            },
            computes="attention within hash buckets",
            findings={
                "mean_recall": "mean share of the top keys that is seen, over the queries that may see any",
                "mean_kept_weight": "mean share of the exact weights that falls on what is seen, likewise",
                "pairs": "pairs of query and key that are not forbidden, in all heads and batch rows",
                "scored_pairs": "those of them that share a bucket",
                "density": "their share",
                "score_multiply_adds": "of the scores of all pairs",
                "scored_multiply_adds": "of those that share a bucket",
                "hash_multiply_adds": "of the hash",
                "mean_occupied_buckets": "buckets with a key in them; mean of all rounds and heads",
                "largest_bucket": "keys in the fullest bucket of all rounds and heads",
            },
            is_double=True,
            rules="kernels.sparse.lsh_rules",
            pricing="kernels.sparse.lsh_pricing",
            notes=(
                _DOUBLE_NOTE,
                "recall is the share of the top keys that a query sees, and kept_weight that of the exact "
                "weights. All scores are computed to say so: the time of a call is not that of hashing.",
                "The hash is of directions alone. It is made for keys that are the directions of the queries "
                "(Reformer); long keys at large angles are missed.",
                "A query that finds no key has output 0. Reformer's chunks of sorted tokens are left out.",
                "q_buckets and k_buckets are [.., len, rounds]; buckets i and i + buckets/2 are opposite "
                "directions. A mask is of booleans.",
            ),
        ),
        Engine(
            name="hard",
            title="Hard attention (float64)",
            summary="One key is drawn for each query, by its weight, in the place of a weighted sum.",
            module="kernels.engines.hard",
            features=frozenset({"scale", "causal", "gqa", "v_head_dim", "packed", "gradients"}),
            returns=frozenset({"out", "weights", "chosen", *DRAWN}),
            dtypes=_FLOATS,
            devices=("cpu",),
            options={
                "draws": {
                    "description": (
                        "Keys drawn for each query; out is the mean of their values. More begin with fewer."
                    ),
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_DRAWS,
                    "default": 1,
                },
                "draws_seed": {
                    "description": "Which keys are drawn.",
                    "type": "integer",
                    "minimum": 0,
                    "maximum": MAX_SEED,
                    "default": 0,
                },
                "baseline": {
                    "description": (
                        "What is taken from the reward of a draw when it estimates the gradient: nothing; "
                        "the expected reward; what makes the variance least; 0.9 of itself and 0.1 of the "
                        "last reward. Needs dout."
                    ),
                    "enum": ["none", "expected", "optimal", "moving"],
                    "default": "none",
                },
            },
            computes="hard attention",
            findings={
                "output_variance": "of a number of out over draws, in closed form: mean of all numbers",
                "measured_output_variance": "the same of what was drawn; null for a single draw",
                "gradient_norm": "‖dscores‖, Frobenius; null without dout",
                "baselines": "null without dout; for each baseline the variance of one draw of the estimated "
                "gradient, summed over all its numbers, in closed form and measured_variance (null for a "
                "single draw); error: ‖dscores_estimate − dscores‖, and standard_error: √(variance / draws), "
                "the root of its expected square",
            },
            is_double=True,
            rules="kernels.scoring.hard_rules",
            pricing="kernels.scoring.hard_pricing",
            notes=(
                _DOUBLE_NOTE,
                "weights are the soft ones by which keys are drawn; chosen is the key of the first draw, -1 "
                "where a query may see none.",
                "dout is the gradient of a loss with respect to out, so that key j has the reward dout·v_j. "
                "dscores is the gradient by the scores scale·q·k that REINFORCE estimates without bias; "
                "dscores_variance is that of one draw, in closed form.",
                "numerics are 0: what is random is drawn from draws_seed. comparison is with soft attention, "
                "the mean of all possible draws.",
            ),
        ),
    )
}


def declared() -> dict[str, dict[str, dict[str, Any]]]:
    """The options that not all engines share: option → engine → its JSON Schema."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for engine in ENGINES.values():
        for name, schema in engine.options.items():
            if name not in SHARED:
                found.setdefault(name, {})[engine.name] = schema
    return found


class Rules(Protocol):
    """A module that knows what contradicts itself in a spec of an engine."""

    def problems(self, spec: RunSpec) -> Iterator[FieldProblem]:
        """All of it."""
        ...


class Pricing(Protocol):
    """A module that knows what a run of an engine takes; bytes are held at once."""

    def flops(self, spec: RunSpec) -> int:
        """Of one call."""
        ...

    def more_traffic(self, spec: RunSpec) -> tuple[int, int]:
        """Bytes read and written beyond each input and each result once."""
        ...

    def engine_seconds(self, spec: RunSpec) -> float:
        """One call on one core."""
        ...

    def engine_bytes(self, spec: RunSpec) -> float:
        """Beside inputs and results."""
        ...

    def reference_seconds(self, spec: RunSpec) -> float:
        """What is done once: the engine's own mathematics in float64 and their bounds, and findings."""
        ...

    def reference_bytes(self, spec: RunSpec) -> float:
        """The same in memory."""
        ...


def rules_of(engine: str) -> Rules | None:
    """None where it computes softmax attention."""
    return cast(Rules | None, _module(ENGINES[engine].rules))


def pricing_of(engine: str) -> Pricing | None:
    """None where it computes softmax attention, which ``kernels.estimate`` prices itself."""
    return cast(Pricing | None, _module(ENGINES[engine].pricing))


def _module(path: str | None) -> Any:
    return importlib.import_module(path) if path else None


def is_causal(spec: RunSpec) -> bool:
    """Whether no query sees a later key: because it was asked for, or because its engine has no other way."""
    return spec.attention.is_causal or ENGINES[spec.engine].is_always_causal


def option(spec: RunSpec, name: str) -> Any:
    """An option that the engine of ``spec`` declares: as asked for, or its default."""
    return spec.options.more.get(name, ENGINES[spec.engine].options[name]["default"])
