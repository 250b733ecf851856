"""What the page of a finished run shows beside its matrices, as plain data for its templates."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.urls import reverse
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from kernels.registry import ENGINES
from kernels.spec import RunSpec
from lab import arrays, heatmap
from lab.form.offers import result_name
from lab.runs import findings, measured, roofline
from lab.runs.choice import Choice, kept
from lab.sharing import files
from workers import artifacts
from workers.models import Run


def result(run: Run, spec: RunSpec, request: HttpRequest) -> dict[str, Any]:
    """What does not depend on which head is looked at."""
    found = run.result or {}
    engine = ENGINES.get(run.engine)
    return {
        "found": findings.shown(found.get("findings") or {}, engine.findings if engine else {}),
        **measured.section(run, spec),
        "roofline": roofline.section(found, request.GET, kept(request.GET)),
        "notes": found.get("notes") or [],
        "environment": environment(run.environment or {}),
        "inputs": inputs(run),
        "downloads": files.listing(run, request),
        "pictures": picture_files(run, request),
    }


def standalone_map(run: Run, name: str, request: HttpRequest) -> str | None:
    """A heat map as a file of its own; None when the run has no such matrix, or its file is gone."""
    if name not in run.array_info:
        return None
    spec = RunSpec.from_dict(run.spec)
    choice = Choice.read(request.GET, spec)
    array = artifacts.load_result(run, name)
    if array is None:
        return None
    values = arrays.one(array, name, spec, choice.batch, choice.head)
    if not values.size:
        return None
    return heatmap.document(heatmap.figure(values, arrays.MAPS[name]), capfirst(result_name(name)))


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


def picture_files(run: Run, request: HttpRequest) -> list[tuple[str, str]]:
    """The heat maps of what was returned, of the head that is looked at."""
    chosen = {name: request.GET[name] for name in ("key", "batch", "head") if name in request.GET}
    query = f"?{urlencode(chosen)}" if chosen else ""
    return [
        (f"{name}.svg", reverse("lab:map", kwargs={"run_id": run.id, "map_name": name}) + query)
        for name, info in run.array_info.items()
        if name in arrays.MAPS and all(info["shape"])
    ]


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
