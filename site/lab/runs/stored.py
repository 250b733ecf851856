"""One head of what a run returned: the same pictures and tables, of the arrays that it has stored.

It is what there is to see where nothing can be computed again: of engines that are not softmax attention, of
heads that are too large for a page, and of runs whose inputs are gone.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

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


def look(of: Head) -> Stored | None:
    """The head; None where nothing of it can be drawn, or its file is gone."""
    return latest.get(of.key, lambda: _look(of)) if of.is_there else None


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
