"""The kernel under the microscope: what it holds after each tile of keys."""

from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from api import preferences
from api.callers import caller_of
from api.computing import computing
from kernels.spec import RunSpec
from lab.microscope import compileform, tracing
from lab.microscope import steps as stepping
from lab.opening import run_view
from lab.runs import presentation
from workers import quotas, runs
from workers.models import Run, Status

WAIT_SECONDS = 10
PLACE = ("batch", "head", "row")  # what a traced run is looked at for, as its origin was
FREE = 1 << 20  # numbers that are looked at for no more than the rest of a page


@require_safe
@run_view
def steps(request: HttpRequest, run: Run) -> HttpResponse:
    """One query of a traced run, one tile of keys; of a run without a trace the offer to make one."""
    if request.headers.get("HX-Request") and not run.is_terminal:
        preferences.wait_for(run, WAIT_SECONDS, for_any_change=True)
    return steps_page(request, run)


@require_POST
@run_view
def trace(request: HttpRequest, run: Run) -> HttpResponse:
    """The same inputs through the flash kernel in small tiles, watched."""
    caller = caller_of(request)
    spec = RunSpec.from_dict(run.spec)
    offer = tracing.offer(run, spec, caller)
    if run.status != Status.SUCCEEDED or offer.spec is None:
        return steps_page(request, run, status=422)
    try:
        traced = tracing.submit(run, offer.spec, caller)
    except quotas.QuotaExceeded as error:
        return steps_page(request, run, status=429, refusal=error.detail, retry_after=error.retry_after)
    except runs.QueueFull as error:
        return steps_page(request, run, status=503, refusal=str(error), retry_after=error.retry_after)
    place = urlencode({name: request.GET[name] for name in PLACE if name in request.GET})
    return redirect(f"{reverse('lab:steps', kwargs={'run_id': traced.id})}?{place}".rstrip("?"))


def steps_page(
    request: HttpRequest, run: Run, *, status: int = 200, refusal: str = "", retry_after: int = 0
) -> HttpResponse:
    context = presentation.page(run, request) if not run.is_terminal else presentation.about(run, request)
    kept = {name: request.GET[name] for name in ("key", *PLACE) if name in request.GET}
    context |= {"compiled_query": compileform.query_of_run(run)}
    context |= {"refusal": refusal, "tab": "steps", "key": kept.get("key", ""), "kept": urlencode(kept)}
    if run.status == Status.SUCCEEDED:
        context |= (
            of_trace(request, run, context["spec"]) if tracing.has_trace(run) else offered(request, run)
        )
    response = render(request, "lab/microscope/steps.html", context, status=status)
    if retry_after:
        response["Retry-After"] = str(retry_after)
    return response


def offered(request: HttpRequest, run: Run) -> dict[str, Any]:
    return {"offer": tracing.offer(run, RunSpec.from_dict(run.spec), caller_of(request))}


def of_trace(request: HttpRequest, run: Run, spec: RunSpec) -> dict[str, Any]:
    """What the trace of a run says at the place that the address names."""
    tiles = stepping.tile_count(run)
    if not (tiles and spec.q_len and spec.batch * spec.num_heads):
        return {"is_empty": True}
    place = stepping.Place.read(request.GET, spec, tiles)
    if stepping.weight(spec) <= FREE:
        row = stepping.load(run, spec, place)
    else:
        with computing(caller_of(request)):
            row = stepping.load(run, spec, place)
    key = request.GET.get("key", "")
    found: dict[str, Any] = {
        "place": place,
        "tiles": tiles,
        "last_row": spec.q_len - 1,
        "last_tile": tiles - 1,
        "block_n": stepping.tile_size(spec),
        "pickers": stepping.pickers(place, spec, key),
    }
    if row is None:
        return found | {"is_gone": True}
    return found | {"section": stepping.section(row, place, key)}
