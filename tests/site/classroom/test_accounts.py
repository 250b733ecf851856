"""Accounts: in and out, no guessing, and nobody's things are anybody else's."""

import re
from datetime import timedelta

import pytest
import redis
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone

from api.models import ApiToken, owner_of
from tests.site.classroom.conftest import PASSWORD
from workers import quotas

SIGN_IN, SIGN_UP = "/en/account/sign-in/", "/en/account/sign-up/"
TOKENS, CHANGE = "/en/account/tokens/", "/en/account/password/"
PRIVATE = (TOKENS, CHANGE, "/en/classroom/")

pytestmark = pytest.mark.usefixtures("redis_server")  # counts tries


def sign_in(name="grace", password=PASSWORD, client=None, **more):
    return (client or Client()).post(SIGN_IN, {"username": name, "password": password, **more})


def make(client, name="laptop", scopes=("author",), lifetime="30", **more):
    """Make a token on the page, as its form does."""
    key = re.search(r'name="form_key" value="([^"]+)"', client.get(TOKENS).content.decode())[1]
    body = {"name": name, "scopes": list(scopes), "lifetime": lifetime, "form_key": key}
    return client.post(TOKENS, {**body, **more})


def shown(response):
    """The text of a token that the page shows."""
    found = re.search(r'<code id="new-token">([^<]+)</code>', response.content.decode())
    return found and found[1]


# --- In and out ------------------------------------------------------------------------------


@pytest.mark.parametrize("address", PRIVATE)
def test_who_is_not_signed_in_is_asked_to_and_comes_back(account, address):
    account()
    client = Client()
    answer = client.get(address)
    assert answer.status_code == 302
    assert answer["Location"] == f"{SIGN_IN}?next={address}"
    page = client.get(answer["Location"]).content.decode()
    assert f'name="next" value="{address}"' in page
    assert sign_in(client=client, next=address)["Location"] == address
    assert client.get(address, follow=True).status_code == 200


def test_a_wrong_password_and_an_unknown_name_look_the_same(account):
    account()
    wrong, unknown = sign_in(password="wrong"), sign_in(name="nobody")
    assert wrong.status_code == unknown.status_code == 422
    sentences = [
        re.findall(r'<ul class="problems-list">.*?</ul>', answer.content.decode(), re.DOTALL)
        for answer in (wrong, unknown)
    ]
    assert sentences[0] == sentences[1] != []


@pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example/", "javascript:alert(1)", ""])
def test_signing_in_never_leads_elsewhere(account, target):
    account()
    assert sign_in(next=target)["Location"] == "/en/classroom/"


def test_signing_out_needs_a_form_and_ends_the_session(teacher):
    assert teacher.get("/en/account/sign-out/").status_code == 405
    teacher.post("/en/account/sign-out/")
    assert teacher.get(TOKENS).status_code == 302


def test_an_account_that_was_closed_is_out_at_once(at):
    client = at("grace")
    get_user_model().objects.update(is_active=False)
    assert client.get(TOKENS).status_code == 302
    assert sign_in().status_code == 422


def test_an_account_takes_a_name_and_a_password(db):
    client = Client()
    body = {"username": "ada", "password1": PASSWORD, "password2": PASSWORD}
    assert client.post(SIGN_UP, body)["Location"] == "/en/classroom/"
    assert client.get(TOKENS).status_code == 200
    assert not get_user_model().objects.get().is_staff


def test_a_common_password_is_refused_and_said_why(db):
    body = {"username": "ada", "password1": "password", "password2": "password"}
    answer = Client().post(SIGN_UP, body)
    assert answer.status_code == 422
    assert "too common" in answer.content.decode()
    assert not get_user_model().objects.exists()


def test_where_accounts_are_not_open_nobody_makes_one(db, settings):
    settings.OPEN_SIGNUP = False
    body = {"username": "ada", "password1": PASSWORD, "password2": PASSWORD}
    assert Client().post(SIGN_UP, body).status_code == 403
    assert not get_user_model().objects.exists()
    assert SIGN_UP not in Client().get(SIGN_IN).content.decode()


