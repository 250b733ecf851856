"""Commands that do over REST what a page did, to be copied into a terminal."""

import json
from typing import Any

from django.http import HttpRequest
from django.urls import reverse

PLACEHOLDER = "UPLOAD_ID"  # in the place of an upload that is still to be made
SHELL_VARIABLE = """'"$UPLOAD"'"""
MOST_TYPED = 512  # numbers in a command; more are uploaded by it
MAX_BODY = 20_000  # characters; a longer command line is neither readable nor accepted by every shell
SECONDS = 30  # that a command waits for the end of its run


def curl(body: dict[str, Any], request: HttpRequest, inputs_file: str = "") -> str | None:
    """The request as one `curl` command; None when its numbers are too many for a command line.

    Arrays that the body leaves as uploads come from the file at `inputs_file`, by a command before it.
    """
    if len(dumps(body)) > MAX_BODY:
        return None
    sent = quote(pretty(body))
    if not uploads(body) or not inputs_file:
        return command(request, sent)
    upload = (
        f"UPLOAD=$(curl -s {word(inputs_file)} |\n"
        f"  curl -s -F 'file=@-;filename=inputs.npz' {word(uploads_url(request))} |\n"
        """  sed 's/.*"id":"\\([^"]*\\)".*/\\1/')"""
    )
    # The body is in single quotes: they end for the variable and begin again.
    return f"{upload}\n{command(request, sent.replace(PLACEHOLDER, SHELL_VARIABLE))}"


def command(request: HttpRequest, sent: str) -> str:
    return (
        f"curl -X POST {word(runs_url(request))} \\\n"
        f"  -H 'Content-Type: application/json' \\\n"
        f"  -H 'Prefer: wait={SECONDS}' \\\n"
        f"  -d {sent}"
    )


def requests(body: dict[str, Any], request: HttpRequest, inputs_file: str = "") -> str | None:
    """The request as a Python program with the package requests, which waits for the end."""
    if len(dumps(body)) > MAX_BODY:
        return None
    text, lines = python(body), []
    if uploads(body):
        lines = [
            f"# The inputs of the run, {', '.join(uploads(body))} among them, are sent once more.",
            f"inputs = requests.get({inputs_file!r}, timeout=60)",
            "inputs.raise_for_status()",
            'files = {"file": ("inputs.npz", inputs.content)}',
            f"upload = requests.post({uploads_url(request)!r}, files=files, timeout=60)",
            "upload.raise_for_status()",
            "",
        ]
        text = text.replace(word_of(PLACEHOLDER), 'upload.json()["id"]')
    return "\n".join(
        [
            "import requests",
            "",
            *lines,
            f"RUNS = {runs_url(request)!r}",
            f"body = {text}",
            f'wait = {{"Prefer": "wait={SECONDS}"}}',
            "answer = requests.post(RUNS, json=body, headers=wait, timeout=60)",
            "answer.raise_for_status()",
            "run = answer.json()",
            'while run["status"] in ("queued", "running"):  # until it has ended',
            """    run = requests.get(f"{RUNS}/{run['id']}", headers=wait, timeout=60).json()""",
            'print(run["status"], run["url"])',
            'print(run["result"] or run["error"])',
        ]
    )


def uploads(body: dict[str, Any]) -> list[str]:
    """The inputs that stand for something to be uploaded."""
    return [name for name, array in body["inputs"].items() if is_placeholder(array)]


def is_placeholder(array: Any) -> bool:
    return isinstance(array, dict) and array.get("upload") == PLACEHOLDER


def uploads_url(request: HttpRequest) -> str:
    return request.build_absolute_uri(reverse("api:uploads"))


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


def python(body: dict[str, Any]) -> str:
    """As `pretty`, in Python's own words."""
    lines = []
    for name, value in body.items():
        if name == "inputs":
            inputs = "".join(f"        {word_of(key)}: {written(array)},\n" for key, array in value.items())
            lines.append(f'    "inputs": {{\n{inputs}    }},')
        else:
            lines.append(f"    {word_of(name)}: {written(value)},")
    return "\n".join(["{", *lines, "}"])


def written(value: Any) -> str:
    """Of JSON as Python has it, with double quotes."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{word_of(key)}: {written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    return word_of(value) if isinstance(value, str) else repr(value)


def word_of(text: str) -> str:
    return json.dumps(text)


def word(address: str) -> str:
    """An address for a shell: in quotes where it has a query string."""
    return quote(address) if "?" in address or "&" in address else address


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def quote(text: str) -> str:
    """Quoted for a POSIX shell; single quotes keep everything but themselves."""
    return "'" + text.replace("'", "'\\''") + "'"
