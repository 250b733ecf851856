"""Looking into the arrays of a run: one batch row, one head, and as much of it as fits on a page."""

from dataclasses import dataclass

import numpy as np

from kernels.spec import RunSpec
from lab.heatmap import Kind

# The results that are [queries, keys], best first, with their colour scale: "div" has zero in its middle.
MAPS: dict[str, Kind] = {
    "weights": "seq",
    "masked_scores": "div",
    "softcapped_scores": "div",
    "scores": "div",
}


def one(array: np.ndarray, name: str, spec: RunSpec, batch: int, head: int) -> np.ndarray:
    """The [rows, columns] (for lse: [rows]) of one batch row and head of a result; no rows without either."""
    if spec.is_packed and name == "out":
        split = array.reshape(*array.shape[:2], spec.num_heads, spec.v_head_dim)
        array = split.swapaxes(1, 2)
    rank = 3 if name == "lse" else 4
    whole = array.reshape((1,) * (rank - array.ndim) + array.shape)
    if not all(whole.shape[:2]):
        return np.zeros((0, *whole.shape[3:]), whole.dtype)
    return np.asarray(whole[batch, head])


@dataclass(frozen=True)
class Window:
    """The upper left corner of a matrix, to be printed as numbers. values: [rows, columns]."""

    values: np.ndarray
    total_rows: int
    total_columns: int

    @property
    def is_cut(self) -> bool:
        return self.values.shape != (self.total_rows, self.total_columns)


def window(matrix: np.ndarray, rows: int = 32, columns: int = 12) -> Window:
    return Window(matrix[:rows, :columns], *matrix.shape)
