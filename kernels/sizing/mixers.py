"""From fields to what a layer does with its tokens: attention, latent attention, a state."""

from __future__ import annotations

from dataclasses import replace

from kernels.integers import ceil_div
from kernels.sizing.families import Family, Flag
from kernels.sizing.fields import MAX_LAYERS, ConfigFields
from kernels.sizing.kinds import CHUNKED, EXPERTS, FULL, MLP, SLIDING, STATE
from kernels.sizing.layers import Attention, LatentAttention, LinearAttention, Mamba, Mamba2, Mixer

MAX_HEADS = 65_536
OF_LATENTS = ("qk_rope_head_dim", "qk_nope_head_dim", "q_lora_rank")  # and of no other attention
OF_INDICES = ("index_topk", "index_head_dim", "index_n_heads")
MAX_WINDOW = 2**31


def read_mixers(
    fields: ConfigFields, family: Family, hidden: int, kinds: tuple[str, ...]
) -> tuple[tuple[Mixer, ...], ...]:
    """The mixers of each layer: one of its kind, or none where it is an MLP alone. Each kind is read once."""
    mixing = [kind for kind in dict.fromkeys(kinds) if kind not in (MLP, EXPERTS)]
    made = {kind: _mixer(fields, family, hidden, kind, kinds) for kind in mixing}
    return _sharing(fields, [(made[kind],) if kind in made else () for kind in kinds])


def _mixer(fields: ConfigFields, family: Family, hidden: int, kind: str, kinds: tuple[str, ...]) -> Mixer:
    if kind == STATE:
        return _state(fields, family, hidden, is_alone=set(kinds) == {STATE})
    mixer = _attention(fields, family, hidden)
    if kind in (SLIDING, CHUNKED) and isinstance(mixer, Attention):
        return replace(mixer, window=_window(fields, kind), is_chunked=kind == CHUNKED)
    if kind == FULL and isinstance(mixer, Attention):
        return _wider(fields, mixer)
    return mixer


def _wider(fields: ConfigFields, mixer: Attention) -> Attention:
    """Gemma 4: the layers that see everything may have fewer and wider heads than those with a window."""
    width = fields.integer_or_none("global_head_dim") or mixer.head_dim
    shares = fields.boolean("attention_k_eq_v", False)
    fewer = fields.integer_or_none("num_global_key_value_heads", high=MAX_HEADS) if shares else None
    return replace(mixer, head_dim=width, v_head_dim=width, kv_heads=fewer or mixer.kv_heads)


def attention(
    fields: ConfigFields, family: Family, hidden: int, heads_name: str = "heads", *, is_causal: bool = True
) -> Attention:
    """Softmax attention with as many heads and as wide as the fields say."""
    heads = _heads(fields, heads_name)
    head_dim = _head_dim(fields, hidden, heads)
    kv_heads = _kv_heads(fields, heads)
    if heads % kv_heads:
        detail = (
            f"{kv_heads} key/value heads do not divide the {heads} query heads, of which each must serve "
            f"equally many; possible are {', '.join(map(str, _divisors(heads)))}"
        )
        fields.contradiction("kv_heads", detail)
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=fields.integer_or_none("v_head_dim") or head_dim,
        is_causal=is_causal,
        qkv_bias=flag(fields, family.qkv_bias),
        out_bias=flag(fields, family.out_bias),
        has_output_gate=family.mixer == "delta",
        qk_norm=_qk_norm(fields, family, heads, kv_heads, head_dim),
        sinks=heads if family.has_sinks else 0,
    )


def _heads(fields: ConfigFields, name: str) -> int:
    """Query heads, which a cache can do without where those of keys and their width are said."""
    if not fields.has(name) and fields.has("kv_heads") and fields.has("head_dim"):
        fields.integer_for_weights(name)
        return fields.integer("kv_heads", high=MAX_HEADS)
    return fields.integer(name, high=MAX_HEADS)


def flag(fields: ConfigFields, value: Flag) -> bool:
    """A trait that a family has, has not, or leaves to a field."""
    return value if isinstance(value, bool) else fields.boolean(*value)


