"""Runs over REST: submit, wait, read, list, cancel, download."""

import io
import threading

import numpy as np
import pytest
from django.utils import timezone

from api import preferences
from api.errors import Problem
from api.preferences import wait_seconds
from kernels.spec import ParsedRun, parse_run
from tests.api.helpers import BODY, assert_problem, fail, finish
from workers import events, runs
from workers.models import Run

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _commit(django_capture_on_commit_callbacks, monkeypatch):
    """Let on_commit run at once: each request here is its own transaction to its client."""
    monkeypatch.setattr("workers.runs.transaction.on_commit", lambda function, **_: function())


@pytest.fixture
def ends_while_waited_for(monkeypatch):
    """A worker that finishes the run as soon as somebody waits for it."""

    def wait(run, seconds, **_):
        finish(run.id)
        run.refresh_from_db()
        return run

    monkeypatch.setattr(events, "wait", wait)


FIELDS = {
    "id", "url", "engine", "status", "created_at", "started_at", "finished_at", "expires_at", "attempt",
    "queue", "spec", "inputs", "result", "environment", "error",
}  # fmt: skip


# --- Submitting ------------------------------------------------------------------------------


def test_a_run_is_accepted_queued_and_charged(api, sent, charged):
    answer = api.post("/runs", BODY)
    assert answer.status_code == 202
    run = answer.json()
    assert set(run) >= FIELDS
    assert answer["Location"] == f"http://testserver/api/v1/runs/{run['id']}"
    assert int(answer["Retry-After"]) > 0
    assert (run["status"], run["attempt"], run["queue"]) == ("queued", 0, {"ahead": 0})
    assert run["url"] == f"http://testserver/en/lab/runs/{run['id']}/"
    assert run["spec"]["attention"]["causal_alignment"] == "bottom_right"
    assert run["result"] is run["environment"] is run["error"] is None
    assert sent == [run["id"]]
    assert len(charged) == 1
    assert charged[0][1] > 0


def test_a_token_pays_no_quota_and_has_the_larger_budget(alice, api, charged, settings):
    run = Run.objects.get(pk=alice.post("/runs", BODY).json()["id"])
    assert run.owner.startswith("token:")
    assert run.budget_seconds == settings.RUN_BUDGET_TOKEN
    assert charged == []
    run = Run.objects.get(pk=api.post("/runs", BODY).json()["id"])
    assert (run.owner, run.budget_seconds) == ("", settings.RUN_BUDGET_ANONYMOUS)
    assert run.caller == charged[0][0]
    assert "203" not in run.caller or len(run.caller) == 32


def test_over_quota_nothing_is_recorded(redis_server, settings, sent):
    from tests.api.conftest import Api

    settings.ANONYMOUS_RUNS_PER_MINUTE = 2
    api = Api()
    assert [api.post("/runs", BODY).status_code for _ in range(2)] == [202, 202]
    answer = api.post("/runs", BODY)
    problem = assert_problem(answer, 429, says="token")
    assert problem["type"].endswith("quota-exceeded")
    assert 1 <= int(answer["Retry-After"]) <= 60
    assert answer["RateLimit-Policy"] == '"runs";q=2;w=60'
    assert answer["RateLimit"].startswith('"runs";r=0;t=')
    assert (Run.objects.count(), len(sent)) == (2, 2)
    assert Api(address="203.0.113.8").post("/runs", BODY).status_code == 202


def test_the_second_run_says_how_many_go_first(api):
    api.post("/runs", BODY)
    assert api.post("/runs", BODY).json()["queue"] == {"ahead": 1}


# --- Waiting ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("", None),
        ("wait=30", 30),
        ("WAIT = 5", 5),
        ('wait="7"', 7),
        ("respond-async, wait=10", 10),
        ('foo="a, wait=1"; bar, wait=3; x=y', 3),
        ("wait=1, wait=9", 1),
        ("return=minimal", None),
        ("wait=100", 60),
        ("wait=0", 0),
        (",,", None),
    ],
)
def test_prefer_is_read_leniently(header, seconds):
    assert wait_seconds(header) == seconds


@pytest.mark.parametrize("header", ["wait", "wait=", "wait=soon", "wait=-1", "wait=1.5", "wait=²"])
def test_a_wait_that_makes_no_sense_is_400(header):
    with pytest.raises(Problem, match="whole seconds") as caught:
        wait_seconds(header)
    assert caught.value.status == 400


def test_nonsense_is_told_before_anything_is_queued(api, sent):
    assert_problem(api.post("/runs", BODY, prefer="wait=soon"), 400, says="soon")
    assert sent == []


