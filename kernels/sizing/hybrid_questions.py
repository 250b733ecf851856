"""From a body of JSON to a question about a hybrid stack. Everything wrong is told at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kernels.sizing.fields import MAX_LAYERS, MAX_WIDTH
from kernels.sizing.hybrid import Hybrid, StateMixer
from kernels.sizing.inverse import MAX_BATCH, MAX_LEN
from kernels.sizing.layers import Attention, LinearAttention, Mamba, Mamba2
from kernels.sizing.mixers import MAX_HEADS, MAX_WINDOW
from kernels.sizing.questions import KV_SCALES
from kernels.sizing.storage import CACHE_BITS, CACHE_DTYPES, cache_format
from kernels.spec.problems import MALFORMED, Problems, join, nearest, one_of, show
from kernels.spec.reader import ObjectReader

MAX_KERNEL = 1024
STATE_DTYPES = ("float32", "float16", "bfloat16")
DEFAULT_STATE_DTYPE = "bfloat16"
STATE_FORMATS = ("dtype", "conv_dtype")
ATTENTION = ("num_heads", "num_kv_heads", "head_dim", "v_head_dim", "dtype", "kv_scale")
FIELDS = (
    "num_layers", "attention_layers", "attention_every", "windowed_layers", "window", "attention", "state",
    "len", "batch",
)  # fmt: skip


class Width(NamedTuple):
    """A field of a state."""

    most: int
    meaning: str
    default: int | None = None  # None: it must be said
    least: int = 1


_CONVOLUTION = Width(MAX_KERNEL, "tokens that the short convolution before it spans; 0 for none", 4, 0)
STATES: dict[str, dict[str, Width]] = {
    "mamba": {
        "d_inner": Width(MAX_WIDTH, "channels, usually twice the width of the model"),
        "d_state": Width(MAX_WIDTH, "numbers that each channel keeps", 16),
        "d_conv": _CONVOLUTION,
    },
    "mamba2": {
        "num_heads": Width(MAX_HEADS, "heads, each with a state of its own"),
        "head_dim": Width(MAX_WIDTH, "channels of a head", 64),
        "d_state": Width(MAX_WIDTH, "numbers that each channel keeps", 128),
        "num_groups": Width(MAX_HEADS, "groups of heads that share B and C", 1),
        "d_conv": _CONVOLUTION,
    },
    "linear": {
        "num_heads": Width(MAX_HEADS, "heads, each with a state of its own"),
        "d_k": Width(MAX_WIDTH, "width of a key: rows of a state"),
        "d_v": Width(MAX_WIDTH, "width of a value: columns of a state"),
        "d_conv": _CONVOLUTION._replace(default=0),
    },
}


@dataclass(frozen=True)
class HybridQuestion:
    """What is asked, validated."""

    stack: Hybrid
    length: int
    batch: int
    kind: str  # of state, a key of STATES
    widths: Mapping[str, int]  # its fields
    state_dtype: str
    conv_dtype: str


def parse_hybrid_question(body: object) -> HybridQuestion:
    """The question in the body of an estimate. Raises SpecError."""
    problems = Problems()
    reader = ObjectReader(body, "", problems, FIELDS)
    if not isinstance(body, dict):
        problems.raise_if_any()
    length = _required(reader, "len", 0, MAX_LEN, "tokens of each sequence")
    batch = reader.integer("batch", 1, 1, MAX_BATCH)
    num_layers = _required(reader, "num_layers", 1, MAX_LAYERS, "layers of the stack")
    attention_layers = _attention_layers(reader, num_layers)
    windowed, window = _windows(reader, attention_layers)
    attention, dtype, kv_scale = _attention(reader)
    kind, widths, dtypes = _state(reader)
    problems.raise_if_any()
    stack = Hybrid(
        num_layers, attention_layers, windowed, window, attention, _mixer(kind, widths),
        cache_format(dtype, kv_scale), *(CACHE_BITS[each] // 8 for each in dtypes),
    )  # fmt: skip
    return HybridQuestion(stack, length, batch, kind, widths, *dtypes)


def _required(reader: ObjectReader, name: str, low: int, high: int, meaning: str) -> int:
    """An integer that must be said; its lowest value, noted, where it is not."""
    if not reader.has(name):
        detail = f"say {name}, from {low} to {high:,}: {meaning}"
        reader.problems.add(reader.at(name), "required", detail, MALFORMED)
        return low
    return reader.integer(name, low, low, high)


def _attention_layers(reader: ObjectReader, num_layers: int) -> int:
    """How many there are, said as a number or as every how many layers there is one."""
    names = ("attention_layers", "attention_every")
    given = [name for name in names if reader.has(name)]
    if len(given) != 1:
        both = "both say" if given else "neither says"
        detail = (
            "send attention_layers (how many) or attention_every (8: one of 8 layers, as 1:7), one of the "
            f"two; {both} it"
        )
        where = reader.at(names[1] if given else names[0])
        reader.problems.add(where, "contradiction" if given else "required", detail, MALFORMED)
        return 0
    value = reader.integer(given[0], 1, 0 if given == ["attention_layers"] else 1, MAX_LAYERS)
    if value > num_layers and not reader.problems.under(reader.at("num_layers")):
        detail = f"{given[0]} is {value}, but there are {num_layers} layers: lower it, or raise num_layers"
        reader.problems.add(reader.at(given[0]), "out-of-range", detail)
    return value if given == ["attention_layers"] else num_layers // value


def _windows(reader: ObjectReader, attention_layers: int) -> tuple[int, int]:
    """How many layers of attention have a window, and of how many tokens."""
    windowed = reader.integer("windowed_layers", 0, 0, MAX_LAYERS)
    window = reader.integer_or_null("window", 1, MAX_WINDOW)
    counts = ("num_layers", "attention_layers", "attention_every", "windowed_layers")
    if windowed > attention_layers and not any(reader.problems.under(reader.at(name)) for name in counts):
        detail = (
            f"windowed_layers is {windowed}, but {attention_layers} layers are attention, of which it counts "
            "some: lower it"
        )
        reader.problems.add(reader.at("windowed_layers"), "out-of-range", detail)
    if windowed and not reader.has("window"):
        detail = "say how many tokens a window holds, the newest included: window, such as 4096"
        reader.problems.add(reader.at("window"), "required", detail, MALFORMED)
    if reader.has("window") and not windowed and not reader.problems.under(reader.at("windowed_layers")):
        detail = "no layer has this window: say how many have it, windowed_layers, or leave window out"
        reader.problems.add(reader.at("window"), "contradiction", detail)
    return windowed, window or 1


def _attention(body: ObjectReader) -> tuple[Attention, str, str]:
    """The mixer of a layer of attention, and how its cache is stored."""
    if not _is_object(body, "attention", "num_kv_heads, head_dim and dtype of the cache"):
        return Attention(1, 1, 1, 1), CACHE_DTYPES[0], KV_SCALES[0]
    reader = ObjectReader(body.fields["attention"], body.at("attention"), body.problems, ATTENTION)
    kv_heads = _required(reader, "num_kv_heads", 1, MAX_HEADS, "heads of keys and values")
    heads = reader.integer_or_null("num_heads", 1, MAX_HEADS) or kv_heads
    if heads % kv_heads and not reader.problems.under(reader.pointer):
        detail = (
            f"num_heads is {heads}, which the {kv_heads} of num_kv_heads do not divide: each key head serves "
            "equally many query heads"
        )
        reader.problems.add(reader.at("num_heads"), "not-divisible", detail)
    head_dim = _required(reader, "head_dim", 1, MAX_WIDTH, "width of a key")
    v_head_dim = reader.integer_or_null("v_head_dim", 1, MAX_WIDTH) or head_dim
    dtype = reader.choice("dtype", "float16", CACHE_DTYPES)
    kv_scale = reader.choice("kv_scale", KV_SCALES[0], KV_SCALES)
    return Attention(heads, kv_heads, head_dim, v_head_dim), dtype, kv_scale


class _State(NamedTuple):
    """What is kept instead of a cache; ``dtypes`` of what recurs and of what is convolved."""

    kind: str
    widths: dict[str, int]
    dtypes: tuple[str, str]


def _state(body: ObjectReader) -> _State:
    """The state of the layers that are no attention."""
    unknown = _State("", {}, (DEFAULT_STATE_DTYPE, DEFAULT_STATE_DTYPE))
    if not _is_object(body, "state", f"kind ({one_of(STATES)}) and widths of what is kept instead"):
        return unknown
    value = body.fields["state"]
    kind, pointer = value.get("kind"), join(body.at("state"), "kind")
    if not isinstance(kind, str):
        detail = f"kind must be {one_of(STATES)}, not {show(kind)}"
        body.problems.add(pointer, "required" if kind is None else "wrong-type", detail, MALFORMED)
        return unknown
    if kind not in STATES:
        detail = f"there is no state of kind {show(kind)}; {nearest(kind, STATES)}"
        body.problems.add(pointer, "not-a-choice", detail)
        return unknown
    reader = ObjectReader(value, body.at("state"), body.problems, ("kind", *STATES[kind], *STATE_FORMATS))
    widths = {
        name: _required(reader, name, width.least, width.most, width.meaning)
        if width.default is None
        else reader.integer(name, width.default, width.least, width.most)
        for name, width in STATES[kind].items()
    }
    recurrent, convolved = (reader.choice(name, DEFAULT_STATE_DTYPE, STATE_DTYPES) for name in STATE_FORMATS)
    return _State(kind, widths, (recurrent, convolved))


def _is_object(reader: ObjectReader, name: str, holds: str) -> bool:
    if not reader.has(name):
        detail = f"say {name}, an object with {holds}"
        reader.problems.add(reader.at(name), "required", detail, MALFORMED)
    elif not isinstance(reader.fields[name], dict):
        reader.wrong_type(name, f"an object with {holds}")
    else:
        return True
    return False


def _mixer(kind: str, widths: dict[str, int]) -> StateMixer:
    match kind:
        case "mamba":
            return Mamba(widths["d_inner"], widths["d_state"], widths["d_conv"], dt_rank=0)
        case "mamba2":
            groups = widths["num_groups"]
            return Mamba2(
                widths["num_heads"], widths["head_dim"], groups, widths["d_state"], widths["d_conv"]
            )
        case _:
            heads = widths["num_heads"]
            return LinearAttention(heads, heads, widths["d_k"], widths["d_v"], widths["d_conv"])
