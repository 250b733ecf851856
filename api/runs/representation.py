"""A run as the JSON document of the contract."""

import math
from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest
from django.urls import reverse

from api.runs import downloads
from api.runs.sharing import page_url
from kernels.arrays import to_jsonable
from workers import artifacts, runs
from workers.models import Kind, Run, Status

MAX_INLINE_ELEMENTS = 65_536


def represent(run: Run, request: HttpRequest, *, full: bool = True) -> dict[str, Any]:
    """The run, JSON-ready. In lists (`full=False`) every array is a link and `queue.ahead` is null."""
    return {
        **envelope(run, request, full=full),
        "url": page_url(run, request),
        "sweep": run.sweep_id,
        "inputs": _inputs(run),
        "result": _result(run, request, full) if run.status == Status.SUCCEEDED else None,
    }


def envelope(run: Run, request: HttpRequest, *, full: bool = True) -> dict[str, Any]:
    """What a row says whatever kind it is of."""
    folder = artifact_folder(run, request)
    return {
        "id": run.id,
        "engine": run.engine,
        "status": run.status,
        "created_at": run.created_at,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "expires_at": run.expires_at,
        "attempt": run.attempt,
        "queue": {"ahead": runs.ahead(run) if full else None},
        "spec": run.spec,
        "environment": run.environment,
        "error": run.error,
        "artifacts": {name: f"{folder}{name}" for name in downloads.names(run)},
    }


def artifact_folder(run: Run, request: HttpRequest) -> str:
    """The address below which the run's files lie (resolved once: a run has ten and more)."""
    route = "api:compile_artifact" if run.kind == Kind.COMPILE else "api:artifact"
    path = reverse(route, kwargs={"run_id": run.id, "name": "x"})
    return request.build_absolute_uri(path.removesuffix("x"))


def _inputs(run: Run) -> dict[str, Any]:
    """Each input as it was described, and, once the engine has seen it, as it was then (with its digest)."""
    described = run.spec.get("inputs", {})
    return {name: {**given, **run.input_info.get(name, {})} for name, given in described.items()}


def _result(run: Run, request: HttpRequest, full: bool) -> dict[str, Any]:
    small = {name for name, info in run.array_info.items() if math.prod(info["shape"]) <= MAX_INLINE_ELEMENTS}
    loaded = artifacts.load_results(run, small) if full and small else {}

    def array(name: str, info: Mapping[str, Any]) -> Any:
        if name in small and name in loaded:
            return to_jsonable(loaded[name])
        return {"artifact": f"{artifact_folder(run, request)}{name}.npy", **info}

    return {**{name: array(name, info) for name, info in run.array_info.items()}, **(run.result or {})}
