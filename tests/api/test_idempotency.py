"""`Idempotency-Key`: however often a request is sent, it has its effect once."""

import datetime

import pytest
from django.utils import timezone

from api import idempotency
from api.models import IdempotencyKey
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
