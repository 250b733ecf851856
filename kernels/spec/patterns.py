"""What a request may say of ``pattern``. The masks themselves are made in ``kernels/patterns.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernels.integers import ceil_div
from kernels.limits import MAX_EXACT, MAX_SEED
from kernels.spec.kinds import INTEGER, LIST, Field, range_problems
from kernels.spec.model import RunSpec
from kernels.spec.problems import MALFORMED, FieldProblem, join, show
from kernels.spec.reader import is_integer

Pattern = Mapping[str, Any]

POINTER = "/attention/pattern"


def _count(meaning: str) -> Field:
    return Field(INTEGER, meaning, (0, MAX_EXACT))


def _size(meaning: str) -> Field:
    return Field(INTEGER, meaning, (1, MAX_EXACT))


PATTERNS: dict[str, dict[str, Field]] = {
    "prefix": {"len": _count("it counts the tokens that all may see; 0 is plain causal attention")},
    "document": {
        "ids": Field(LIST, "one integer for each key, its document's number, or such a list for each row"),
    },
    "chunked": {"size": _size("it counts the tokens of a chunk")},
    "dilated": {
        "window": _count("it counts the strides that are seen on either side"),
        "stride": _size("it is the distance of what is seen; 1 leaves no gaps"),
    },
    "longformer": {
        "window": _count("it counts tokens, half of them on each side"),
        "global": Field(LIST, "it lists the tokens, by their index, that see all and are seen by all"),
    },
    "bigbird": {
        "window": _size("it counts blocks, the own one among them; 3 is usual"),
        "global": _count("it counts the first blocks, seen by all; 0 for none"),
        "random": _count("it counts the blocks drawn for each block of queries; 0 for none"),
        "seed": Field(INTEGER, "any such integer will do", (0, MAX_SEED)),
        "block": _size("it counts the tokens of a block"),
    },
    "block": {
        "size": _size("it counts the tokens of a block"),
        "layout": Field(LIST, "rows of 0 and 1: 1 where a block of keys is seen by the block of the row"),
    },
    "neighborhood": {
        "width": _size("it counts the pixels of a row"),
        "kernel_size": _size("it counts the pixels along each side of what is seen"),
        "dilation": _size("it is the distance of what is seen; 1 leaves no gaps")._replace(is_required=False),
    },
}


def blocks_of(length: int, size: int) -> int:
    """How many blocks of ``size`` tokens cover ``length``."""
    return ceil_div(length, size)


def pattern_problems(spec: RunSpec) -> list[FieldProblem]:
    """What is wrong with the values of ``pattern``; the shapes of the inputs are known to fit.

    A field of the wrong type is passed over here.
    """
    pattern = spec.attention.pattern
    if pattern is None or pattern.get("type") not in PATTERNS:
        return []
    kind = str(pattern["type"])
    found = range_problems(pattern, PATTERNS, POINTER)
    if kind == "document":
        found += _document_problems(pattern.get("ids"), spec)
    if kind == "longformer":
        found += _global_problems(pattern.get("global"), spec.kv_len)
    if kind == "block" and not found and isinstance(pattern.get("size"), int):
        found += _layout_problems(pattern.get("layout"), pattern["size"], spec)
    if kind == "neighborhood" and not found:
        found += _neighborhood_problems(pattern, spec.kv_len)
    return found


def _document_problems(ids: object, spec: RunSpec) -> list[FieldProblem]:
    """One id for each key, or one such list for each batch row."""
    pointer = join(POINTER, "ids")
    if not isinstance(ids, list | tuple):
        return []
    if not ids or not isinstance(ids[0], list | tuple):
        return _ids_problems(ids, pointer, spec.kv_len)
    if len(ids) != spec.batch:
        detail = f"ids has {len(ids)} lists but the batch is {spec.batch}; give one list for all, or one each"
        return [FieldProblem(pointer, "shape-mismatch", detail)]
    for number, row in enumerate(ids):
        where = join(pointer, number)
        if not isinstance(row, list | tuple):
            detail = f"the first entry is the list of a batch row; here is {show(row)}: send a list for each"
            return [FieldProblem(where, "wrong-type", detail, MALFORMED)]
        found = _ids_problems(row, where, spec.kv_len)
        if found:
            return found
    return []


def _ids_problems(ids: list[Any] | tuple[Any, ...], pointer: str, length: int) -> list[FieldProblem]:
    if len(ids) != length:
        detail = f"ids has {len(ids)} entries for {length} keys; give one document id for each key"
        return [FieldProblem(pointer, "shape-mismatch", detail)]
    for index, item in enumerate(ids):
        if not is_integer(item):
            detail = f"ids holds one integer for each key, the number of its document, not {show(item)}"
            return [FieldProblem(join(pointer, index), "wrong-type", detail, MALFORMED)]
        if abs(item) > MAX_EXACT:
            detail = f"ids stay within ±2^53, unlike {show(item)}; number the documents from 0"
            return [FieldProblem(join(pointer, index), "out-of-range", detail)]
    return []


def _global_problems(chosen: object, length: int) -> list[FieldProblem]:
    pointer = join(POINTER, "global")
    for index, item in enumerate(chosen if isinstance(chosen, list | tuple) else ()):
        if not is_integer(item):
            detail = f"global lists tokens by their integer index, not by {show(item)}"
            return [FieldProblem(join(pointer, index), "wrong-type", detail, MALFORMED)]
        if not 0 <= item < length:
            detail = f"global names token {show(item)} of {length}; they count from 0, in order of the keys"
            return [FieldProblem(join(pointer, index), "out-of-range", detail)]
    return []


def _layout_problems(layout: object, size: int, spec: RunSpec) -> list[FieldProblem]:
    """Rows of 0 and 1: one column for each block of keys, one row for each of keys or of queries."""
    pointer = join(POINTER, "layout")
    if not isinstance(layout, list | tuple):
        return []
    columns, query_rows = blocks_of(spec.kv_len, size), blocks_of(spec.q_len, size)
    for number, row in enumerate(layout):
        found = _layout_row_problems(row, join(pointer, number), size, columns, spec.kv_len)
        if found:
            return found
    if len(layout) not in (columns, query_rows):
        wanted = f"{columns} (the blocks of {spec.kv_len} keys, for self-attention)"
        if query_rows != columns:
            wanted += f" or {query_rows} (the blocks of {spec.q_len} queries)"
        detail = f"layout has {len(layout)} rows; with blocks of {size} it needs {wanted}"
        return [FieldProblem(pointer, "shape-mismatch", detail)]
    return []


def _layout_row_problems(
    row: object, pointer: str, size: int, columns: int, length: int
) -> list[FieldProblem]:
    if not isinstance(row, list | tuple):
        detail = f"layout is a list of rows, each a list of 0 and 1; not {show(row)}"
        return [FieldProblem(pointer, "wrong-type", detail, MALFORMED)]
    if len(row) != columns:
        detail = (
            f"a row of layout has {len(row)} entries; {length} keys in blocks of {size} are {columns} blocks"
        )
        return [FieldProblem(pointer, "shape-mismatch", detail)]
    wrong = next((index for index, item in enumerate(row) if item not in (0, 1)), None)
    if wrong is None:
        return []
    detail = f"layout says 1 where a block is seen and 0 where not, never {show(row[wrong])}"
    return [FieldProblem(join(pointer, wrong), "out-of-range", detail)]


def _neighborhood_problems(pattern: Pattern, length: int) -> list[FieldProblem]:
    """The keys are whole rows of pixels, and there are as many as each is to see."""
    given: list[Any] = [pattern.get("width"), pattern.get("kernel_size"), pattern.get("dilation") or 1]
    if not all(is_integer(value) for value in given):
        return []
    width, size, dilation = given
    if length % width:
        detail = f"{length} keys are no whole rows of {width} pixels; width must divide their number"
        return [FieldProblem(join(POINTER, "width"), "shape-mismatch", detail)]
    if size % 2 == 0:
        detail = f"kernel_size must be odd, for a pixel in the middle; {size - 1} or {size + 1}, not {size}"
        return [FieldProblem(join(POINTER, "kernel_size"), "out-of-range", detail)]
    height = length // width
    if length and size * dilation > min(height, width):
        detail = (
            f"kernel_size × dilation is {size * dilation}, but the image has {height} rows of {width}; "
            f"at most {min(height, width)}"
        )
        return [FieldProblem(join(POINTER, "kernel_size"), "out-of-range", detail)]
    return []
