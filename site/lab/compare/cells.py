"""The arithmetic of one cell that two runs share, side by side."""

from typing import Any

from kernels.closeup import cell as cell_of
from kernels.operands import Operands
from lab.runs import arithmetic
from lab.runs.arithmetic import Line


def beside(heads: tuple[Operands, Operands], query: int, key: int) -> dict[str, Any]:
    """Both sides, step by step; a step that only one has stands alone."""
    sides = [_lines(head, query, key) for head in heads]
    return {
        "query": query,
        "key": key,
        "positions": [_position(head, query, key) for head in heads],
        "lines": _merged(*sides),
    }


def _lines(head: Operands, query: int, key: int) -> list[Line]:
    """None where padding hides the query or the key from one side."""
    if query >= head.q.shape[2] or key >= head.k.shape[2]:
        return []
    return arithmetic.spelt(cell_of(head, query, key), head)


def _position(head: Operands, query: int, key: int) -> tuple[int, int] | None:
    if query >= head.q.shape[2] or key >= head.k.shape[2]:
        return None
    return int(head.q_positions[0, query]), int(head.kv_positions[0, key])


def _merged(first: list[Line], second: list[Line]) -> list[dict[str, Any]]:
    """By name, in the order of the computation."""
    names = [line.name for line in first]
    at = 0
    for line in second:
        if line.name in names:
            at = names.index(line.name) + 1
        else:
            names.insert(at, line.name)
            at += 1
    sides = [{line.name: line for line in lines} for lines in (first, second)]
    return [
        {
            "name": name,
            "first": sides[0].get(name),
            "second": sides[1].get(name),
            "differs": _shown(sides[0].get(name)) != _shown(sides[1].get(name)),
        }
        for name in names
    ]


def _shown(line: Line | None) -> tuple[str, str] | None:
    return None if line is None else (line.steps, line.value)
