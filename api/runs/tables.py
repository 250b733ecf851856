"""An array of a run as CSV: every number exactly, written piece by piece while it is sent.

The whole array has a line for each number, `batch,head,row,column,value`, under a line of names; which axes
there are depends on the array. One head of it (`?batch=0&head=1`) is the matrix alone, without names. A
number is written so that it reads back as the same bits: the shortest decimals of a 64-bit float, which every
dtype of a run fits in; `nan`, `inf`, `-inf`; booleans are 1 and 0.
"""

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from api.errors import Problem
from kernels.layout import to_canonical
from kernels.spec import RunSpec
from kernels.spec.families import BESIDE, PLAIN
from kernels.spec.problems import show
from kernels.spec.results import ROWS, TRACE

MOST = 2**20  # numbers of one table; as text they are some 30 MB
PIECE = 8192  # numbers that are written at a time

MATRIX = ("batch", "head", "row", "column")
FLAT = ("lse", "normaliser", *ROWS)  # results that have no last axis of their own
OTHERS: dict[str, Sequence[str]] = {
    "q_lens": ("batch",),
    "kv_lens": ("batch",),
    "block_table": ("batch", "block"),
    **dict.fromkeys(FLAT, MATRIX[:3]),
    **dict.fromkeys(TRACE, ("batch", "head", "row", "tile")),
    "trace_out": ("batch", "head", "row", "tile", "column"),
}
PAGES = ("block", "slot", "head", "column")


class Table:
    """An array, its axes with names."""

    def __init__(self, spec: RunSpec, name: str, array: np.ndarray) -> None:
        self.axes, self.values = named(spec, name, array)

    def text(self) -> Iterator[bytes]:
        """The whole of it, in pieces. Problem where that is too much."""
        bounded(self.values)
        return pieces(self.axes, self.values)

    def head(self, chosen: Mapping[str, str]) -> Iterator[bytes]:
        """One head as a matrix, in pieces; Problem for an index that it has not. What is not chosen is 0."""
        kept = [axis for axis in self.axes if axis not in ("batch", "head")]
        at = tuple(
            index(axis, chosen.get(axis, "0"), size) if axis not in kept else slice(None)
            for axis, size in zip(self.axes, self.values.shape, strict=True)
        )
        one = self.values[at]
        bounded(one)
        rows, *columns = one.shape or (1,)
        return matrix(one.reshape(rows, math.prod(columns)))


def named(spec: RunSpec, name: str, array: np.ndarray) -> tuple[Sequence[str], np.ndarray]:
    """The names of the axes, and the array with all of them: those that were left out are 1 long."""
    if spec.is_paged and name in ("k", "v", "dk", "dv"):
        return PAGES, array
    if name in spec.inputs and (name in BESIDE or (spec.family is not PLAIN and name in spec.family.axes)):
        return spec.family.axes_of(name, 4 if spec.is_packed else spec.rank), array
    if name in spec.inputs and name not in OTHERS:
        array = to_canonical(spec, name, array)
    elif spec.is_packed and name == "out":
        array = array.reshape(*array.shape[:2], spec.num_heads, spec.v_head_dim).swapaxes(1, 2)
    axes = OTHERS.get(name, MATRIX)
    return axes, array.reshape((1,) * (len(axes) - array.ndim) + array.shape)


def bounded(values: np.ndarray) -> None:
    if values.size > MOST:
        detail = (
            f"{values.size:,} numbers are too many for a table, which has {MOST:,} at most: take one head "
            "(?batch=0&head=0), or the .npy file."
        )
        raise Problem(422, detail)


def index(axis: str, text: str, size: int) -> int:
    """Which of `size`, as a query string says it."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if 0 <= number < size:
        return number
    there = f"from 0 to {size - 1}" if size else "none: the array is empty"
    raise Problem(422, f"{axis} is the number of one of {size}, {there}; not {show(text)}.")


def pieces(axes: Sequence[str], values: np.ndarray) -> Iterator[bytes]:
    yield rows([[*axes, "value"]])
    flat = values.reshape(-1)
    for start in range(0, flat.size, PIECE):
        at = np.arange(start, min(start + PIECE, flat.size))
        columns = [axis.tolist() for axis in np.unravel_index(at, values.shape)]
        yield rows(zip(*columns, exact(flat[at]).tolist(), strict=True))


def matrix(values: np.ndarray) -> Iterator[bytes]:
    """values: [rows, columns]."""
    step = max(1, PIECE // max(values.shape[1], 1))
    for start in range(0, len(values), step):
        yield rows(exact(values[start : start + step]).tolist())


def exact(values: np.ndarray) -> np.ndarray:
    """As Python writes numbers so that they read back; booleans as integers."""
    return values.astype(np.int64) if values.dtype == np.bool_ else values


def rows(of: object) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer).writerows(of)  # type: ignore[arg-type]
    return buffer.getvalue().encode()
