"""What a browser remembers: the ids of what it submitted, which nobody else can read or write."""

import pytest
from django.http import HttpResponse
from django.test import Client, RequestFactory

from lab.sharing import history
from workers.models import new_id

HOME = "/en/lab/"
BODY = {
    "engine": "flash", "dtype": "float32", "source": "matrices", "q": "1 0", "k": "1 0", "v": "1 0",
    "returns": ["out"], "alignment": "bottom_right", "warmup": "1", "iters": "1",
}  # fmt: skip


def visit(cookie=""):
    """A request of a browser that has this cookie."""
    request = RequestFactory().get(HOME)
    if cookie:
        request.COOKIES[history.COOKIE] = cookie
    return request


def remembered(*ids, kind="run", cookie=""):
    """The cookie after these were submitted, one after another."""
    for row_id in ids:
        response = history.remember(HttpResponse(), visit(cookie), kind, row_id)
        cookie = response.cookies[history.COOKIE].value
    return cookie


def ids_in(cookie):
    return [entry.id for entry in history.entries(visit(cookie))]


@pytest.mark.django_db
def test_a_run_from_the_form_is_remembered_by_its_browser():
    client = Client()
    run_id = client.post(HOME, BODY).url.rstrip("/").rpartition("/")[2]
    assert ids_in(client.cookies[history.COOKIE].value) == [run_id]
    second = client.post(HOME, BODY).url.rstrip("/").rpartition("/")[2]
    assert ids_in(client.cookies[history.COOKIE].value) == [second, run_id]


@pytest.mark.parametrize("https", [False, True])
def test_no_script_and_no_other_site_gets_the_cookie(settings, https):
    settings.HTTPS = https
    cookie = history.remember(HttpResponse(), visit(), "run", new_id()).cookies[history.COOKIE]
    assert (cookie["httponly"], cookie["samesite"], bool(cookie["secure"])) == (True, "Lax", https)
    assert cookie["max-age"] == settings.RETENTION_DAYS_ANONYMOUS * 86_400


def test_the_newest_comes_first_and_once():
    first, second = new_id(), new_id()
    assert ids_in(remembered(first, second, first)) == [first, second]


def test_a_run_and_a_sweep_are_told_apart():
    run, sweep = new_id(), new_id()
    cookie = remembered(sweep, kind="sweep", cookie=remembered(run))
    assert history.entries(visit(cookie)) == [history.Entry("sweep", sweep), history.Entry("run", run)]


def test_the_cookie_stays_small():
    ids = [new_id() for _ in range(history.MOST + 20)]
    cookie = remembered(*ids)
    assert ids_in(cookie) == ids[: -history.MOST - 1 : -1]
    assert len(cookie) < 2_000


@pytest.mark.parametrize(
    "change",
    [
        lambda cookie: cookie[:-1] + ("A" if cookie[-1] != "A" else "B"),
        lambda cookie: "r" + new_id() + cookie[23:],  # another id under the same signature
        lambda cookie: cookie.partition(":")[0],
        lambda cookie: "nonsense",
    ],
)
def test_a_cookie_that_somebody_else_wrote_is_ignored(change):
    assert ids_in(change(remembered(new_id()))) == []


def test_an_old_cookie_is_ignored(settings):
    cookie = remembered(new_id())
    settings.RETENTION_DAYS_ANONYMOUS = -1
    assert ids_in(cookie) == []


def test_one_is_forgotten_and_the_others_stay():
    first, second = new_id(), new_id()
    response = history.forget(HttpResponse(), visit(remembered(first, second)), "run", second)
    assert ids_in(response.cookies[history.COOKIE].value) == [first]
    assert (
        history.forget(HttpResponse(), visit(remembered(first)), "run", first).cookies[history.COOKIE][
            "max-age"
        ]
        == 0
    )
