"""What the page of a finished run shows of its result, as plain data for its templates."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import numpy as np
from django.http import HttpRequest, QueryDict
from django.urls import reverse
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from kernels.registry import ENGINES
from kernels.spec import RunSpec
from lab import arrays, heatmap, units
from lab.form.offers import result_name
from lab.runs import findings, roofline
from lab.sharing import files
from workers import artifacts
from workers.models import Run

MAX_LINKS = 32  # heads beyond which the picker is a number box
OF_HEAD = ("batch", "head", "row", "col")  # what a close look is at
CHOICES = ("map", "table", *OF_HEAD)  # of a query string, beside the GPUs
BESIDE_NAMES = {"lse": "LSE"}  # shorter than a result is called elsewhere


@dataclass(frozen=True)
class Choice:
    """Which slice the reader looks at; from the query string, never out of range."""

    batch: int
    head: int
    map: str
    table: str
    row: int | None = None  # a query that is lit

    @classmethod
    def read(cls, query: QueryDict, spec: RunSpec, maps: list[str], tables: list[str]) -> "Choice":
        return cls(
            batch=index(query.get("batch", ""), spec.batch),
            head=index(query.get("head", ""), spec.num_heads),
            map=one_of(query.get("map", ""), maps),
            table=one_of(query.get("table", ""), tables),
            row=index(query.get("row", ""), spec.q_len) if query.get("row") and spec.q_len else None,
        )


def one_of(chosen: str, names: list[str]) -> str:
    """What was chosen where there is such, else the first."""
    return chosen if chosen in names else next(iter(names), "")


def index(text: str, size: int) -> int:
    return min(int(text), max(size - 1, 0)) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def result(run: Run, spec: RunSpec, request: HttpRequest) -> dict[str, Any]:
    maps = [name for name in arrays.MAPS if name in run.array_info]
    tables = arrays.tables(run.array_info, spec)
    choice = Choice.read(request.GET, spec, maps, tables)
    beside = arrays.COLUMNS if choice.table == "out" else ()
    # A page shows one matrix and one table.
    loaded = artifacts.load_results(run, [choice.map, choice.table, *beside])
    if not loaded:
        maps = tables = []
    found = run.result or {}
    engine = ENGINES.get(run.engine)
    return {
        "choice": choice,
        "pickers": pickers(choice, spec, maps, tables, request.GET),
        "map": map_section(loaded, spec, choice, map_address(run, choice, request)) if maps else None,
        "table": table_section(loaded, spec, choice) if tables else None,
        "found": findings.shown(found.get("findings") or {}, engine.findings if engine else {}),
        "accuracy": accuracy(found.get("numerics") or {}, is_double=engine is not None and engine.is_double),
        "comparison": comparison(found.get("comparison") or {}),
        "timing": timing(found.get("timing") or {}, run.environment or {}),
        "memory": memory(found.get("memory") or {}),
        "traffic": traffic(found.get("traffic") or {}),
        "cost": cost(found.get("cost") or {}),
        "roofline": roofline.section(found, request.GET, kept(request.GET)),
        "notes": found.get("notes") or [],
        "environment": environment(run.environment or {}),
        "inputs": inputs(run),
        "downloads": files.listing(run, request),
        "missing_files": not loaded,
    }


def pickers(
    choice: Choice, spec: RunSpec, maps: list[str], tables: list[str], query: QueryDict
) -> list[dict[str, Any]]:
    """One picker for every choice that there is: a row of links, or a number box for very many."""
    found = []
    for kind, label, names, shown in (
        ("map", _("Matrix"), maps, choice.map),
        ("table", _("Table"), tables, choice.table),
    ):
        if len(names) > 1:
            options = [(name, capfirst(result_name(name)), name == shown) for name in names]
            found.append(picker(kind, label, options, query))
    for name, label, size, chosen in (
        ("batch", _("Batch row"), spec.batch, choice.batch),
        ("head", _("Head"), spec.num_heads, choice.head),
    ):
        if size > 1:
            options = [(str(i), str(i), i == chosen) for i in range(size)] if size <= MAX_LINKS else []
            found.append(picker(name, label, options, query) | {"last": size - 1, "chosen": chosen})
    return found


def picker(name: str, label: str, options: list[tuple[str, str, bool]], query: QueryDict) -> dict[str, Any]:
    """Links that change one choice and keep the others."""
    others = [*kept(query, name), *((roofline.FIELD, gpu) for gpu in query.getlist(roofline.FIELD))]
    return {
        "name": name,
        "label": label,
        "kept": others,
        "options": [
            {"label": text, "href": "?" + urlencode([*others, (name, value)]), "current": current}
            for value, text, current in options
        ],
    }


def kept(query: QueryDict, but: str = "") -> list[tuple[str, str]]:
    """The share key, and every choice of what is looked at but one."""
    return [(key, str(query[key])) for key in ("key", *CHOICES) if key in query and key != but]


def map_address(run: Run, choice: Choice, request: HttpRequest) -> str:
    """Where the chosen heat map is as a file of its own."""
    query = {"batch": str(choice.batch), "head": str(choice.head)}
    if key := request.GET.get("key"):
        query["key"] = key
    address = reverse("lab:map", kwargs={"run_id": run.id, "map_name": choice.map})
    return f"{address}?{urlencode(query)}"


def map_section(
    loaded: Mapping[str, np.ndarray], spec: RunSpec, choice: Choice, address: str
) -> dict[str, Any]:
    values = arrays.one(loaded[choice.map], choice.map, spec, choice.batch, choice.head)
    name = capfirst(result_name(choice.map))
    if not values.size:
        return {"name": name, "is_empty": True}
    found = heatmap.figure(values, arrays.MAPS[choice.map])
    label = _("{name} as a heat map: {rows} queries down, {columns} keys across. A table follows.")
    return {
        "name": name,
        "address": address,
        "svg": heatmap.svg(
            found, label.format(name=name, rows=found.rows, columns=found.columns), lit=choice.row
        ),
        "lit": found.row_name(choice.row // found.row_block) if choice.row is not None else None,
        "figure": found,
        "legend": legend(found),
        "caption": map_caption(found),
        "columns": found.column_names(),
        "rows": found.table(),
    }


def standalone_map(run: Run, name: str, request: HttpRequest) -> str | None:
    """A heat map as a file of its own; None when the run has no such matrix, or its file is gone."""
    if name not in run.array_info:
        return None
    spec = RunSpec.from_dict(run.spec)
    choice = Choice.read(request.GET, spec, [name], [])
    array = artifacts.load_result(run, name)
    if array is None:
        return None
    values = arrays.one(array, name, spec, choice.batch, choice.head)
    if not values.size:
        return None
    return heatmap.document(heatmap.figure(values, arrays.MAPS[name]), capfirst(result_name(name)))


def map_caption(found: heatmap.HeatMap) -> str:
    """How the picture relates to the numbers; empty when it shows each of them."""
    if not found.is_reduced:
        return ""
    if found.is_boolean:
        sentence = _(
            "{rows:,} × {columns:,} cells do not fit: each shows whether any of the {down} × {across} that "
            "it stands for is a yes. All of them are in the downloads."
        )
    else:
        sentence = _(
            "{rows:,} × {columns:,} numbers do not fit: each cell shows the largest of the {down} × {across} "
            "numbers it stands for, so that every peak stays visible. All of them are in the downloads."
        )
    return sentence.format(
        rows=found.source_rows, columns=found.source_columns, down=found.row_block, across=found.column_block
    )


def legend(found: heatmap.HeatMap) -> list[tuple[str, str]]:
    """(class, number) of a few steps of the scale."""
    if found.is_boolean:
        return [
            ("heat-seq-0", f"{heatmap.FALSE} {_('no')}"),
            (f"heat-seq-{heatmap.STEPS}", f"{heatmap.TRUE} {_('yes')}"),
        ]
    unit = (found.largest - found.lowest) / heatmap.STEPS
    steps = range(0, heatmap.STEPS + 1, 5)
    return [(f"heat-{found.kind}-{step}", heatmap.number(found.lowest + unit * step)) for step in steps]


def table_section(loaded: Mapping[str, np.ndarray], spec: RunSpec, choice: Choice) -> dict[str, Any]:
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


def accuracy(numerics: Mapping[str, Any], *, is_double: bool) -> dict[str, Any] | None:
    """Errors and their bounds. What is computed in float64 is a yardstick, and has no error by it."""
    if not numerics:
        return None
    names = {
        "max_abs_err": _("largest error"),
        "bound": _("bound"),
        "max_rel_err": _("largest relative error"),
        "rmse": _("root mean square error"),
    }
    given = {key: numerics.get(key) for key in names}
    others = {name: errors.get("max_abs_err") for name, errors in (numerics.get("arrays") or {}).items()}
    return {
        "is_yardstick": is_double and numerics.get("max_abs_err") == 0,
        "within": numerics.get("within_bound"),
        "rows": [(names[key], scientific(value)) for key, value in given.items() if value is not None]
        + [
            (_("largest error of {name}").format(name=name), scientific(error))
            for name, error in others.items()
        ],
        "nan_count": numerics.get("nan_count") or 0,
        "max_abs_err": scientific(numerics.get("max_abs_err")),
        "bound": scientific(numerics.get("bound")),
    }


def comparison(found: Mapping[str, Any]) -> dict[str, Any] | None:
    """How far what is not softmax attention, or leaves pairs out, is from softmax over all pairs."""
    names = {
        "rel_err": _("relative error of the whole output"),
        "max_abs_err": _("largest error"),
        "max_rel_err": _("largest relative error"),
        "rmse": _("root mean square error"),
    }
    rows = [(label, scientific(found[key])) for key, label in names.items() if found.get(key) is not None]
    return {"is_sparse": found.get("with") != "softmax", "rows": rows} if rows else None


def scientific(value: Any) -> str:
    """1.2e-7 for people; the contract's strings for non-finite numbers pass as they are."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    return "0" if value == 0 else f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e+").replace("-", "−")


