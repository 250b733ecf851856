"""The matrices of one head as drawings that travel: as files of their own, and in other pages."""

import numpy as np
from django.http import HttpRequest
from django.urls import reverse
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from api.callers import caller_of
from api.computing import computing
from kernels import closeup
from kernels.operands import Operands
from kernels.spec import RunSpec
from kernels.spec.results import MATRICES
from lab import arrays, heatmap
from lab.form.offers import result_name
from lab.runs import closeups
from lab.runs.choice import Choice
from lab.runs.heads import Head
from lab.sharing import files
from workers import artifacts
from workers.models import Run, Status

OUTPUTS = {"out": gettext_lazy("output"), "error": gettext_lazy("error of the output")}
NAMES = (*arrays.MAPS, *OUTPUTS)


def title(name: str) -> str:
    return capfirst(str(OUTPUTS.get(name) or result_name(name)))


def chosen(run: Run, request: HttpRequest) -> Head:
    """Whichever head the query string names, moved inside."""
    spec = RunSpec.from_dict(run.spec)
    choice = Choice.read(request.GET, spec)
    return Head(run, spec, choice.batch, choice.head)


def operands(of: Head) -> Operands | None:
    """What is computed with; None where the inputs are gone."""
    inputs = artifacts.load_inputs(of.run)
    return closeup.one_head(closeup.look(of.spec, inputs), of.batch, of.head) if inputs else None


def drawing(of: Head, name: str, request: HttpRequest) -> heatmap.HeatMap | None:
    """What the run returned by that name; else, of softmax attention, what float64 makes of its inputs. None
    where there is neither, or no number in it. Raises Busy."""
    if of.run.status != Status.SUCCEEDED:
        return None
    values = of.returned(name)
    if values is not None:
        found: heatmap.HeatMap | None = heatmap.figure(values, kind_of(name), by_dimension=name in OUTPUTS)
    else:
        found = computed(of, name, request) if can_compute(of, name) else None
    return found if found is not None and found.values.size else None


def kind_of(name: str) -> heatmap.Kind:
    return arrays.MAPS.get(name, "div" if name == "out" else "seq")


def can_compute(of: Head, name: str) -> bool:
    is_known = name in MATRICES or name == "out" or (name == "error" and "out" in of.run.array_info)
    return is_known and closeups.can_look(of)


def computed(of: Head, name: str, request: HttpRequest) -> heatmap.HeatMap | None:
    """In float64; what costs much is charged to the caller, and done by few at once."""
    compute = of_output if name in OUTPUTS else of_pairs
    if closeups.work(of.spec) <= closeups.FREE:
        return compute(of, name)
    with computing(caller_of(request)):
        return compute(of, name)


def of_pairs(of: Head, name: str) -> heatmap.HeatMap | None:
    """Queries and keys, small enough to be drawn without ever holding all of them."""
    given = operands(of)
    if given is None:
        return None
    seen = closeup.pictures(given, heatmap.LIMIT, (name,))
    blocks, shape = (seen.row_block, seen.column_block), (seen.n, seen.m)
    return heatmap.reduced(seen.matrices[name], kind_of(name), blocks, shape)


def of_output(of: Head, name: str) -> heatmap.HeatMap | None:
    given = operands(of)
    if given is None:
        return None
    values = closeup.pictures(given, heatmap.LIMIT, ()).out
    if name == "error":
        returned = of.returned("out")
        if returned is None:
            return None
        values = np.abs(returned[: len(values)].astype(np.float64) - values)
    return heatmap.figure(values, kind_of(name), by_dimension=True)


def document(run: Run, name: str, request: HttpRequest) -> str | None:
    """A drawing as a file of its own, of the head that the query string names."""
    found = drawing(chosen(run, request), name, request)
    return None if found is None else heatmap.document(found, title(name))


def addresses(run: Run, spec: RunSpec, request: HttpRequest) -> list[tuple[str, str]]:
    """(file name, address) of every drawing of the head that is looked at."""
    of = chosen(run, request)
    asked = {name: request.GET[name] for name in ("batch", "head") if name in request.GET}
    return [
        (
            f"{name}.svg",
            files.keyed(reverse("lab:map", kwargs={"run_id": run.id, "map_name": name}), request, **asked),
        )
        for name in NAMES
        if is_drawn(of, name) and closeups.is_meant(name, spec)
    ]


def is_drawn(of: Head, name: str) -> bool:
    """Whether there is a drawing, as far as that can be told without a look at the numbers."""
    info = of.run.array_info.get(name)
    if info is not None:
        return all(info["shape"])
    columns = of.spec.v_head_dim if name in OUTPUTS else of.spec.kv_len
    return can_compute(of, name) and bool(of.spec.q_len * columns)


def label(found: heatmap.HeatMap, name: str) -> str:
    words = (
        _("{name} as a heat map: {rows} queries down, {columns} dimensions across.")
        if found.by_dimension
        else _("{name} as a heat map: {rows} queries down, {columns} keys across.")
    )
    return words.format(name=title(name), rows=found.rows, columns=found.columns)
