"""Numbers as Python writes them, rows below one another."""

import math
from collections.abc import Iterable
from typing import Any

WIDTH = 100


def literal(values: Any, indent: int = 0) -> str:
    """Nested lists; a row to a line where they do not fit into one."""
    text = flat(values)
    if indent + len(text) <= WIDTH or not isinstance(values, list | tuple) or not values:
        return text
    inner = " " * 4
    if isinstance(values[0], list | tuple):
        rows = [literal(row, indent + 4).replace("\n", f"\n{inner}") for row in values]
    else:
        rows = wrapped([flat(value) for value in values], WIDTH - indent - 4)
        return "[\n" + "".join(f"{inner}{row},\n" for row in rows) + "]"
    return "[\n" + "".join(f"{inner}{row},\n" for row in rows) + "]"


def wrapped(words: Iterable[str], width: int) -> list[str]:
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(word) + 2 <= width:
            lines[-1] += f", {word}"
        else:
            lines.append(word)
    return lines


def flat(values: Any) -> str:
    if isinstance(values, list | tuple):
        return "[" + ", ".join(flat(value) for value in values) + "]"
    if isinstance(values, float) and not math.isfinite(values):
        return "math.nan" if math.isnan(values) else "math.inf" if values > 0 else "-math.inf"
    if isinstance(values, float) and values.is_integer() and abs(values) < 1e15 and str(values) != "-0.0":
        return str(int(values))  # as a person would type it
    return repr(values)
