"""What the page of a finished run shows beside its matrices, as plain data for its templates."""

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _

from kernels.registry import ENGINES
from kernels.spec import RunSpec
from lab.runs import findings, measured, roofline
from lab.runs.choice import kept
from lab.sharing import drawings, files
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
        "release": release(run),
        "inputs": inputs(run),
        "downloads": files.listing(run, request),
        "pictures": drawings.addresses(run, spec, request),
    }


RELEASE = ("version", "commit")  # of an environment, said in a sentence of its own


def release(run: Run) -> str:
    """Which version of the product computed the run; "" where that was not noted."""
    found = run.environment or {}
    version, commit = (found.get(name) for name in RELEASE)
    if not version:
        return ""
    if not commit:
        return _("Computed by Attention Lab {version}; of which commit is not known.").format(version=version)
    return _("Computed by Attention Lab {version}, commit {commit}.").format(version=version, commit=commit)


def environment(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values as they are in the row, the release apart; yes and no for booleans."""
    words = {True: _("yes"), False: _("no")}
    return [
        (name.replace("_", " "), words[value] if isinstance(value, bool) else str(value))
        for name, value in found.items()
        if value is not None and name not in RELEASE
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
