"""`Idempotency-Key`: however often a request is sent, it has its effect once."""

import datetime
import io
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from api import idempotency, pure
from api.models import IdempotencyKey
from api.urls import urlpatterns
from tests.api.conftest import Api
from tests.api.helpers import BODY, assert_problem, changed, finish
from workers import runs
from workers.models import Run

pytestmark = pytest.mark.django_db(transaction=True)


def post(api, body=BODY, key="k1", **headers):
    return api.post("/runs", body, **{"idempotency-key": key}, **headers)


def test_sent_again_it_is_the_same_run_charged_once(api, charged, sent):
    first, again = post(api), post(api)
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["id"] == again.json()["id"]
    assert again["Location"] == first["Location"]
    assert "Idempotent-Replayed" not in first
    assert again["Idempotent-Replayed"] == "true"
    assert (Run.objects.count(), len(charged), len(sent)) == (1, 1, 1)


def test_the_replay_shows_the_run_as_it_is_now(api):
    finish(post(api).json()["id"])
    answer = post(api)
    assert (answer.status_code, answer.json()["status"]) == (202, "succeeded")  # nobody asked to wait
    assert post(api, prefer="wait=5").status_code == 200


def test_another_body_is_refused(api, sent):
    post(api)
    problem = assert_problem(post(api, changed("/engine", "eager")), 422, says="new key")
    assert problem["type"].endswith("idempotency-mismatch")
    assert len(sent) == 1


def test_the_same_key_for_another_address_is_refused(api):
    post(api)
    answer = api.upload(b"x", **{"idempotency-key": "k1"})
    assert assert_problem(answer, 422)["type"].endswith("idempotency-mismatch")


def test_keys_belong_to_their_caller(api, alice, bob):
    ids = {post(caller).json()["id"] for caller in (api, alice, bob, Api(address="203.0.113.99"))}
    assert len(ids) == 4


def test_a_refused_request_does_not_use_the_key_up(api):
    assert post(api, {}).status_code == 400
    assert post(api).status_code == 202


def test_a_failure_does_not_use_the_key_up(api, monkeypatch, sent):
    with monkeypatch.context() as broken:
        broken.setattr(runs, "record", lambda *_, **__: 1 / 0)
        assert post(api).status_code == 500
    answer = post(api)
    assert answer.status_code == 202
    assert "Idempotent-Replayed" not in answer
    assert len(sent) == 1


def test_over_quota_the_key_is_not_used_up(api, monkeypatch):
    from workers import quotas

    def refuse(*_):
        raise quotas.QuotaExceeded(quotas.Quota("runs", "runs", 1, 60), 5)

    with monkeypatch.context() as full:
        full.setattr(quotas, "charge", refuse)
        assert_problem(post(api), 429)
    assert (Run.objects.count(), IdempotencyKey.objects.count()) == (0, 0)
    assert post(api).status_code == 202


def test_while_the_first_is_under_way_the_second_is_told_to_wait(api, sent):
    post(api)
    IdempotencyKey.objects.update(resource="")
    answer = post(api)
    problem = assert_problem(answer, 409)
    assert problem["type"].endswith("idempotency-in-flight")
    assert answer["Retry-After"]
    IdempotencyKey.objects.update(created_at=timezone.now() - datetime.timedelta(minutes=5))
    assert post(api).status_code == 202  # the first one must have died
    assert len(sent) == 2


def test_of_two_at_the_same_moment_one_makes_the_run(api, monkeypatch, charged, sent):
    """The second looks before the first has committed, finds nothing, and loses at the constraint."""
    first = post(api).json()["id"]
    look, looks = idempotency.find, []

    def too_early(key):
        looks.append(key)
        return None if len(looks) == 1 else look(key)

    monkeypatch.setattr(idempotency, "find", too_early)
    answer = post(api)
    assert answer.status_code == 202
    assert answer.json()["id"] == first
    assert answer["Idempotent-Replayed"] == "true"
    assert (Run.objects.count(), len(charged), len(sent)) == (1, 1, 1)


def test_a_key_is_kept_for_a_day(api, sent):
    post(api)
    IdempotencyKey.objects.update(created_at=timezone.now() - datetime.timedelta(hours=25))
    assert "Idempotent-Replayed" not in post(api)
    assert len(sent) == 2
    IdempotencyKey.objects.update(created_at=timezone.now() - datetime.timedelta(hours=25))
    post(api, key="another")  # each use clears what is over
    assert list(IdempotencyKey.objects.values_list("key", flat=True)) == ["another"]


def test_when_the_run_is_gone_the_request_is_new(api, sent):
    post(api)
    Run.objects.all().delete()
    answer = post(api)
    assert answer.status_code == 202
    assert "Idempotent-Replayed" not in answer
    assert len(sent) == 2


