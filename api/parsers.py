"""Reading request bodies: bounded while they stream in, and strict."""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, Protocol

from django.conf import settings
from django.http import HttpRequest
from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from api import strict_json
from api.errors import Problem

CHUNK = 64 * 1024
DRAIN_SECONDS = 10.0


class Readable(Protocol):
    def read(self, size: int = ..., /) -> bytes: ...
    def readline(self, size: int = ..., /) -> bytes: ...


class BoundedStream:
    """A request body that turns into a 413 as soon as it is known to be longer than allowed."""

    def __init__(self, stream: Readable, limit: int, declared: int | None) -> None:
        self._stream, self._limit, self._declared, self._seen = stream, limit, declared, 0

    def read(self, size: int = -1) -> bytes:
        return self._counted(self._stream.read, size)

    def readline(self, size: int = -1) -> bytes:
        return self._counted(self._stream.readline, size)

    def _counted(self, take: Callable[[int], bytes], size: int) -> bytes:
        if self._declared is not None and self._declared > self._limit:
            self._refuse()
        allowed = self._limit - self._seen + 1
        try:
            data = take(allowed if size < 0 else min(size, allowed))
        except Exception as error:  # whatever the server raises for a broken chunk or a lost client
            raise Problem(400, "The body broke off or its chunks are malformed; send it again.") from error
        self._seen += len(data)
        if self._seen > self._limit:
            self._refuse()
        return data

    def _refuse(self) -> None:
        # Closing on a client that still sends would reset the connection before it has read why.
        # So take in (and forget) about as much again as is allowed, for a while.
        until = time.monotonic() + DRAIN_SECONDS
        left = 2 * self._limit
        while left > 0 and time.monotonic() < until and (data := self._stream.read(min(CHUNK, left))):
            left -= len(data)
        size = f"{self._declared:,} bytes" if self._declared else "longer"
        limit = f"{self._limit:,} bytes ({self._limit / 2**20:g} MiB)"
        raise Problem(
            413,
            f"The body is {size}; the limit is {limit}. Send arrays as base64 instead of lists, "
            'or have them made on the worker with {"seed", "shape"}.',
        )


def bound(request: HttpRequest) -> None:
    """Bound the body of `request`, and let a chunked one be read at all.

    Django treats a body without Content-Length as empty. A WSGI server that ends the input itself
    (`wsgi.input_terminated`, as gunicorn does) lets us read it nevertheless.
    """
    encoding = request.META.get("HTTP_CONTENT_ENCODING", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise Problem(415, f"Content-Encoding {encoding!r} is not understood; send the body as it is.")
    stream: Readable = request._stream
    declared: int | None = _declared_length(request)
    chunked = "chunked" in request.META.get("HTTP_TRANSFER_ENCODING", "").lower()
    if chunked and request.META.get("wsgi.input_terminated"):
        stream, declared = request.META["wsgi.input"], None
        request.META["CONTENT_LENGTH"] = str(settings.MAX_BODY_BYTES)  # an upper bound: "there is a body"
    request._stream = BoundedStream(stream, settings.MAX_BODY_BYTES, declared)  # type: ignore[assignment]


def _declared_length(request: HttpRequest) -> int:
    try:
        return int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return 0


def blocks(stream: Readable) -> Iterator[bytes]:
    while data := stream.read(CHUNK):
        yield data


class StrictJSONParser(BaseParser):
    """RFC 8259 and nothing more (see `api.strict_json`); leaves the body's digest for idempotency."""

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        data = b"".join(blocks(stream))
        if isinstance(parser_context, dict):
            parser_context["body_sha256"] = hashlib.sha256(data).hexdigest()
        return strict_json.loads(data)


def json_body(request: Request) -> Any:
    """The parsed JSON body; an absent body is an error rather than an empty object."""
    if not _declared_length(request._request):
        raise Problem(400, "The body is empty; send a JSON document.")
    return request.data


def body_digest(request: Request) -> str:
    """SHA-256 of the JSON body as it was sent (after `json_body`)."""
    return str(request.parser_context["body_sha256"])
