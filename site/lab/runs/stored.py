"""One head of what a run returned: the same pictures and tables, of the arrays that it has stored.

It is what there is to see where nothing can be computed again: of engines that are not softmax attention, of
heads that are too large for a page, and of runs whose inputs are gone.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from django.http import HttpRequest

from api.callers import caller_of
from api.computing import computing
from kernels import closeup
from kernels.spec import RunSpec
from kernels.spec.results import MATRICES
from lab import arrays
from lab.heatmap import Kind
from lab.kept import Kept
from lab.runs import maps
from lab.runs.closeups import Maps
from lab.runs.heads import Head, HeadKey
from lab.runs.maps import Map, Part
from workers.models import Run

KEPT = 4  # heads
FREE = 1 << 20  # numbers that are read for no more than the rest of a page

ORDER = (*MATRICES, *(name for name in arrays.MAPS if name not in MATRICES), "out")


@dataclass(frozen=True)
class Stored:
    """What is there of one head, n queries and m keys."""

    maps: Maps  # of the whole matrices
    shape: tuple[int, int]
    lse: np.ndarray | None  # [n]
    entropy: np.ndarray | None  # [n], where the weights were returned


latest: Kept[HeadKey, Stored] = Kept(KEPT)


def names(run: Run) -> list[str]:
    """What a run returned that has a picture, in the order in which it is computed."""
    return [name for name in ORDER if name in run.array_info]


def look(of: Head, request: HttpRequest) -> Stored | None:
    """The head; None where nothing of it can be drawn, or its file is gone. What is large, and not kept, is
    charged to the caller and read by few at once. Raises Busy."""

    def make() -> Stored | None:
        if size(of) <= FREE:
            return _look(of)
        with computing(caller_of(request)):
            return _look(of)

    return latest.get(of.key, make) if of.is_there else None


def size(of: Head) -> int:
    """How many numbers a look at one head reads."""
    return sum(math.prod(of.run.array_info[name]["shape"][-2:]) for name in names(of.run))


def closer(of: Head, found: Stored, part: Part) -> Maps:
    """The maps of a part of it, number by number."""
    if not part.side:
        return found.maps
    return {
        name: maps.cut(name, kind_of(name), matrix, part, by_key=name != "out")
        for name, matrix in _matrices(of)
    }


def numbers(of: Head, query: int, key: int) -> dict[str, np.ndarray]:
    """What was stored of one pair: a number of each matrix, and the row of the output."""
    return {
        name: matrix[query] if name == "out" else matrix[query, key]
        for name, matrix in _matrices(of)
        if query < len(matrix) and (name == "out" or key < matrix.shape[1])
    }


def kind_of(name: str) -> Kind:
    return arrays.MAPS.get(name, "div")


def _look(of: Head) -> Stored | None:
    found: Maps = {}
    entropy = None
    for name, matrix in _matrices(of):
        found[name] = maps.whole(name, kind_of(name), matrix)
        if name == "weights":
            entropy = closeup.entropy(matrix.astype(np.float64))
    if not found:
        return None
    lse = of.returned("lse")
    return Stored(found, shape_of(found, of.spec), None if lse is None else lse.astype(np.float64), entropy)


def shape_of(found: Maps, spec: RunSpec) -> tuple[int, int]:
    """(n, m), of the matrices where there are any."""
    one: Map | None = next((one for name, one in found.items() if name != "out"), None)
    return (one.rows, one.columns) if one else (found["out"].rows, spec.kv_len)


def _matrices(of: Head) -> Iterator[tuple[str, np.ndarray]]:
    """Each [rows, columns] as it was stored."""
    for name in names(of.run):
        if (matrix := of.returned(name)) is not None:
            yield name, matrix
