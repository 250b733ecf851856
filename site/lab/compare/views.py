"""The page of a comparison and what it is made of; a flip, which leads to it; numbers from elsewhere."""

from dataclasses import dataclass
from functools import wraps
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.cache import patch_cache_control
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from api import preferences
from api.callers import caller_of
from api.computing import Busy
from api.runs.submission import submit_body
from kernels import flips
from kernels.spec import RunSpec, SpecError
from lab.bodies import bounded
from lab.compare import chosen as choosing
from lab.compare import elsewhere as elsewhere_
from lab.compare import looks, questions, sections, submission
from lab.compare.chosen import Chosen
from lab.compare.configurations import LETTERS
from lab.opening import View, explained, find_by, missing
from lab.runs import maps, presentation
from lab.runs.choice import Choice
from lab.runs.maps import Map
from lab.sharing import history
from workers import limits, quotas, runs
from workers.models import Run, Status

WAIT_SECONDS = 10
DAY = 24 * 3600


def of_runs(view: View) -> View:
    """Give the view the runs of the query string, or a page that explains why there are none."""

    @explained
    @wraps(view)
    def with_runs(request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        return view(request, choosing.read(request), **kwargs)

    return with_runs


# --- The comparison -------------------------------------------------------------------------------


@require_safe
@never_cache
def compare(request: HttpRequest) -> HttpResponseBase:
    """The runs of the query string side by side; without any, a form that asks which."""
    if pasted := choosing.of_boxes(request.GET.getlist(choosing.BOX)):
        return redirect(f"{reverse('lab:compare')}?{urlencode(pasted)}")
    if not request.GET.get(choosing.FIELD):
        return render(request, "lab/compare/choose.html", {"questions": questions.QUESTIONS})
    return _comparison(request)


@of_runs
def _comparison(request: HttpRequest, chosen: Chosen) -> HttpResponse:
    if len(chosen.runs) == 1:
        return redirect(chosen.page_of(chosen.first) + "#change")
    context = sections.page(chosen, request)
    return _with_look(request, chosen, context, "lab/compare/page.html")


def _with_look(request: HttpRequest, chosen: Chosen, context: dict[str, Any], template: str) -> HttpResponse:
    """The page with its matrices; where nobody can compute now, without them and with 503."""
    second = chosen.second(request.GET)
    if second is None or not looks.can_look(chosen, second):
        return render(request, template, context)
    try:
        found = look(request, chosen, second)
    except Busy as busy:
        response = render(request, template, {**context, "busy": busy.detail}, status=503)
        response["Retry-After"] = str(busy.retry_after)
        return response
    link = sections.Links(chosen, request.GET)
    context |= {"matrices": sections.matrices(found, link, request.GET)}
    return render(request, template, context)


def look(request: HttpRequest, chosen: Chosen, second: Run) -> looks.Look:
    choice = Choice.read(request.GET, RunSpec.from_dict(chosen.first.spec))
    return looks.look(chosen.first, second, choice.batch, choice.head, request)


@require_safe
@never_cache
@of_runs
def live(request: HttpRequest, chosen: Chosen) -> HttpResponse:
    """The changing part of the page, once one of the runs has changed (or after a while, unchanged)."""
    seen = request.GET.get("seen", sections.statuses(chosen))
    waiting = next((run for run in chosen.runs if not run.is_terminal), None)
    waited = True
    if waiting is not None and seen == sections.statuses(chosen):
        waited = preferences.wait_for(waiting, WAIT_SECONDS, for_any_change=True)
    context = sections.page(chosen, request) | {
        "is_live": True,
        "is_new": seen != sections.statuses(chosen),
        "pause": not waited,
    }
    return _with_look(request, chosen, context, "lab/compare/live.html")


def _looked(request: HttpRequest, chosen: Chosen) -> looks.Look:
    second = chosen.second(request.GET)
    if second is None or not looks.can_look(chosen, second):
        raise Http404
    return look(request, chosen, second)


@require_safe
@of_runs
def cell(request: HttpRequest, chosen: Chosen) -> HttpResponse:
    """The arithmetic of one cell in both runs, for the page that shows another one already."""
    found = sections.cell(_looked(request, chosen), request.GET)
    if found is None:
        raise Http404
    letter = LETTERS[chosen.runs.index(chosen.second(request.GET) or chosen.first)]
    return render(request, "lab/compare/cell.html", {"cell": found, "second_letter": letter})


@require_safe
@of_runs
def picture(request: HttpRequest, chosen: Chosen, map_name: str) -> HttpResponse:
    """A map of differences as a picture. It never changes."""
    one: Map | None = _looked(request, chosen).maps.get(map_name)
    if one is None or not one.levels.size:
        raise Http404
    content = sections.picture(maps.asked(one, request.GET), request.GET.get("theme", ""))
    response = HttpResponse(content, content_type="image/png")
    patch_cache_control(response, private=True, max_age=DAY, immutable=True)
    return response


# --- Flip one convention --------------------------------------------------------------------------


@bounded
@never_cache
@require_POST
def flip(request: HttpRequest) -> HttpResponse:
    """Submit the run with one thing changed, and go to the comparison of the two."""
    key = request.POST.get("key", "")
    try:
        run = find_by(request.POST.get("run", ""), key)
        found = flips.find(RunSpec.from_dict(run.spec), request.POST.get("flip", ""))
    except Http404:
        return missing(request)
    if found is None:
        detail = _("flip: this change does not apply to this run.")
        return _refused(request, run, key, Refusal(detail, 422))
    try:
        new = submission.submit(run, found, caller_of(request))
    except Exception as error:
        if (refusal := Refusal.of(error)) is None:
            raise
        return _refused(request, run, key, refusal)
    both = choosing.of_run(run, key).with_run(new)
    return history.remember(redirect(both.address()), request, "run", new.id)


@dataclass(frozen=True)
class Refusal:
    """Why a run was not taken."""

    detail: str
    status: int
    retry_after: int | None = None

    @classmethod
    def of(cls, error: Exception) -> "Refusal | None":
        """What is said of an error of a submission; None for any other."""
        match error:
            case submission.InputsGone():
                return cls(str(error), 409)
            case SpecError() | limits.Refused():
                details = [f"{problem.pointer}: {problem.detail}." for problem in error.problems]
                return cls(" ".join(details), 422)
            case quotas.QuotaExceeded():
                return cls(error.detail, 429, error.retry_after)
            case runs.QueueFull():
                return cls(str(error), 503, error.retry_after)
        return None


def _refused(request: HttpRequest, run: Run, key: str, refusal: Refusal) -> HttpResponse:
    context = {"detail": refusal.detail, "back": choosing.of_run(run, key).page_of(run)}
    response = render(request, "lab/compare/refused.html", context, status=refusal.status)
    if refusal.retry_after:
        response["Retry-After"] = str(refusal.retry_after)
    return response


# --- Numbers from elsewhere -----------------------------------------------------------------------


@bounded
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@of_runs
def elsewhere(request: HttpRequest, chosen: Chosen) -> HttpResponse:
    """Paste or upload an output; the answer says which convention it was computed with."""
    run = chosen.first
    spec = RunSpec.from_dict(run.spec)
    if "wait" in request.GET:  # a page that waits for the run to be done
        preferences.wait_for(run, WAIT_SECONDS)
    context = {
        **presentation.about(run, request),
        "chosen": chosen,
        "address": chosen.page_of(run),
        "action": chosen.address("lab:elsewhere"),
        "question": questions.BY_SLUG.get(request.GET.get("about", "")),
        "form": elsewhere_.Form(initial={"dtype": spec.dtype}, auto_id="elsewhere-%s"),
        "why_not": elsewhere_.unable(run, spec),
        "key": chosen.keys.get(run.id, ""),
    }
    if run.status != Status.SUCCEEDED:
        return render(request, "lab/compare/elsewhere.html", context)
    context["code"] = elsewhere_.inputs_as_code(run)
    if request.method != "POST":
        return render(request, "lab/compare/elsewhere.html", context)
    form = context["form"] = elsewhere_.Form(request.POST, request.FILES, auto_id="elsewhere-%s")
    if form.is_valid():
        _judge(request, run, form, context)
    status = 422 if form.errors else context.pop("status", 200)
    response = render(request, "lab/compare/elsewhere.html", context, status=status)
    if "retry_after" in context:
        response["Retry-After"] = str(context["retry_after"])
    return response


def _judge(request: HttpRequest, run: Run, form: "elsewhere_.Form", context: dict[str, Any]) -> None:
    """The verdict, or what is wrong, into the context or the form."""
    text, file = form.cleaned_data["out"], form.cleaned_data["file"]
    if not text.strip() and file is None:
        form.add_error("out", _("Paste the output, or choose a file."))
        return
    try:
        verdict = elsewhere_.judge(run, elsewhere_.read(text, file), form.cleaned_data["dtype"], request)
    except elsewhere_.Problem as problem:
        form.add_error("file" if file else "out", str(problem))
    except Busy as busy:
        context |= {"busy": busy.detail, "status": 503, "retry_after": busy.retry_after}
    else:
        context["verdict"] = elsewhere_.shown(verdict)


@bounded
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def conventions(request: HttpRequest) -> HttpResponse:
    """Which convention does somebody's code use? A few questions, each with inputs that tell."""
    if request.method != "POST":
        return render(request, "lab/compare/conventions.html", {"questions": questions.QUESTIONS})
    question = questions.BY_SLUG.get(request.POST.get("question", ""))
    if question is None:
        raise Http404
    try:
        run = submit_body(question.body, caller=caller_of(request)).run
    except (quotas.QuotaExceeded, runs.QueueFull) as error:
        return _not_started(request, Refusal.of(error))
    address = f"{choosing.of_run(run, '').address('lab:elsewhere')}&about={question.slug}"
    return history.remember(redirect(address), request, "run", run.id)


def _not_started(request: HttpRequest, refusal: Refusal | None) -> HttpResponse:
    detail, status = (refusal.detail, refusal.status) if refusal else ("", 503)
    context = {"questions": questions.QUESTIONS, "detail": detail}
    response = render(request, "lab/compare/conventions.html", context, status=status)
    if refusal and refusal.retry_after:
        response["Retry-After"] = str(refusal.retry_after)
    return response
