"""Sweeps on the running product: that they get on whatever dies, and that others need not wait for them.

Each on SQLite and on PostgreSQL, with a real Redis and real worker processes.
"""

import time

import pytest

from tests.support.services import wait_until

pytestmark = pytest.mark.slow

QUICK = {"engine": "eager", "inputs": {"q": [[1, 0]], "k": [[1, 0], [0, 1]], "v": [[1, 2], [3, 4]]}}


def submit(lab, vary, **more):
    inputs = {name: {"seed": 1, "shape": [1, 4, 512, 64]} for name in "qkv"}
    body = {"engine": "eager", "inputs": inputs, "timing": {"warmup": 0, "iters": 1}, "vary": vary, **more}
    answer = lab.request("POST", "/api/v1/sweeps", body)
    assert answer.status == 202, answer.body[:1000]
    return answer.json()


def slow(lab, seeds):
    """A sweep whose points take seconds each on a quiet machine."""
    return submit(lab, {"seed": seeds}, engine="flash", timing={"warmup": 0, "iters": 80})


def now(lab, sweep, wait=0):
    prefer = {"prefer": f"wait={wait}"} if wait else {}
    answer = lab.get(f"/api/v1/sweeps/{sweep['id']}", **prefer)
    assert answer.status == 200, answer
    return answer.json()


def finished(lab, sweep, seconds):
    wait_until(lambda: now(lab, sweep)["status"] == "finished", seconds, "the sweep ends", 0.3)
    return now(lab, sweep)


def statuses(sweep):
    return [point["status"] for point in sweep["runs"]]


def test_a_sweep_runs_to_its_end_and_tells_how_figures_grow(lab):
    sweep = submit(lab, {"len": [1024, 256, 512], "engine": ["eager", "flash"]})
    ended = now(lab, sweep, wait=60)
    assert (ended["status"], ended["progress"]) == ("finished", {"done": 6, "total": 6}), statuses(ended)
    assert statuses(ended) == ["succeeded"] * 6
    laws = {(law["at"]["engine"], law["quantity"]): law["exponent"] for law in ended["exponents"]}
    assert laws["eager", "flops"] == laws["flash", "flops"] == pytest.approx(2)
    assert laws["eager", "peak_bytes"] > laws["flash", "peak_bytes"]
    assert ("flash", "median_ns") not in laws, "times of an interpreter say nothing"


def test_a_worker_killed_in_the_middle_of_a_sweep_ends_no_point_but_its_own(lab):
    sweep = slow(lab, [1, 2, 3])
    first, *_others = sweep["runs"]
    lab.running(first["id"])
    lab.kill("cpu")
    # Found out by its silence, which nobody is there to make up for: that point fails, and the next is sent.
    wait_until(lambda: now(lab, sweep)["progress"]["done"] == 1, 40, "the lost point ends")
    assert statuses(now(lab, sweep)) == ["failed", "queued", "queued"]
    lab.start("cpu")
    ended = finished(lab, sweep, 120)
    assert statuses(ended) == ["failed", "succeeded", "succeeded"]
    assert ended["progress"] == {"done": 3, "total": 3}
    assert ended["runs"][0]["error"]["fault"] == "platform"


def test_a_child_killed_in_the_middle_of_a_sweep_ends_no_point_but_its_own(lab):
    sweep = slow(lab, [1, 2])
    lab.running(sweep["runs"][0]["id"])
    time.sleep(1)
    for child in lab.children("cpu"):
        child.kill()
    ended = finished(lab, sweep, 120)
    assert statuses(ended) == ["failed", "succeeded"]


def test_a_sweep_whose_messages_are_lost_gets_on(lab):
    lab.kill("cpu")
    sweep = submit(lab, {"len": [32, 64, 128]})
    lab.redis.client.flushall()
    lab.start("cpu")
    assert statuses(finished(lab, sweep, 90)) == ["succeeded"] * 3


def test_single_runs_do_not_wait_for_a_sweep(lab):
    sweep = slow(lab, [1, 2, 3, 4])
    lab.running(sweep["runs"][0]["id"])
    assert lab.post_run(QUICK, wait=60).status == 200
    during = now(lab, sweep)
    assert during["progress"]["done"] < 4, "the run came last"
    assert sum(status == "running" for status in statuses(during)) <= 1
    canceled = lab.request("DELETE", f"/api/v1/sweeps/{sweep['id']}")
    assert canceled.status == 200
    assert canceled.json()["progress"] == {"done": 4, "total": 4}
    time.sleep(3)
    assert statuses(now(lab, sweep)) == statuses(canceled.json()), "what was canceled never comes back"