@pytest.mark.usefixtures("ends_while_waited_for")
def test_a_run_that_ends_in_time_is_answered_with_200(api):
    answer = api.post("/runs", BODY, prefer="wait=5")
    assert answer.status_code == 200
    assert answer["Preference-Applied"] == "wait=5"
    assert "Retry-After" not in answer
    assert "Location" in answer
    run = answer.json()
    assert run["status"] == "succeeded"
    assert run["result"]["out"] == [[1.5, -2.0]]


def test_a_run_that_does_not_end_in_time_is_answered_with_202(api, monkeypatch):
    waited = []
    monkeypatch.setattr(events, "wait", lambda run, seconds, **_: waited.append(seconds))
    answer = api.post("/runs", BODY, prefer="wait=5")
    assert answer.status_code == 202
    assert answer["Preference-Applied"] == "wait=5"
    assert "Retry-After" in answer
    assert waited == [5]


@pytest.mark.usefixtures("ends_while_waited_for")
def test_reading_can_wait_too(api):
    run_id = api.post("/runs", BODY).json()["id"]
    answer = api.get(f"/runs/{run_id}", prefer="wait=5")
    assert answer.json()["status"] == "succeeded"
    assert answer["Preference-Applied"] == "wait=5"


def test_waiting_never_takes_all_threads(api, monkeypatch):
    monkeypatch.setattr(preferences, "_waiting", threading.BoundedSemaphore(1))
    monkeypatch.setattr(events, "wait", lambda *_: pytest.fail("it waited"))
    with preferences._waiting:
        answer = api.post("/runs", BODY, prefer="wait=20")
    assert answer.status_code == 202
    assert "Preference-Applied" not in answer


# --- Reading ---------------------------------------------------------------------------------


def test_a_finished_run_has_everything_the_contract_names(api):
    run_id = api.post("/runs", BODY).json()["id"]
    out = np.array([[1.5, np.inf], [np.nan, -np.inf]], np.float32)
    finish(run_id, {"out": out, "lse": np.array([0.5, -1.0])}, result={"numerics": {"max_abs_err": "inf"}})
    answer = api.get(f"/runs/{run_id}")
    assert answer.status_code == 200
    assert "Retry-After" not in answer
    run = answer.json()
    assert run["result"]["out"] == [[1.5, "inf"], ["nan", "-inf"]]
    assert run["result"]["lse"] == [0.5, -1.0]
    assert run["result"]["numerics"] == {"max_abs_err": "inf"}
    assert run["inputs"]["q"] == {
        "shape": [3, 2],
        "dtype": "float32",
        "source": "inline",
        "sha256": "ab" * 32,
    }
    assert run["inputs"]["k"] == {"shape": [3, 2], "dtype": "float64", "source": "inline"}
    assert run["environment"] == {"device": "cpu", "interpreter": True}
    assert run["finished_at"] > run["started_at"] > run["created_at"]
    assert run["queue"] == {"ahead": 0}


@pytest.mark.parametrize(("shape", "inline"), [((256, 256), True), ((257, 256), False), ((0, 4), True)])
def test_arrays_over_65536_elements_are_links(api, shape, inline):
    run_id = api.post("/runs", BODY).json()["id"]
    finish(run_id, {"out": np.zeros(shape, np.float32)})
    out = api.get(f"/runs/{run_id}").json()["result"]["out"]
    if inline:
        assert np.shape(out) == shape or (shape == (0, 4) and out == [])
    else:
        link = f"http://testserver/api/v1/runs/{run_id}/artifacts/out.npy"
        assert out == {"artifact": link, "shape": list(shape), "dtype": "float32"}


def test_a_failed_run_says_why_and_whose_fault_it_was(api):
    run_id = api.post("/runs", BODY).json()["id"]
    fail(run_id)
    run = api.get(f"/runs/{run_id}").json()
    assert run["status"] == "failed"
    assert run["result"] is None
    assert run["error"]["fault"] == "platform"
    assert {"type", "title", "detail"} <= set(run["error"])


def test_answers_are_not_cached(api):
    assert "no-store" in api.get("/runs")["Cache-Control"]


# --- Listing ---------------------------------------------------------------------------------


def test_my_runs_come_in_pages_newest_first(alice):
    ids = [alice.post("/runs", BODY).json()["id"] for _ in range(5)]
    seen, address = [], "/runs?limit=2"
    while address:
        page = alice.get(address).json()
        assert set(page) == {"next", "previous", "results"}
        assert len(page["results"]) <= 2
        seen += [run["id"] for run in page["results"]]
        address = page["next"] and page["next"].removeprefix("http://testserver/api/v1")
    assert seen == ids[::-1]


