"""The command that submits a sweep over REST."""

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest
from django.urls import reverse

from lab.sharing.snippets import MAX_BODY, dumps, pretty, quote


def curl(body: Mapping[str, Any], request: HttpRequest) -> str | None:
    """One `curl` command; None when its numbers are too many for a command line."""
    if len(dumps(body)) > MAX_BODY:
        return None
    address = request.build_absolute_uri(reverse("api:sweeps"))
    return (
        f"curl -X POST {address} \\\n"
        f"  -H 'Content-Type: application/json' \\\n"
        f"  -d {quote(pretty(dict(body)))}"
    )