def timing(found: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any] | None:
    """A time only where it says something: the interpreter's never does."""
    if not found:
        return None
    samples = found.get("samples_ns") or []
    interpreted = found.get("method") == "interpreter" or not found.get("representative", False)
    context: dict[str, Any] = {
        "method": found.get("method"),
        "is_speed": not interpreted,
        "n": len(samples),
        "warmup": found.get("warmup"),
        "device": environment.get("gpu_name") or environment.get("device") or "",
    }
    if not interpreted and found.get("median_ns") is not None:
        for name in ("median", "p10", "p90"):
            context[name] = units.nanoseconds(found[f"{name}_ns"])
    return context


def memory(found: Mapping[str, Any]) -> dict[str, Any] | None:
    if not found:
        return None
    sizes = {name: found.get(f"{name}_bytes") for name in ("peak", "predicted")}
    return {
        "method": found.get("method"),
        **{name: units.size(value) if value is not None else None for name, value in sizes.items()},
    }


def traffic(found: Mapping[str, Any]) -> dict[str, Any] | None:
    if found.get("bytes_read") is None:
        return None
    return {
        "read": units.size(found["bytes_read"]),
        "written": units.size(found.get("bytes_written") or 0),
        "method": found.get("method"),
    }


def cost(found: Mapping[str, Any]) -> dict[str, Any] | None:
    if found.get("flops") is None:
        return None
    intensity = found.get("arithmetic_intensity")
    return {
        "flops": units.count(found["flops"]),
        "bytes_min": units.size(found.get("bytes_min") or 0),
        "intensity": units.significant(intensity) if isinstance(intensity, int | float) else "–",
    }