@pytest.mark.parametrize("key", [" ", "x" * 256, "ünïcode", "a\tb"])
def test_what_cannot_be_a_key_is_400(api, sent, key):
    answer = post(api, key=key)
    if key.strip():
        assert_problem(answer, 400, says="Idempotency-Key")
        assert sent == []


# --- Every POST, those without an effect among them -----------------------------------------------

# Those of grading need a token and rows to be about: see tests/api/grading.
POSTS = [
    str(route.pattern)
    for route in urlpatterns
    if hasattr(getattr(route.callback, "cls", None), "post")
    and str(route.pattern).partition("/")[0] not in ("problems", "assignments", "webhooks")
]
ESTIMATE, OTHER = "estimates/kv-cache", "estimates/memory"


def npy(*numbers):
    file = io.BytesIO()
    np.save(file, np.array(numbers, np.float32))
    return file.getvalue()


@pytest.fixture
def senders(document):
    """For the address of a POST, what sends it: a request that is right, and one with another body."""

    def of(path):
        (media_type,) = content = document["paths"][f"/api/v1/{path}"]["post"]["requestBody"]["content"]
        if media_type == "multipart/form-data":
            return tuple(
                lambda caller, key, file=file: caller.upload(file, **{"idempotency-key": key})
                for file in (npy(1, 2), npy(1, 3))
            )
        example = next(iter(content[media_type]["examples"].values()))["value"]
        return tuple(
            lambda caller, key, body=body: caller.post(f"/{path}", body, **{"idempotency-key": key})
            for body in (example, {})
        )

    return of


def test_there_are_posts_to_try():
    assert {"runs", "compiles", "uploads", ESTIMATE, OTHER, "simulations/batching"} <= set(POSTS)


@pytest.mark.parametrize("path", POSTS)
def test_every_post_honours_a_key(api, alice, senders, document, path):
    send, send_another = senders(path)
    first, again = send(api, "k1"), send(api, "k1")
    assert first.status_code in {200, 201, 202}, first.content[:300]
    assert "Idempotent-Replayed" not in first
    assert (again.status_code, again["Idempotent-Replayed"]) == (first.status_code, "true")
    assert again.json() == first.json()
    send_elsewhere = senders(OTHER if path == ESTIMATE else ESTIMATE)[0]
    for answer in (send_another(api, "k1"), send_elsewhere(api, "k1")):
        assert assert_problem(answer, 422, says="new key")["type"].endswith("idempotency-mismatch")
    for key in ("x" * 256, "ünïcode", "a\tb"):
        assert_problem(send(api, key), 400, says="Idempotency-Key")
    assert "Idempotent-Replayed" not in send(alice, "k1")


def test_of_every_post_and_of_nothing_else_it_is_described(document):
    for operations in document["paths"].values():
        for method, operation in operations.items():
            names = [each["name"] for each in operation.get("parameters", [])]
            assert names.count("Idempotency-Key") == (method == "post")


@pytest.mark.parametrize("path", sorted({*POSTS} - {"uploads"}))  # of two files, both are right
def test_what_was_refused_does_not_use_a_key_up(api, senders, path):
    send, send_nothing = senders(path)
    assert send_nothing(api, "k1").status_code in {400, 422}
    assert send(api, "k1").status_code < 300


def test_a_key_without_a_resource_is_for_a_day_too(api, senders):
    send, _ = senders(ESTIMATE)
    send(api, "k1")
    IdempotencyKey.objects.update(created_at=timezone.now() - datetime.timedelta(hours=23))
    assert "Idempotent-Replayed" in send(api, "k1")
    IdempotencyKey.objects.update(created_at=timezone.now() - datetime.timedelta(hours=25))
    assert "Idempotent-Replayed" not in senders(OTHER)[0](api, "k1")


def test_of_many_figures_asked_for_at_once_with_one_key_one_body_is_answered(api, monkeypatch):
    """All have looked and computed before the first of them keeps the key."""
    ready, note = threading.Barrier(8), idempotency.note
    monkeypatch.setattr(pure, "_places", threading.BoundedSemaphore(8))

    def all_at_once(key):
        ready.wait(30)
        note(key)

    monkeypatch.setattr(idempotency, "note", all_at_once)

    def send(length):
        body = {"model": "llama-3-8b", "len": length}
        try:
            return length, Api().post(f"/{ESTIMATE}", body, **{"idempotency-key": "k1"})
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(send, [100, 200] * 4))
    assert IdempotencyKey.objects.count() == 1
    (answered,) = {length for length, answer in answers if answer.status_code == 200}
    for length, answer in answers:
        if length == answered:
            assert answer.status_code == 200
        else:
            assert_problem(answer, 422, says="new key")


def test_a_key_that_cannot_be_kept_is_503(api, senders, monkeypatch):
    def down(*_):
        raise OperationalError

    monkeypatch.setattr(idempotency, "reserve", down)
    assert_problem(senders(ESTIMATE)[0](api, "k1"), 503)
    assert senders(ESTIMATE)[0](api, "").status_code == 200  # without a key
