"""Everything by which a run leaves its page."""

from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_safe

from api.callers import caller_of
from api.errors import Problem
from api.runs.downloads import download
from lab.opening import run_view
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
