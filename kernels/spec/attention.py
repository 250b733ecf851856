"""Read the ``attention``, ``options`` and ``timing`` objects of a request (types and ranges, no shapes
yet)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from kernels.limits import MAX_BLOCK, MAX_BLOCK_ELEMENTS, MAX_EXACT, MIN_BLOCK
from kernels.spec.declared import SHARED, Declared, read_declared
from kernels.spec.kinds import read_kind
from kernels.spec.model import Attention, Options, Positions, Rope, Slopes, Timing
from kernels.spec.patterns import PATTERNS
from kernels.spec.problems import MALFORMED, Problems, join, show
from kernels.spec.reader import ObjectReader, is_integer, is_number, to_float
from kernels.spec.rope import ROPE_SCALINGS

# Of what kernels compute with: float32 reaches a little further, but these read well. Below the smaller one a
# processor may take a number for 0.
MIN_FLOAT32, MAX_FLOAT32 = 1.2e-38, 3.4e38
MAX_HEADS = 65_536
MAX_SPLITS = 1024
MAX_PAGE_SIZE = 65_536
MAX_WARMUP, MAX_ITERS = 100, 1000

ATTENTION_FIELDS = tuple(Attention.__dataclass_fields__)
ROPE_FIELDS = tuple(Rope.__dataclass_fields__)
KV_DTYPES = ("int8", "fp8_e4m3", "fp8_e5m2")
KV_SCALES = ("per_token_head", "per_tensor")  # the default first


def parse_attention(value: object, problems: Problems) -> Attention:
    """The ``attention`` object; wrong fields are noted and replaced by their defaults."""
    reader = ObjectReader(value, "/attention", problems, ATTENTION_FIELDS)
    num_heads = reader.integer_or_null("num_heads", 1, MAX_HEADS)
    num_kv_heads = reader.integer_or_null("num_kv_heads", 1, MAX_HEADS)
    if num_kv_heads is not None and not reader.has("num_heads"):
        detail = "num_kv_heads goes with num_heads, for packed [batch, len, heads·dim] inputs only"
        problems.add(reader.at("num_kv_heads"), "needs", detail)
    return Attention(
        scale=reader.number_or_null("scale", -MAX_FLOAT32, MAX_FLOAT32),
        is_causal=reader.boolean("is_causal", False),
        causal_alignment=reader.choice("causal_alignment", "bottom_right", ("bottom_right", "top_left")),
        q_positions=_positions(reader, "q_positions"),
        kv_positions=_positions(reader, "kv_positions"),
        window=_window(reader),
        softcap=_softcap(reader),
        alibi_slopes=_slopes(reader),
        rope=_rope(reader) if reader.has("rope") else None,
        sinks=_sinks(reader),
        pattern=read_kind(reader, "pattern", PATTERNS) if reader.has("pattern") else None,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
    )


def parse_options(value: object, engine: str, declared: Declared, problems: Problems) -> Options:
    """The ``options`` object: those that engines share, and those that single ones have ``declared``, as
    sent."""
    reader = ObjectReader(value, "/options", problems, (*SHARED, *declared))
    block_m, block_n = _block(reader, "block_m"), _block(reader, "block_n")
    if block_m and block_n and block_m * block_n > MAX_BLOCK_ELEMENTS:
        detail = (
            f"block_m × block_n is {block_m * block_n:,}, but a tile holds at most {MAX_BLOCK_ELEMENTS:,} "
            "numbers: lower one of them"
        )
        problems.add(reader.at("block_n"), "out-of-range", detail)
    return Options(
        block_m=block_m,
        block_n=block_n,
        num_splits=reader.integer_or_null("num_splits", 1, MAX_SPLITS),
        page_size=reader.integer_or_null("page_size", 1, MAX_PAGE_SIZE),
        kv_dtype=reader.choice_or_null("kv_dtype", KV_DTYPES),
        kv_scale=reader.choice("kv_scale", KV_SCALES[0], KV_SCALES),
        more=read_declared(reader.fields, engine, declared, problems),
    )


def parse_timing(value: object, problems: Problems) -> Timing:
    """The ``timing`` object."""
    reader = ObjectReader(value, "/timing", problems, ("warmup", "iters"))
    return Timing(reader.integer("warmup", 1, 0, MAX_WARMUP), reader.integer("iters", 5, 1, MAX_ITERS))


def _block(reader: ObjectReader, name: str) -> int | None:
    block = reader.integer_or_null(name, MIN_BLOCK, MAX_BLOCK)
    if block is not None and block & (block - 1):
        near = 1 << (block.bit_length() - 1)
        detail = f"{name} must be a power of two, not {block}; {near} or {2 * near} would do"
        reader.problems.add(reader.at(name), "out-of-range", detail)
        return None
    return block


def _softcap(reader: ObjectReader) -> float:
    """0, or a number that float32 can divide by and multiply with."""
    given = reader.fields.get("softcap", 0.0)
    if is_number(given) and given == 0:
        return 0.0
    return reader.number("softcap", 0.0, MIN_FLOAT32, MAX_FLOAT32, also=" (or 0: no softcap)")


def _window(reader: ObjectReader) -> tuple[int | None, int | None]:
    value = reader.fields.get("window")
    if value is None:
        return (None, None)
    if not isinstance(value, list) or len(value) != 2:
        reader.wrong_type("window", "[left, right], each an integer or null")
        return (None, None)
    sides: list[int | None] = []
    for index, side in enumerate(value):
        if side is None:
            sides.append(None)
        elif not is_integer(side):
            detail = f"a side of window must be an integer or null, not {show(side)}"
            reader.problems.add(join(reader.at("window"), index), "wrong-type", detail, MALFORMED)
        elif not 0 <= side <= MAX_EXACT:
            detail = f"a side of window must be between 0 and 2^53, or null for unbounded; not {show(side)}"
            reader.problems.add(join(reader.at("window"), index), "out-of-range", detail)
        else:
            sides.append(side)
    return (sides[0], sides[1]) if len(sides) == 2 else (None, None)


def _positions(reader: ObjectReader, name: str) -> Positions:
    """Null, one integer, a list of integers, or one such list per batch row."""
    value = reader.fields.get(name)
    if value is None:
        return None
    if is_integer(value):
        return int(value) if _position_in_range(value, reader, reader.at(name), name) else None
    wanted = "null, an integer, a list of integers or one such list per batch row"
    if not isinstance(value, list):
        reader.wrong_type(name, wanted)
        return None
    what = f"a position in {name}"
    if not _is_by_row(value):
        return _integers(value, reader, reader.at(name), what)
    rows = [
        _integers(row, reader, join(reader.at(name), b), what)
        for b, row in _rows(value, reader, reader.at(name))
    ]
    return None if None in rows else tuple(row for row in rows if row is not None)


def _is_by_row(value: list[Any]) -> bool:
    """Whether it is one list per batch row: the first entry says so."""
    return bool(value) and isinstance(value[0], list)


def _rows(value: list[Any], reader: ObjectReader, pointer: str) -> Iterator[tuple[int, list[Any]]]:
    """The lists of a value that has one per batch row, each with its number."""
    for b, row in enumerate(value):
        if isinstance(row, list):
            yield b, row
        else:
            detail = f"the first entry is the list of a batch row; here is {show(row)}: send a list for each"
            reader.problems.add(join(pointer, b), "wrong-type", detail, MALFORMED)


def _integers(row: list[Any], reader: ObjectReader, pointer: str, what: str) -> tuple[int, ...] | None:
    for index, item in enumerate(row):
        if not is_integer(item):
            detail = f"{what} must be an integer, not {show(item)}"
            reader.problems.add(join(pointer, index), "wrong-type", detail, MALFORMED)
            return None
        if not _position_in_range(item, reader, join(pointer, index), what):
            return None
    return tuple(row)


def _position_in_range(value: int, reader: ObjectReader, pointer: str, what: str) -> bool:
    if abs(value) <= MAX_EXACT:
        return True
    detail = f"{what} must be between -2^53 and 2^53, not {show(value)}"
    reader.problems.add(pointer, "out-of-range", detail)
    return False


def _slopes(reader: ObjectReader) -> Slopes:
    """``"auto"``, one slope per head, or one list of them per batch row."""
    value = reader.fields.get("alibi_slopes")
    if value is None or value == "auto":
        return value
    if not isinstance(value, list):
        reader.wrong_type("alibi_slopes", 'null, "auto", a list of numbers or one such list per batch row')
        return None
    pointer = reader.at("alibi_slopes")
    if not _is_by_row(value):
        return _numbers(value, reader, pointer, "a slope")
    rows = [_numbers(row, reader, join(pointer, b), "a slope") for b, row in _rows(value, reader, pointer)]
    return None if None in rows else tuple(row for row in rows if row is not None)


def _sinks(reader: ObjectReader) -> tuple[float, ...] | None:
    """One logit per head; ``"-inf"`` is a head without a sink."""
    value = reader.fields.get("sinks")
    if value is None:
        return None
    if not isinstance(value, list):
        reader.wrong_type("sinks", "null or a list with one logit per head")
        return None
    return _numbers(value, reader, reader.at("sinks"), "a sink", minus_infinity=True)


def _numbers(
    row: list[Any], reader: ObjectReader, pointer: str, what: str, *, minus_infinity: bool = False
) -> tuple[float, ...] | None:
    also = ' (or "-inf": no sink)' if minus_infinity else ""
    numbers = []
    for index, item in enumerate(row):
        if minus_infinity and item == "-inf":
            numbers.append(-math.inf)
        elif not is_number(item):
            detail = f"{what} must be a number{also}, not {show(item)}"
            reader.problems.add(join(pointer, index), "wrong-type", detail, MALFORMED)
            return None
        elif not abs(to_float(item)) <= MAX_FLOAT32:
            limits = f"{-MAX_FLOAT32:g} and {MAX_FLOAT32:g}"
            detail = f"{what} must be between {limits}{also}, not {show(item)}"
            reader.problems.add(join(pointer, index), "out-of-range", detail)
            return None
        else:
            numbers.append(float(item))
    return tuple(numbers)


def _rope(outer: ObjectReader) -> Rope:
    reader = ObjectReader(outer.fields["rope"], outer.at("rope"), outer.problems, ROPE_FIELDS)
    if isinstance(outer.fields["rope"], dict) and "style" not in reader.fields:
        detail = 'style is required: "interleaved" (GPT-J) or "half" (NeoX, Llama in Hugging Face)'
        reader.problems.add(reader.at("style"), "required", detail, MALFORMED)
    dim = reader.integer_or_null("dim", 2, 65_536)
    if dim is not None and dim % 2:
        detail = f"dim must be even, since pairs are rotated, not {dim}; {dim - 1} or {dim + 1} would do"
        reader.problems.add(reader.at("dim"), "out-of-range", detail)
    return Rope(
        style=reader.choice("style", "half", ("interleaved", "half")),
        theta=reader.number("theta", 10000.0, 1e-6, 1e18),
        dim=dim,
        dim_offset=reader.integer("dim_offset", 0, 0, 65_536),
        positions=_positions(reader, "positions"),
        scaling=read_kind(reader, "scaling", ROPE_SCALINGS) if reader.has("scaling") else None,
    )