def test_a_new_password_signs_other_browsers_out(at):
    here, there = at("grace"), at("grace")
    new = "a different horse 9"
    body = {"old_password": PASSWORD, "new_password1": new, "new_password2": new}
    assert here.post(CHANGE, {**body, "old_password": "wrong"}).status_code == 422
    assert here.post(CHANGE, body).status_code == 302
    assert here.get(TOKENS).status_code == 200
    assert there.get(TOKENS).status_code == 302
    assert sign_in(password=new).status_code == 302


def test_cookies_are_kept_from_scripts_and_from_other_sites(account, settings):
    account()
    client = Client()
    sign_in(client=client)
    cookie = client.cookies["sessionid"]
    assert cookie["httponly"]
    assert cookie["samesite"] == "Lax"
    assert settings.SESSION_COOKIE_SECURE == settings.HTTPS


def test_what_is_private_is_kept_in_no_cache(teacher):
    for address in PRIVATE:
        assert "no-store" in teacher.get(address, follow=True)["Cache-Control"]
    assert "no-store" in Client().get(SIGN_IN)["Cache-Control"]


# --- No guessing -----------------------------------------------------------------------------


def test_a_name_can_be_guessed_at_ten_times_from_anywhere(account, settings):
    account()
    for n in range(settings.SIGN_INS_PER_NAME):
        assert Client(REMOTE_ADDR=f"10.0.0.{n}").post(
            SIGN_IN, {"username": "Grace" if n % 2 else "grace", "password": "wrong"}
        ).status_code == 422  # fmt: skip
    answer = sign_in()  # even the right one, or a guess could be told from a lockout
    assert answer.status_code == 429
    assert 0 < int(answer["Retry-After"]) <= 900
    assert sign_in(name="ada").status_code == 422


def test_an_address_can_guess_at_few_names(account, settings):
    account()
    settings.SIGN_INS_PER_ADDRESS = 3
    for n in range(3):
        sign_in(name=f"name{n}", password="wrong")
    assert sign_in().status_code == 429
    assert Client(REMOTE_ADDR="10.0.0.9").post(
        SIGN_IN, {"username": "grace", "password": PASSWORD}
    ).status_code == 302  # fmt: skip


def test_who_knows_the_password_may_come_as_often_as_they_like(account, settings):
    account()
    settings.SIGN_INS_PER_ADDRESS = settings.SIGN_INS_PER_NAME = 3
    assert [sign_in().status_code for _ in range(7)] == [302] * 7


def test_a_page_left_open_is_no_way_to_guess(teacher, settings):
    settings.SIGN_INS_PER_NAME = 2
    body = {"old_password": "wrong", "new_password1": "x" * 12, "new_password2": "x" * 12}
    statuses = [teacher.post(CHANGE, body).status_code for _ in range(3)]
    assert statuses == [422, 422, 429]


def test_an_address_makes_so_many_accounts_in_an_hour(db, settings):
    settings.SIGN_UPS_PER_ADDRESS = 2
    statuses = [
        Client()
        .post(SIGN_UP, {"username": f"u{n}", "password1": PASSWORD, "password2": PASSWORD})
        .status_code
        for n in range(3)
    ]
    assert statuses == [302, 302, 429]
    assert get_user_model().objects.count() == 2


@pytest.fixture
def away(monkeypatch):
    """A Redis that is not there."""

    def refused():
        raise redis.ConnectionError("refused")

    monkeypatch.setattr(quotas, "connection", refused)


def test_while_nothing_counts_tries_none_is_taken(account, away):
    grace = account()
    for password in (PASSWORD, "wrong"):  # told apart, the two would be a way to guess
        answer = sign_in(password=password)
        assert (answer.status_code, answer["Retry-After"]) == (503, "5")
        assert "cannot be counted at the moment" in answer.content.decode()
    body = {"username": "ada", "password1": PASSWORD, "password2": PASSWORD}
    assert Client().post(SIGN_UP, body).status_code == 503
    assert list(get_user_model().objects.all()) == [grace]


