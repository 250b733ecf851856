"""The matrices of one head as drawings that travel: as files of their own, and in other pages."""

from dataclasses import dataclass

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
from kernels.registry import ENGINES, SOFTMAX
from kernels.spec import RunSpec
from kernels.spec.results import MATRICES
from lab import arrays, heatmap
from lab.form.offers import result_name
from lab.sharing import files
from workers import artifacts
from workers.models import Run, Status

FREE = 1 << 22  # multiply-adds that cost no more than the rest of a page
MOST = 1 << 31
OUTPUTS = {"out": gettext_lazy("output"), "error": gettext_lazy("error of the output")}
NAMES = (*arrays.MAPS, *OUTPUTS)


def title(name: str) -> str:
    return capfirst(str(OUTPUTS.get(name) or result_name(name)))


@dataclass(frozen=True)
class Head:
    """Of a run, whichever the query string names, moved inside."""

    run: Run
    spec: RunSpec
    batch: int
    head: int

    @classmethod
    def chosen(cls, run: Run, request: HttpRequest) -> "Head":
        spec = RunSpec.from_dict(run.spec)
        return cls(run, spec, index(request, "batch", spec.batch), index(request, "head", spec.num_heads))

    def returned(self, name: str) -> np.ndarray | None:
        """What the engine returned by that name, [rows, columns]."""
        stored = artifacts.load_result(self.run, name) if name in self.run.array_info else None
        return None if stored is None else arrays.one(stored, name, self.spec, self.batch, self.head)

    def operands(self) -> Operands | None:
        """What is computed with; None where the inputs are gone."""
        inputs = artifacts.load_inputs(self.run)
        return closeup.one_head(closeup.look(self.spec, inputs), self.batch, self.head) if inputs else None


def index(request: HttpRequest, name: str, size: int) -> int:
    text = request.GET.get(name, "")
    return min(int(text), max(size - 1, 0)) if text.isascii() and text.isdigit() and len(text) < 10 else 0


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
    engine = ENGINES.get(of.run.engine)
    is_softmax = engine is not None and engine.computes == SOFTMAX
    is_known = name in MATRICES or name == "out" or (name == "error" and "out" in of.run.array_info)
    is_there = bool(of.spec.batch * of.spec.num_heads)
    return is_softmax and is_known and is_there and multiply_adds(of.spec) <= MOST


def multiply_adds(spec: RunSpec) -> int:
    return spec.q_len * spec.kv_len * (spec.head_dim + spec.v_head_dim)


def computed(of: Head, name: str, request: HttpRequest) -> heatmap.HeatMap | None:
    """In float64; what costs much is charged to the caller, and done by few at once."""
    compute = of_output if name in OUTPUTS else of_pairs
    if multiply_adds(of.spec) <= FREE:
        return compute(of, name)
    with computing(caller_of(request)):
        return compute(of, name)


def of_pairs(of: Head, name: str) -> heatmap.HeatMap | None:
    """Queries and keys, small enough to be drawn without ever holding all of them."""
    given = of.operands()
    if given is None:
        return None
    seen = closeup.pictures(given, heatmap.LIMIT, (name,))
    blocks, shape = (seen.row_block, seen.column_block), (seen.n, seen.m)
    return heatmap.reduced(seen.matrices[name], kind_of(name), blocks, shape)


def of_output(of: Head, name: str) -> heatmap.HeatMap | None:
    given = of.operands()
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
    found = drawing(Head.chosen(run, request), name, request)
    return None if found is None else heatmap.document(found, title(name))


def addresses(run: Run, spec: RunSpec, request: HttpRequest) -> list[tuple[str, str]]:
    """(file name, address) of every drawing of the head that is looked at."""
    of = Head.chosen(run, request)
    chosen = {name: request.GET[name] for name in ("batch", "head") if name in request.GET}
    return [
        (
            f"{name}.svg",
            files.keyed(reverse("lab:map", kwargs={"run_id": run.id, "map_name": name}), request, **chosen),
        )
        for name in NAMES
        if is_drawn(of, name) and is_meant(name, spec)
    ]


def is_drawn(of: Head, name: str) -> bool:
    """Whether there is a drawing, as far as that can be told without a look at the numbers."""
    info = of.run.array_info.get(name)
    if info is not None:
        return all(info["shape"])
    columns = of.spec.v_head_dim if name in OUTPUTS else of.spec.kv_len
    return can_compute(of, name) and bool(of.spec.q_len * columns)


def is_meant(name: str, spec: RunSpec) -> bool:
    """Without a softcap the softcapped scores are the scores."""
    return name != "softcapped_scores" or bool(spec.attention.softcap)


def label(found: heatmap.HeatMap, name: str) -> str:
    words = (
        _("{name} as a heat map: {rows} queries down, {columns} dimensions across.")
        if found.by_dimension
        else _("{name} as a heat map: {rows} queries down, {columns} keys across.")
    )
    return words.format(name=title(name), rows=found.rows, columns=found.columns)
