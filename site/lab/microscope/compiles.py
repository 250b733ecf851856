"""Compilations as rows: found by address or by what they are of, and submitted."""

from collections.abc import Iterator, Mapping
from typing import Any

from django.http import Http404

from api.callers import Caller
from api.runs import sharing
from api.runs.submission import submit_compile_body
from kernels.machine_code import digests
from kernels.spec import parse_run
from workers import artifacts
from workers.models import ACTIVE, ID_ALPHABET, Kind, Run, Status

LOOKED_AT = 20  # of the latest that are of the same


def find(run_id: str, key: str) -> Run:
    """The compilation, if there is one and the link may open it; Http404 either way."""
    if not run_id or not set(run_id) <= set(ID_ALPHABET):
        raise Http404
    run = Run.objects.filter(pk=run_id, kind=Kind.COMPILE).first()
    if run is None or not sharing.may_open(run, key):
        raise Http404
    return run


def compile_once(body: Mapping[str, Any], caller: Caller) -> Run:
    """A compilation of `body`: one that is there already, of the same sources, or a new one. Raises what
    `submit_compile_body` does."""
    targets = body["targets"]
    spec = parse_run({name: value for name, value in body.items() if name != "targets"}).spec
    same = Run.objects.filter(
        kind=Kind.COMPILE,
        owner="",
        engine=spec.engine,
        spec=spec.to_dict(),
        status__in=(*ACTIVE, Status.SUCCEEDED),
    )
    for run in same.order_by("-created_at")[:LOOKED_AT]:
        if run.targets == targets and (run.status in ACTIVE or is_fresh(run)):
            return run
    return submit_compile_body(body, caller=caller).run


def is_fresh(run: Run) -> bool:
    """Whether the sources are as they were when it was compiled."""
    return all(
        figures.get("sources") and digests(figures["sources"]) == figures["sources"]
        for figures in kernels(run)
    )


def kernels(run: Run) -> Iterator[dict[str, Any]]:
    """The figures of every kernel for every target, each target's main one first."""
    for main in (run.result or {}).get("targets", {}).values():
        yield main
        yield from main.get("others", [])


def one_kernel(run: Run, target: str, name: str) -> dict[str, Any]:
    """The figures of a kernel for a target; of the first where there is none of that name."""
    found = list(kernels(run))
    return next(
        (one for one in found if one["target"] == target and one["kernel"] == name),
        next((one for one in found if one["target"] == target), found[0]),
    )


def text_name(run: Run, figures: Mapping[str, Any], stage: str) -> str:
    """What a stage of a kernel is called among the artifacts."""
    target, kernel = figures["target"], figures["kernel"]
    is_main = run.result["targets"][target]["kernel"] == kernel if run.result else True
    return f"{target}.{stage}" if is_main else f"{target}.{kernel}.{stage}"


def text(run: Run, figures: Mapping[str, Any], stage: str) -> str | None:
    """A stage of a kernel; None where it is gone."""
    try:
        return artifacts.open_artifact(run, text_name(run, figures, stage))[0].decode()
    except KeyError:
        return None
