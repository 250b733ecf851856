"""Inputs of several cases as JSON, or as one file."""

import io
import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
from django.http import HttpResponse
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response
from safetensors import numpy as safetensors

from api import errors
from api.runs.representation import MAX_INLINE_ELEMENTS
from kernels.arrays import to_jsonable
from kernels.grading.model import Problem
from kernels.spec.problems import show
from workers.grading import judging

Array = np.ndarray[Any, np.dtype[Any]]
KEPT = ("key", "seed", "version")  # of a query, in the links to its arrays
FORMATS = ("json", "npz", "safetensors", "npy")
PARAMETERS = [
    OpenApiParameter("format", str, enum=FORMATS, description="Of the answer; `npy`: one array alone."),
    OpenApiParameter("array", str, description="With `format=npy`: which, as `<case>/q`."),
]


def numbers_of(problem: Problem) -> int:
    """How many numbers the inputs of all cases are."""
    runs = [case.run for case in problem.cases if case.run is not None]
    return sum(math.prod(given.shape) for run in runs for given in run.inputs.values())


def respond(
    request: Request, head: dict[str, Any], problem: Problem, seeds: Mapping[str, int], stem: str
) -> HttpResponse:
    """The document of the inputs with these seeds; or, as `?format=` has it, a file of their arrays."""
    wanted = request.query_params.get("format", "json")
    if wanted not in FORMATS:
        raise errors.Problem(400, f"format must be one of {', '.join(FORMATS)}, not {show(wanted)}.")
    if wanted == "npy":
        return _one(request, problem, seeds, stem)
    # One case after the other, so that of large ones only links are kept.
    made = ((case.name, judging.inputs_of_case(problem, case, seeds)) for case in problem.cases)
    if wanted == "json":
        return Response({**head, "cases": {name: _document(request, name, each) for name, each in made}})
    members = {
        f"{case}/{name}": value
        for case, values in made
        for name, value in values.items()
        if isinstance(value, np.ndarray)
    }
    content = _npz(members) if wanted == "npz" else _safetensors(members)
    return _file(request, content, f"{stem}.{wanted}")


def _one(request: Request, problem: Problem, seeds: Mapping[str, int], stem: str) -> HttpResponse:
    """One array alone."""
    wanted = request.query_params.get("array", "")
    name, _, array_name = wanted.rpartition("/")
    case = next((case for case in problem.cases if case.name == name), None)
    found = judging.inputs_of_case(problem, case, seeds).get(array_name) if case else None
    if not isinstance(found, np.ndarray):
        cases = ", ".join(case.name for case in problem.cases)
        raise errors.Problem(
            404, f"There is no array {show(wanted)} here; of the cases {cases} there are e.g. <case>/q."
        )
    return _file(request, _npy(found), f"{stem}.npy")


def _document(request: Request, case: str, values: Mapping[str, Any]) -> dict[str, Any]:
    here = request._request.build_absolute_uri(request._request.path)
    asked = {name: value for name, value in request.query_params.items() if name in KEPT}

    def shown(name: str, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        if math.prod(value.shape) <= MAX_INLINE_ELEMENTS:
            return to_jsonable(value)
        query = urlencode({**asked, "format": "npy", "array": f"{case}/{name}"}, quote_via=quote)
        return {
            "artifact": f"{here}?{query}",
            "shape": list(value.shape),
            "dtype": value.dtype.name,
        }

    return {name: shown(name, value) for name, value in values.items()}


def _npy(array: Array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _npz(members: Mapping[str, Array]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **members)  # type: ignore[arg-type]
    return buffer.getvalue()


def _safetensors(members: Mapping[str, Array]) -> bytes:
    return bytes(safetensors.save({name: np.asarray(array, order="C") for name, array in members.items()}))


def _file(request: Request, content: bytes, name: str) -> HttpResponse:
    # Random floats do not compress; without this the middleware would spend seconds on finding out.
    request._request.META["HTTP_ACCEPT_ENCODING"] = "identity"
    headers: dict[str, Any] = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "X-Content-Type-Options": "nosniff",
    }
    return HttpResponse(content, content_type="application/octet-stream", headers=headers)
