"""Everything by which a run leaves its page, and the list of what somebody submitted."""

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from api.callers import caller_of
from api.errors import Problem
from api.models import owner_of
from api.runs.downloads import download
from lab.bodies import bounded
from lab.opening import run_view
from lab.sharing import history, remembered
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
