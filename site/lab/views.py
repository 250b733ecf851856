"""The pages of the lab. Thin: a form builds a request, `api` and `workers` do it, presentation shows it."""

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.cache import patch_cache_control
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django.views.decorators.http import require_http_methods, require_POST, require_safe
from rest_framework.renderers import JSONRenderer

from api import preferences
from api.callers import Caller, caller_of
from api.computing import Busy
from api.runs import sharing
from api.runs.downloads import download
from api.runs.representation import represent
from kernels.spec import RunSpec
from lab import arrays, closeups, fork, panels, presentation, results, snippets, submission
from lab.forms import LabForm
from workers import runs
from workers.models import ID_ALPHABET, Kind, Run, Status

WAIT_SECONDS = 10
DAY = 24 * 3600

View = Callable[..., HttpResponse]


# --- The form -------------------------------------------------------------------------------------


def too_large(request: HttpRequest) -> bool:
    """Whether a body is longer than any that is read, as far as it says so itself."""
    declared = request.META.get("CONTENT_LENGTH") or "0"
    return declared.isdigit() and int(declared) > settings.MAX_BODY_BYTES


def bounded(view: View) -> View:
    """Refuse a body that is too long before anything (the CSRF check included) reads it."""
    protected = csrf_protect(view)

    @csrf_exempt
    @wraps(view)
    def bounded_view(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if too_large(request):
            return render(request, "lab/refused.html", {"limit": settings.MAX_BODY_BYTES >> 20}, status=413)
        return protected(request, *args, **kwargs)

    return bounded_view


@bounded
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def home(request: HttpRequest) -> HttpResponse:
    """The form, filled in from the link; POST runs it, or (`check`) only says what it would cost."""
    caller = caller_of(request)
    if request.method != "POST":
        form, notes = form_of_link(request)
        return form_page(request, form, submission.check(form, caller), notes=notes, status=200)
    form = LabForm(request.POST.copy())
    if "check" in request.POST or "show" in request.POST:
        submission.keep(form, request.FILES.getlist("files"), caller)
        if "show" in request.POST:
            return shown(request, form, caller)
        return form_page(request, form, submission.check(form, caller))
    answer = submission.submit(form, request.FILES.getlist("files"), caller)
    if answer.run:
        return redirect("lab:run", run_id=answer.run.id)
    return form_page(request, form, answer, submitted=True)


def shown(request: HttpRequest, form: LabForm, caller: Caller) -> HttpResponse:
    """The form with the fields of the engine that was chosen: at the address that says so, if one can."""
    if address := form.address():
        return redirect(f"{address}#{form['engine'].auto_id}")
    return form_page(request, form, submission.check(form, caller), status=200)


def form_of_link(request: HttpRequest) -> tuple[LabForm, list[str]]:
    """The form that the address describes: its parameters, or the configuration of an earlier run."""
    if run_id := request.GET.get("from"):
        state, notes = fork.state_of(find(run_id, request))
        return LabForm.from_link(state), notes
    return LabForm.from_link(request.GET), []


def form_page(
    request: HttpRequest,
    form: LabForm,
    answer: submission.Answer,
    *,
    notes: list[str] | None = None,
    status: int | None = None,
    submitted: bool = False,
) -> HttpResponse:
    context = {"notes": notes, "submitted": submitted, **estimate_context(request, form, answer)}
    response = render(request, "lab/home.html", context, status=status or answer.status)
    if answer.retry_after:
        response["Retry-After"] = str(answer.retry_after)
    return response


@bounded
@never_cache
@require_POST
def estimate(request: HttpRequest) -> HttpResponse:
    """The part under the form, brought up to date while somebody types."""
    form = LabForm(request.POST.copy())
    caller = caller_of(request)
    submission.keep(form, [], caller)
    answer = submission.check(form, caller)
    response = render(request, "lab/parts/estimate_live.html", estimate_context(request, form, answer))
    response["HX-Replace-Url"] = form.address() or reverse("lab:home")
    return response


@bounded
@never_cache
@require_POST
def engine(request: HttpRequest) -> HttpResponse:
    """The fields that depend on the engine, for the one that was just chosen."""
    form = LabForm(request.POST.copy())
    caller = caller_of(request)
    submission.keep(form, [], caller)
    submission.check(form, caller)
    return render(request, "lab/parts/engine_live.html", {"form": form})


def estimate_context(request: HttpRequest, form: LabForm, answer: submission.Answer) -> dict[str, Any]:
    return {
        "form": form,
        "cost": answer.cost and presentation.estimate(answer.cost, caller_of(request).budget_seconds),
        "shape": answer.spec and presentation.shape_sentence(answer.spec),
        "curl": snippets.curl(answer.body, request) if answer.spec else None,
        "link": (address := form.address()) and request.build_absolute_uri(address),
    }


# --- A run ----------------------------------------------------------------------------------------


def find(run_id: str, request: HttpRequest) -> Run:
    """The run, if there is one and the link may open it; the two failures look the same."""
    if not set(run_id) <= set(ID_ALPHABET):  # PostgreSQL does not even look for some characters
        raise Http404
    try:
        run = runs.get(run_id)
    except Run.DoesNotExist:
        raise Http404 from None
    if run.kind != Kind.RUN or not sharing.may_open(run, request.GET.get("key", "")):
        raise Http404
    return run


def open_run(view: View) -> View:
    """Give the view a run instead of its id, or a page that explains why there is none."""

    @wraps(view)
    def with_run(request: HttpRequest, run_id: str, **kwargs: Any) -> HttpResponse:
        try:
            return view(request, find(run_id, request), **kwargs)
        except Http404:
            return render(request, "lab/missing.html", status=404)
        except Busy as busy:
            response = HttpResponse(busy.detail, status=503, content_type="text/plain; charset=utf-8")
            response["Retry-After"] = str(busy.retry_after)
            return response

    return with_run


def run_view(view: View) -> View:
    """Of what changes while the run is not done, or may."""
    return never_cache(open_run(view))


@require_safe
@run_view
def run(request: HttpRequest, run: Run) -> HttpResponse:
    return render(request, "lab/run.html", presentation.page(run, request))


@require_safe
@run_view
def live(request: HttpRequest, run: Run) -> HttpResponse:
    """The changing part of a run's page, once it has changed (or after a while, unchanged)."""
    seen = request.GET.get("seen", run.status)
    # What the page shows may be old already: then there is nothing to wait for.
    waited = run.status != seen or preferences.wait_for(run, WAIT_SECONDS, for_any_change=True)
    is_new = run.status != request.GET.get("seen")
    context = {**presentation.page(run, request), "is_live": True, "is_new": is_new, "pause": not waited}
    return render(request, "lab/parts/run.html", context)


@require_safe
@run_view
def closeup(request: HttpRequest, run: Run) -> HttpResponse:
    """The matrices of one head side by side, and the arithmetic of the cell that is lit."""
    context = presentation.about(run, request)
    spec: RunSpec = context["spec"]
    choice = results.Choice.read(request.GET, spec, [], [])
    context["pickers"] = results.pickers(choice, spec, [], [], request.GET)
    try:
        found = close_up(request, run)
    except Busy as busy:
        response = render(request, "lab/closeup.html", {**context, "busy": busy.detail}, status=503)
        response["Retry-After"] = str(busy.retry_after)
        return response
    link = panels.Links(run, request, choice.batch, choice.head)
    return render(request, "lab/closeup.html", {**context, "closeup": panels.section(found, spec, link)})


@require_safe
@run_view
def cell(request: HttpRequest, run: Run) -> HttpResponse:
    """The arithmetic of one cell, for the page that shows another one already."""
    found = close_up(request, run)
    context = {"cell": panels.cell(found, panels.cursor_of(found, request))}
    return render(request, "lab/parts/cell.html", context)


@require_safe
@open_run
def picture(request: HttpRequest, run: Run, map_name: str) -> HttpResponse:
    """A matrix as a picture, a pixel for each number or block of them. It never changes."""
    one = close_up(request, run).maps.get(map_name)
    if one is None or not one.levels.size:
        raise Http404
    response = HttpResponse(panels.picture(one, request.GET.get("theme", "")), content_type="image/png")
    patch_cache_control(response, private=True, max_age=DAY, immutable=True)
    return response


def close_up(request: HttpRequest, run: Run) -> closeups.Closeup:
    """The head that the query string names. Http404 where the run has none; Busy."""
    spec = RunSpec.from_dict(run.spec)
    if run.status != Status.SUCCEEDED or not closeups.can_look(run, spec):
        raise Http404
    choice = results.Choice.read(request.GET, spec, [], [])
    found = closeups.look(run, spec, choice.batch, choice.head, request)
    if found is None:
        raise Http404
    return found


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


@require_safe
@run_view
def file(request: HttpRequest, run: Run, name: str) -> HttpResponse:
    """One array or bundle as a file."""
    try:
        return download(request, run, name)
    except KeyError:
        raise Http404 from None


@require_safe
@run_view
def map_svg(request: HttpRequest, run: Run, map_name: str) -> HttpResponse:
    """The heat map alone, with its own colours, to be put into other documents."""
    picture = results.standalone_map(run, map_name, request) if map_name in arrays.MAPS else None
    if picture is None:
        raise Http404
    return HttpResponse(picture, content_type="image/svg+xml")
