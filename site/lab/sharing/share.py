"""What a page says of its link: whom it lets in, how to cite it, how to show it elsewhere."""

from typing import Any

from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _

from kernels.spec import RunSpec
from lab.sharing import files
from workers.models import Run

WIDTH, HEIGHT = 640, 480  # of a frame, until somebody says otherwise


def context(run: Run, spec: RunSpec, what: str, request: HttpRequest) -> dict[str, Any]:
    """what: the engine and the shape, in words."""
    return {
        "share": {
            "link": link(run, request),
            "is_keyed": bool(run.owner),
            "citation": citation(run, f"{what}, {spec.dtype}", request),
            "frame": frame(run, what, request),
            "embed": files.keyed(reverse("lab:embed", kwargs={"run_id": run.id}), request),
        }
    }


def link(run: Run, request: HttpRequest) -> str:
    path = reverse("lab:run", kwargs={"run_id": run.id})
    return request.build_absolute_uri(files.keyed(path, request))


def citation(run: Run, what: str, request: HttpRequest) -> str:
    """A line for a list of references."""
    found = run.environment or {}
    release = found.get("version")
    parts = [
        _("Attention Lab") + (f" {release}" if release else ""),
        _("run {id}").format(id=run.id),
        what,
        _("kernels {version}").format(version=found["kernel_version"]) if found.get("kernel_version") else "",
        run.finished_at.date().isoformat() if run.finished_at else "",
    ]
    return ". ".join(part for part in parts if part) + f". {link(run, request)}"


def frame(run: Run, what: str, request: HttpRequest) -> str:
    """The markup that shows the run within another page."""
    path = reverse("lab:embed", kwargs={"run_id": run.id})
    return format_html(
        '<iframe src="{}" width="{}" height="{}" title="{}" loading="lazy"></iframe>',
        request.build_absolute_uri(files.keyed(path, request)),
        WIDTH,
        HEIGHT,
        what,
    )
