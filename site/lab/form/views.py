"""The form: filled in from a link, priced while somebody types, submitted."""

from typing import Any

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from api.callers import Caller, caller_of
from lab.bodies import bounded
from lab.form import fork, grid, shapes, submission
from lab.form.forms import LabForm
from lab.form.presets.examples import EXAMPLES
from lab.form.presets.models import shapes as shapes_of_models
from lab.form.presets.traps import FLOAT16, TRAPS
from lab.form.state import SHOWN_SOURCE
from lab.opening import find
from lab.runs import presentation
from lab.sharing import history, snippets


@bounded
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def home(request: HttpRequest) -> HttpResponse:
    """The form, filled in from the link; POST runs it, or (`check`) only says what it would cost, or shows it
    with other fields or without a file."""
    caller = caller_of(request)
    if request.method != "POST":
        form, notes = form_of_link(request)
        return form_page(request, form, submission.check(form, caller), notes=notes, status=200)
    form = LabForm(request.POST.copy())
    if {"check", "show", submission.DROP} & set(request.POST):
        submission.keep(form, request.FILES.getlist("files"), caller)
        if "show" in request.POST:
            return shown(request, form, caller)
        status = 200 if submission.DROP in request.POST else None
        return form_page(request, form, submission.check(form, caller), status=status)
    answer = submission.submit(form, request.FILES.getlist("files"), caller)
    if answer.run:
        response = redirect("lab:run", run_id=answer.run.id)
        return history.remember(response, request, "run", answer.run.id)
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
    context = {
        "notes": notes,
        "submitted": submitted,
        "float16": FLOAT16.address,
        **estimate_context(request, form, answer),
    }
    response = render(request, "lab/home.html", context, status=status or answer.status)
    if answer.retry_after:
        response["Retry-After"] = str(answer.retry_after)
    return response


def live(request: HttpRequest, state: QueryDict | None = None) -> tuple[LabForm, submission.Answer]:
    """The form as somebody has it before them, and what it would submit."""
    form = LabForm(request.POST.copy() if state is None else state)
    caller = caller_of(request)
    submission.keep(form, request.FILES.getlist("files"), caller)
    return form, submission.check(form, caller)


@bounded
@never_cache
@require_POST
def estimate(request: HttpRequest) -> HttpResponse:
    """The part under the form, brought up to date while somebody types."""
    form, answer = live(request)
    response = render(request, "lab/form/estimate_live.html", estimate_context(request, form, answer))
    response["HX-Replace-Url"] = form.address() or reverse("lab:home")
    return response


@bounded
@never_cache
@require_POST
def engine(request: HttpRequest) -> HttpResponse:
    """The fields that depend on the engine or on a kind that was just chosen."""
    form, _answer = live(request)
    return render(request, "lab/form/engine_live.html", {"form": form})


@bounded
@never_cache
@require_POST
def inputs(request: HttpRequest) -> HttpResponse:
    """The fields of the inputs: of another source, another size of the grid, or with the files just sent."""
    form, _answer = live(request, carry_over(request.POST.copy()))
    response = render(request, "lab/form/inputs_live.html", {"form": form})
    response["HX-Trigger-After-Settle"] = "lab-inputs"  # the estimate follows
    return response


def carry_over(state: QueryDict) -> QueryDict:
    """Between pasting and the grid the numbers stay, whichever of them was shown; and a size that was chosen
    while the grid was still on its way counts."""
    before, now = state.get(SHOWN_SOURCE), state.get("source")
    if before != now:
        chosen = grid.chosen_sizes(state) if now == "grid" else {}
        if before == "grid":
            grid.absorb(state)
        grid.drop(state)
        if chosen:
            grid.fit(state, chosen)
    return state


def presets(request: HttpRequest) -> HttpResponse:
    """Configurations to begin with."""
    context = {"examples": EXAMPLES, "traps": TRAPS, "shapes": shapes_of_models()}
    return render(request, "lab/form/presets.html", context)


def estimate_context(request: HttpRequest, form: LabForm, answer: submission.Answer) -> dict[str, Any]:
    budget = caller_of(request).budget_seconds
    return {
        "form": form,
        "cost": answer.cost and presentation.estimate(answer.cost, budget),
        "shapes": answer.spec and shapes.lines(answer.spec),
        "share": answer.share and shapes.share(answer.share),
        "shape": answer.spec and presentation.shape_sentence(answer.spec),
        "curl": snippets.curl(answer.body, request) if answer.spec else None,
        "link": (address := form.address()) and request.build_absolute_uri(address),
    }
