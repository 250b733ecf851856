"""A student's inputs and what is asked of them, as plain data for the page."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from api.grading.access import FEW_NUMBERS
from api.grading.arrays import numbers_of
from classroom import words
from classroom.students.access import Desk
from kernels.grading import traces
from kernels.grading.model import Case, Problem
from kernels.grading.shapes import sent_shape
from kernels.spec import InputSpec
from lab import arrays, heatmap
from lab.form import fork
from workers.grading import judging

ROWS, COLUMNS = 8, 8  # of an array, on the page


def cases_of(desk: Desk, problem: Problem, number: int) -> list[dict[str, Any]]:
    """Every case with its inputs, for the try of that number."""
    _same, seeds = judging.attempt_of(desk.assignment, desk.user_ref, number)
    return case_pages(problem, seeds, desk.download)


def case_pages(problem: Problem, seeds: Mapping[str, int], download: Any = None) -> list[dict[str, Any]]:
    """Every case with its inputs. Many numbers are not drawn for the few of them that a page shows: that
    could take seconds, for each student who comes by."""
    is_small = numbers_of(problem) <= FEW_NUMBERS
    return [
        case_page(
            problem,
            case,
            judging.inputs_of_case(problem, case, seeds) if is_small or case.run is None else case.run.inputs,
            download,
        )
        for case in problem.cases
    ]


def case_page(
    problem: Problem, case: Case, inputs: Mapping[str, Any], download: Any = None
) -> dict[str, Any]:
    """`inputs` are arrays, or what is known of them undrawn. `download(format, array=…)` is the address of
    one array alone, where there is one."""
    shown = {name: array for name, array in inputs.items() if isinstance(array, np.ndarray | InputSpec)}
    return {
        "name": case.name,
        "title": words.case_name(case.name),
        "points": words.points(case.points),
        "visibility": words.VISIBILITIES[case.visibility],
        "is_visible": case.visibility == "visible",
        "seed_scope": words.SEED_SCOPES[case.seed_scope] if case.is_drawn else words.SEED_SCOPES["fixed"],
        "settings": settings_of(case),
        "arrays": [
            {
                **array_page(name, array, case),
                "download": download("npy", array=f"{case.name}/{name}") if download else "",
            }
            for name, array in shown.items()
        ],
        "answers": [answer_page(case, part.name) for part in problem.answers],
    }


def settings_of(case: Case) -> list[tuple[str, str]]:
    """What the computation of a case has beyond plain attention, in the names of the contract."""
    changed = fork.beyond_the_defaults(case.run).get("attention", {}) if case.run else {}
    return [(name, json.dumps(value, ensure_ascii=False)) for name, value in changed.items()]


def answer_page(case: Case, name: str) -> dict[str, Any]:
    """One result that is asked for, and the shape in which."""
    if case.run is None or case.spec is None:
        return {"name": name, "shape": " × ".join(traces.AXES[name])}
    return {"name": name, "shape": times(sent_shape(name, case.run, case.spec))}


def array_page(name: str, array: np.ndarray | InputSpec, case: Case) -> dict[str, Any]:
    """The upper left corner of an array, of its first head, as a table; of one that is not drawn, none."""
    head = {"name": name, "shape": times(array.shape), "is_letter": name in ("q", "k", "v")}
    if isinstance(array, InputSpec):
        note = _("too many numbers for a page; they are in the files")
        return {**head, "dtype": array.dtype, "rows": [], "columns": (), "is_flat": False, "note": note}
    matrix = array
    if array.ndim > 2:
        matrix = array[(0,) * (array.ndim - 2)] if array.size else np.zeros((0, 0))
    flat = matrix.reshape(1, -1) if matrix.ndim < 2 else matrix
    part = arrays.window(flat, ROWS, COLUMNS)
    # Whole numbers throughout need no decimals.
    is_whole = array.dtype.kind == "f" and bool(np.isfinite(array).all() and (array == array.round()).all())
    dtype = np.dtype(np.int64) if is_whole else array.dtype
    return {
        **head,
        "dtype": array.dtype.name,
        "rows": [[heatmap.written(value, dtype) for value in row] for row in part.values],
        "columns": range(part.values.shape[1]),
        "is_flat": matrix.ndim < 2,
        "note": _note(array, part),
    }


def _note(array: np.ndarray, part: arrays.Window) -> str:
    """What of the array the table leaves out."""
    said = []
    heads = int(np.prod(array.shape[:-2])) if array.ndim > 2 else 1
    if heads > 1:
        words_for = ngettext("the first of {count} matrix", "the first of {count} matrices", heads)
        said.append(words_for.format(count=heads))
    if part.is_cut:
        shape = times(part.values.shape)
        said.append(_("its first {shape} numbers").format(shape=shape))
    return ", ".join(said)


def times(shape: tuple[int, ...]) -> str:
    return " × ".join(f"{size:,}" for size in shape)
