"""Sweeps over REST: what is asked, what is refused and why, who sees it, and what comes of it."""

import csv
import io
import json
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api import pure
from tests.api.conftest import Api
from tests.api.helpers import BODY, assert_problem, validator
from tests.support.spoiling import spoiled
from workers import events, runs, sweeps, tasks
from workers.models import Run, Status, Sweep

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _commit(monkeypatch):
    """Let on_commit run at once: each request here is its own transaction to its client."""
    monkeypatch.setattr("workers.runs.transaction.on_commit", lambda function, **_: function())


def seeded(*shape):
    return {name: {"seed": 1, "shape": list(shape)} for name in "qkv"}


def body(vary=None, **more):
    vary = {"len": [16, 32, 8]} if vary is None else vary
    return {"engine": "eager", "inputs": seeded(2, 16, 8), "vary": vary, **more}


def work(run_id, length=1):
    """What a worker does; bytes are length², operations 3·length²."""
    run = runs.claim(run_id)
    result = {
        "timing": {"median_ns": 5.0 * length, "representative": False},
        "memory": {"peak_bytes": length**2, "predicted_bytes": 7},
        "traffic": {"bytes_read": length, "bytes_written": length},
        "cost": {"flops": 3 * length**2, "bytes_min": 3 * length},
        "numerics": {"max_abs_err": 1e-7, "bound": 1e-6},
    }
    out = {"out": np.ones((1, 4), np.float32)}
    assert runs.finish(run, inputs={}, results=out, input_info={}, result=result, environment={})
    tasks._go_on(run)


def finished(caller, **more):
    """A sweep whose points have all ended."""
    sweep = caller.post("/sweeps", body(**more)).json()
    for point in sweep["runs"]:
        work(point["id"], point["values"].get("len", 1))
    return caller.get(f"/sweeps/{sweep['id']}").json()


# --- Submitting ------------------------------------------------------------------------------


def test_a_sweep_is_accepted_with_its_runs_of_which_the_first_is_sent(api, sent, charged):
    answer = api.post("/sweeps", body())
    assert answer.status_code == 202
    sweep = answer.json()
    assert answer["Location"] == f"http://testserver/api/v1/sweeps/{sweep['id']}"
    assert int(answer["Retry-After"]) > 0
    assert (sweep["status"], sweep["progress"]) == ("running", {"done": 0, "total": 3})
    assert [point["values"] for point in sweep["runs"]] == [{"len": 8}, {"len": 16}, {"len": 32}]
    assert {point["status"] for point in sweep["runs"]} == {"queued"}
    assert sent == [sweep["runs"][0]["id"]]
    assert len(charged) == 1
    run = api.get(f"/runs/{sweep['runs'][2]['id']}").json()
    assert (run["sweep"], run["spec"]["inputs"]["k"]["shape"]) == (sweep["id"], [2, 32, 8])
    assert run["queue"] == {"ahead": 2}
    assert api.post("/runs", BODY).json()["sweep"] is None


def test_what_varies_may_be_left_out_of_the_body(api):
    asked = body({"engine": ["eager", "sdpa"]})
    del asked["engine"]
    sweep = api.post("/sweeps", asked).json()
    assert {point["values"]["engine"] for point in sweep["runs"]} == {"eager", "sdpa"}


def test_a_sweep_is_as_it_is_described(api, document, alice):
    validator(document, "SweepRequest").validate(body())
    validator(document, "Sweep").validate(finished(api))
    finished(alice)
    alice.post("/sweeps", body({"engine": ["eager", "lsh"]}, skip_refused=True, attention={"softcap": 3}))
    page = alice.get("/sweeps").json()
    validator(document, "SweepPage").validate(page)
    assert [sweep["progress"] for sweep in page["results"]] == [
        {"done": 0, "total": 1},
        {"done": 3, "total": 3},
    ]
    assert {sweep["runs"] for sweep in page["results"]} == {None}


def test_arrays_that_were_sent_are_described_not_repeated(api):
    sweep = api.post("/sweeps", {**BODY, "vary": {"engine": ["eager", "flash"]}}).json()
    assert sweep["body"]["inputs"]["q"] == {"shape": [3, 2], "dtype": "float64", "source": "inline"}
    _spec, arrays = runs.load(runs.get(sweep["runs"][1]["id"]))
    np.testing.assert_array_equal(arrays["v"], BODY["inputs"]["v"])


