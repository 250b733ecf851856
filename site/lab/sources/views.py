"""Kernels, their source beside what it means. They change with a release alone, so anybody may keep them."""

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import patch_cache_control
from django.utils.translation import get_language
from django.views.decorators.http import require_safe

from concepts.pages import book
from lab.sources import model
from lab.sources.kernels import KERNELS
from lab.sources.numbers import numbers_of

HOUR = 3600


@require_safe
def index(request: HttpRequest) -> HttpResponse:
    return cacheable(render(request, "lab/sources/index.html", {"kernels": KERNELS.values()}))


@require_safe
def kernel(request: HttpRequest, slug: str) -> HttpResponse:
    """The query string may have the numbers that one run was compiled with; the address says all."""
    found = KERNELS.get(slug)
    if found is None:
        raise Http404
    files = [(file, model.parts(file)) for file in found.files]
    context = {
        "kernel": found,
        "files": files,
        "numbers": numbers_of(found, request.GET),
        "concept": book(get_language() or "").pages.get(found.concept),
    }
    return cacheable(render(request, "lab/sources/kernel.html", context))


def cacheable(response: HttpResponse) -> HttpResponse:
    patch_cache_control(response, public=True, max_age=HOUR)
    return response
