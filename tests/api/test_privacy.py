"""Alice's runs are Alice's: to Bob, and to anybody without a token, they do not exist."""

import pytest

from api.runs import sharing
from tests.api.helpers import BODY, assert_problem, finish
from workers.models import Run, Status

pytestmark = pytest.mark.django_db

DOORS = [
    ("GET", "/runs/{}"),
    ("DELETE", "/runs/{}"),
    ("GET", "/runs/{}/artifacts/out.npy"),
    ("GET", "/runs/{}/artifacts/result.npz"),
    ("GET", "/runs/{}/artifacts/inputs.npz"),
]


def nobody_elses(problem):
    """What a 404 says, but for the address."""
    return {name: value for name, value in problem.items() if name not in ("instance", "detail")}


@pytest.mark.parametrize(("method", "path"), DOORS)
def test_others_cannot_tell_it_from_a_run_that_never_was(alice, bob, api, method, path):
    run_id = alice.post("/runs", BODY).json()["id"]
    finish(run_id)
    for other in (bob, api):
        problem = assert_problem(other.request(method, path.format(run_id)), 404)
        missing = assert_problem(other.request(method, path.format("a" * 22)), 404)
        assert nobody_elses(problem) == nobody_elses(missing)
        assert problem["detail"].replace(run_id, "") == missing["detail"].replace("a" * 22, "")
    assert Run.objects.get(pk=run_id).status == Status.SUCCEEDED


def test_alice_herself_comes_in(alice):
    run_id = alice.post("/runs", BODY).json()["id"]
    finish(run_id)
    for method, path in DOORS:
        assert alice.request(method, path.format(run_id)).status_code == (409 if method == "DELETE" else 200)


def test_bob_cannot_cancel_a_queued_run(alice, bob):
    run_id = alice.post("/runs", BODY).json()["id"]
    assert_problem(bob.delete(f"/runs/{run_id}"), 404)
    assert Run.objects.get(pk=run_id).status == Status.QUEUED


def test_lists_hold_the_callers_own_runs_only(alice, bob, api):
    mine = alice.post("/runs", BODY).json()["id"]
    bob.post("/runs", BODY)
    api.post("/runs", BODY)
    assert [run["id"] for run in alice.get("/runs").json()["results"]] == [mine]


def test_an_anonymous_run_is_open_to_whoever_knows_its_id(alice, api):
    run_id = api.post("/runs", BODY).json()["id"]
    assert alice.get(f"/runs/{run_id}").status_code == 200


def test_the_page_of_a_tokens_run_has_a_key_in_its_address(alice, api):
    run = alice.post("/runs", BODY).json()
    address, _, key = run["url"].partition("?key=")
    assert address.endswith(f"/en/lab/runs/{run['id']}/")
    row = Run.objects.get(pk=run["id"])
    assert sharing.may_open(row, key)
    for wrong in ("", key[:-1], key + "x", "ü"):
        assert not sharing.may_open(row, wrong)
    another = Run.objects.get(pk=alice.post("/runs", BODY).json()["id"])
    assert not sharing.may_open(another, key)
    anonymous = Run.objects.get(pk=api.post("/runs", BODY).json()["id"])
    assert sharing.may_open(anonymous, "")


def test_the_key_is_unknown_to_rest(alice, api):
    """It opens the page, which shows what its maker shared; REST goes by the token."""
    run = alice.post("/runs", BODY).json()
    key = run["url"].partition("?key=")[2]
    assert_problem(api.get(f"/runs/{run['id']}?key={key}"), 404)
