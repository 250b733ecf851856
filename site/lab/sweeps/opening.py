"""From the id in an address to a sweep that the link may open, or a page that says why there is none."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache

from api.models import owner_of
from api.sweeps import sharing
from lab.opening import missing
from workers import sweeps
from workers.models import ID_ALPHABET, Sweep

View = Callable[..., HttpResponse]


def find(sweep_id: str, request: HttpRequest) -> Sweep:
    """The sweep, if there is one and the link may open it; the two failures look the same."""
    if not set(sweep_id) <= set(ID_ALPHABET):  # PostgreSQL does not even look for some characters
        raise Http404
    try:
        sweep = sweeps.get(sweep_id)
    except Sweep.DoesNotExist:
        raise Http404 from None
    if not sharing.may_open(sweep, request.GET.get("key", "")):
        raise Http404
    return sweep


def open_sweep(view: View) -> View:
    """Give the view a sweep instead of its id, or a page that explains why there is none."""

    @wraps(view)
    def with_sweep(request: HttpRequest, sweep_id: str, **kwargs: Any) -> HttpResponse:
        try:
            return view(request, find(sweep_id, request), **kwargs)
        except Http404:
            return missing(request, "sweep")

    return never_cache(with_sweep)


def may_cancel(sweep: Sweep, request: HttpRequest) -> bool:
    """Of a sweep that nobody owns, who knows its address; else its owner: a shared link is for reading."""
    user = request.user
    return not sweep.owner or (user.is_authenticated and sweep.owner == owner_of(user.pk))
