"""No answer of the API is ever a page, and no failure ever shows its insides."""

import logging
import re

import pytest
from django.db import OperationalError
from django.test import Client
from django.urls import get_resolver

from tests.api.helpers import BODY, assert_problem
from workers import runs

pytestmark = pytest.mark.django_db

WEIRD = [
    ("POST", "/api/v1/"),
    ("GET", "/api/v1/nothing/here"),
    ("POST", "/api/v1/nothing"),
    ("GET", "/api/v1/runs/"),
    ("GET", "/api/v1/runs/%00"),
    ("GET", "/api/v1/runs/a%0ab"),
    ("GET", "/api/v1/runs/..%2f..%2fetc"),
    ("GET", "/api/v1/runs/none"),
    ("DELETE", "/api/v1/runs/none"),
    ("GET", "/api/v1/runs/none/artifacts/out.npy"),
    ("GET", "/api/v1/runs?cursor=x"),
    ("GET", "/api/v1/runs?cursor=cD0lMDA%3D"),
    ("PATCH", "/api/v1/runs"),
    ("TRACE", "/api/v1/runs"),
    ("PROPFIND", "/api/v1/runs"),
    ("GET", "/api/v1/uploads"),
    ("POST", "/api/v1/healthz"),
    ("POST", "/api/v1/schema/"),
    ("POST", "/api/v1/docs/"),
    ("GET", "/api/v1/schema"),
    ("GET", "/api/v1/docs"),
]


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize(
    "accept", ["text/html,application/xhtml+xml,*/*;q=0.8", "application/json", "image/png"]
)
def test_no_error_of_the_api_is_a_page(settings, accept, debug):
    settings.DEBUG = debug
    client = Client(raise_request_exception=False)
    for method, path in WEIRD:
        answer = client.generic(method, path, headers={"accept": accept})
        assert 400 <= answer.status_code < 500, (method, path)
        assert_problem(answer, answer.status_code)
        assert b"<" not in answer.content


def test_every_address_answers_a_bad_token_with_a_problem():
    """Even those that anybody may use; only the health of the service needs no caller at all."""
    client = Client(raise_request_exception=False)
    for route in get_resolver("api.urls").url_patterns[:-1]:
        path = re.sub(r"<\w+:\w+>", "x", str(route.pattern))
        answer = client.get(f"/api/v1/{path}", headers={"authorization": "Bearer nonsense"})
        if path in ("healthz", "readyz"):
            assert answer.status_code in (200, 503)
        else:
            assert_problem(answer, 401)
            assert answer["WWW-Authenticate"].startswith("Bearer")


def test_a_failure_is_a_500_with_an_incident_and_no_traceback(api, monkeypatch, caplog):
    def fail(*args, **kwargs):
        raise ZeroDivisionError("secret inside")

    monkeypatch.setattr(runs, "prepare", fail)
    with caplog.at_level(logging.ERROR, "api.errors"):
        answer = api.post("/runs", BODY)
    problem = assert_problem(answer, 500)
    assert b"secret" not in answer.content
    assert b"Traceback" not in answer.content
    assert problem["incident"] in problem["detail"]
    assert problem["incident"] in caplog.text
    assert "secret inside" in caplog.text


def test_a_database_that_does_not_answer_is_a_503(api, monkeypatch):
    def fail(*args, **kwargs):
        raise OperationalError("database is locked")

    monkeypatch.setattr(runs, "prepare", fail)
    answer = api.post("/runs", BODY)
    assert_problem(answer, 503)
    assert answer["Retry-After"]


def test_a_full_queue_is_a_503_with_retry_after(api, settings, sent):
    settings.MAX_QUEUED = 0
    answer = api.post("/runs", BODY)
    problem = assert_problem(answer, 503)
    assert problem["type"].endswith("queue-full")
    assert int(answer["Retry-After"]) > 0
    assert sent == []


def test_a_result_that_is_no_json_never_leaves(api, monkeypatch):
    """A bare NaN would be a broken document; the renderer refuses it rather than write it."""
    from api.runs import views

    monkeypatch.setattr(views, "represent", lambda *_: {"id": float("nan")})
    answer = api.post("/runs", BODY)
    assert answer.status_code == 500
    assert b"NaN" not in answer.content


def test_what_was_sent_can_be_quoted_back_whatever_it_is(api):
    answer = api.post("/runs", {**BODY, "engine": "Ünïcode-エンジン-😀"})
    assert_problem(answer, 422, pointer="/engine", says="😀")
