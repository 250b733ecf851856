"""Bodies of forms: refused when too long, before anything reads them."""

from functools import wraps
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.csrf import csrf_exempt, csrf_protect

from lab.opening import View


def too_large(request: HttpRequest) -> bool:
    """Whether a body is longer than any that is read, as far as it says so itself."""
    declared = request.META.get("CONTENT_LENGTH") or "0"
    return declared.isdigit() and int(declared) > settings.MAX_BODY_BYTES


def bounded(view: View) -> View:
    """Refuse a body that is too long before anything (the CSRF check included) reads it."""
    protected = csrf_protect(view)

    @csrf_exempt
    @wraps(view)
    def bounded_view(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if too_large(request):
            return render(request, "lab/refused.html", {"limit": settings.MAX_BODY_BYTES >> 20}, status=413)
        return protected(request, *args, **kwargs)

    return bounded_view
