#!/usr/bin/env python3
"""Attention Lab from Python: inputs, grading, handing in, runs.

One file that needs Python 3.9 and nothing else. Lay it beside your code.

    from attention_lab import AttentionLab, solve

    lab = AttentionLab("https://attention-lab.example")
    inputs = lab.inputs("root-d", seed=1)
    print(lab.grade("root-d", solve(attention, inputs), seed=1))

    lab = AttentionLab("https://attention-lab.example/en/hand-in/…/?key=…")  # a student's own link
    print(lab.submit(solve(attention, lab.variant())))

Arrays come as nested lists, or as what `array=numpy.asarray` makes of them. They go as nested lists, as
whatever has `__array__`, as torch tensors or as buffers. All but lists keep their dtype, which decides how
precise an answer has to be.

What was refused raises `Refused`, which says which field and why. What could not be answered, after trying
for `patience` seconds, raises `Outage`: then there is no verdict, neither good nor bad.

As a command: `python attention_lab.py --help`.
"""

from __future__ import annotations

import argparse
import base64
import email.utils
import hashlib
import http.client
import inspect
import io
import json
import math
import os
import random
import re
import runpy
import struct
import sys
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

__version__ = "1.0.0"

PATIENCE = float(os.environ.get("ATTENTION_LAB_PATIENCE", "60"))  # seconds of trying a request again
WAIT = float(os.environ.get("ATTENTION_LAB_WAIT", "300"))  # seconds for a verdict
LONGEST_WAIT = 60  # that the server takes in one request
REQUEST_SECONDS = 90.0
MOST_IN_BATCH = 1_000
MOST_BYTES = 24 * 1024**2  # of a batch; the server takes 32 MiB
MOST_UNPACKED = 64 * 1024**2  # of an .npz
CODES = {"float16": "e", "float32": "f", "float64": "d", "int32": "i", "int64": "q", "bool": "?"}
WIDER = {"f": "float64", "i": "int64", "u": "int64", "b": "bool"}  # by the kind of another dtype
OF_NPY = {
    "<f2": "float16",
    "<f4": "float32",
    "<f8": "float64",
    "<i4": "int32",
    "<i8": "int64",
    "|b1": "bool",
}
PASSES = (429, 502, 503, 504)  # what may be otherwise in a moment
WAITING = ("queued", "grading", "running")
ENDED_BADLY = {"failed", "timed_out", "canceled", "error"}
ACCEPTED, NOT_ACCEPTED, REFUSED, OUTAGE = range(4)  # what the command exits with

Array = Callable[[Any], Any]  # what makes an array of nested lists


# --- What may go wrong -----------------------------------------------------------------------


