"""A file of a run as a response, for the API and for the pages."""

import math
from typing import Any

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from api.callers import Caller
from api.computing import charged
from api.runs.tables import MOST, Table
from kernels.spec import RunSpec
from workers import artifacts
from workers.models import Kind, Run

CSV = ".csv"


def names(run: Run) -> list[str]:
    """The files of a run: what is stored, and arrays as tables."""
    return [*artifacts.names(run), *tables(run)]


def tables(run: Run) -> list[str]:
    """The arrays that are small enough to be one table."""
    return [f"{name}{CSV}" for name, shape in shapes(run).items() if math.prod(shape) <= MOST]


def shapes(run: Run) -> dict[str, list[int]]:
    """Of every array of a run, results first."""
    if run.kind != Kind.RUN or not run.array_info:
        return {}
    return {name: info["shape"] for name, info in {**run.input_info, **run.array_info}.items()}


def download(
    request: HttpRequest, run: Run, name: str, caller: Caller, *, file_name: str = ""
) -> HttpResponseBase:
    """The artifact `name` as an attachment; KeyError(name) when the run has no such file.

    Of a table `?batch` and `?head` choose one head. Raises api.errors.Problem, or api.computing.Busy.
    """
    headers: dict[str, Any] = {
        "Content-Disposition": f'attachment; filename="{file_name or f"{run.id}-{name}"}"',
        "X-Content-Type-Options": "nosniff",
    }
    # Random floats do not compress; without this the middleware would spend seconds on finding out.
    request.META["HTTP_ACCEPT_ENCODING"] = "identity"
    if name.endswith(CSV):
        return table(request, run, name, caller, headers)
    content, media_type = artifacts.open_artifact(run, name)
    return HttpResponse(content, content_type=media_type, headers=headers)


def table(
    request: HttpRequest, run: Run, name: str, caller: Caller, headers: dict[str, Any]
) -> HttpResponseBase:
    array_name = name.removesuffix(CSV)
    if array_name not in shapes(run):
        raise KeyError(name)
    array = artifacts.load_array(run, array_name)
    if array is None:
        raise KeyError(name)
    one = Table(RunSpec.from_dict(run.spec), array_name, array)
    chosen = {axis: request.GET[axis] for axis in ("batch", "head") if axis in request.GET}
    pieces = one.head(chosen) if chosen else one.text()
    written = charged(pieces, caller)
    return StreamingHttpResponse(written, content_type="text/csv; charset=utf-8", headers=headers)
