"""A file of a run as a response, for the API and for the pages."""

from typing import Any

from django.http import HttpRequest, HttpResponse

from workers import artifacts
from workers.models import Run


def download(request: HttpRequest, run: Run, name: str) -> HttpResponse:
    """The artifact `name` as an attachment; KeyError(name) when the run has no such file."""
    content, media_type = artifacts.open_artifact(run, name)
    # Random floats do not compress; without this the middleware would spend seconds on finding out.
    request.META["HTTP_ACCEPT_ENCODING"] = "identity"
    headers: dict[str, Any] = {
        "Content-Disposition": f'attachment; filename="{run.id}-{name}"',
        "X-Content-Type-Options": "nosniff",
    }
    return HttpResponse(content, content_type=media_type, headers=headers)