class LabError(Exception):
    """Something that the lab did not answer as hoped. `problem` is its RFC 9457 document, `kind` the last
    part of its type, `errors` what is wrong with which field: [{pointer, code, detail}]."""

    def __init__(
        self, message: str, problem: Mapping[str, Any] | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.problem = dict(problem or {})
        self.retry_after = retry_after

    @property
    def status(self) -> int | None:
        """Of HTTP; None when there was no answer."""
        return self.problem.get("status")

    @property
    def kind(self) -> str:
        return str(self.problem.get("type", "")).rpartition(":")[2]

    @property
    def errors(self) -> list[dict[str, str]]:
        return list(self.problem.get("errors", []))


class Refused(LabError):
    """The lab understood, and will not do it: the same request will be refused again."""


class Outage(LabError):
    """No answer, no place, or no verdict in time, through no fault of the request. Nobody has a score."""


def _error(status: int, headers: Any, body: bytes) -> LabError:
    try:
        problem = json.loads(body)
    except ValueError:
        problem = None
    if not isinstance(problem, dict) or "title" not in problem:
        said = re.sub(r"<[^>]*>|\s+", " ", body[:2_000].decode("utf-8", "replace")).strip()
        problem = {"title": http.client.responses.get(status, "?"), "detail": said[:200]}
    problem["status"] = status
    if 300 <= status < 400:
        problem["detail"] = f"It is at {headers.get('Location')} instead: give that address."
    of_server = status >= 500 or (status in PASSES and not str(problem.get("type")).endswith("-limit"))
    kind = Outage if of_server or _is_in_flight(problem) else Refused
    return kind(_message(problem), problem, _seconds(headers.get("Retry-After")))


def _is_in_flight(problem: Mapping[str, Any]) -> bool:
    """The first request with this Idempotency-Key is still being carried out."""
    return str(problem.get("type", "")).endswith(":idempotency-in-flight")


def _message(problem: Mapping[str, Any]) -> str:
    head = f"{problem.get('status', '')} {problem.get('title', '')}".strip()
    lines = [f"  {each['pointer'] or '(all)'}: {each['detail']}" for each in problem.get("errors", [])]
    if lines:
        return "\n".join([head, *lines])
    return f"{head}: {problem['detail']}" if problem.get("detail") else head


def _seconds(header: str | None) -> float | None:
    """Of Retry-After: seconds, or a date."""
    if not header:
        return None
    if header.strip().isdigit():
        return float(header)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


# --- Arrays ----------------------------------------------------------------------------------


def to_json(value: Any) -> Any:
    """`value` as the lab reads it: arrays as base64, lists as lists, NaN and infinities as words.

    Raises TypeError for what is no array, or is one of complex numbers.
    """
    if isinstance(value, Mapping):
        return {str(name): to_json(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(each.tolist() if hasattr(each, "tolist") else each) for each in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if value is None or isinstance(value, (str, int)):
        return value
    return _of_array(value)


def _of_array(value: Any) -> Any:
    if getattr(value, "shape", None) == ():  # a number that knows its dtype
        return to_json(value.item())
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        return _of_torch(value)
    if hasattr(value, "__array__"):
        return _of_numpy(value.__array__())
    return _of_buffer(value)


def _of_numpy(array: Any) -> dict[str, Any]:
    name = str(array.dtype.name)
    if name not in CODES and name != "bfloat16":
        wider = "float32" if name.startswith("float8") else WIDER.get(array.dtype.kind)
        if wider is None:
            raise TypeError(f"An array of {name} cannot be sent; make it one of {', '.join(CODES)}.")
        array, name = array.astype(wider), wider
    if array.dtype.byteorder == ">" or (sys.byteorder == "big" and array.dtype.byteorder == "="):
        array = array.astype(array.dtype.newbyteorder("<"))
    return _packed(array.tobytes(), name, array.shape)


def _of_torch(tensor: Any) -> dict[str, Any]:
    tensor = tensor.detach().cpu().contiguous()
    if not str(tensor.dtype).endswith("bfloat16"):
        return _of_numpy(tensor.numpy())
    bits = tensor.view(sys.modules["torch"].int16)  # numpy does not know the dtype
    return _packed(bits.numpy().tobytes(), "bfloat16", tensor.shape)


def _of_buffer(value: Any) -> dict[str, Any]:
    """Of array.array, memoryview and the like."""
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(f"{type(value).__name__} is neither a list of numbers nor an array.") from None
    kind = {"e": "float", "f": "float", "d": "float", "?": "bool"}.get(view.format[-1:])
    if kind is None and view.format[-1:] in ("i", "l", "q"):
        kind = "int"
    if kind is None or view.format[:1] in (">", "!"):
        raise TypeError(f"A buffer of {view.format!r} cannot be sent.")
    name = kind if kind == "bool" else f"{kind}{8 * view.itemsize}"
    return _packed(view.tobytes(), name, view.shape or ())


def _packed(raw: bytes, dtype: str, shape: Iterable[int]) -> dict[str, Any]:
    return {"b64": base64.b64encode(raw).decode("ascii"), "dtype": dtype, "shape": [int(n) for n in shape]}


def _numbers(value: Any) -> Any:
    """Nested lists in which NaN and infinities are numbers again."""
    if isinstance(value, list):
        return [_numbers(each) for each in value]
    return float(value) if value in ("inf", "-inf", "nan") else value


def _read_npy(content: bytes) -> tuple[bytes, str, tuple[int, ...]]:
    """The numbers of an .npy in C order, their dtype and shape. ValueError when it is another file."""
    major = content[6] if content[:6] == b"\x93NUMPY" and len(content) > 12 else 0
    size = struct.unpack_from("<H" if major == 1 else "<I", content, 8)[0] if major else 0
    start = (10 if major == 1 else 12) + size
    header = content[10:start].decode("latin-1")
    descr = re.search(r"'descr': *'([^']*)'", header)
    shape = re.search(r"'shape': *\(([0-9, ]*)\)", header)
    if not descr or not shape or descr[1] not in OF_NPY:
        found = f"has numbers of {descr[1]!r}" if descr else "is another file"
        raise ValueError(f"An .npy file of {', '.join(CODES)} can be read; this {found}.")
    sizes = tuple(int(each) for each in shape[1].split(",") if each.strip())
    width = int(descr[1][2:])
    raw = content[start : start + width * math.prod(sizes)]
    if len(raw) < width * math.prod(sizes):
        raise ValueError("The .npy file is cut short.")
    if re.search(r"'fortran_order': *True", header):
        raw = b"".join(raw[at * width : (at + 1) * width] for at in _fortran(sizes))
    return raw, OF_NPY[descr[1]], sizes


def _fortran(shape: Sequence[int]) -> list[int]:
    """Where each number of C order is when the first axis runs fastest."""
    places, stride = [0], 1
    for size in shape:
        places = [place + stride * index for place in places for index in range(size)]
        stride *= size
    return places


def _lists_of_npy(content: bytes) -> Any:
    raw, dtype, shape = _read_npy(content)
    return _nested(struct.unpack(f"<{math.prod(shape)}{CODES[dtype]}", raw), shape)


def _nested(flat: Sequence[Any], shape: Sequence[int]) -> Any:
    if not shape:
        return flat[0]
    if len(shape) == 1:
        return list(flat)
    step = math.prod(shape[1:])
    return [_nested(flat[row * step : (row + 1) * step], shape[1:]) for row in range(shape[0])]


# --- Verdicts and answers --------------------------------------------------------------------


class Verdict(dict):  # type: ignore[type-arg]
    """What the lab found, as it says it (`verdict["score"]`); `str()` of it is for people."""

    @property
    def accepted(self) -> bool:
        return bool(self.get("verdict") == "accepted")

    def __str__(self) -> str:
        said = str(self.get("verdict") or self.get("status") or "graded").replace("_", " ")
        if self.get("reason"):
            said += f", {str(self['reason']).replace('_', ' ')}"
        if self.get("score") is not None:
            said += f": {self['score']:g} of {self['max_score']:g} points"
        return "\n".join([said, *(_line(test) for test in self.get("tests", [])), *self.get("notes", [])])


def _line(test: Mapping[str, Any]) -> str:
    points = f"{test['max_score']:g}"
    if test.get("score") is None:
        return f"  hidden  {test['name']} (of {points})"
    said = f"  {test['status']}  {test['name']} ({test['score']:g} of {points})"
    return f"{said}\n    {test['output']}" if test["status"] == "failed" and test.get("output") else said


def solve(
    function: Callable[..., Any], inputs: Mapping[str, Any], array: Array | None = None
) -> dict[str, dict[str, Any]]:
    """The answers that `function` gives: it is called with the inputs of each case by their names, and with
    `attention`, the settings, if it takes that. What is no dict of results is the result `out`."""
    return {case: _solved(function, named, array) for case, named in _cases(inputs).items()}


def _solved(function: Callable[..., Any], named: Mapping[str, Any], array: Array | None) -> dict[str, Any]:
    taken = inspect.signature(function).parameters.values()
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken)
    leaves = takes_all or any(each.name == "attention" for each in taken)
    given = {name: value for name, value in named.items() if leaves or name != "attention"}
    if array is not None:
        given = {name: array(value) if isinstance(value, list) else value for name, value in given.items()}
    made = function(**given)
    return dict(made) if isinstance(made, Mapping) else {"out": made}


def once(name: str, answers: Mapping[str, Any]) -> str:
    """An external_id under which these very answers are handed in once, however often `name` is run; other
    answers are another submission."""
    content = json.dumps(to_json(answers), sort_keys=True).encode()
    return f"{name}-{hashlib.sha256(content).hexdigest()[:16]}"


def _cases(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    cases: Mapping[str, Any] = inputs.get("cases", inputs)
    return cases


# --- The lab ---------------------------------------------------------------------------------


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the token to wherever it points."""

    def redirect_request(self, *_: Any) -> None:
        return None


class AttentionLab:
    """A lab at `url` (default: $ATTENTION_LAB_URL), with a token ($ATTENTION_LAB_TOKEN) or without one.

    `url` may be the link of a student to an assignment: then it says whose, of what, and no token is needed.
    For `patience` seconds a request is tried again that was not answered, or refused for the moment.
    """

    def __init__(
        self, url: str | None = None, token: str | None = None, *, patience: float = PATIENCE
    ) -> None:
        url = url or os.environ.get("ATTENTION_LAB_URL", "")
        if not re.match(r"https?://[^/\s]", url):
            raise ValueError(f"Give the lab's address, https://…, or set ATTENTION_LAB_URL; not {url!r}.")
        self.token = os.environ.get("ATTENTION_LAB_TOKEN", "") if token is None else token
        self.patience = patience
        self.assignment, self.user_ref, self.key = "", "", ""
        parts = urllib.parse.urlsplit(url.strip())
        self.origin = f"{parts.scheme}://{parts.netloc}"
        path = parts.path
        if link := re.match(r"(.*)/[A-Za-z-]+/hand-in/([^/]+)/", path):
            path, self.assignment = link[1], link[2]
            self.key = urllib.parse.parse_qs(parts.query).get("key", [""])[0]
            self.user_ref = _whose(self.key) if self.key else ""
            self.token = "" if self.key else self.token
        self.base = re.sub(r"(/api/v1)?/*$", "", path) + "/api/v1"
        self._opener = urllib.request.build_opener(_NoRedirects)

    # --- Problems ---

    def inputs(
        self, problem: str, seed: int = 0, *, version: int | None = None, array: Array | None = None
    ) -> dict[str, Any]:
        """The inputs of a problem: {"cases": {case: {"q": …, "attention": {…}}}, …}."""
        found = self.get(f"/problems/{_quoted(problem)}/inputs", seed=seed, version=version)
        return self._with_arrays(found, array)

    def grade(
        self,
        problem: str | None = None,
        answers: Mapping[str, Any] | None = None,
        seed: int | None = None,
        **fields: Any,
    ) -> Verdict:
        """Answers {case: {name: array}} judged at once; nothing is kept. Instead of a problem and a seed:
        `spec={"dtype": …, "attention": {…}}, inputs={"q": …}`."""
        body = {"problem": problem, "seed": seed, **fields}
        given = {name: value for name, value in body.items() if value is not None}
        return Verdict(self.post("/grade", {**given, "answers": answers or {}}))

    # --- Assignments ---

    def variant(
        self, assignment: str | None = None, user_ref: str | None = None, *, array: Array | None = None
    ) -> dict[str, Any]:
        """The inputs of one student, as those of `inputs`; `attempt` says for which of their submissions."""
        where, whose = self._who(assignment, user_ref)
        return self._with_arrays(self.get(f"/assignments/{where}/variants/{_quoted(whose)}"), array)

    def submit(
        self,
        answers: Mapping[str, Any],
        assignment: str | None = None,
        user_ref: str | None = None,
        *,
        external_id: str | None = None,
        attempt: int | None = None,
        wait: float = WAIT,
    ) -> Verdict:
        """Hand in, and wait so many seconds for the verdict (0: take the submission as it is, queued).

        `external_id`: your name of the submission; sent again with the same answers it is the same one.
        `attempt`: that of the variant that is answered, so that answers to earlier inputs are refused.
        """
        where, whose = self._who(assignment, user_ref)
        fields = {"external_id": external_id, "attempt": attempt}
        body = {"user_ref": whose, "answers": answers, **{k: v for k, v in fields.items() if v is not None}}
        first = min(int(wait), LONGEST_WAIT)
        began = time.monotonic()
        document = self.post(f"/assignments/{where}/submissions", body, prefer=f"wait={first}")
        return self.wait(document, wait - (time.monotonic() - began)) if wait else Verdict(document)

    def submit_batch(
        self, submissions: Iterable[Mapping[str, Any]], assignment: str | None = None, *, wait: float = WAIT
    ) -> list[Verdict]:
        """Hand in for many: each {"user_ref", "answers", "external_id"}. Sent in as few requests as the
        limits of the lab allow; answered in order. One that was refused has the status `refused`, and says
        why under `error`. With external_ids the whole may be sent again after an Outage."""
        where = _quoted(assignment or self.assignment)
        until = time.monotonic() + wait
        found: list[Verdict] = []
        for chunk in _chunks(submissions):
            body = b'{"submissions": [' + b",".join(chunk) + b"]}"
            answer = self._json("POST", f"/assignments/{where}/submissions:batch", body)
            found += map(Verdict, answer["results"])
        if not wait:
            return found
        return [
            Verdict({**each, **self._over(each, until - time.monotonic())}) if each["id"] else each
            for each in found
        ]

    def submission(self, submission: str, **query: Any) -> Verdict:
        """As it is now; `view="staff"`: everything, for who teaches."""
        return Verdict(self.get(f"/submissions/{_quoted(submission)}", **query))

    def wait(self, submission: str | Mapping[str, Any], seconds: float = WAIT) -> Verdict:
        """The submission (or its id) once it is graded. Raises Outage when it is not within `seconds`, or
        was lost on the lab's side."""
        document = self._over(submission, seconds)
        if document["status"] in ENDED_BADLY:
            raise _ended_badly(f"Submission {document['id']}", document)
        return Verdict(document)

    def results(self, submission: str | Mapping[str, Any], format: str = "gradescope") -> dict[str, Any]:
        """A verdict as `gradescope` or `prairielearn` take it."""
        name = submission if isinstance(submission, str) else submission["id"]
        found: dict[str, Any] = self.get(f"/submissions/{_quoted(name)}/results", format=format)
        return found

    # --- Runs ---

    def run(
        self,
        engine: str,
        inputs: Mapping[str, Any],
        *,
        returns: Sequence[str] | None = None,
        wait: float = WAIT,
        array: Array | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Run an engine on the lab's machines; `fields` are those of `POST /runs` (attention, dtype, options,
        timing …), `returns` its `return`. The arrays are in `["result"]`."""
        body = {"engine": engine, "inputs": inputs, **fields}
        if returns is not None:
            body["return"] = list(returns)
        document = self.post("/runs", body, prefer=f"wait={min(int(wait), LONGEST_WAIT)}")
        if document["status"] in WAITING and wait:
            document = self._ended(f"/runs/{document['id']}", wait)
        if document["status"] in ENDED_BADLY:
            raise _ended_badly(f"Run {document['id']}", document)
        return {**document, "result": self._unpacked(document.get("result") or {}, array)}

    # --- HTTP ---

    def get(self, path: str, **query: Any) -> Any:
        """GET of a path below /api/v1."""
        return self._json("GET", path, query=query)

    def post(self, path: str, body: Any = None, *, prefer: str = "") -> Any:
        """POST of a body that may hold arrays. Sent again as often as need be, it has its effect once."""
        return self._json("POST", path, json.dumps(to_json(body), allow_nan=False).encode(), prefer=prefer)

    def _who(self, assignment: str | None, user_ref: str | None) -> tuple[str, str]:
        where, whose = assignment or self.assignment, user_ref or self.user_ref
        if not where or not whose:
            raise ValueError("Say which assignment and whose (user_ref), or begin with a student's link.")
        return _quoted(where), whose

    def _over(self, submission: str | Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        """The document of a submission that has ended, however it did."""
        if isinstance(submission, Mapping) and submission.get("status") not in (*WAITING, None):
            return submission if "tests" in submission else self.submission(submission["id"])
        name = submission if isinstance(submission, str) else submission["id"]
        return self._ended(f"/submissions/{_quoted(name)}", seconds)

    def _ended(self, path: str, seconds: float) -> dict[str, Any]:
        until = time.monotonic() + seconds
        while True:
            asked = max(0, min(int(until - time.monotonic()), LONGEST_WAIT))
            found: dict[str, Any] = self._json("GET", path, prefer=f"wait={asked}")
            if found["status"] not in WAITING:
                return found
            if time.monotonic() >= until:
                raise Outage(f"{path} is still {found['status']} after {seconds:.0f} s.")
            time.sleep(min(1.0, max(0.0, until - time.monotonic())))  # too many may be waiting already

    def _with_arrays(self, document: dict[str, Any], array: Array | None) -> dict[str, Any]:
        cases = {case: self._unpacked(named, array) for case, named in document["cases"].items()}
        return {**document, "cases": cases}

    def _unpacked(self, named: Mapping[str, Any], array: Array | None) -> dict[str, Any]:
        def unpack(value: Any) -> Any:
            if isinstance(value, dict) and "artifact" in value:
                value = _lists_of_npy(self._fetch(value["artifact"]))
            elif isinstance(value, list):
                value = _numbers(value)
            return array(value) if array is not None and isinstance(value, list) else value

        return {name: unpack(value) for name, value in named.items()}

    def _fetch(self, address: str) -> bytes:
        parts = urllib.parse.urlsplit(address)  # whatever host it names: the token goes to no other than ours
        return self._send("GET", f"{parts.path}?{parts.query}", None, {})[1]

    def _json(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        prefer: str = "",
    ) -> Any:
        asked = {"key": self.key or None, **(query or {})}
        text = urllib.parse.urlencode({name: value for name, value in asked.items() if value is not None})
        headers = {"Accept": "application/json"}
        if prefer:
            headers["Prefer"] = prefer
        if body is not None:
            headers["Content-Type"] = "application/json"
        status, content = self._send(method, f"{self.base}{path}?{text}".rstrip("?"), body, headers)
        try:
            return json.loads(content)
        except ValueError:
            raise Outage(f"{self.origin} answered {status} with something else than JSON.") from None

    def _send(
        self, method: str, target: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        headers["User-Agent"] = f"attention-lab-python/{__version__}"
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        if method == "POST":
            headers["Idempotency-Key"] = uuid.uuid4().hex
        until, pause = time.monotonic() + self.patience, 0.25
        while True:
            error, answer = self._once(method, target, body, headers)
            if error is None:
                return answer
            seconds = pause * random.uniform(1, 2) if error.retry_after is None else error.retry_after  # noqa: S311
            if error.status not in (None, *PASSES) and not _is_in_flight(error.problem):
                raise error
            if time.monotonic() + seconds > until:
                raise error
            time.sleep(seconds)
            pause = min(2 * pause, 8.0)

    def _once(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[LabError | None, tuple[int, bytes]]:
        address = f"{self.origin}{target}"
        request = urllib.request.Request(address, body, dict(headers), method=method)  # noqa: S310
        try:
            with self._opener.open(request, timeout=REQUEST_SECONDS) as answer:
                return None, (answer.status, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return _error(error.code, error.headers, error.read()), (error.code, b"")
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            return Outage(f"{self.origin} does not answer: {reason}"), (0, b"")


def _ended_badly(what: str, document: Mapping[str, Any]) -> LabError:
    """Of a run or a submission that has no result."""
    problem = document.get("error") or {}
    fault = document.get("fault") or problem.get("fault")
    detail = problem.get("detail") or problem.get("title") or ""
    message = f"{what} is {document['status']}. {detail}".strip()
    return (Outage if fault == "platform" else Refused)(message, problem)


def _quoted(part: str) -> str:
    return urllib.parse.quote(part, safe="")


def _whose(key: str) -> str:
    """The user_ref that a student's key is for: it is written there in base64, and signed."""
    try:
        payload = key.partition(":")[0]
        found = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return str(found[1])
    except (ValueError, LookupError, TypeError):
        raise ValueError("This is no complete link of a student: copy it again, up to its end.") from None


def _chunks(submissions: Iterable[Mapping[str, Any]]) -> Iterator[list[bytes]]:
    """Submissions as JSON, as many together as one request may hold."""
    chunk: list[bytes] = []
    size = 0
    for each in submissions:
        text = json.dumps(to_json(each), allow_nan=False).encode()
        if chunk and (len(chunk) == MOST_IN_BATCH or size + len(text) > MOST_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(text)
        size += len(text)
    if chunk:
        yield chunk


# --- Files -----------------------------------------------------------------------------------


def read_answers(path: str | Path) -> dict[str, Any]:
    """{"answers": {case: {name: array}}} and perhaps "attempt", of a .json, or of an .npz whose members are
    `<case>/<name>`. ValueError when it is neither."""
    if str(path).endswith(".npz"):
        return {"answers": _read_npz(Path(path).read_bytes())}
    found = _read_json(path)
    if not isinstance(found, dict):
        raise ValueError(f'{path} must hold {{"<case>": {{"<name>": …}}}}.')
    return found if isinstance(found.get("answers"), dict) else {"answers": found}


def _read_json(path: str | Path) -> Any:
    try:
        return json.loads(sys.stdin.read() if str(path) == "-" else Path(path).read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from None


def _read_npz(content: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(member.file_size for member in archive.infolist()) > MOST_UNPACKED:
                raise ValueError(f"An .npz of more than {MOST_UNPACKED:,} bytes is not read.")
            for member in archive.namelist():
                case, _slash, name = member.removesuffix(".npy").rpartition("/")
                array = _packed(*_read_npy(archive.read(member)))
                found.setdefault(case, {})[name] = array
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        raise ValueError(f"This is no .npz that can be read: {error}") from None
    return found.get("", {}) if set(found) == {""} else found


# --- The command -----------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Exits with 0 when accepted or done, 1 when not accepted, 2 when refused, 3 when there is no verdict."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.act(options))
    except Outage as error:
        sys.stderr.write(f"No verdict: {error}\n")
        return OUTAGE
    except (LabError, OSError, ValueError, TypeError) as error:
        sys.stderr.write(f"{error}\n")
        return REFUSED


def _inputs(options: argparse.Namespace) -> int:
    return _write(options, _lab(options).inputs(options.problem, options.seed))


def _grade(options: argparse.Namespace) -> int:
    answers = read_answers(options.answers)["answers"]
    return _tell(options, _lab(options).grade(options.problem, answers, options.seed))


def _variant(options: argparse.Namespace) -> int:
    return _write(options, _lab(options).variant(options.assignment, options.user))


def _solve(options: argparse.Namespace) -> int:
    """Every case for itself: one in which the function fails is left out."""
    inputs = _read_json(options.inputs)
    output = os.dup(1)
    os.dup2(2, 1)  # what the function prints is no answer
    try:
        answers = _solved_cases(options.file, options.function, _cases(inputs))
    finally:
        sys.stdout.flush()
        os.dup2(output, 1)
        os.close(output)
    attempt = {"attempt": inputs["attempt"]} if "attempt" in inputs else {}
    _write(options, {**attempt, "answers": answers})
    return ACCEPTED if answers else NOT_ACCEPTED


def _solved_cases(file: str, name: str, cases: Mapping[str, Any]) -> dict[str, Any]:
    array: Array | None = None
    with suppress(ImportError):
        from numpy import asarray as array
    found = {}
    try:
        sys.path.insert(0, str(Path(file).resolve().parent))
        function = runpy.run_path(file).get(name)
        if function is None:
            raise NameError(f"{file} defines no function {name}")
        for case, named in cases.items():
            given = {key: _numbers(value) for key, value in named.items()}
            try:
                found[case] = to_json(_solved(function, given, array))
            except Exception:
                sys.stderr.write(f"Case {case}:\n{traceback.format_exc(limit=-3)}")
    except Exception:
        sys.stderr.write(traceback.format_exc(limit=-3))
    return found


def _handed_in(options: argparse.Namespace) -> tuple[AttentionLab, Verdict]:
    lab = _lab(options)
    found = read_answers(options.answers)
    external_id = once(options.once, found["answers"]) if options.once else None
    verdict = lab.submit(
        found["answers"],
        options.assignment,
        options.user,
        external_id=external_id,
        attempt=found.get("attempt"),
    )
    return lab, verdict


def _submit(options: argparse.Namespace) -> int:
    return _tell(options, _handed_in(options)[1])


def _gradescope(options: argparse.Namespace) -> int:
    """The results.json of a Gradescope autograder."""
    lab, verdict = _handed_in(options)
    return _write(options, lab.results(verdict, "gradescope"))


def _classroom(options: argparse.Namespace) -> int:
    """What GitHub Classroom's grading reporter takes, before base64."""
    verdict = _handed_in(options)[1]
    if verdict.get("score") is None:
        raise Outage("This assignment shows no scores yet.")
    sys.stderr.write(f"{verdict}\n")
    status = "pass" if verdict.accepted else "fail"
    test = {"name": "Attention Lab", "status": status, "score": verdict["score"], "message": str(verdict)}
    return _write(
        options, {"version": 1, "status": status, "max_score": verdict["max_score"], "tests": [test]}
    )


def _run(options: argparse.Namespace) -> int:
    body = _read_json(options.body)
    named = {"returns" if name == "return" else name: value for name, value in body.items()}
    return _write(options, _lab(options).run(**named))


def _lab(options: argparse.Namespace) -> AttentionLab:
    return AttentionLab(options.url)


def _tell(options: argparse.Namespace, verdict: Verdict) -> int:
    if options.json:
        _write(options, verdict)
    else:
        sys.stdout.write(f"{verdict}\n")
    return ACCEPTED if verdict.accepted else NOT_ACCEPTED


def _write(options: argparse.Namespace, document: Any) -> int:
    text = json.dumps(to_json(document), ensure_ascii=False) + "\n"
    if options.output == "-":
        sys.stdout.write(text)
    else:
        Path(options.output).write_text(text, "utf-8")
    return ACCEPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Attention Lab: inputs, grading, handing in, runs.",
        epilog="The address of the lab, or a student's link, is in ATTENTION_LAB_URL, a token in "
        "ATTENTION_LAB_TOKEN. A request is tried again for ATTENTION_LAB_PATIENCE seconds (60), a verdict "
        "awaited for ATTENTION_LAB_WAIT (300). Exits with 0 when accepted or done, 1 when not accepted, "
        "2 when refused, 3 when there is no verdict.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, act: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(act=act)
        added.add_argument("--output", metavar="FILE", default="-", help="write there (default: print)")
        if act is not _solve:
            added.add_argument("--url", metavar="URL", help="of the lab, or a student's link")
        return added

    def of_student(added: argparse.ArgumentParser) -> None:
        added.add_argument("--assignment", metavar="ID", help="default: that of the link")
        added.add_argument("--user", metavar="REF", help="whose (user_ref); default: that of the link")

    def of_answers(added: argparse.ArgumentParser) -> None:
        added.add_argument("answers", metavar="ANSWERS", help=".json, .npz, or - for JSON from the input")

    def hands_in(added: argparse.ArgumentParser) -> None:
        of_answers(added)
        of_student(added)
        added.add_argument(
            "--once", metavar="NAME", help="the same answers under this name are one submission"
        )

    added = command("inputs", _inputs, "The inputs of a problem, as JSON.")
    added.add_argument("problem", metavar="PROBLEM")
    added.add_argument("--seed", type=int, default=0)
    added = command("grade", _grade, "Grade answers to a problem at once; nothing is kept.")
    added.add_argument("problem", metavar="PROBLEM")
    of_answers(added)
    added.add_argument("--seed", type=int, default=0)
    added.add_argument("--json", action="store_true", help="all that was found, as JSON")
    of_student(command("variant", _variant, "The inputs of a student, as JSON."))
    added = command("solve", _solve, "The answers of a function in a file, as JSON.")
    added.add_argument("file", metavar="FILE.py")
    added.add_argument("inputs", metavar="INPUTS", help="what inputs or variant printed; - for the input")
    added.add_argument("--function", metavar="NAME", default="solve", help="default: solve")
    added = command("submit", _submit, "Hand in, and wait for the verdict.")
    hands_in(added)
    added.add_argument("--json", action="store_true", help="all that was found, as JSON")
    hands_in(command("gradescope", _gradescope, "Hand in, and print results.json for Gradescope."))
    hands_in(command("classroom", _classroom, "Hand in, and print a result for GitHub Classroom's reporter."))
    added = command("run", _run, "Run an engine.")
    added.add_argument("body", metavar="BODY.json", help="as POST /runs takes it; - for the input")
    return parser


if __name__ == "__main__":
    sys.exit(main())
