"""Which layer of a model is what: full attention, a window, or a state. From fields; one rule for each way in
which configs have said it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.sizing.fields import MAX_LAYERS, ConfigFields
from kernels.spec.problems import join, one_of, show
from kernels.spec.reader import is_integer

FULL, SLIDING, CHUNKED, STATE = "full_attention", "sliding_attention", "chunked_attention", "state"
MLP, EXPERTS = "mlp", "moe"  # layers that are nothing else
WORDS = {
    "full_attention": FULL,
    "attention": FULL,
    "global": FULL,
    "global_attention": FULL,
    "indexed_attention": FULL,
    "sliding_attention": SLIDING,
    "sliding_window_attention": SLIDING,
    "local": SLIDING,
    "local_attention": SLIDING,
    "local_sliding": SLIDING,
    "chunked_attention": CHUNKED,
    "linear_attention": STATE,
    "lightning_attention": STATE,
    "mamba": STATE,
    "mamba2": STATE,
    "mlp": MLP,
    "moe": EXPERTS,
}
LETTERS = {"M": STATE, "*": FULL, "-": MLP, "E": EXPERTS}
# Fields that change what a layer keeps in a way that is not computed here. Ignoring them would be a guess.
UNSUPPORTED = {
    "hybrid_layer_ids": "attention that is shared between layers beside states",
    "indexer_types": "indices that layers share",
    "use_cla": "caches that neighbouring layers share",
    "add_cross_attention": "attention to an encoder that is not described",
    "cross_attention_layers": "layers that attend to images",
}
# Fields that say which layers have a state.
PLACES = (
    "layer_types", "attn_type_list", "hybrid_override_pattern", "attn_layer_period", "attn_layer_indices",
    "full_attention_interval",
)  # fmt: skip

Kinds = tuple[str, ...]


def layer_kinds(fields: ConfigFields, count: int) -> Kinds:
    """What each of ``count`` layers is."""
    for name, what in UNSUPPORTED.items():
        found, value = fields.find(name)
        if value:
            detail = (
                f"{found} asks for {what}, which is not computed here; leave it out for an answer without it"
            )
            fields.problems.add(fields.at(found), "unsupported", detail)
    rules: tuple[Callable[[ConfigFields, int], Kinds | None], ...] = (
        _listed,
        _listed_as_numbers,
        _spelled,
        _repeated,
        _every_so_often,
        _at_indices,
        _states_alone,
        _states_nowhere,
        _chunked_with_rope,
        _windowed,
    )
    for rule in rules:
        kinds = rule(fields, count)
        if kinds is not None:
            return kinds
    return (FULL,) * count


def _listed(fields: ConfigFields, count: int) -> Kinds | None:
    """``layer_types``: a word for each layer."""
    words = fields.entries("layer_types", count)
    if words is None:
        return None
    found = fields.find("layer_types")[0]
    return _understood(fields, found, words)


def _understood(fields: ConfigFields, found: str, words: list[Any]) -> Kinds:
    for index, word in enumerate(words):
        if not isinstance(word, str) or word not in WORDS:
            detail = f"{show(word)} is no layer type that is understood here; it must be {one_of(WORDS)}"
            fields.problems.add(join(fields.at(found), index), "unsupported", detail)
            return (FULL,) * len(words)
    return tuple(WORDS[word] for word in words)


def _listed_as_numbers(fields: ConfigFields, count: int) -> Kinds | None:
    """MiniMax: 1 where a layer is full attention, 0 where it is linear."""
    numbers = fields.entries("attn_type_list", count)
    if numbers is None:
        return None
    for index, number in enumerate(numbers):
        if not is_integer(number) or number not in (0, 1):
            detail = (
                f"an entry of attn_type_list must be 0 (linear) or 1 (full attention), not {show(number)}"
            )
            fields.problems.add(join(fields.at(fields.path("attn_type_list")), index), "out-of-range", detail)
            return None
    return tuple(FULL if number else STATE for number in numbers)


def _spelled(fields: ConfigFields, count: int) -> Kinds | None:
    """Nemotron-H: a letter for each layer, of which each is a mixer or an MLP alone."""
    pattern = fields.word("hybrid_override_pattern")
    if not pattern:
        return None
    wrong = next((letter for letter in pattern[:count] if letter not in LETTERS), "")
    if len(pattern) != count:
        detail = f"hybrid_override_pattern has {len(pattern):,} letters, and there are {count} layers"
    elif wrong:
        detail = f"hybrid_override_pattern has the letter {show(wrong)}; understood are {one_of(LETTERS)}"
    else:
        return tuple(LETTERS[letter] for letter in pattern)
    fields.contradiction("hybrid_override_pattern", detail)
    return None


def _repeated(fields: ConfigFields, count: int) -> Kinds | None:
    """GPT-Neo: ``[[["global", "local"], 12]]``, words and how often they are repeated."""
    groups = fields.entries("attention_types")
    if groups is None:
        return None
    words: list[Any] = []
    for group in groups:
        match group:
            case [list() as part, int() as times] if 0 <= len(part) * times <= MAX_LAYERS:
                words += part * times
            case _:
                detail = f"attention_types holds pairs of a list of words and a number, not {show(group)}"
                fields.problems.add(fields.at(fields.path("attention_types")), "wrong-type", detail)
                return None
    if len(words) != count:
        fields.contradiction(
            "attention_types", f"attention_types describes {len(words)} layers, of which there are {count}"
        )
        return None
    return _understood(fields, "attention_types", words)


def _every_so_often(fields: ConfigFields, count: int) -> Kinds | None:
    """Jamba's period and offset; Qwen3-Next's interval, which counts from its end."""
    period = fields.integer_or_none("attn_layer_period", high=MAX_LAYERS)
    if period is not None:
        offset = fields.integer("attn_layer_offset", low=0, high=MAX_LAYERS, default=0, why="not said")
        if offset >= period:
            fields.contradiction(
                "attn_layer_offset",
                f"attn_layer_offset {offset} is beyond the period of {period}: no layer would be attention",
            )
        return tuple(FULL if index % period == offset else STATE for index in range(count))
    interval = fields.integer_or_none("full_attention_interval", high=MAX_LAYERS)
    if interval is None:
        return None
    return tuple(FULL if (index + 1) % interval == 0 else STATE for index in range(count))


def _at_indices(fields: ConfigFields, count: int) -> Kinds | None:
    """Bamba: the layers that are attention, by number."""
    indices = fields.indices("attn_layer_indices")
    if indices is None:
        return None
    if indices and not 0 <= min(indices) <= max(indices) < count:
        fields.contradiction(
            "attn_layer_indices",
            f"attn_layer_indices names layer {max(indices)}; the {count} layers are 0 to {count - 1}",
        )
    return tuple(FULL if index in indices else STATE for index in range(count))


def _states_alone(fields: ConfigFields, count: int) -> Kinds | None:
    """Mamba: a state, and nothing that says attention."""
    if not fields.has("state") or _has_attention(fields):
        return None
    return (STATE,) * count


def _states_nowhere(fields: ConfigFields, count: int) -> Kinds | None:
    """Sizes of states beside attention, and nothing that says which layers have them."""
    sizes = next(
        (name for name in ("state", "mamba_heads", "linear_num_value_heads") if fields.has(name)), ""
    )
    if sizes:
        detail = (
            f"{fields.path(sizes)} is of layers with a state, and no field says which these are: add "
            f"{one_of(PLACES)}, or leave it out for attention alone"
        )
        fields.problems.add(fields.at(fields.path("layer_types")), "required", detail)
    return None


def _has_attention(fields: ConfigFields) -> bool:
    return any(fields.scope.get(name) is not None for name in ("num_attention_heads", "n_head", "n_heads"))


def _chunked_with_rope(fields: ConfigFields, count: int) -> Kinds | None:
    """Llama 4: layers with rotary positions see their chunk, those without see everything."""
    if not fields.has("attention_chunk_size"):
        return None
    rotates = fields.entries("no_rope_layers", count)  # 1: has RoPE, whatever the name says
    if rotates is None:
        interval = fields.integer(
            "no_rope_layer_interval", high=MAX_LAYERS, default=4, why="as Llama 4, if its config does not say"
        )
        rotates = [(index + 1) % interval != 0 for index in range(count)]
    return tuple(CHUNKED if has_rope else FULL for has_rope in rotates)


def _windowed(fields: ConfigFields, count: int) -> Kinds | None:
    """A window, and perhaps which layers it is for."""
    if not fields.boolean("use_sliding_window", True) or not fields.integer_or_none("window", high=2**31):
        return None
    pattern = fields.integer_or_none("pattern", high=MAX_LAYERS)
    if pattern is not None:
        return tuple(FULL if (index + 1) % pattern == 0 else SLIDING for index in range(count))
    if fields.has("use_sliding_window") and fields.has("max_window_layers"):
        first = fields.integer("max_window_layers", low=0, high=MAX_LAYERS)
        return tuple(SLIDING if index >= first else FULL for index in range(count))
    if not fields.is_known:
        fields.notes.append(
            f"No field says which layers {fields.path('window')} is for: all, as it was read."
        )
    return (SLIDING,) * count
