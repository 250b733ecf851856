"""Q, K and V as boxes, one for each number: the texts of the matrices, seen in another way.

The texts stay the state (so a link holds them as it does pasted ones): boxes are read into them, and made
from them. A box may hold anything while somebody types; what is no number is a string in the text then.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.http import QueryDict
from django.utils.translation import gettext as _

from lab import matrices
from lab.form.texts import literal

ARRAYS = ("q", "k", "v")
MOST = 6  # rows and columns
SIZES = {"grid_q_len": 3, "grid_kv_len": 3, "grid_dim": 2, "grid_v_dim": 2}
SIZES_OF = {
    "q": ("grid_q_len", "grid_dim"),
    "k": ("grid_kv_len", "grid_dim"),
    "v": ("grid_kv_len", "grid_v_dim"),
}
NON_FINITE = ("inf", "-inf", "nan")
HALF = re.compile("[\ud800-\udfff]")  # of a character: JSON can say it, a page cannot show it

Rows = list[list[str]]


@dataclass(frozen=True)
class Cell:
    """A box, what is in it, where it is (from 1), and whether that is no number."""

    name: str
    text: str
    row: int
    column: int
    is_wrong: bool


def box(array: str, row: int, column: int) -> str:
    return f"cell_{array}_{row}_{column}"


def has_boxes(state: Mapping[str, Any]) -> bool:
    return all(box(array, 0, 0) in state for array in ARRAYS)


def absorb(state: QueryDict) -> None:
    """Read the boxes of a page into the texts, in the size that its fields say: what is new is 0."""
    if not has_boxes(state):
        return
    for array in ARRAYS:
        height, width = (size(state, name) for name in SIZES_OF[array])
        rows = [
            [str(state.get(box(array, row, column), "0")).strip() for column in range(width)]
            for row in range(height)
        ]
        state[array] = to_text(rows)
    drop(state)


def chosen_sizes(state: Mapping[str, Any]) -> dict[str, int]:
    """The sizes that say other than the boxes that came with them: somebody has just changed them."""
    if not has_boxes(state):
        return {}
    there = {}
    for array, (rows, columns) in SIZES_OF.items():
        there[rows] = sum(box(array, row, 0) in state for row in range(MOST))
        there[columns] = sum(box(array, 0, column) in state for column in range(MOST))
    return {name: size(state, name) for name in SIZES if size(state, name) != there[name]}


def fit(state: QueryDict, chosen: Mapping[str, int]) -> None:
    """Give the texts the sizes that were chosen: what is new is 0."""
    rows = shown(state, {array: str(state.get(array, "")) for array in ARRAYS})
    wanted = {name: int(count) for name, count in sizes(rows).items()} | dict(chosen)
    for array, (height, width) in SIZES_OF.items():
        lines = [*rows[array], *[[]] * MOST][: wanted[height]]
        state[array] = to_text([[*line, *["0"] * MOST][: wanted[width]] for line in lines])


def drop(state: QueryDict) -> None:
    """Forget the boxes of a page."""
    for name in [name for name in state if name.startswith("cell_")]:
        del state[name]


def size(state: Mapping[str, Any], name: str) -> int:
    value = literal(str(state.get(name, "")).strip())
    return min(max(value, 1), MOST) if type(value) is int else SIZES[name]


def to_text(rows: Rows) -> str:
    """Rows as JSON; a box without a number as a string."""
    lines = [", ".join(as_json(text) for text in row) for row in rows]
    return "[" + ",\n ".join(f"[{line}]" for line in lines) + "]"


def as_json(text: str) -> str:
    """A box as JSON has it; 1. and +1 are numbers to people alone."""
    value = literal(text)
    return json.dumps(value if isinstance(value, int | float) else text, ensure_ascii=False)


def rows_of(text: str) -> Rows | None:
    """The boxes that show a text; None where it has no such shape, or is too large for them."""
    rows: Any
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError):
        try:
            rows = matrices.parse(text)
        except matrices.MatrixError:
            return None
    fits = isinstance(rows, list) and 1 <= len(rows) <= MOST and all(isinstance(row, list) for row in rows)
    if not fits or not 1 <= len(rows[0]) <= MOST or len({len(row) for row in rows}) != 1:
        return None
    flat = [item for row in rows for item in row]
    if any(isinstance(item, list | dict) or item is None for item in flat):
        return None
    texts = [[str(item) for item in row] for row in rows]
    return None if any(HALF.search(text) for row in texts for text in row) else texts


def shown(state: Mapping[str, Any], instead: Mapping[str, str]) -> dict[str, Rows]:
    """The boxes of all three, which fit together; those of `instead` where the texts do not."""
    found = {array: rows_of(str(state.get(array, ""))) for array in ARRAYS}
    q, k, v = (found[array] for array in ARRAYS)
    if q is None or k is None or v is None or len(k) != len(v) or len(q[0]) != len(k[0]):
        return {array: rows_of(instead[array]) or [["0"]] for array in ARRAYS}
    return {"q": q, "k": k, "v": v}


def sizes(rows: Mapping[str, Rows]) -> dict[str, str]:
    """What the fields for the size say of some boxes."""
    return {
        "grid_q_len": str(len(rows["q"])),
        "grid_kv_len": str(len(rows["k"])),
        "grid_dim": str(len(rows["q"][0])),
        "grid_v_dim": str(len(rows["v"][0])),
    }


def cells(array: str, rows: Rows) -> list[list[Cell]]:
    return [
        [
            Cell(box(array, row, column), text, row + 1, column + 1, not is_number(text))
            for column, text in enumerate(line)
        ]
        for row, line in enumerate(rows)
    ]


def is_number(text: str) -> bool:
    return isinstance(literal(text), int | float) or text in NON_FINITE


def values(rows: Rows) -> list[list[Any]]:
    """The array of the contract. Raises MatrixError where a box is empty."""
    for row, line in enumerate(rows):
        for column, text in enumerate(line):
            if not text:
                detail = _("row {row}, column {column} is empty: write a number, 0 perhaps.")
                raise matrices.MatrixError(detail.format(row=row + 1, column=column + 1), "", 0)
    return [[literal(text) for text in line] for line in rows]
