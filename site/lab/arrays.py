"""Looking into the arrays of a run: one batch row, one head, and as much of it as fits on a page."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.utils.translation import gettext_lazy as _

from kernels.spec import RunSpec
from kernels.spec.results import ROWS
from lab.heatmap import Kind

# The results that are [queries, keys], best first, with their colour scale: "div" has zero in its middle.
MAPS: dict[str, Kind] = {
    "weights": "seq",
    "masked_scores": "div",
    "softcapped_scores": "div",
    "scores": "div",
    "held": "seq",
    "dscores": "div",
    "dscores_estimate": "div",
    "dscores_variance": "seq",
}
# The results that are one number for each query, which stand beside the rows of the output.
COLUMNS = ("lse", *ROWS)
# The other results: what their rows and columns are.
TABLES: dict[str, tuple[Any, Any]] = {
    "out": (_("query"), _("dimension")),
    "present_key": (_("key"), _("dimension")),
    "present_value": (_("key"), _("dimension")),
    "dq": (_("query"), _("dimension")),
    "dk": (_("key"), _("dimension")),
    "dv": (_("key"), _("dimension")),
    "state": (_("dimension"), _("dimension")),
    "normaliser": (_("dimension"), _("sum")),
    "q_buckets": (_("query"), _("round")),
    "k_buckets": (_("key"), _("round")),
}
BY_QUERY = ("out", "dq", "q_buckets")  # of them, those whose rows are queries
FLAT = (*COLUMNS, "normaliser")  # without a last axis of their own


def one(array: np.ndarray, name: str, spec: RunSpec, batch: int, head: int) -> np.ndarray:
    """The [rows, columns] (of what is flat: [rows]) of one batch row and head of a result; no rows without
    either. Query heads that share a key head share what is of a key head."""
    if spec.is_packed and name == "out":
        split = array.reshape(*array.shape[:2], spec.num_heads, spec.v_head_dim)
        array = split.swapaxes(1, 2)
    rank = 3 if name in FLAT else 4
    whole = array.reshape((1,) * (rank - array.ndim) + array.shape)
    if not all(whole.shape[:2]):
        return np.zeros((0, *whole.shape[3:]), whole.dtype)
    return np.asarray(whole[batch, head * whole.shape[1] // spec.num_heads])


def tables(names: Collection[str], spec: RunSpec) -> list[str]:
    """Which results to show as tables, of those that a run has: what stands beside the output stands there
    also without it, and the gradients of pages are no rows of tokens."""
    whole = {name for name in names if not (spec.is_paged and name in ("dk", "dv"))}
    if whole & set(COLUMNS):
        whole.add("out")
    return [name for name in TABLES if name in whole]


@dataclass(frozen=True)
class Window:
    """Some rows of a matrix, from its left edge, to be printed as numbers. values: [rows, columns]."""

    values: np.ndarray
    total_rows: int
    total_columns: int
    first_row: int = 0

    @property
    def is_cut(self) -> bool:
        return self.values.shape != (self.total_rows, self.total_columns)


def window(matrix: np.ndarray, rows: int = 32, columns: int = 12, around: int = 0) -> Window:
    """The first rows, or, where `around` is beyond them, those around it."""
    first = 0 if around < rows else max(0, min(around - rows // 2, len(matrix) - rows))
    total_rows, total_columns = matrix.shape
    return Window(matrix[first : first + rows, :columns], total_rows, total_columns, first)
