"""The engines and what each can do. Asking an engine for more is an error that names the engines which can.

Data only: importing this module imports no engine (and so neither torch nor triton).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kernels.spec.attention import (
    KV_DTYPES,
    KV_SCALES,
    MAX_BLOCK,
    MAX_BLOCK_ELEMENTS,
    MAX_PAGE_SIZE,
    MAX_SPLITS,
    MIN_BLOCK,
)
from kernels.spec.latent import AXES, MLA_INPUTS, PLAIN_INPUTS
from kernels.spec.model import Options, RunSpec
from kernels.spec.problems import FieldProblem, join, one_of
from kernels.spec.results import GRADIENTS, PRESENT, RESULTS

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
    **dict.fromkeys(MLA_INPUTS, "mla"),
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
    **{name: f"[{', '.join(axes)}]" for name, axes in AXES.items()},
}
# Queries of the decode kernels; more fill tiles of their own, as the flash kernel's do.
MAX_DECODE_LEN = 16
# Engines that the contract names and that are still to come.
PLANNED = frozenset({"linear", "performer", "scan"})


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
            "notes": list(self.notes),
        }

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
            "properties": {name: {"description": INPUT_SHAPES[name]} for name in names},
            "anyOf": [{"required": list(way)} for way in ways],
        }


_WHOLE_SPEC = frozenset(FEATURES) - {"kv_dtype"}
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
_CACHE_NOTE = "With kv_dtype, present_key and present_value are what the cache holds, decoded."
# What our Triton kernels share.
_INTERPRETER_NOTES = (
    "On a CPU the kernel runs in Triton's interpreter; its timings say nothing about a GPU.",
    "Under the interpreter bfloat16 inputs are computed in float32 and out is rounded back.",
)
_SOFTMAX = _WHOLE_SPEC - {"paged", "gradients", "mla"}
_QUANTISED = frozenset({"kv_dtype"})
ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine(
            name="reference",
            title="Reference (float64)",
            summary="The equations in numpy, double precision, every intermediate. The yardstick.",
            module="kernels.engines.reference",
            features=_WHOLE_SPEC,
            returns=frozenset(RESULTS),
            dtypes=_FLOATS,
            devices=("cpu",),
            notes=(
                "The inputs are rounded to dtype; everything after that is float64, and so are the results.",
            ),
        ),
        Engine(
            name="eager",
            title="Eager (torch)",
            summary="The same equations, one torch operation after another, whole score matrices in memory.",
            module="kernels.engines.eager",
            features=_WHOLE_SPEC | _QUANTISED,
            returns=frozenset(RESULTS),
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
            returns=frozenset(RESULTS),
            dtypes=("float32", "float16", "bfloat16"),
            devices=("cpu", "cuda"),
            options={
                "block_m": _block_option("Queries per tile; null: chosen for the machine."),
                "block_n": _block_option(
                    f"Keys per tile; null: chosen for the machine. block_m·block_n ≤ {MAX_BLOCK_ELEMENTS:,}."
                ),
                **_QUANTISED_OPTIONS,
            },
            max_head_dim=256,
            is_triton=True,
            notes=(
                *_INTERPRETER_NOTES,
                _CACHE_NOTE,
                "The score matrices and the weights are rebuilt from Q, K and the LSE by a second kernel.",
                "Gradients rebuild the weights likewise. Each is summed in one order, without atomics: equal "
                "inputs give equal bits.",
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
    )
}


def unsupported(spec: RunSpec) -> list[FieldProblem]:
    """Everything in a spec that its engine cannot do, each naming the engines that can."""
    engine = ENGINES.get(spec.engine)
    if engine is None:
        return [FieldProblem("/engine", "unknown-engine", f"the engines are {one_of(ENGINES)}")]
    problems: list[FieldProblem] = []
    others = [e for e in ENGINES.values() if _understands(e, spec)]

    def refuse(pointer: str, what: str, able: list[str]) -> None:
        remedy = f"{one_of(able)} can" if able else "no engine can yet"
        detail = f"engine {spec.engine} does not support {what}; {remedy}"
        problems.append(FieldProblem(pointer, "unsupported", detail))

    for feature, pointer, what in _asked(spec):
        if feature not in engine.features:
            able = [e.name for e in others if feature in e.features]
            refuse(pointer, f"{FEATURES[feature]} ({what})", able)
    for index, name in enumerate(spec.returns):
        if name not in engine.returns:
            able = [e.name for e in others if name in e.returns]
            refuse(join("/return", index), f"the result {name}", able)
    problems += _unused_splits(spec, engine)
    problems += _unquantised(spec, engine)
    for name in _options_used(spec):
        if name not in engine.options:
            able = [e.name for e in ENGINES.values() if name in e.options]
            refuse(join("/options", name), f"the option {name}", able)
    if spec.dtype not in engine.dtypes:
        able = [e.name for e in others if spec.dtype in e.dtypes]
        refuse("/dtype", f"dtype {spec.dtype}", able)
    if spec.device != "auto" and spec.device not in engine.devices:
        able = [e.name for e in others if spec.device in e.devices]
        refuse("/device", f"device {spec.device}", able)
    if engine.max_q_len is not None and spec.q_len > engine.max_q_len:
        able = [e.name for e in others if e.max_q_len is None or spec.q_len <= e.max_q_len]
        refuse("/inputs/q", f"a q_len of {spec.q_len} (its limit is {engine.max_q_len})", able)
    for field_name, name, what, dim in _widths(spec):
        most = getattr(engine, field_name)
        if most is not None and dim > most:
            limits = {e.name: getattr(e, field_name) for e in others}
            names = [name for name, limit in limits.items() if limit is None or dim <= limit]
            refuse(f"/inputs/{name}", f"a {what} of {dim} (its limit is {most})", names)
    return problems


def _understands(engine: Engine, spec: RunSpec) -> bool:
    """Whether the inputs of ``spec`` are of the kind that the engine takes."""
    return "mla" in engine.features if spec.is_latent else engine.takes == PLAIN_INPUTS


def _widths(spec: RunSpec) -> Iterator[tuple[str, str, str, int]]:
    """(the field of Engine that limits it, the input that has it, what it is, how wide it is)."""
    yield "max_head_dim", "q_nope" if spec.is_latent else "q", "head dim", spec.head_dim
    yield "max_head_dim", "w_uv" if spec.is_latent else "v", "head dim", spec.v_head_dim
    if spec.is_latent:
        yield "max_latent_dim", "c_kv", "latent dim", spec.inputs["c_kv"].shape[-1]


def _unused_splits(spec: RunSpec, engine: Engine) -> list[FieldProblem]:
    """An engine of any q_len that splits keys does so for a few queries only."""
    splits = spec.options.num_splits is not None and "num_splits" in engine.options
    if not splits or engine.max_q_len is not None or spec.q_len <= MAX_DECODE_LEN:
        return []
    detail = f"num_splits is for up to {MAX_DECODE_LEN} queries and q_len is {spec.q_len}; leave it out"
    return [FieldProblem("/options/num_splits", "unsupported", detail)]


def _unquantised(spec: RunSpec, engine: Engine) -> Iterator[FieldProblem]:
    """Why there is no cache to quantise, or none that could be, where the engine has quantised caches; why
    none has one of latents."""
    if "kv_dtype" not in engine.features and not (spec.is_latent and spec.options.kv_dtype):
        return
    if spec.options.kv_dtype is None:
        if spec.options.kv_scale != Options().kv_scale:
            detail = "kv_scale says how a quantised cache is scaled: ask for a kv_dtype too, or leave it out"
            yield FieldProblem("/options/kv_scale", "needs", detail)
        return
    if "dout" in spec.inputs or set(spec.returns) & set(GRADIENTS):
        detail = (
            "rounding to codes has no useful gradient, and caches are for inference: leave kv_dtype out, or "
            "dout and the gradients"
        )
        yield FieldProblem("/options/kv_dtype", "unsupported", detail)
    if spec.is_latent:
        detail = "MLA caches latents, which no engine quantises: leave kv_dtype out, or send q, k and v"
        yield FieldProblem("/options/kv_dtype", "unsupported", detail)


def _options_used(spec: RunSpec) -> list[str]:
    # kv_dtype is a feature.
    used = ("block_m", "block_n", "num_splits", "page_size", "form")
    given = [name for name in used if getattr(spec.options, name) is not None]
    return [*given, "kv_scale"] if spec.options.kv_scale != Options().kv_scale else given


def _asked(spec: RunSpec) -> Iterator[tuple[str, str, str]]:  # noqa: PLR0912 - one line per feature
    """The features a spec needs: (feature, pointer to what asks for it, its name or value)."""
    attention, inputs = spec.attention, spec.inputs
    if attention.scale is not None:
        yield "scale", "/attention/scale", "scale"
    if attention.is_causal:
        yield "causal", "/attention/is_causal", "is_causal"
    for name in ("q_positions", "kv_positions"):
        given = getattr(attention, name)
        if given is not None:
            feature = "position_offset" if isinstance(given, int) else "positions"
            yield feature, f"/attention/{name}", name
    if attention.window != (None, None):
        yield "window", "/attention/window", "window"
    if attention.softcap:
        yield "softcap", "/attention/softcap", "softcap"
    for name, feature in (
        ("alibi_slopes", "alibi"),
        ("rope", "rope"),
        ("sinks", "sinks"),
        ("pattern", "pattern"),
    ):
        if getattr(attention, name) is not None:
            yield feature, f"/attention/{name}", name
    if spec.is_packed:
        yield "packed", "/attention/num_heads", "num_heads"
    if spec.options.kv_dtype is not None and not spec.is_latent:  # of latents, no engine has it
        yield "kv_dtype", "/options/kv_dtype", spec.options.kv_dtype
    if spec.num_kv_heads != spec.num_heads:
        yield "gqa", "/inputs/k", f"{spec.num_heads} query heads, {spec.num_kv_heads} key heads"
    if spec.v_head_dim != spec.head_dim:
        yield "v_head_dim", "/inputs/v", f"{spec.v_head_dim} beside {spec.head_dim}"
    for name, feature in INPUT_FEATURES.items():
        if name in inputs:
            yield feature, f"/inputs/{name}", name
