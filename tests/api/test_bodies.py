"""The envelope of a request: media type, size, encoding, method, address."""

import io
import json

import pytest
from django.core.handlers.wsgi import WSGIRequest
from django.test import RequestFactory

from api import parsers
from api.errors import Problem
from api.parsers import BoundedStream, bound
from tests.api.helpers import BODY, assert_problem
from workers.models import Run

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "empty"),
        (b"{", "character 1"),
        (b'{"engine": "flash", "engine": "eager"}', "'engine'"),
        (b'{"scale": NaN}', '"nan"'),
        (b"[" * 65 + b"]" * 65, "64 levels"),
        (b"\xff\xfe{}", "UTF-8"),
    ],
)
def test_malformed_json_is_a_400_that_says_where(api, body, says):
    problem = assert_problem(api.post("/runs", body), 400, says=says)
    assert problem["type"].endswith(":malformed")


def test_a_repeated_key_has_a_pointer(api):
    body = b'{"engine": "flash", "inputs": {"q": [[1]], "q": [[2]]}}'
    assert_problem(api.post("/runs", body), 400, pointer="/inputs/q", code="repeated-key")


def test_a_body_over_the_limit_is_413_by_its_length_alone(api, settings):
    settings.MAX_BODY_BYTES = 1000
    assert_problem(api.post("/runs", b" " * 1001), 413, says=["1,001 bytes", "1,000 bytes"])
    assert_problem(api.post("/runs", b" " * 1000), 400)


def test_an_upload_over_the_limit_is_413(api, settings):
    settings.MAX_BODY_BYTES = 1000
    assert_problem(api.upload(b" " * 1001), 413)


class Endless(io.BytesIO):
    """A body that never ends, and counts what was taken of it."""

    taken = 0

    def read(self, size=-1):
        self.taken += size
        return b"0" * size


def test_a_body_without_a_length_is_cut_off_while_it_streams():
    source = Endless()
    stream = BoundedStream(source, 100_000, None)
    with pytest.raises(Problem, match="limit") as caught:
        b"".join(parsers.blocks(stream))
    assert caught.value.status == 413
    assert source.taken < 400_000


def chunked(body):
    environ = RequestFactory().post("/api/v1/runs", content_type="application/json").environ
    del environ["CONTENT_LENGTH"]
    environ |= {
        "HTTP_TRANSFER_ENCODING": "chunked",
        "wsgi.input": io.BytesIO(body),
        "wsgi.input_terminated": True,
    }
    return WSGIRequest(environ)


def test_a_chunked_body_is_read_and_bounded(settings):
    from api.runs.views import RunsView

    settings.ALLOWED_HOSTS = ["testserver"]
    answer = RunsView.as_view()(chunked(json.dumps(BODY).encode()))
    assert answer.status_code == 202
    settings.MAX_BODY_BYTES = 100
    assert RunsView.as_view()(chunked(json.dumps(BODY).encode())).status_code == 413


def test_only_bodies_as_they_are():
    request = RequestFactory().post(
        "/", b"x", content_type="application/json", headers={"content-encoding": "gzip"}
    )
    with pytest.raises(Problem, match="gzip") as caught:
        bound(request)
    assert caught.value.status == 415


@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_other_media_types_are_415(api, media_type):
    assert_problem(api.post("/runs", b"{}", content_type=media_type), 415)


def test_json_to_uploads_is_415(api):
    assert_problem(api.post("/uploads", {}), 415)


def test_json_with_a_charset_is_json(api):
    assert api.post("/runs", BODY, content_type="application/json; charset=utf-8").status_code == 202


def test_what_cannot_be_accepted_is_406(api):
    assert_problem(api.get("/engines", accept="text/html"), 406)


def test_other_methods_are_405_with_the_allowed_ones(api):
    answer = api.request("PUT", "/runs", {})
    assert_problem(answer, 405, says="GET, POST")
    assert "POST" in answer["Allow"]


def test_a_cookie_and_no_csrf_token_are_fine(api):
    """The API knows nobody by cookie, so there is nothing to forge."""
    api.client.handler.enforce_csrf_checks = True
    assert api.post("/runs", BODY).status_code == 202
    assert Run.objects.count() == 1
