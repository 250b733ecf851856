"""What each visit of the forward kernel moves between memory and chip, counted in numbers, and what a program
holds on chip meanwhile. Arithmetic only: no torch, no triton.

``walk.py`` says which tiles are visited, in which order. A program reads its queries when it begins, keys and
values at each visit, and writes its rows of O and of the LSE when it ends; scores never leave the chip.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kernels.flash.walk import Walk


@dataclass(frozen=True)
class Move:
    """One visit: queries ``rows`` meet keys ``keys``. Numbers that it reads and writes, and those on chip."""

    tile: tuple[int, int]  # of queries, of keys
    kind: int  # of ``schedule``
    rows: range
    keys: range
    is_first: bool  # of its program
    is_last: bool
    moved: dict[str, int]
    held: dict[str, int]


MOVED = ("Q read", "K, V read", "O written", "LSE written")
HELD = ("Q", "K", "V", "S", "m, l", "O")


def moves(found: Walk, d: int, e: int) -> list[Move]:
    """Of every visit, for keys of ``d`` and values of ``e`` numbers. A program that visits nothing is left
    out."""
    return list(_moves(found, d, e))


def _moves(found: Walk, d: int, e: int) -> Iterator[Move]:
    visits = [(int(i), int(j)) for i, j in found.visits]
    for number, (i, j) in enumerate(visits):
        rows = range(i * found.block_m, min((i + 1) * found.block_m, found.n))
        keys = range(j * found.block_n, min((j + 1) * found.block_n, found.m))
        is_first = number == 0 or visits[number - 1][0] != i
        is_last = number == len(visits) - 1 or visits[number + 1][0] != i
        moved = {
            "Q read": len(rows) * d if is_first else 0,
            "K, V read": len(keys) * (d + e),
            "O written": len(rows) * e if is_last else 0,
            "LSE written": len(rows) if is_last else 0,
        }
        sizes = (
            len(rows) * d,
            len(keys) * d,
            len(keys) * e,
            len(rows) * len(keys),
            2 * len(rows),
            len(rows) * e,
        )
        held = dict(zip(HELD, sizes, strict=True))
        yield Move((i, j), int(found.kinds[i, j]), rows, keys, is_first, is_last, moved, held)


def totals(some: list[Move]) -> dict[str, int]:
    """Of several visits together."""
    return {name: sum(one.moved[name] for one in some) for name in MOVED}
