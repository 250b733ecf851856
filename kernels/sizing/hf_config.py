"""A pasted ``config.json`` of a Hugging Face model → its layers, with an account of how it was read.

Everything comes from fields. ``model_type`` only decides what fields leave unsaid (:mod:`.families`); one
that is not known is read by its fields all the same, and the account says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kernels.sizing.families import FAMILIES, LLAMA, Family
from kernels.sizing.feedforward import dense, read_mlps
from kernels.sizing.fields import MAX_FIELDS, MAX_LAYERS, MAX_VOCAB, OF_THE_TYPE, Assumption, ConfigFields
from kernels.sizing.kinds import FULL, layer_kinds
from kernels.sizing.layers import Layer, Mixer, Model
from kernels.sizing.mixers import attention, read_mixers
from kernels.sizing.quantisation import read_quantisation
from kernels.sizing.storage import WeightFormat
from kernels.spec.problems import MALFORMED, TOO_LARGE, FieldProblem, Problems, SpecError, show

MAX_CONTEXT = 2**40


@dataclass(frozen=True)
class ReadConfig:
    """A model, and how its config was understood.

    ``missing`` are fields that its cache does not need and its weights do; ``ignored`` had no part in
    anything, and ``unknown`` are those of them that might matter for all we know.
    """

    model: Model
    model_type: str
    is_known: bool
    understood: tuple[str, ...]
    ignored: tuple[str, ...]
    unknown: tuple[str, ...]
    assumed: tuple[Assumption, ...]
    notes: tuple[str, ...]
    missing: tuple[FieldProblem, ...]
    stored: WeightFormat | None  # how the config says that its weights are quantised


def read_config(config: object, pointer: str = "/config") -> ReadConfig:
    """The model that ``config`` describes. Raises SpecError, with everything that is wrong or missing."""
    problems = Problems()
    if not isinstance(config, Mapping):
        detail = f"config must be an object, the content of a config.json, not {show(config)}"
        raise SpecError([FieldProblem(pointer, "wrong-type", detail, MALFORMED)])
    objects = (config, *(value for value in config.values() if isinstance(value, Mapping)))
    most = max(map(len, objects))
    if most > MAX_FIELDS:
        detail = f"an object of {most:,} fields is no config.json; at most {MAX_FIELDS:,} are read"
        raise SpecError([FieldProblem(pointer, "too-large", detail, TOO_LARGE)])
    fields = ConfigFields(config, pointer, problems)
    model_type = _model_type(fields)
    family = FAMILIES.get(model_type, LLAMA)
    fields.defaults, fields.is_known = family.defaults, model_type in FAMILIES
    if not problems.found:
        model = _build(fields, family)
        stored = read_quantisation(fields)
    problems.raise_if_any()
    if not fields.is_known:
        fields.notes.insert(0, _stranger(model_type))
    ignored = fields.ignored()
    return ReadConfig(
        model=model,
        model_type=model_type,
        is_known=fields.is_known,
        understood=tuple(fields.understood),
        ignored=tuple(ignored),
        unknown=tuple(fields.unknown(ignored)),
        assumed=tuple(fields.assumed),
        notes=tuple(dict.fromkeys(fields.notes)),
        missing=tuple(fields.missing.found),
        stored=stored,
    )


def _model_type(fields: ConfigFields) -> str:
    """Of the language model, else of the whole."""
    inner = fields.word("model_type")
    outer = fields.config.get("model_type")
    return inner or (outer if isinstance(outer, str) else "")


def _stranger(model_type: str) -> str:
    named = (
        f"model_type {show(model_type)} is not one that we know" if model_type else "There is no model_type"
    )
    return (
        f"{named}: the cache is what its fields say, its weights are counted as if it were built like Llama "
        "(gated MLPs, RMS norms, no biases)."
    )


def _build(fields: ConfigFields, family: Family) -> Model:
    if fields.boolean("is_encoder_decoder", False):
        return _encoder_decoder(fields, family)
    return _stack(fields, family)


def _stack(fields: ConfigFields, family: Family) -> Model:
    """One stack of layers: a decoder, or an encoder such as BERT."""
    hidden = _hidden(fields)
    count = fields.integer("layers", high=MAX_LAYERS)
    if family.is_encoder:
        kinds: tuple[str, ...] = (FULL,) * count
        mixers: tuple[tuple[Mixer, ...], ...]
        mixers = ((attention(fields, family, hidden, is_causal=False),),) * count
    else:
        kinds = layer_kinds(fields, count)
        mixers = read_mixers(fields, family, hidden, kinds)
    mlps = read_mlps(fields, family, hidden, kinds)
    norms = _norms(fields, family) * family.norm * hidden
    layers = tuple(Layer(mixing, mlp, norms) for mixing, mlp in zip(mixers, mlps, strict=True))
    return _whole(fields, family, hidden, layers)


def _encoder_decoder(fields: ConfigFields, family: Family) -> Model:
    """Two stacks. Each layer of the decoder also attends to the encoder's tokens, and keeps their keys."""
    hidden = _hidden(fields)
    encoders = fields.integer("encoder_layers", high=MAX_LAYERS)
    decoders = fields.integer(
        "decoder_layers", high=MAX_LAYERS, default=encoders, why="as many as encoder layers"
    )
    seen = attention(fields, family, hidden, "encoder_heads", is_causal=False)
    own = attention(fields, family, hidden, "decoder_heads")
    cross = replace(own, is_causal=False, is_cross=True)
    feature = family.norm * hidden
    encoder = Layer((seen,), dense(fields, family, hidden, "encoder_width"), 2 * feature)
    decoder = Layer((own, cross), dense(fields, family, hidden, "decoder_width"), 3 * feature)
    buckets = fields.integer_or_none("relative_attention_num_buckets", low=0) or 0
    extras = (("positions", buckets * (seen.heads + own.heads)),)
    return _whole(fields, family, hidden, (decoder,) * decoders, encoder=(encoder,) * encoders, extras=extras)


