"""Reading the numbers of a figure's form, and writing numbers for people."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from django.utils.translation import gettext as _

LARGEST = 1000.0
MAX_ROWS = 5
MAX_COLUMNS = 4
MAX_TEXT = 4000
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

Rows = list[list[float]]


def show(value: float, digits: int = 4) -> str:
    """`value` for a table: whole numbers bare, others with `digits` decimals, a true minus sign."""
    if value == int(value) and abs(value) < 1e7:
        text = str(int(value))
    elif 0 < abs(value) < 0.5 * 10**-digits or abs(value) >= 1e5:
        text = show_power(value)
    else:
        text = f"{value:.{digits}f}"
    return text.replace("-", "−")


def show_power(value: float, digits: int = 3) -> str:
    """`value` with `digits` significant digits, with a power of ten where it is far from 1."""
    text = f"{value:.{digits}g}"
    if "e" in text:
        factor, _e, exponent = text.partition("e")
        power = "10" + str(int(exponent)).translate(RAISED)
        text = power if factor == "1" else f"{factor}\u202f·\u202f{power}"
    return text.replace("-", "−")


def plain(value: float) -> str:
    """`value` for an input or an address: the shortest text that reads back the same."""
    return str(int(value)) if value == int(value) else repr(value)


def to_json(rows: Rows) -> str:
    return "[" + ",".join("[" + ",".join(plain(x) for x in row) + "]" for row in rows) + "]"


@dataclass
class MatrixInput:
    """One matrix as it was asked for: the texts of its cells, their numbers, and what is wrong with them."""

    name: str
    texts: list[list[str]]
    rows: Rows = field(default_factory=list)
    #: field id ("q11") to message; "" is a problem of the matrix as a whole
    problems: dict[str, str] = field(default_factory=dict)


def read_number(text: str) -> tuple[float, str]:
    """The number and "", or nan and a message for a person."""
    text = text.strip().replace("−", "-")
    if not text:
        return math.nan, _("This is empty: enter a number.")
    shown = text if len(text) <= 20 else text[:20] + "…"
    try:
        value = float(text) if len(text) <= 40 and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if math.isnan(value):
        return math.nan, _("“%(text)s” is not a number.") % {"text": shown}
    if abs(value) > LARGEST:
        message = _("%(text)s is too large: numbers here run from −1000 to 1000.")
        return math.nan, message % {"text": shown}
    return value + 0.0, ""  # + 0.0 turns -0.0 into 0.0


def read_matrix(name: str, params: Mapping[str, str], default: Rows) -> MatrixInput:
    """The matrix `name` from `name=[[…]]` or from one parameter for each cell, `name11`, `name12`, …

    It may have as many rows and columns as `default`, if that is more than is usual."""
    most = max(MAX_ROWS, len(default)), max(MAX_COLUMNS, len(default[0]))
    cells = {key: value for key, value in params.items() if re.fullmatch(rf"{name}[1-9][1-9]", key)}
    texts = [[plain(x) for x in row] for row in default]
    problem = ""
    if cells:
        rows, columns = max(int(key[-2]) for key in cells), max(int(key[-1]) for key in cells)
        if rows > most[0] or columns > most[1]:
            problem = _shape_problem(name, most)
        else:
            texts = [
                [cells.get(f"{name}{i}{j}", "") for j in range(1, columns + 1)] for i in range(1, rows + 1)
            ]
    elif params.get(name, "").strip():
        try:
            texts = _texts_of_json(params[name], most)
        except ValueError:
            problem = _shape_problem(name, most)
    matrix = MatrixInput(name, texts)
    if problem:
        matrix.problems[""] = problem
    for i, row in enumerate(texts, 1):
        matrix.rows.append([])
        for j, text in enumerate(row, 1):
            value, message = read_number(text)
            matrix.rows[-1].append(value)
            if message:
                matrix.problems[f"{name}{i}{j}"] = message
    return matrix


def _texts_of_json(text: str, most: tuple[int, int]) -> list[list[str]]:
    if len(text) > MAX_TEXT:
        raise ValueError
    try:
        # Numbers are kept as they were written, so that a message can show them.
        rows = json.loads(text, parse_float=str, parse_int=str, parse_constant=str)
    except RecursionError:
        raise ValueError from None
    good = (
        isinstance(rows, list)
        and 1 <= len(rows) <= most[0]
        and all(isinstance(row, list) and 1 <= len(row) <= most[1] for row in rows)
        and len({len(row) for row in rows}) == 1
        # What cannot be seen is no number, and half of a character, \ud800, could not even be shown.
        and all(isinstance(cell, str) and cell.isprintable() for row in rows for cell in row)
    )
    if not good:
        raise ValueError
    return [[str(cell) for cell in row] for row in rows]


def _shape_problem(name: str, most: tuple[int, int]) -> str:
    return _(
        "%(name)s in the address is not a list of 1 to %(rows)d rows with 1 to %(columns)d numbers each,"
        " such as [[1,0],[0,1]]. Its usual numbers are shown instead."
    ) % {"name": name.upper(), "rows": most[0], "columns": most[1]}
