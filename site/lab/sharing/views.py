"""Everything by which a run leaves its page, and the list of what somebody submitted."""

from typing import Any

from csp.constants import NONE
from csp.decorators import csp_replace
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.clickjacking import xframe_options_exempt
from django.views.decorators.http import require_POST, require_safe

from api.callers import caller_of
from api.errors import Problem
from api.models import owner_of
from api.runs.downloads import download
from lab import heatmap
from lab.bodies import bounded
from lab.opening import find, run_view
from lab.sharing import drawings, embedded, history, remembered
from workers.artifacts import WHOLE
from workers.models import Run


@require_safe
@run_view
def file(request: HttpRequest, run: Run, name: str) -> HttpResponseBase:
    """One array or bundle as a file."""
    return sent(request, run, name)


@require_safe
@run_view
def whole(request: HttpRequest, run: Run, form: str) -> HttpResponseBase:
    """Inputs, results and what they are, in one file that is named after the run."""
    return sent(request, run, f"{WHOLE}.{form}", file_name=f"{run.id}.{form}")


def sent(request: HttpRequest, run: Run, name: str, file_name: str = "") -> HttpResponseBase:
    try:
        return download(request, run, name, caller_of(request), file_name=file_name)
    except KeyError:
        raise Http404 from None
    except Problem as problem:  # a table of too many numbers, or of a head that is not there
        return HttpResponse(problem.detail, status=problem.status, content_type="text/plain; charset=utf-8")


@csp_replace({"default-src": [NONE], "style-src": heatmap.style_hashes(), "frame-ancestors": [NONE]})
@require_safe
@run_view
def drawing(request: HttpRequest, run: Run, map_name: str) -> HttpResponseBase:
    """A matrix of one head as a file that needs no other, to be put into other documents."""
    picture = drawings.document(run, map_name, request) if map_name in drawings.NAMES else None
    if picture is None:
        raise Http404
    return HttpResponse(picture, content_type="image/svg+xml")


@csp_replace({"frame-ancestors": ["*"]})  # type: ignore[arg-type]
@xframe_options_exempt
@require_safe
@never_cache
def embed(request: HttpRequest, run_id: str) -> HttpResponse:
    """The run within a page of somebody else's: nothing on it can be changed, and nothing is remembered."""
    theme = request.GET.get("theme", "")
    context: dict[str, Any] = {"theme": theme if theme in embedded.THEMES else ""}
    try:
        context |= embedded.context(find(run_id, request), request)
    except Http404:
        return render(request, "lab/sharing/embed.html", context, status=404)
    return render(request, "lab/sharing/embed.html", context)


# --- History --------------------------------------------------------------------------------------


@require_safe
@never_cache
def past(request: HttpRequest) -> HttpResponse:
    """What this browser submitted, and what the account that is signed in did."""
    context: dict[str, Any] = {
        "items": remembered.of_browser(history.entries(request)),
        "most": history.MOST,
    }
    if request.user.is_authenticated:
        owner = owner_of(request.user.pk)
        context["page"], context["mine"] = remembered.of_account(owner, request.GET.get("page", ""))
    response = render(request, "lab/sharing/history.html", context)
    response["X-Robots-Tag"] = "noindex"
    return response


@bounded
@never_cache
@require_POST
def forget(request: HttpRequest) -> HttpResponse:
    """Take one entry, or all, from this browser's list; the runs themselves stay."""
    response = redirect("lab:history")
    if "all" in request.POST:
        return history.forget_all(response)
    entry = history.parse(request.POST.get("entry", ""))
    return history.forget(response, request, entry) if entry else response
