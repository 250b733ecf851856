"""The page of a run, and everything on it that has an address of its own."""

from contextlib import suppress

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.cache import patch_cache_control
from django.views.decorators.http import require_POST, require_safe
from rest_framework.renderers import JSONRenderer

from api import preferences
from api.runs.representation import represent
from kernels.spec import RunSpec
from lab.opening import open_run, run_view
from lab.runs import look, maps, presentation, results
from workers import runs
from workers.models import Run, Status

WAIT_SECONDS = 10
DAY = 24 * 3600


@require_safe
@run_view
def run(request: HttpRequest, run: Run) -> HttpResponse:
    return render(request, "lab/runs/page.html", presentation.page(run, request))


@require_safe
@run_view
def live(request: HttpRequest, run: Run) -> HttpResponse:
    """The changing part of a run's page, once it has changed (or after a while, unchanged)."""
    seen = request.GET.get("seen", run.status)
    # What the page shows may be old already: then there is nothing to wait for.
    waited = run.status != seen or preferences.wait_for(run, WAIT_SECONDS, for_any_change=True)
    is_new = run.status != request.GET.get("seen")
    context = {**presentation.page(run, request), "is_live": True, "is_new": is_new, "pause": not waited}
    return render(request, "lab/runs/live.html", context)


@require_safe
@run_view
def look_at(request: HttpRequest, run: Run) -> HttpResponse:
    """The part of the page that depends on which head is looked at; the address of the page follows it."""
    spec = succeeded(run)
    section = look.section(run, spec, request, waits=True)
    context = {**presentation.about(run, request), "look": section}
    response = render(request, "lab/runs/look.html", context)
    address = page_address(request, run)
    if not request.headers.get("HX-Current-URL", "").endswith(address):
        response["HX-Push-Url"] = address
    return response


@require_safe
@open_run
def closeup(request: HttpRequest, run: Run) -> HttpResponse:
    """Where this was a page of its own."""
    return redirect(page_address(request, run) + "#look", permanent=True)


def page_address(request: HttpRequest, run: Run) -> str:
    """The page of the run, looked at as the query string says."""
    address = reverse("lab:run", kwargs={"run_id": run.id})
    return f"{address}?{request.GET.urlencode()}" if request.GET else address


@require_safe
@run_view
def cell(request: HttpRequest, run: Run) -> HttpResponse:
    """The arithmetic of one cell, for the page that shows another one already."""
    found = look.cell(look.view(run, succeeded(run), request))
    if found is None:
        raise Http404
    return render(request, "lab/runs/cell.html", {"cell": found})


@require_safe
@open_run
def picture(request: HttpRequest, run: Run, map_name: str) -> HttpResponse:
    """A matrix as a picture, a pixel for each number or block of them. It never changes."""
    one = look.picture(run, succeeded(run), request, map_name)
    if one is None:
        raise Http404
    content = maps.asked(one, request.GET).picture(request.GET.get("theme", ""))
    response = HttpResponse(content, content_type="image/png")
    patch_cache_control(response, private=True, max_age=DAY, immutable=True)
    return response


def succeeded(run: Run) -> RunSpec:
    """What the run was, once it has results. Http404."""
    if run.status != Status.SUCCEEDED:
        raise Http404
    return RunSpec.from_dict(run.spec)


@require_POST
@run_view
def cancel(request: HttpRequest, run: Run) -> HttpResponse:
    """Cancel an anonymous run; a shared link to somebody's run is for reading only."""
    if run.owner:
        raise Http404
    with suppress(runs.AlreadyFinished):  # its page says so
        runs.cancel(run.id)
    return redirect("lab:run", run_id=run.id)


@require_safe
@run_view
def document(request: HttpRequest, run: Run) -> HttpResponse:
    """The run as `GET /api/v1/runs/{id}` gives it, for whoever may open the page."""
    content = JSONRenderer().render(results.readable(represent(run, request), run, request))
    return HttpResponse(content, content_type="application/json")
