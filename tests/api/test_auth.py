"""Bearer tokens: how they are made, stored, checked and refused."""

import datetime
import io

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from api.callers import client_address, digest
from api.models import ApiToken
from tests.api.helpers import BODY, assert_problem

pytestmark = pytest.mark.django_db


def make(*args):
    out = io.StringIO()
    call_command("token", *args, stdout=out, stderr=io.StringIO())
    return out.getvalue().splitlines()[-1]


def test_the_command_prints_a_token_that_works(api):
    api.token = make("grader")
    assert api.get("/runs").status_code == 200
    assert ApiToken.objects.get().name == "grader"


def test_only_a_digest_is_stored():
    text = make("grader")
    secret = text.split("_")[2]
    assert len(secret) > 40
    stored = ApiToken.objects.values().get()
    assert secret not in str(stored)


def test_another_secret_key_makes_stored_digests_useless(settings):
    text = make("grader")
    settings.SECRET_KEY = "another"
    assert ApiToken.verify(text) is None


@pytest.mark.parametrize("arguments", [("",), ("x" * 101,), ("x", "--expires-days", "0")])
def test_the_command_refuses_nonsense(arguments):
    with pytest.raises(CommandError):
        make(*arguments)


@pytest.mark.parametrize(
    "header",
    [
        "Bearer",
        "Bearer ",
        "Bearer x",
        "Bearer al_short_x",
        "Bearer al__",
        "Basic YTpi",
        "Token abc",
        "Bearer ünïcode",
        "Bearer al_aaaaaaaaaaaa_" + "b" * 43,
        "Bearer " + "x" * 5000,
    ],
)
def test_a_bad_token_is_401_even_where_none_is_needed(api, sent, header):
    for answer in (api.get("/engines", authorization=header), api.post("/runs", BODY, authorization=header)):
        assert_problem(answer, 401)
        assert answer["WWW-Authenticate"].startswith("Bearer")
    assert sent == []


def test_every_letter_of_a_token_counts(api):
    text = make("grader")
    for at in (3, 16, len(text) - 1):
        api.token = text[:at] + ("x" if text[at] != "x" else "y") + text[at + 1 :]
        assert_problem(api.get("/runs"), 401)


def test_expired_and_revoked_tokens_are_refused(api):
    api.token = make("grader", "--expires-days", "1")
    assert api.get("/runs").status_code == 200
    ApiToken.objects.update(expires_at=timezone.now() - datetime.timedelta(seconds=1))
    assert_problem(api.get("/runs"), 401)
    ApiToken.objects.update(expires_at=None)
    assert api.get("/runs").status_code == 200
    ApiToken.objects.update(revoked_at=timezone.now())
    assert_problem(api.get("/runs"), 401)


def test_use_is_noted_once_a_minute(api, django_assert_num_queries):
    api.token = make("grader")
    api.get("/engines")
    first = ApiToken.objects.get().last_used_at
    assert first is not None
    with django_assert_num_queries(1):
        api.get("/engines")
    ApiToken.objects.update(last_used_at=timezone.now() - datetime.timedelta(minutes=2))
    api.get("/engines")
    assert ApiToken.objects.get().last_used_at > first


def test_the_address_believes_as_many_proxies_as_there_are(rf, settings):
    request = rf.get("/", REMOTE_ADDR="10.0.0.1", HTTP_X_FORWARDED_FOR="6.6.6.6, 198.51.100.9")
    assert client_address(request) == "10.0.0.1"
    settings.NUM_PROXIES = 1
    assert client_address(request) == "198.51.100.9"


def test_the_digest_of_an_address_is_no_address():
    assert digest("198.51.100.9") != digest("198.51.100.8")
    assert digest("2001:db8::1") == digest("2001:db8::2") != digest("2001:db8:0:1::1")
    assert digest("::ffff:198.51.100.9") == digest("198.51.100.9")
    assert digest("") == digest("garbage")
    assert "198" not in digest("198.51.100.9")[:3] or len(digest("198.51.100.9")) == 32


# --- Scopes ----------------------------------------------------------------------------------


def test_a_token_can_be_for_some_things_only(api):
    api.token = make("x", "--scope", "author", "--scope", "submit")
    assert ApiToken.objects.get().scopes == ["author", "submit"]
    assert_problem(api.get("/runs"), 403, says=["scope runs", "author, submit"])
    assert_problem(api.post("/runs", BODY), 403)
    assert api.get("/engines").status_code == 200
    assert api.get("/assignments").status_code == 200


def test_a_token_of_a_user_acts_for_the_user(api, django_user_model, sent):
    django_user_model.objects.create_user("ines")
    api.token = make("laptop", "--user", "ines")
    run_id = api.post("/runs", BODY).json()["id"]
    api.token = make("desktop", "--user", "ines")
    assert api.get(f"/runs/{run_id}").status_code == 200
    api.token = make("alone")
    assert_problem(api.get(f"/runs/{run_id}"), 404)


def test_of_a_user_who_left_no_token_is_good(api, django_user_model):
    user = django_user_model.objects.create_user("ines")
    api.token = make("laptop", "--user", "ines")
    assert api.get("/runs").status_code == 200
    user.is_active = False
    user.save()
    assert_problem(api.get("/runs"), 401)


@pytest.mark.parametrize(
    "arguments", [("--user", "nobody"), ("--assignment", "nothing"), ("--scope", "root")]
)
def test_the_command_refuses_what_is_not_there(arguments):
    with pytest.raises(CommandError):
        make("x", *arguments)
