"""Figures step by step, in the forms in which they are drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """One list for each figure, with an entry for each row."""
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def ranges(slots: Iterable[int]) -> list[list[int]]:
    """[first, last] of each run of neighbours, in order."""
    runs: list[list[int]] = []
    for slot in slots:
        if runs and runs[-1][1] == slot - 1:
            runs[-1][1] = slot
        else:
            runs.append([slot, slot])
    return runs