def test_whoever_is_signed_in_stays_so_while_nothing_counts_tries(teacher, away):
    assert teacher.get(TOKENS).status_code == 200
    body = {"old_password": PASSWORD, "new_password1": "x" * 12, "new_password2": "x" * 12}
    assert teacher.post(CHANGE, body).status_code == 503
    assert get_user_model().objects.get().check_password(PASSWORD)


# --- Tokens ----------------------------------------------------------------------------------


def test_a_token_is_shown_once_and_does_what_it_was_made_for(teacher):
    answer = make(teacher, scopes=["author"])
    assert answer.status_code == 201
    text = shown(answer)
    token = ApiToken.verify(text)
    assert token.user.username == "grace"
    assert token.owner == owner_of(token.user_id)
    assert token.scopes == ["author"]
    assert timedelta(days=29) < token.expires_at - timezone.now() <= timedelta(days=30)
    page = teacher.get(TOKENS).content.decode()
    assert "laptop" in page
    assert token.lookup in page
    assert text.rpartition("_")[2] not in page


def test_a_form_that_is_sent_again_makes_no_second_token(teacher):
    first = make(teacher, form_key="same-key")
    again = make(teacher, form_key="same-key")
    assert (first.status_code, again.status_code) == (201, 302)
    assert ApiToken.objects.count() == 1


@pytest.mark.parametrize(
    ("change", "about"),
    [({"name": ""}, "Name"), ({"scopes": []}, "What it may do"), ({"lifetime": "x"}, "Valid for"),
     ({"name": "x" * 101}, "Name"), ({"scopes": ["root"]}, "What it may do")],
)  # fmt: skip
def test_a_token_that_cannot_be_is_refused_with_its_field(teacher, change, about):
    answer = make(teacher, **change)
    assert answer.status_code == 422
    assert about in re.search(r'problems-list">.*?</ul>', answer.content.decode(), re.DOTALL)[0]
    assert not ApiToken.objects.exists()


def test_a_revoked_token_opens_nothing(teacher):
    text = shown(make(teacher))
    token = ApiToken.objects.get()
    assert teacher.post(f"/en/account/tokens/{token.pk}/revoke/").status_code == 302
    assert ApiToken.verify(text) is None
    assert "revoked" in teacher.get(TOKENS).content.decode()


def test_nobody_sees_or_revokes_the_token_of_another(at):
    grace, mallory = at("grace"), at("mallory")
    make(grace, name="graces-own")
    token = ApiToken.objects.get()
    assert "graces-own" not in mallory.get(TOKENS).content.decode()
    assert mallory.post(f"/en/account/tokens/{token.pk}/revoke/").status_code == 404
    token.refresh_from_db()
    assert token.revoked_at is None


def test_usage_counts_what_is_mine(at, submit_run):
    grace = at("grace")
    owner = owner_of(get_user_model().objects.get(username="grace").pk)
    submit_run(owner)
    submit_run(owner)
    submit_run("user:999999")
    row = re.search(r"<th scope=\"row\">runs</th>(.*?)</tr>", grace.get(TOKENS).content.decode())[1]
    assert re.findall(r">(\d+)<", row) == ["2", "2"]


def test_usage_says_what_is_left_of_a_quota(teacher, settings):
    owner = owner_of(get_user_model().objects.get(username="grace").pk)
    quotas.take(quotas.grading("submissions", anonymous=False), owner, 15)
    page = teacher.get(TOKENS).content.decode()
    row = re.search(r"<th scope=\"row\">submissions</th>(.*?)</tr>", page)[1]
    assert re.findall(r">([\d,]+)<", row) == ["19,985", "20,000"]


@pytest.fixture
def submit_run(sent):
    def submit_run(owner):
        from kernels.spec import parse_run
        from workers import runs

        q = [[1, 0], [0, 1]]
        parsed = parse_run({"engine": "flash", "inputs": {"q": q, "k": q, "v": q}})
        return runs.submit(parsed, owner=owner, caller="x", budget_seconds=30)

    return submit_run
