"""From the id in an address to a run that the link may open, or a page that says why there is none."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache

from api.computing import Busy
from api.runs import sharing
from workers import runs
from workers.models import ID_ALPHABET, Kind, Run

View = Callable[..., HttpResponseBase]

MISSING: dict[str, dict[str, Any]] = {
    "run": {
        "title": gettext_lazy("There is no such run"),
        "start": "lab:home",
        "start_title": gettext_lazy("Start a run"),
    },
    "sweep": {
        "title": gettext_lazy("There is no such sweep"),
        "start": "lab:new_sweep",
        "start_title": gettext_lazy("Start a sweep"),
    },
}


def find(run_id: str, request: HttpRequest) -> Run:
    """The run, if there is one and the link may open it; the two failures look the same."""
    return find_by(run_id, request.GET.get("key", ""))


def find_by(run_id: str, key: str) -> Run:
    """The same, by a key that need not come from the query string."""
    if not set(run_id) <= set(ID_ALPHABET):  # PostgreSQL does not even look for some characters
        raise Http404
    try:
        run = runs.get(run_id)
    except Run.DoesNotExist:
        raise Http404 from None
    if run.kind != Kind.RUN or not sharing.may_open(run, key):
        raise Http404
    return run


def missing(request: HttpRequest, kind: str = "run") -> HttpResponse:
    """The page that says why there is none."""
    return render(request, "lab/missing.html", MISSING[kind], status=404)


def explained(view: View) -> View:
    """That page in the place of a 404; and where nobody can compute now, when to come again."""

    @wraps(view)
    def explained_view(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            return view(request, *args, **kwargs)
        except Http404:
            return missing(request)
        except Busy as busy:
            response = HttpResponse(busy.detail, status=503, content_type="text/plain; charset=utf-8")
            response["Retry-After"] = str(busy.retry_after)
            return response

    return explained_view


def open_run(view: View) -> View:
    """Give the view a run instead of its id, or a page that explains why there is none."""

    @explained
    @wraps(view)
    def with_run(request: HttpRequest, run_id: str, **kwargs: Any) -> HttpResponseBase:
        return view(request, find(run_id, request), **kwargs)

    return with_run


def run_view(view: View) -> View:
    """Of what changes while the run is not done, or may."""
    return never_cache(open_run(view))
