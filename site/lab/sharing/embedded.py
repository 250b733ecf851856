"""What the frame in another page shows of a run."""

from typing import Any

from django.http import HttpRequest

from api.computing import Busy
from kernels.registry import ENGINES
from kernels.spec import RunSpec
from lab import heatmap
from lab.arrays import MAPS
from lab.runs import measured, presentation
from lab.runs.heads import Head
from lab.sharing import drawings, share
from workers.models import Run, Status

THEMES = ("light", "dark")
SHOWN = ("weights", "out")  # of one head, where there are any; else the first matrix that the run returned


def context(run: Run, request: HttpRequest) -> dict[str, Any]:
    spec = RunSpec.from_dict(run.spec)
    engine = ENGINES.get(run.engine)
    of = drawings.chosen(run, request)
    numerics = (run.result or {}).get("numerics") or {}
    found: dict[str, Any] = {
        "run": run,
        "spec": spec,
        "engine_title": engine.title if engine else run.engine,
        "shape": presentation.shape_sentence(spec),
        "settings": presentation.settings_of(spec),
        "status_name": presentation.STATUS_NAMES[Status(run.status)],
        "link": share.link(run, request),
        "accuracy": measured.accuracy(numerics, is_double=engine is not None and engine.is_double),
        "batch": of.batch if spec.batch > 1 else None,
        "head": of.head if spec.num_heads > 1 else None,
    }
    try:
        return found | {"maps": maps(of, request)}
    except Busy as busy:
        return found | {"busy": busy.detail}


def maps(of: Head, request: HttpRequest) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = []
    others = [name for name in MAPS if name in of.run.array_info and name not in SHOWN]
    for name in [*SHOWN, *others]:
        picture = drawings.drawing(of, name, request) if len(shown) < len(SHOWN) else None
        if picture is not None:
            svg = heatmap.svg(picture, drawings.label(picture, name))
            shown.append({"title": drawings.title(name), "svg": svg, "has_masked": picture.has_masked})
    return shown