def _attention(fields: ConfigFields, family: Family, hidden: int) -> Mixer:
    if not fields.has("kv_lora_rank"):
        _check_no_latents(fields)
        return attention(fields, family, hidden)
    return LatentAttention(
        heads=fields.integer_for_weights("heads", high=MAX_HEADS),
        kv_rank=fields.integer("kv_lora_rank"),
        rope_dim=fields.integer("qk_rope_head_dim"),
        nope_dim=fields.integer_for_weights("qk_nope_head_dim"),
        v_head_dim=fields.integer_for_weights("v_head_dim"),
        q_rank=fields.integer_or_none("q_lora_rank"),
        has_bias=fields.boolean("attention_bias", False),
        **_index(fields),
    )


def _check_no_latents(fields: ConfigFields) -> None:
    """Whoever describes heads that are made from latents has to say how wide these are."""
    described = next((name for name in OF_LATENTS if fields.has(name)), "")
    if described:
        detail = (
            f"{fields.path(described)} is of latent attention, and the config does not say kv_lora_rank, the "
            "width of the latents that are kept: add it"
        )
        fields.problems.add(fields.at(fields.path("kv_lora_rank")), "required", detail)


def _index(fields: ConfigFields) -> dict[str, int]:
    """What chooses the tokens that are attended to, if anything does (DeepSeek-V3.2)."""
    if not any(fields.has(name) for name in OF_INDICES):
        return {}
    return {
        "index_top": fields.integer("index_topk", high=MAX_WINDOW),
        "index_dim": fields.integer("index_head_dim"),
        "index_heads": fields.integer("index_n_heads", high=MAX_HEADS),
    }