def _hidden(fields: ConfigFields) -> int:
    """The width of the model; a cache of latents, or of heads with a width of their own, does without."""
    if not fields.has("hidden") and (fields.has("head_dim") or fields.has("kv_lora_rank")):
        fields.require("hidden", fields.missing)
        return 0
    return fields.integer("hidden")


def _norms(fields: ConfigFields, family: Family) -> int:
    """Norms of a layer: one where attention and MLP are parallel and share it."""
    is_parallel = fields.boolean("parallel_attn", False)
    if fields.boolean("new_decoder_architecture", False):
        return fields.integer_or_none("num_ln_in_parallel_attn", high=2) or 2
    if is_parallel:
        return 1
    is_shared = family is FAMILIES["stablelm"] and fields.boolean("use_parallel_residual", False)
    return 1 if is_shared else family.norms


def _whole(
    fields: ConfigFields,
    family: Family,
    hidden: int,
    layers: tuple[Layer, ...],
    *,
    encoder: tuple[Layer, ...] = (),
    extras: tuple[tuple[str, int], ...] = (),
) -> Model:
    """The layers with what surrounds them: embeddings, positions, last norm, head."""
    vocab = fields.integer_or_none("vocab", high=MAX_VOCAB)
    if vocab is None:
        fields.require("vocab", fields.missing)
        vocab = 0
    context = fields.integer_or_none("context", high=MAX_CONTEXT)
    stacks = 2 if encoder else 1
    feature = family.norm * hidden
    own = []
    if family.positions is not None and context is not None:
        own.append(("positions", stacks * (context + family.positions) * hidden))
    own.append(("norms", stacks * feature if family.embedding_norm else 0))
    has_last = family.final_norm and fields.boolean("do_layer_norm_before", True)
    own.append(("norms", stacks * feature if has_last else 0))
    own.append(("biases", vocab if family.head_bias else 0))
    if family.is_encoder:
        types = fields.integer_or_none("type_vocab_size", low=0) or 0
        own += [("positions", types * hidden), ("pooler", hidden * hidden + hidden)]
    return Model(
        hidden=hidden,
        vocab=vocab,
        layers=layers,
        encoder=encoder,
        is_tied=_is_tied(fields, family),
        has_head=not family.is_encoder,
        embedding_dim=fields.integer_or_none("word_embed_proj_dim") or 0,
        extras=tuple((name, size) for name, size in (*own, *extras) if size),
        context=context,
    )


def _is_tied(fields: ConfigFields, family: Family) -> bool:
    if not fields.find("tied")[0]:
        fields.assume("tied", family.is_tied, OF_THE_TYPE if fields.is_known else "what most models have")
    return fields.boolean("tied", family.is_tied)
