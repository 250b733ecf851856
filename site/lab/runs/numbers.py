"""A result of a run as a table of numbers, one head of it, and as much as fits on a page."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from django.http import QueryDict
from django.utils.text import capfirst

from kernels.spec import RunSpec
from lab import arrays, heatmap
from lab.form.offers import result_name
from lab.runs.choice import Choice, table_picker
from workers import artifacts
from workers.models import Run

BESIDE_NAMES = {"lse": "LSE"}  # shorter than a result is called elsewhere


def section(run: Run, spec: RunSpec, query: QueryDict) -> dict[str, Any]:
    """One table, and a picker where there are several."""
    tables = arrays.tables(run.array_info, spec)
    chosen = Choice.read(query, spec, tables)
    beside = arrays.COLUMNS if chosen.table == "out" else ()
    loaded = artifacts.load_results(run, [chosen.table, *beside])
    return {
        "table": table(loaded, spec, chosen) if loaded else None,
        "table_pickers": table_picker(chosen, tables, query) if loaded else [],
        "missing_files": bool(tables) and not loaded,
    }


def table(loaded: Mapping[str, np.ndarray], spec: RunSpec, choice: Choice) -> dict[str, Any]:
    """A result as a table; beside the rows of the output, what there is one number of for each query."""
    beside = {
        name: arrays.one(loaded[name], name, spec, choice.batch, choice.head)
        for name in arrays.COLUMNS
        if name in loaded
    }
    values = np.zeros((len(next(iter(beside.values()), ())), 0))
    if choice.table in loaded:
        values = arrays.one(loaded[choice.table], choice.table, spec, choice.batch, choice.head)
        values = values if values.ndim == 2 else values[:, None]
    part = arrays.window(values, around=choice.row or 0)
    row_name, column_name = arrays.TABLES[choice.table]
    name = choice.table if choice.table in loaded else next(iter(beside), choice.table)
    return {
        "name": capfirst(result_name(name)),
        "row_name": row_name,
        "column_name": column_name,
        "part": part,
        "shown_rows": len(part.values),
        "shown_columns": part.values.shape[1],
        "columns": range(part.values.shape[1]),
        "beside": [BESIDE_NAMES.get(name, result_name(name)) for name in beside],
        "has_lse": "lse" in beside,
        "rows": [
            {
                "name": i,
                "is_lit": i == choice.row and choice.table in arrays.BY_QUERY,
                "beside": [heatmap.written(column[i], column.dtype) for column in beside.values()],
                "values": [heatmap.written(value, part.values.dtype) for value in row],
            }
            for i, row in enumerate(part.values, part.first_row)
        ],
    }
