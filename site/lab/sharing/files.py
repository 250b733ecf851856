"""Where the files of a run are, for whoever may open its page."""

from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext as _

from api.runs.downloads import names
from lab import units
from workers.models import Run

FORMS = ("npy", "csv")  # of a single array


def listing(run: Run, request: HttpRequest) -> dict[str, Any]:
    """Bundles, and every array in each form that it comes in."""
    there = set(names(run))

    def forms(array: str) -> list[tuple[str, str]]:
        found = ((form, f"{array}.{form}") for form in FORMS)
        return [(form, address(run, name, request)) for form, name in found if name in there]

    def rows(info: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {"name": name, "shape": units.shape(one["shape"]), "dtype": one["dtype"], "forms": forms(name)}
            for name, one in info.items()
        ]

    return {
        "whole": [(form, own_address(run, form, request)) for form in ("npz", "safetensors", "json")],
        "arrays": [(_("result"), rows(run.array_info)), (_("input"), rows(run.input_info))],
        "bundles": [
            (name, address(run, name, request))
            for stem in ("result", "inputs")
            for form in ("npz", "safetensors")
            if (name := f"{stem}.{form}") in there
        ],
    }


def address(run: Run, name: str, request: HttpRequest) -> str:
    """Of a file among those of the run; a share key is carried along."""
    return keyed(reverse("lab:file", kwargs={"run_id": run.id, "name": name}), request)


def own_address(run: Run, form: str, request: HttpRequest) -> str:
    """Of the run itself in another form than a page."""
    return keyed(reverse(f"lab:{form}", kwargs={"run_id": run.id}), request)


def keyed(path: str, request: HttpRequest, **query: str) -> str:
    """`path` with the share key of the page that is shown, where it has one."""
    key = request.GET.get("key", "")
    asked = {**query, **({"key": key} if key else {})}
    return f"{path}?{urlencode(asked)}" if asked else path
