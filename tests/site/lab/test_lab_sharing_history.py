"""What a browser remembers: the ids of what it submitted, which nobody else can read or write."""

import re

import pytest
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client, RequestFactory

from api.runs.sharing import share_key
from lab.sharing import history
from workers.models import Run, new_id

HOME = "/en/lab/"
HISTORY, FORGET = "/en/lab/history/", "/en/lab/history/forget/"
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
    response = history.forget(HttpResponse(), visit(remembered(first, second)), history.Entry("run", second))
    assert ids_in(response.cookies[history.COOKIE].value) == [first]
    last = history.forget(HttpResponse(), visit(remembered(first)), history.Entry("run", first))
    assert last.cookies[history.COOKIE]["max-age"] == 0


# --- The page -------------------------------------------------------------------------------------


@pytest.fixture
def browser(db):
    """A browser that has submitted these, in this order."""

    def browser(*ids, kind="run"):
        client = Client()
        client.cookies[history.COOKIE] = remembered(*ids, kind=kind)
        return client

    return browser


def lines(client, address=HISTORY):
    """The text of each line of the lists."""
    response = client.get(address)
    assert response.status_code == 200
    found = re.findall(r'<li class="row.*?</li>', response.content.decode(), re.DOTALL)
    return [" ".join(re.sub(r"<[^>]+>", " ", line).split()) for line in found]


def links(client, address=HISTORY):
    return re.findall(r'<p class="row-title"><a href="([^"]+)"', client.get(address).content.decode())


def test_what_was_submitted_is_listed_newest_first(browser, submit, finish, seeded):
    done, waiting = finish(submit()), submit(inputs=seeded(2, 8, 512, 64, kv_heads=2), dtype="float16")
    client = browser(done.id, waiting.id)
    newest, oldest = lines(client)
    assert "Flash" in newest
    assert "batch 2, 8 heads (2 for keys and values), 512 queries" in newest
    assert "queued" in newest
    assert "succeeded" in oldest
    assert "ago" in oldest
    assert links(client) == [f"/en/lab/runs/{run.id}/" for run in (waiting, done)]
    assert client.get(links(client)[0]).status_code == 200


def test_somebody_else_sees_nothing_of_it(submit):
    submit()
    assert lines(Client()) == []
    assert "Nothing yet" in Client().get(HISTORY).content.decode()


def test_the_page_is_private(browser, submit):
    response = browser(submit().id).get(HISTORY)
    assert {"private", "no-store"} <= set(response["Cache-Control"].replace(" ", "").split(","))
    assert response["X-Robots-Tag"] == "noindex"
    assert "Disallow: /en/lab/history/" in Client().get("/robots.txt").content.decode()


def test_a_run_that_expired_is_told_as_gone(browser, submit):
    run = submit()
    client = browser(run.id, submit().id)
    Run.objects.filter(pk=run.id).delete()
    there, gone = lines(client)
    assert "It is gone" in gone
    assert run.id in gone
    assert "It is gone" not in there


def test_a_run_of_an_account_is_not_opened_by_a_cookie(browser, submit):
    owned = submit(owner="user:1")
    (line,) = lines(browser(owned.id))
    assert "It is gone" in line


def test_one_is_forgotten_or_all(browser, submit):
    first, second = submit(), submit()
    client = browser(first.id, second.id)
    client.post(FORGET, {"entry": f"r{second.id}"})
    assert links(client) == [f"/en/lab/runs/{first.id}/"]
    client.post(FORGET, {"entry": "nonsense"})
    assert links(client) == [f"/en/lab/runs/{first.id}/"]
    client.post(FORGET, {"all": "1"})
    assert links(client) == []
    assert Client().get(f"/en/lab/runs/{second.id}/").status_code == 200


def test_nobody_else_makes_a_browser_forget(submit):
    client = Client(enforce_csrf_checks=True)
    client.cookies[history.COOKIE] = remembered(submit().id)
    assert client.post(FORGET, {"all": "1"}).status_code == 403
    assert client.get(FORGET).status_code == 405


def test_an_account_lists_what_its_tokens_submitted(submit):
    user, other = (User.objects.create_user(name) for name in ("ada", "bob"))
    mine = [submit(owner=f"user:{user.pk}") for _ in range(25)]
    submit(owner=f"user:{other.pk}")
    submit(owner="token:1")
    client = Client()
    client.force_login(user)
    first, second = links(client), links(client, f"{HISTORY}?page=2")
    newest_first = [f"/en/lab/runs/{run.id}/?key={share_key(run)}" for run in reversed(mine)]
    assert first + second == newest_first
    assert client.get(first[0]).status_code == 200
    assert links(client, f"{HISTORY}?page=nonsense") == first


def test_a_sweep_is_a_line_of_its_own_and_its_points_are_none(browser, seeded):
    from api.callers import Caller
    from api.sweeps.submission import submit_sweep_body

    user = User.objects.create_user("ada")
    body = {"engine": "flash", "inputs": seeded(1, 2, 8, 4), "vary": {"attention/softcap": [0.0, 5.0]}}
    anonymous, _ = submit_sweep_body(body, caller=Caller("", "address"))
    (line,) = lines(browser(anonymous.id, kind="sweep"))
    assert "Sweep: Flash" in line
    assert "2 points, attention/softcap" in line
    assert "running" in line
    owned, _ = submit_sweep_body(body, caller=Caller(f"user:{user.pk}", "address"))
    client = Client()
    client.force_login(user)
    (link,) = links(client)
    assert link.startswith(f"/en/lab/sweeps/{owned.id}/?key=")
    assert client.get(link).status_code == 200
