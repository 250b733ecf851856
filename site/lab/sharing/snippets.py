"""Commands that do over REST what a page did, to be copied into a terminal."""

import json
from typing import Any

from django.http import HttpRequest
from django.urls import reverse

MAX_BODY = 20_000  # characters; a longer command line is neither readable nor accepted by every shell


def curl(body: dict[str, Any], request: HttpRequest) -> str | None:
    """The request as one `curl` command; None when its numbers are too many for a command line."""
    text = json.dumps(body, ensure_ascii=False)
    if len(text) > MAX_BODY:
        return None
    return (
        f"curl -X POST {runs_url(request)} \\\n"
        f"  -H 'Content-Type: application/json' \\\n"
        f"  -H 'Prefer: wait=30' \\\n"
        f"  -d {quote(pretty(body))}"
    )


def runs_url(request: HttpRequest) -> str:
    return request.build_absolute_uri(reverse("api:runs"))


def pretty(body: dict[str, Any]) -> str:
    """JSON with one line per top-level field and per input: short enough to read, valid to send."""
    lines = []
    for name, value in body.items():
        if name == "inputs":
            inputs = ",\n".join(f"    {dumps(key)}: {dumps(array)}" for key, array in value.items())
            lines.append(f'  "inputs": {{\n{inputs}\n  }}')
        else:
            lines.append(f"  {dumps(name)}: {dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}"


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def quote(text: str) -> str:
    """Quoted for a POSIX shell; single quotes keep everything but themselves."""
    return "'" + text.replace("'", "'\\''") + "'"