# --- What is wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "status", "pointer", "says"),
    [
        (body({}), 400, "/vary", "required"),
        (body({"lenn": [1]}), 400, "/vary/lenn", "did you mean len"),
        (body({"engine": ["flash", "flsh"]}), 422, "/vary/engine/1", "did you mean flash"),
        (body({"dtype": ["float32", 7]}), 400, "/vary/dtype/1", "7"),
        (body({"attention/softcap": [1, -1]}), 422, "/vary/attention~1softcap/1", "softcap -1"),
        (body({"attention/softcup": [1]}), 400, "/vary/attention~1softcup/0", "did you mean softcap"),
        (body({"len": [16, 100_000]}), 422, "/vary/len/1", "worker time"),
        (body({"len": [16, 10_000_000]}), 413, "/vary/len/1", "elements"),
        (body({"engine": ["eager", "lsh"]}, attention={"softcap": 2}), 422, "/vary/engine/1", '"lsh"'),
        (body({"num_kv_heads": [1, 3]}), 422, "/vary/num_kv_heads/1", "multiple"),
        (body(atention={}), 400, "/atention", "did you mean attention"),
        (body(inputs={}), 400, "/inputs/q", "required"),
        ({**BODY, "vary": {"len": [8]}}, 422, "/inputs/q", '{"seed": 1'),
        ([], 400, "", "object"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_its_place_in_the_sweep(api, asked, status, pointer, says):
    assert_problem(api.post("/sweeps", asked), status, pointer=pointer, says=says)
    assert (Sweep.objects.count(), Run.objects.count()) == (0, 0)


def test_what_is_too_expensive_is_called_so_and_neither_sent_nor_charged(api, sent, charged):
    problem = assert_problem(api.post("/sweeps", body({"len": [16, 100_000]})), 422)
    assert problem["type"].endswith("too-expensive")
    assert sent == charged == []


def test_refused_points_are_left_out_and_listed_when_asked_to(api):
    asked = body({"engine": ["eager", "lsh"], "len": [16, 100_000]}, attention={"softcap": 2.0})
    assert_problem(api.post("/sweeps", asked), 422)
    sweep = api.post("/sweeps", {**asked, "skip_refused": True}).json()
    assert [point["values"] for point in sweep["runs"]] == [{"engine": "eager", "len": 16}]
    refused = {(each["values"]["engine"], each["values"]["len"]): each["errors"] for each in sweep["refused"]}
    assert set(refused) == {("eager", 100_000), ("lsh", 16), ("lsh", 100_000)}
    assert refused["lsh", 16][0]["pointer"] == "/attention/softcap"
    assert sweep["progress"] == {"done": 0, "total": 1}


def test_nothing_is_left_out_of_what_cannot_be_read_and_not_everything_can_be(api):
    assert_problem(api.post("/sweeps", body({"dtype": ["float32", 7]}, skip_refused=True)), 400)
    assert_problem(
        api.post("/sweeps", body({"len": [100_000]}, skip_refused=True)), 422, pointer="/vary/len/0"
    )


def test_over_quota_nothing_is_recorded(redis_server, settings, sent):
    settings.ANONYMOUS_RUNS_PER_MINUTE = 4
    api = Api()
    assert api.post("/sweeps", body()).status_code == 202
    assert assert_problem(api.post("/sweeps", body()), 429, says="token")["type"].endswith("quota-exceeded")
    assert (Sweep.objects.count(), Run.objects.count(), len(sent)) == (1, 3, 1)
    assert api.post("/runs", BODY).status_code == 202
    assert_problem(api.post("/runs", BODY), 429)
    assert_problem(api.post("/sweeps", body({"seed": [1, 2, 3, 4, 5]})), 422, pointer="/vary", says="5 runs")


def test_what_never_had_its_turn_is_given_back(redis_server, settings, sent):
    settings.ANONYMOUS_RUNS_PER_MINUTE = 4
    api = Api()
    sweep = api.post("/sweeps", body()).json()
    api.delete(f"/sweeps/{sweep['id']}")
    assert api.post("/sweeps", body()).status_code == 202


def test_checking_sweeps_is_charged_and_bounded_as_estimates_are(redis_server, settings, monkeypatch):
    settings.ANONYMOUS_COMPUTING_SECONDS_PER_MINUTE = 0.0001
    assert_problem(Api().post("/sweeps", body()), 429, says="processor time")
    settings.ANONYMOUS_COMPUTING_SECONDS_PER_MINUTE = 100
    monkeypatch.setattr(pure, "_places", threading.BoundedSemaphore(1))
    with pure.place():
        assert_problem(Api().post("/sweeps", body()), 503)
    assert Api().post("/sweeps", body()).status_code == 202


ODD = st.sampled_from([
    None, True, -1, 0, 3, 10**400, 1e300, "", "x\0", "\ud800", "flash", "lsh", "inf", [], {}, [[1.0]], [None],
    ["flash", "eager"], {"seed": 1}, {"seed": 1, "shape": [4, 4]}, list(range(70)), {"type": "prefix"},
])  # fmt: skip
WHOLE = [
    ("lengths", body({"len": [8, 16], "engine": ["eager", "flash"]}, skip_refused=True)),
    (
        "fields",
        {**BODY, "vary": {"attention/softcap": [1.0, 2.0], "engine": ["eager"]}, "skip_refused": True},
    ),
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(case=spoiled(WHOLE, ODD, ["x/~", "len", "seed", "attention/rope", "engine", "past_key", "vary"]))
def test_a_spoiled_body_is_answered_or_its_mistakes_are_named(api, case):
    answer = api.post("/sweeps", case[1])
    if answer.status_code == 202:
        assert api.get(f"/sweeps/{answer.json()['id']}").json()["vary"]
    else:
        assert assert_problem(answer, answer.status_code)["errors"]
        assert answer.status_code in {400, 413, 422}


def test_what_was_refused_can_be_stored_whatever_it_was(api):
    asked = json.dumps(
        body({"attention/softcap": [1.5, "BIG"], "engine": ["eager", "ü😀"]}, skip_refused=True)
    )
    sweep = api.post("/sweeps", asked.replace('"BIG"', "1e999")).json()
    assert sweep["vary"]["attention/softcap"] == [1.5, "inf"]
    assert [each["values"]["engine"] for each in sweep["refused"]] == ["ü😀", "eager", "ü😀"]


# --- Again -----------------------------------------------------------------------------------


def test_sent_again_with_its_key_it_is_the_same_sweep(api, charged):
    first, again = (api.post("/sweeps", body(), **{"idempotency-key": "k"}) for _ in range(2))
    assert first.json()["id"] == again.json()["id"]
    assert again["Idempotent-Replayed"] == "true"
    assert (Sweep.objects.count(), len(charged)) == (1, 1)
    other = api.post("/sweeps", body({"len": [4]}), **{"idempotency-key": "k"})
    assert assert_problem(other, 422)["type"].endswith("idempotency-mismatch")


def test_a_failure_does_not_use_the_key_up(api, charged, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(sweeps, "go_on", lambda *_: 1 / 0)
        assert api.post("/sweeps", body(), **{"idempotency-key": "k"}).status_code == 500
    assert (Sweep.objects.count(), Run.objects.count(), charged) == (0, 0, [])
    assert api.post("/sweeps", body(), **{"idempotency-key": "k"}).status_code == 202


# --- Reading ---------------------------------------------------------------------------------


def test_each_point_has_its_figures_and_lengths_their_exponents(api):
    sweep = finished(api)
    assert (sweep["status"], sweep["progress"]) == ("finished", {"done": 3, "total": 3})
    assert sweep["finished_at"]
    assert sweep["runs"][1]["figures"] == {
        "median_ns": 80, "representative": False, "peak_bytes": 256, "predicted_bytes": 7,
        "traffic_bytes": 32, "bytes_min": 48, "flops": 768, "max_abs_err": 1e-7, "bound": 1e-6,
    }  # fmt: skip
    laws = {law["quantity"]: law for law in sweep["exponents"]}
    assert {name: round(law["exponent"], 6) for name, law in laws.items()} == {
        "peak_bytes": 2, "predicted_bytes": 0, "traffic_bytes": 1, "flops": 2, "max_abs_err": 0,
    }  # fmt: skip
    assert (laws["flops"]["r_squared"], laws["flops"]["points"]) == (pytest.approx(1), 3)


def test_a_point_that_failed_says_so_and_the_others_count(api):
    sweep = api.post("/sweeps", body()).json()
    first, second, third = (point["id"] for point in sweep["runs"])
    work(first, 8)
    failed = runs.claim(second)
    runs.fail(failed, Status.FAILED, runs.problem("Out of memory", "No.", fault="user"))
    tasks._go_on(failed)
    work(third, 32)
    sweep = api.get(f"/sweeps/{sweep['id']}").json()
    assert (sweep["status"], sweep["progress"]["done"]) == ("finished", 3)
    assert sweep["runs"][1]["error"]["title"] == "Out of memory"
    assert sweep["runs"][1]["figures"] is None
    assert {law["points"] for law in sweep["exponents"]} == {2}


def test_waiting_ends_with_the_last_point(api, monkeypatch):
    sweep = api.post("/sweeps", body()).json()

    def ends(row, seconds, **_):
        for point in sweep["runs"]:
            work(point["id"])

    assert api.get(f"/sweeps/{sweep['id']}", prefer="wait=0")["Retry-After"]
    monkeypatch.setattr(events, "wait", ends)
    answer = api.get(f"/sweeps/{sweep['id']}", prefer="wait=5")
    assert answer["Preference-Applied"] == "wait=5"
    assert answer.json()["status"] == "finished"
    assert "Retry-After" not in answer


def test_the_table_has_a_row_for_each_point(api):
    sweep = finished(api, vary={"len": [16, 8], "attention/pattern": [None, {"type": "prefix", "len": 2}]})
    table = api.get(f"/sweeps/{sweep['id']}/results").json()
    assert table["columns"][2:] == ["run", "status", *sweep["runs"][0]["figures"]]
    assert {row["len"] for row in table["results"]} == {8, 16}
    answer = api.get(f"/sweeps/{sweep['id']}/results?format=csv")
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    lines = list(csv.DictReader(io.StringIO(answer.content.decode())))
    assert [line["run"] for line in lines] == [point["id"] for point in sweep["runs"]]
    assert {line["attention/pattern"] for line in lines} == {"", '{"len": 2, "type": "prefix"}'}
    assert {line["flops"] for line in lines} == {"192", "768"}
    assert_problem(api.get(f"/sweeps/{sweep['id']}/results?format=xml"), 400, says="xml")


# --- Canceling -------------------------------------------------------------------------------


def test_canceling_keeps_what_is_there(alice):
    sweep = alice.post("/sweeps", body()).json()
    work(sweep["runs"][0]["id"], 8)
    canceled = alice.delete(f"/sweeps/{sweep['id']}")
    assert canceled.status_code == 200
    assert (canceled.json()["status"], canceled.json()["progress"]["done"]) == ("canceled", 3)
    statuses = [point["status"] for point in canceled.json()["runs"]]
    assert statuses == ["succeeded", "canceled", "canceled"]
    assert alice.delete(f"/sweeps/{sweep['id']}").status_code == 200


def test_a_finished_sweep_cannot_be_canceled(alice):
    sweep = finished(alice)
    assert_problem(alice.delete(f"/sweeps/{sweep['id']}"), 409)


# --- Privacy ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/sweeps/{}"), ("DELETE", "/sweeps/{}"), ("GET", "/sweeps/{}/results")]
)
def test_others_cannot_tell_it_from_one_that_never_was(alice, bob, api, method, path):
    sweep_id = alice.post("/sweeps", body()).json()["id"]
    for other in (bob, api):
        problem = assert_problem(other.request(method, path.format(sweep_id)), 404)
        missing = assert_problem(other.request(method, path.format("a" * 22)), 404)
        assert problem["detail"].replace(sweep_id, "") == missing["detail"].replace("a" * 22, "")
    assert Sweep.objects.get().status == "running"
    assert alice.request(method, path.format(sweep_id)).status_code == 200


def test_its_points_are_as_private_as_runs_are(alice, bob, api):
    sweep = alice.post("/sweeps", body()).json()
    for point in sweep["runs"]:
        assert_problem(bob.get(f"/runs/{point['id']}"), 404)
        assert "?key=" in point["url"]
        assert alice.get(f"/runs/{point['id']}").status_code == 200
    anonymous = api.post("/sweeps", body()).json()
    assert alice.get(f"/sweeps/{anonymous['id']}").status_code == 200


def test_lists_hold_the_callers_own_and_page(alice, bob, api):
    mine = [alice.post("/sweeps", body({"len": [8]})).json()["id"] for _ in range(3)]
    bob.post("/sweeps", body())
    page = alice.get("/sweeps?limit=2").json()
    assert [sweep["id"] for sweep in page["results"]] == mine[:0:-1]
    following = alice.get("/sweeps?" + page["next"].partition("?")[2]).json()
    assert [sweep["id"] for sweep in following["results"]] == mine[:1]
    assert api.get("/sweeps").json()["results"] == []


def test_a_token_without_the_scope_has_no_sweeps(db):
    from api.models import ApiToken

    token = ApiToken.issue("x")
    ApiToken.objects.filter(pk=token[0].pk).update(scopes=["submit"])
    assert_problem(Api(token[1]).post("/sweeps", body()), 403, says="runs")


def test_the_limits_are_listed(api):
    limits = api.get("/engines").json()["limits"]["sweep"]
    assert limits == {"points": 64, "points_at_once": 1, "sent_elements": 2**22}