def environment(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values as they are in the row; yes and no for booleans."""
    words = {True: _("yes"), False: _("no")}
    return [
        (name.replace("_", " "), words[value] if isinstance(value, bool) else str(value))
        for name, value in found.items()
        if value is not None
    ]


def inputs(run: Run) -> list[dict[str, Any]]:
    """Each input with its origin and the digest of the numbers that the engine saw."""
    rows = []
    for name, given in run.spec["inputs"].items():
        seen = {**given, **run.input_info.get(name, {})}
        origin = {
            "seed": _("seed {seed}, {distribution}").format(
                seed=given.get("seed"), distribution=given.get("distribution")
            ),
            "upload": _("uploaded"),
        }.get(given["source"], _("sent with the request"))
        rows.append(
            {
                "name": name,
                "shape": " × ".join(map(str, seen["shape"])),
                "dtype": seen["dtype"],
                "origin": origin,
                "sha256": seen.get("sha256", ""),
            }
        )
    return rows


def readable(document: dict[str, Any], run: Run, request: HttpRequest) -> dict[str, Any]:
    """The document with addresses of files that open with the key of the page, where it takes one."""
    if not run.owner:
        return document

    def here(name: str) -> str:
        return request.build_absolute_uri(files.address(run, name, request))

    for name, value in (document["result"] or {}).items():
        if isinstance(value, dict) and "artifact" in value:
            value["artifact"] = here(f"{name}.npy")
    return document | {"artifacts": {name: here(name) for name in document["artifacts"]}}