def test_runs_made_in_the_same_instant_are_all_listed(alice):
    parsed = parse_run(BODY)
    assert isinstance(parsed, ParsedRun)
    owner = Run.objects.get(pk=alice.post("/runs", BODY).json()["id"]).owner
    for _ in range(6):
        runs.submit(parsed, owner=owner, caller="", budget_seconds=30)
    Run.objects.update(created_at=timezone.now())
    seen, address = set(), "/runs?limit=2"
    while address:
        page = alice.get(address).json()
        seen |= {run["id"] for run in page["results"]}
        address = page["next"] and page["next"].removeprefix("http://testserver/api/v1")
    assert len(seen) == 7


def test_without_a_token_the_list_is_empty(api):
    api.post("/runs", BODY)
    assert api.get("/runs").json() == {"next": None, "previous": None, "results": []}


def test_lists_carry_links_instead_of_arrays(alice):
    run_id = alice.post("/runs", BODY).json()["id"]
    finish(run_id)
    (run,) = alice.get("/runs").json()["results"]
    assert set(run["result"]["out"]) == {"artifact", "shape", "dtype"}


@pytest.mark.parametrize("limit", ["0", "-1", "x", "100000"])
def test_a_strange_limit_does_no_harm(alice, limit):
    assert alice.get(f"/runs?limit={limit}").status_code == 200


# --- Canceling -------------------------------------------------------------------------------


def test_a_queued_run_is_canceled(api):
    run_id = api.post("/runs", BODY).json()["id"]
    answer = api.delete(f"/runs/{run_id}")
    assert answer.status_code == 200
    assert answer.json()["status"] == "canceled"
    assert runs.claim(run_id) is None


def test_a_finished_run_is_not(api):
    run_id = api.post("/runs", BODY).json()["id"]
    finish(run_id)
    problem = assert_problem(api.delete(f"/runs/{run_id}"), 409, says="succeeded")
    assert problem["type"].endswith("already-finished")


# --- Files -----------------------------------------------------------------------------------


def test_results_and_inputs_are_files_too(api):
    from safetensors.numpy import load

    run_id = api.post("/runs", BODY).json()["id"]
    finish(run_id, {"out": np.arange(4, dtype=np.float32).reshape(2, 2), "lse": np.ones(2)})
    links = api.get(f"/runs/{run_id}").json()["artifacts"]
    assert {"out.npy", "lse.npy", "result.npz", "result.safetensors", "inputs.npz"} <= set(links)

    def fetch(name, **headers):
        answer = api.get(f"/runs/{run_id}/artifacts/{name}", **headers)
        assert answer.status_code == 200
        assert answer["Content-Disposition"] == f'attachment; filename="{run_id}-{name}"'
        assert answer["X-Content-Type-Options"] == "nosniff"
        assert answer["Content-Type"] == "application/octet-stream"
        assert "Content-Encoding" not in answer
        return answer.content

    assert np.load(io.BytesIO(fetch("out.npy", accept="application/octet-stream"))).tolist() == [
        [0, 1],
        [2, 3],
    ]
    assert set(np.load(io.BytesIO(fetch("result.npz", **{"accept-encoding": "gzip"})))) == {"out", "lse"}
    assert set(load(fetch("result.safetensors"))) == {"out", "lse"}
    assert set(np.load(io.BytesIO(fetch("inputs.npz")))) == {"q"}


@pytest.mark.parametrize("name", ["nope.npy", "..%2F..%2Fsecret-key", "submitted.npz", "result-1.npz", "out"])
def test_files_that_a_run_does_not_have(api, name):
    run_id = api.post("/runs", BODY).json()["id"]
    assert_problem(api.get(f"/runs/{run_id}/artifacts/{name}"), 404)
    finish(run_id)
    assert_problem(api.get(f"/runs/{run_id}/artifacts/{name}"), 404)


# --- Cost ------------------------------------------------------------------------------------


def test_how_many_queries_a_request_takes(api, alice, django_assert_max_num_queries):
    run_id = api.post("/runs", BODY).json()["id"]
    with django_assert_max_num_queries(6):  # queue length, savepoint, insert, release, ahead
        api.post("/runs", BODY)
    with django_assert_max_num_queries(2):  # the run, ahead
        api.get(f"/runs/{run_id}")
    finish(run_id)
    with django_assert_max_num_queries(1):
        api.get(f"/runs/{run_id}")
    for _ in range(12):
        alice.post("/runs", BODY)
    with django_assert_max_num_queries(2):  # the token, the page
        alice.get("/runs")
    with django_assert_max_num_queries(0):
        api.get("/healthz")
        api.get("/engines")
