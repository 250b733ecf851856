"""Bodies of forms: refused when too much, before anything computes on them."""

from functools import wraps
from typing import Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig, TooManyFieldsSent, TooManyFilesSent
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.csrf import csrf_exempt, csrf_protect

from lab.matrices import MAX_CHARACTERS, brief
from lab.opening import View

# Of one field. A form says itself what is wrong with a text that is a little too long, and shows it again: a
# page that shows one of this length is still a page.
MAX_TEXT = 2 * MAX_CHARACTERS


def too_large(request: HttpRequest) -> bool:
    """Whether a body is longer than any that is read, as far as it says so itself."""
    declared = request.META.get("CONTENT_LENGTH") or "0"
    return declared.isdigit() and int(declared) > settings.MAX_BODY_BYTES


def too_long(request: HttpRequest) -> tuple[str, int] | None:
    """A field with more text than any page shows again, and how much."""
    lengths = ((name, len(text)) for name, texts in request.POST.lists() for text in texts)
    return next((found for found in lengths if found[1] > MAX_TEXT), None)


def bounded(view: View) -> View:
    """Refuse a body that is too long before anything (the CSRF check included) reads it, and one of which a
    part is too much before the view does."""

    @csrf_protect
    @wraps(view)
    def of_fields(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if found := too_long(request):
            name, length = found
            why = _(
                "The field {name} holds {length:,} characters, and at most {most:,} are read: upload many "
                "numbers as a file."
            )
            return refused(request, why.format(name=brief(name), length=length, most=MAX_TEXT))
        return view(request, *args, **kwargs)

    @csrf_exempt
    @wraps(view)
    def bounded_view(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if too_large(request):
            return refused(request)
        try:
            return of_fields(request, *args, **kwargs)
        except RequestDataTooBig:  # it did not say how long it was
            return refused(request)
        except TooManyFieldsSent:
            why = _("More than {most:,} fields were sent: send those that the page has, and no others.")
            return refused(request, why.format(most=settings.DATA_UPLOAD_MAX_NUMBER_FIELDS))
        except TooManyFilesSent:
            why = _("More than {most} files were sent at once: put arrays that belong together into one.")
            return refused(request, why.format(most=settings.DATA_UPLOAD_MAX_NUMBER_FILES))

    return bounded_view


def refused(request: HttpRequest, why: str = "") -> HttpResponse:
    """why: what was too much, if not all of it together."""
    context = {"why": why, "limit": settings.MAX_BODY_BYTES >> 20}
    return render(request, "lab/refused.html", context, status=413)
