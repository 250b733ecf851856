"""The form of a sweep, and its page."""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe
from rest_framework.renderers import JSONRenderer

from api import preferences
from api.callers import Caller, caller_of
from api.computing import Busy, computing
from api.sweeps import representation
from api.sweeps.submission import submit_examined
from kernels.spec import SpecError
from lab.bodies import bounded
from lab.form.offers import ARRAYS
from lab.form.state import SHOWN_FOR
from lab.sharing import history
from lab.sweeps import lines, plots, points, presentation, snippets
from lab.sweeps.form import SweepForm
from lab.sweeps.opening import may_cancel, open_sweep
from lab.sweeps.preview import preview
from workers import limits, quotas, runs, sweeps
from workers.models import Sweep

WAIT_SECONDS = 10

# --- The form -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What became of a form: a sweep, or a status that says why not."""

    sweep: Sweep | None = None
    status: int = 200
    retry_after: int | None = None
    is_refused: bool = False  # though it was to be run


@bounded
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    """The form, filled in from the address; POST runs it, or (`check`) leads to the address of it."""
    state = request.POST if request.method == "POST" else request.GET
    is_of_the_lab = bool({"source", *ARRAYS} & set(state))
    form = SweepForm.from_lab(state.copy()) if is_of_the_lab else SweepForm(state.copy())
    caller = caller_of(request)
    if "check" in request.POST and (address := form.address()):
        return redirect(address)
    answer = price(form, caller)
    if request.method == "POST" and "check" not in request.POST:
        answer = submit(form, caller, answer)
        if answer.sweep:
            to_sweep = redirect("lab:sweep", sweep_id=answer.sweep.id)
            return history.remember(to_sweep, request, "sweep", answer.sweep.id)
    context = {**form_context(request, form, caller), "submitted": answer.is_refused}
    response = render(request, "lab/sweeps/new.html", context, status=answer.status)
    if answer.retry_after:
        response["Retry-After"] = str(answer.retry_after)
    return response


@bounded
@never_cache
@require_http_methods(["POST"])
def check(request: HttpRequest) -> HttpResponse:
    """What changes while somebody types: the points and their cost, and what is wrong with each field."""
    form, caller = SweepForm(request.POST.copy()), caller_of(request)
    price(form, caller)
    context = form_context(request, form, caller)
    context["is_other_engine"] = request.POST.get(SHOWN_FOR) != form.engine.name
    response = render(request, "lab/sweeps/parts/new_live.html", context)
    if address := form.address():
        response["HX-Replace-Url"] = address
    return response


def price(form: SweepForm, caller: Caller) -> Answer:
    """Examine the points, charged to the caller."""
    try:
        with computing(caller):
            form.examine(caller)
    except Busy as busy:
        form.problems.append(busy.detail)
        return Answer(status=503, retry_after=busy.retry_after)
    return Answer()


def submit(form: SweepForm, caller: Caller, priced: Answer) -> Answer:
    """Queue the points. Without a sweep in the answer the form says what to change."""
    if not form.is_wrong and form.examined is None:
        form.problems.append(_("Nothing varies yet: give a field several values."))
    if form.is_wrong or form.examined is None:
        return replace(priced, status=max(priced.status, 422), is_refused=True)
    try:
        return Answer(submit_examined(form.examined, caller))
    except (SpecError, limits.Refused) as error:
        form.place(error.problems)
        return Answer(status=422, is_refused=True)
    except quotas.QuotaExceeded as error:
        form.problems.append(error.detail)
        return Answer(status=429, retry_after=error.retry_after, is_refused=True)
    except runs.QueueFull as error:
        sentence = _("Too many runs are waiting. Nothing is lost: send this form again in {seconds} s.")
        form.problems.append(sentence.format(seconds=error.retry_after))
        return Answer(status=503, retry_after=error.retry_after, is_refused=True)


def form_context(request: HttpRequest, form: SweepForm, caller: Caller) -> dict[str, Any]:
    examined = form.examined
    address = form.address()
    return {
        "form": form,
        "preview": examined and preview(examined, caller),
        "curl": examined and not form.is_wrong and snippets.curl(form.body(), request),
        "link": address and request.build_absolute_uri(address),
        "lab": f"{reverse('lab:home')}?{form.base.query()}",
    }


# --- The sweep ------------------------------------------------------------------------------------


@require_safe
@open_sweep
def sweep(request: HttpRequest, sweep: Sweep) -> HttpResponse:
    context = presentation.page(sweep, points.of(sweep, request), request)
    return render(request, "lab/sweeps/sweep.html", context)


@require_safe
@open_sweep
def live(request: HttpRequest, sweep: Sweep) -> HttpResponse:
    """The changing part of the page, once a point began or ended (or after a while, unchanged)."""
    found, waited = points.of(sweep, request), True
    before = request.GET.get("seen", "")
    if presentation.seen(found) == before:
        following = next((point.run for point in found if point.run and not point.has_ended), None)
        if following:
            waited = preferences.wait_for(following, WAIT_SECONDS, for_any_change=True)
            sweep.refresh_from_db(fields=Sweep.CHANGING)
            found = points.of(sweep, request)
    context = presentation.page(sweep, found, request)
    context |= {"is_live": True, "is_new": context["seen"] != before, "pause": not waited}
    return render(request, "lab/sweeps/parts/sweep.html", context)


@require_POST
@open_sweep
def cancel(request: HttpRequest, sweep: Sweep) -> HttpResponse:
    """End what has not ended; a shared link to somebody's sweep is for reading only."""
    if not may_cancel(sweep, request):
        raise Http404
    with suppress(runs.AlreadyFinished):  # its page says so
        sweeps.cancel(sweep.id)
    query = lines.kept(request.GET)
    return redirect(reverse("lab:sweep", kwargs={"sweep_id": sweep.id}) + (f"?{query}" if query else ""))


@require_safe
@open_sweep
def document(request: HttpRequest, sweep: Sweep) -> HttpResponse:
    """The sweep as `GET /api/v1/sweeps/{id}` gives it, for whoever may open the page."""
    content = JSONRenderer().render(representation.represent(sweep, request))
    return HttpResponse(content, content_type="application/json")


@require_safe
@open_sweep
def table(request: HttpRequest, sweep: Sweep) -> HttpResponse:
    """The figures of its points as CSV."""
    return representation.csv_response(sweep)


@require_safe
@open_sweep
def plot(request: HttpRequest, sweep: Sweep, quantity: str) -> HttpResponse:
    """One plot as a file with its own colours, to be put into other documents."""
    if quantity not in plots.BY_NAME:
        raise Http404
    choice = lines.choose(sweep, points.of(sweep, request), request.GET)
    found = plots.Plot(plots.BY_NAME[quantity], choice)
    if found.is_empty:
        raise Http404
    return HttpResponse(found.document, content_type="image/svg+xml")
