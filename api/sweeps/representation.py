"""A sweep as the JSON document of the contract, and its points as the rows of a table."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse

from api.grading.reports import to_csv
from api.runs.sharing import page_url
from api.sweeps import sharing
from kernels.sweeps.exponents import exponents
from workers import sweeps
from workers.models import Run, Status, Sweep

FIGURES = (
    "median_ns", "representative", "peak_bytes", "predicted_bytes", "traffic_bytes", "bytes_min", "flops",
    "max_abs_err", "bound",
)  # fmt: skip


def represent(sweep: Sweep, request: HttpRequest) -> dict[str, Any]:
    """The sweep with all of its points."""
    points = sweeps.points(sweep)
    active = sum(not run.is_terminal for run in points)
    figured = [(sweep.values[run.position], figures(run)) for run in points if run.status == Status.SUCCEEDED]
    ended = [run.finished_at for run in points if run.finished_at]
    return {
        **_head(sweep, active, request),
        "finished_at": None if active else max(ended, default=None),
        "runs": [_point(sweep, run, request) for run in points],
        "exponents": exponents(figured),
    }


def represent_in_list(sweep: Sweep, request: HttpRequest) -> dict[str, Any]:
    """The sweep without its points; it comes from `sweeps.with_progress`."""
    active: int = sweep.active  # type: ignore[attr-defined]
    return {**_head(sweep, active, request), "finished_at": None, "runs": None, "exponents": None}


def figures(run: Run) -> dict[str, Any]:
    """What is plotted of a point; each null until it has succeeded, or where there is none."""
    found = run.result or {}
    parts = ("timing", "memory", "traffic", "cost", "numerics")
    timing, memory, traffic, cost, numerics = (found.get(name) or {} for name in parts)
    read, written = traffic.get("bytes_read"), traffic.get("bytes_written")
    values = (
        timing.get("median_ns"),
        timing.get("representative"),
        memory.get("peak_bytes"),
        memory.get("predicted_bytes"),
        None if read is None or written is None else read + written,
        cost.get("bytes_min"),
        cost.get("flops"),
        numerics.get("max_abs_err"),
        numerics.get("bound"),
    )
    return dict(zip(FIGURES, values, strict=True))


def columns(sweep: Sweep) -> list[str]:
    """Of the table: what varied, which run, its figures."""
    return [*sweep.vary, "run", "status", *FIGURES]


def rows(sweep: Sweep) -> list[dict[str, Any]]:
    """One for each point, in order."""
    return [
        {**sweep.values[run.position], "run": run.id, "status": run.status, **figures(run)}
        for run in sweeps.points(sweep)
    ]


def csv_response(sweep: Sweep) -> HttpResponse:
    """The table as a file."""
    text = to_csv(columns(sweep), map(as_cells, rows(sweep)))
    headers = {"Content-Disposition": f'attachment; filename="{sweep.id}.csv"'}
    return HttpResponse(text, content_type="text/csv; charset=utf-8", headers=headers)


def as_cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for CSV, where a value may be no list and no object."""
    return {
        name: json.dumps(value, sort_keys=True)
        if isinstance(value, Mapping | Sequence) and not isinstance(value, str)
        else value
        for name, value in row.items()
    }


def _head(sweep: Sweep, active: int, request: HttpRequest) -> dict[str, Any]:
    total = len(sweep.values)
    return {
        "id": sweep.id,
        "url": sharing.page_url(sweep, request),
        "status": sweep.status_with(active),
        "progress": {"done": total - active, "total": total},
        "created_at": sweep.created_at,
        "expires_at": sweep.expires_at,
        "body": sweep.body,
        "vary": sweep.vary,
        "refused": sweep.refused,
    }


def _point(sweep: Sweep, run: Run, request: HttpRequest) -> dict[str, Any]:
    return {
        "id": run.id,
        "url": page_url(run, request),
        "status": run.status,
        "values": sweep.values[run.position],
        "figures": figures(run) if run.status == Status.SUCCEEDED else None,
        "error": run.error,
    }
