"""JSON as RFC 8259 has it, and nothing more: one meaning per document, bounded depth, errors with a place.

Python's own parser also accepts NaN, repeated keys and nesting until the stack ends. Knows nothing
of HTTP, so that it can be fuzzed on its own; `Malformed` is the only exception `loads` raises.
"""

import json
import re
import sys
from typing import Any, NoReturn

import numpy as np

MAX_DEPTH = 64

# A batch of submissions has some ten thousand objects; millions would only serve to keep us busy.
MAX_OBJECTS = 200_000
# One list a row: more rows than this belong in base64, which is read a hundred times faster.
MAX_LISTS = 1_000_000
SUSPICIOUS_ESCAPE = re.compile(rb"\\u(?:[dD][89a-fA-F]|0000)")
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
CHUNK = 1 << 20


class Malformed(ValueError):
    """The text is not acceptable JSON. `pointer` (RFC 6901) is "" where no field can be named."""

    def __init__(self, detail: str, *, code: str = "malformed-json", pointer: str = "") -> None:
        super().__init__(detail)
        self.detail, self.code, self.pointer = detail, code, pointer


def loads(data: bytes, *, max_depth: int = MAX_DEPTH) -> Any:
    """The value of a UTF-8 JSON document. Raises Malformed."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Malformed(
            f"Byte {error.start} (0x{data[error.start]:02x}) is not UTF-8; send the JSON as UTF-8.",
            code="not-utf-8",
        ) from None
    if not text.strip():
        raise Malformed("The body is empty; send a JSON document.", code="empty-body")
    if data.count(b"{") > MAX_OBJECTS:
        raise Malformed(
            f"The body holds more than {MAX_OBJECTS:,} objects; send fewer.", code="too-many-objects"
        )
    if data.count(b"[") > MAX_LISTS:
        raise Malformed(
            f"The body holds more than {MAX_LISTS:,} lists; send large arrays as base64.",
            code="too-many-lists",
        )
    check_depth(data, max_depth)

    repeated: list[tuple[str, dict[str, Any]]] = []

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        built = dict(pairs)
        if len(built) != len(pairs) and not repeated:
            seen: set[str] = set()
            key = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            repeated.append((key, built))
        return built

    try:
        value = json.loads(text, object_pairs_hook=build, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise Malformed(
            f"Not JSON: {error.msg} at line {error.lineno}, column {error.colno} (character {error.pos})."
        ) from None
    except RecursionError:
        raise _too_deep(max_depth) from None
    except Malformed:
        raise
    except ValueError:
        raise _too_many_digits(text) from None
    if repeated:
        key, owner = repeated[0]
        parent = _find(value, owner)
        pointer = "" if parent is None else f"{parent}/{escape(key)}"
        raise Malformed(
            f"The key {key!r} occurs more than once in one object; keep one of them.",
            code="repeated-key",
            pointer=pointer,
        )
    if SUSPICIOUS_ESCAPE.search(data):
        _refuse_unstorable(value)
    return value


def check_depth(data: bytes, max_depth: int) -> None:
    """Raise Malformed when arrays and objects nest deeper than `max_depth`; a few ns per byte."""
    if data.count(b"[") + data.count(b"{") <= max_depth:
        return
    # Without escaped backslashes and quotes, a byte is in a string iff an odd number of quotes precede it.
    bare = data.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in data else data
    depth, in_string = 0, 0
    for start in range(0, len(bare), CHUNK):
        part = np.frombuffer(bare, np.uint8, min(CHUNK, len(bare) - start), start)
        quotes = np.cumsum(part == ord('"'), dtype=np.uint8) + np.uint8(
            in_string
        )  # wraps; only parity counts
        outside = (quotes & 1) == 0
        # '[' 5B and '{' 7B, ']' 5D and '}' 7D: each pair differs in bit 0x20 alone, set here for all.
        folded = part | 0x20
        steps = ((folded == 0x7B) & outside).astype(np.int8) - ((folded == 0x7D) & outside).astype(np.int8)
        levels = np.cumsum(steps, dtype=np.int32)
        if depth + int(levels.max(initial=0)) > max_depth:
            raise _too_deep(max_depth)
        depth += int(levels[-1])
        in_string = int(quotes[-1]) & 1


def escape(key: str) -> str:
    """One reference token of an RFC 6901 pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def _too_deep(max_depth: int) -> Malformed:
    return Malformed(
        f"Arrays and objects nest more than {max_depth} levels deep; no field needs more than 8.",
        code="too-deep",
    )


def _too_many_digits(text: str) -> Malformed:
    """Of the first integer, outside strings, that Python refuses to read."""
    most = sys.get_int_max_str_digits()
    integer = rf'"(?:[^"\\]|\\.)*"|(?<![\d.eE])(?<![eE][+-])(\d{{{most + 1},}})(?![\d.eE])'
    found = next(match for match in re.finditer(integer, text) if match[1])
    return Malformed(
        f"The integer at character {found.start(1)} has {len(found[1]):,} digits, and at most {most:,} are "
        "read; no field needs more than 19.",
        code="number-too-long",
    )


def _refuse_constant(word: str) -> NoReturn:
    raise Malformed(
        f'{word} is not JSON; where a non-finite value is meant write the string "inf", "-inf" or "nan".',
        code="bare-non-finite",
    )


def _find(value: Any, wanted: object, pointer: str = "") -> str | None:
    """The pointer of the very object `wanted` inside `value` (None: it was dropped by a repeated key)."""
    if value is wanted:
        return pointer
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if isinstance(item, dict | list):
            found = _find(item, wanted, f"{pointer}/{escape(str(key))}")
            if found is not None:
                return found
    return None


def _refuse_unstorable(value: Any, pointer: str = "") -> None:
    """Half a surrogate pair cannot be written as UTF-8, and NUL cannot be stored by PostgreSQL."""
    if isinstance(value, str):
        if "\0" in value or LONE_SURROGATE.search(value):
            raise Malformed(
                "A string holds a NUL or half a surrogate pair; leave that character out.",
                code="unusable-character",
                pointer=pointer if not LONE_SURROGATE.search(pointer) else "",
            )
    elif isinstance(value, dict):
        for key, item in value.items():
            _refuse_unstorable(key, pointer)
            _refuse_unstorable(item, f"{pointer}/{escape(key)}")
    elif isinstance(value, list):
        # Most lists are rows of numbers: those are passed over before anything is built for them.
        for index, item in enumerate(value):
            if isinstance(item, str | dict | list):
                _refuse_unstorable(item, f"{pointer}/{index}")