def _head_dim(fields: ConfigFields, hidden: int, heads: int) -> int:
    given = fields.integer_or_none("head_dim")
    if given is not None:
        return given
    if hidden % heads:
        detail = (
            f"{hidden} is not a multiple of the {heads} heads, so it does not say how wide one is: correct "
            "one of them, or give head_dim"
        )
        fields.contradiction("hidden", detail)
        return 1
    if not fields.says_null("head_dim"):
        fields.assume("head_dim", hidden // heads, "the width of the model shared out among its heads")
    return max(1, hidden // heads)


def _kv_heads(fields: ConfigFields, heads: int) -> int:
    """How many heads of keys and values; "multi_query" means one only where nothing newer overrules it."""
    if fields.boolean("new_decoder_architecture", False):
        if fields.boolean("multi_query", False):
            fields.notes.append(
                "multi_query is true and means nothing here: with new_decoder_architecture there are as many "
                "key/value heads as num_kv_heads says."
            )
        return fields.integer("kv_heads", high=MAX_HEADS, default=heads, why="as many as query heads")
    if fields.boolean("multi_query", False):
        return _multi_query(fields)
    if fields.boolean("multi_query_attention", False):
        return fields.integer("multi_query_group_num", high=MAX_HEADS)
    if fields.word("attn_config.attn_type") == "multiquery_attention":
        return 1
    return fields.integer(
        "kv_heads",
        high=MAX_HEADS,
        default=heads,
        why="every query head has a key/value head of its own where nothing else is said",
    )


def _multi_query(fields: ConfigFields) -> int:
    """One, whatever Falcon's num_kv_heads says; with any other model a number that says so contradicts it."""
    given = fields.integer_or_none("kv_heads", high=MAX_HEADS)
    if given in (None, 1):
        return 1
    if "new_decoder_architecture" in fields.defaults:
        fields.notes.append(
            f"{fields.path('kv_heads')} is {given} and means nothing here: multi_query, without "
            "new_decoder_architecture, is one key/value head."
        )
        return 1
    if not fields.find("multi_query")[0]:
        return given or 1
    detail = f"{given} key/value heads, but multi_query is true and means one: leave one of them out"
    fields.contradiction("kv_heads", detail)
    return 1


def _qk_norm(fields: ConfigFields, family: Family, heads: int, kv_heads: int, head_dim: int) -> int:
    """Numbers in the norms of queries and keys."""
    if not family.qk_norm or (family.qk_norm_if and not fields.boolean(family.qk_norm_if, False)):
        return 0
    return 2 * head_dim if family.qk_norm == "head" else (heads + kv_heads) * head_dim


def _window(fields: ConfigFields, kind: str) -> int:
    return fields.integer("attention_chunk_size" if kind == CHUNKED else "window", high=MAX_WINDOW)


def _sharing(fields: ConfigFields, mixers: list[tuple[Mixer, ...]]) -> tuple[tuple[Mixer, ...], ...]:
    """Gemma 3n: the last layers read the caches of earlier ones."""
    shared = fields.integer_or_none("num_kv_shared_layers", low=0, high=MAX_LAYERS) or 0
    if shared >= len(mixers):
        detail = f"{shared} of {len(mixers)} layers would read an earlier one's cache: one must keep its own"
        fields.contradiction("num_kv_shared_layers", detail)
    own = mixers[: len(mixers) - shared]
    return (*own, *(tuple(map(_reading, layer)) for layer in mixers[len(own) :]))


def _reading(mixer: Mixer) -> Mixer:
    return replace(mixer, reuses_cache=True) if isinstance(mixer, Attention) else mixer


def _state(fields: ConfigFields, family: Family, hidden: int, *, is_alone: bool) -> Mixer:
    """The layers that keep a state: of which kind, its sizes say."""
    if fields.has("linear_num_value_heads"):
        return _delta(fields)
    if fields.has("mamba_heads") or (family.mixer == "mamba2" and fields.has("state")):
        return _mamba2(fields, is_alone=not fields.has("mamba_heads"))
    if fields.has("state"):
        return _mamba(fields, hidden, is_alone=is_alone)
    if family.mixer == "lightning":
        full = attention(fields, family, hidden)
        return LinearAttention(full.heads, full.heads, full.head_dim, full.head_dim)
    fields.require("linear_num_value_heads", fields.problems)
    return LinearAttention(1, 1, 1, 1)


def _delta(fields: ConfigFields) -> LinearAttention:
    keys = fields.integer("linear_num_key_heads", high=MAX_HEADS)
    values = fields.integer("linear_num_value_heads", high=MAX_HEADS)
    if values % keys:
        fields.contradiction(
            "linear_num_value_heads", f"{values} value heads are no multiple of the {keys} key heads"
        )
    return LinearAttention(
        key_heads=keys,
        value_heads=values,
        key_dim=fields.integer("linear_key_head_dim"),
        value_dim=fields.integer("linear_value_head_dim"),
        kernel=fields.integer("linear_conv_kernel_dim", high=1024),
    )


def _mamba(fields: ConfigFields, hidden: int, *, is_alone: bool) -> Mamba:
    rank = ceil_div(hidden, 16)
    given = fields.find("dt_rank")[1]
    return Mamba(
        inner=hidden * fields.integer("expand", high=1024, default=2, why="the usual width of Mamba"),
        state=fields.integer("state"),
        kernel=fields.integer("kernel", high=1024, default=4, why="the usual kernel of Mamba"),
        dt_rank=rank
        if given == "auto"
        else fields.integer("dt_rank", default=rank, why="a sixteenth of the width"),
        conv_bias=fields.boolean("conv_bias", True),
        proj_bias=fields.boolean("proj_bias", False),
        has_inner_norms=not is_alone,
    )


def _mamba2(fields: ConfigFields, *, is_alone: bool) -> Mamba2:
    return Mamba2(
        heads=fields.integer("heads" if is_alone else "mamba_heads", high=MAX_HEADS),
        head_dim=fields.integer("head_dim" if is_alone else "mamba_head_dim"),
        groups=fields.integer("groups", high=MAX_HEADS, default=1, why="one group of heads"),
        state=fields.integer("state"),
        kernel=fields.integer("kernel", high=1024, default=4, why="the usual kernel of Mamba"),
        conv_bias=fields.boolean("conv_bias", True),
        proj_bias=fields.boolean("proj_bias", False),
    )


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0][:24]
