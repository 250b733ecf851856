"""The section "Change one thing" of a run's page: the flips that apply to it."""

from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.urls import reverse

from kernels import flips
from kernels.flips import Flip
from kernels.registry import ENGINES, SOFTMAX
from kernels.spec import RunSpec
from kernels.spec.families import PLAIN
from lab.compare import chosen, words
from workers.models import Run

WIDE = "float32"


def section(run: Run, spec: RunSpec, request: HttpRequest) -> dict[str, Any]:
    """Flips by what they change, in the order of the table."""
    key = request.GET.get("key", "")
    groups: dict[str, list[Flip]] = {}
    for flip in flips.flips(spec):
        groups.setdefault(flip.kind, []).append(flip)
    here = chosen.of_run(run, key)
    keyed = {"key": key} if key else {}
    return {
        "groups": [group(kind, found, spec) for kind, found in groups.items()],
        "beside": beside(spec),
        "key": key,
        "elsewhere": f"{reverse('lab:elsewhere')}?{urlencode({chosen.FIELD: run.id, **keyed})}",
        "page": here.page_of(run),
    }


def beside(spec: RunSpec) -> str:
    """The format beside which a run in 16 bits can be told where its error comes from, or ""."""
    engine = ENGINES.get(spec.engine)
    splits = engine is not None and engine.computes == SOFTMAX and spec.family is PLAIN
    return WIDE if splits and spec.dtype != WIDE and flips.find(spec, f"dtype.{WIDE}") else ""


def group(kind: str, found: list[Flip], spec: RunSpec) -> dict[str, Any]:
    """Buttons for what is worth a run, and sentences on what is not."""
    useful = [flip for flip in found if not flip.idle]
    return {
        "kind": kind,
        "name": words.GROUPS[kind],
        "now": words.now(kind, spec),
        "options": [
            {"name": flip.name, "label": flip.to if kind == "engine" else words.label(flip)}
            for flip in useful
        ],
        "idle": [words.idle(flip, spec) for flip in found if flip.idle],
    }
