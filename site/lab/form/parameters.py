"""Inputs that the chosen options take beside q, k and v: learnt parameters, without fields of their own.

They are drawn from the seed of the form, one set for all heads; others can be sent to the REST API.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from kernels.spec.families import PARAMETERS, PLAIN

HIDDEN = 16  # hidden numbers, whose count is nobody's but theirs
Shape = list[int]


def drawn(names: Iterable[str], q: Shape | None, seed: Any) -> dict[str, Any]:
    """ARRAYs of the contract for those of ``names`` that are parameters, beside queries of shape ``q``; none
    where that or the seed is unknown, for then there is something else to put right."""
    if q is None or not 2 <= len(q) <= 4 or type(seed) is not int:
        return {}
    dim = q[-1]
    lengths = {"heads": 1, "head_dim": dim, "2·head_dim": 2 * dim}
    return {
        name: {
            "seed": seed,
            "shape": [lengths.get(axis, HIDDEN) for axis in PLAIN.axes_of(name, len(q))],
            "distribution": "normal",
        }
        for name in names
        if name in PARAMETERS
    }


def shape_of(array: Any) -> Shape | None:
    """Of an ARRAY of the contract; None where it is none, or in a file."""
    if isinstance(array, Mapping):
        shape = array.get("shape")
        return shape if isinstance(shape, list) and all(type(size) is int for size in shape) else None
    shape = []
    while isinstance(array, list):
        shape.append(len(array))
        array = array[0] if array else None
    return shape or None


def is_drawn(name: str, array: Any) -> bool:
    """Whether the form would draw such an input by itself."""
    return name in PARAMETERS and isinstance(array, Mapping) and "seed" in array
