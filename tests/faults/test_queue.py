"""What may go wrong between a submission and its answer, done to the running product on purpose.

Each on SQLite and on PostgreSQL, with a real Redis and real worker processes.
"""

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.services import wait_until

pytestmark = pytest.mark.slow

QUICK = {"engine": "eager", "inputs": {"q": [[1, 0]], "k": [[1, 0], [0, 1]], "v": [[1, 2], [3, 4]]}}
# Seconds of interpreter on a quiet machine: long enough to be interrupted, short enough to be admitted.
SLOW = {
    "engine": "flash",
    "inputs": {name: {"seed": 1, "shape": [1, 4, 512, 64], "distribution": "normal"} for name in "qkv"},
    "timing": {"warmup": 0, "iters": 80},
}


def submit(lab, body=QUICK):
    answer = lab.post_run(body)
    assert answer.status == 202, answer
    return answer.json()["id"]


def start_slow(lab):
    """A run in the middle of its computation."""
    run_id = submit(lab, SLOW)
    lab.running(run_id)
    time.sleep(1)
    assert lab.run(run_id)["status"] == "running", "SLOW is not slow enough to be interrupted"
    return run_id


def test_a_run_crosses_the_queue_and_comes_back_to_the_waiting_request(lab):
    answer = lab.post_run({**QUICK, "engine": "flash", "return": ["out", "lse"]}, wait=30)
    assert answer.status == 200, answer
    run = answer.json()
    assert run["status"] == "succeeded"
    assert run["result"]["out"][0] == pytest.approx([1.6605, 2.6605], abs=1e-4)
    assert run["result"]["timing"]["method"] == "interpreter"


def test_a_child_killed_mid_run_leaves_a_terminal_row(lab):
    run_id = start_slow(lab)
    for child in lab.children("cpu"):
        child.kill()
    run = lab.finished(run_id, 20)
    assert run["status"] == "failed"
    assert run["error"]["fault"] == "platform"
    assert run["attempt"] == 1, "what killed one child is not fed to the next"
    assert lab.post_run(QUICK, wait=60).status == 200, "the worker goes on with a new child"


def test_a_worker_killed_mid_run_with_nobody_left_leaves_a_terminal_row(lab):
    run_id = start_slow(lab)
    lab.kill("cpu")
    # Found out by its silence (8 s here), once the worker's own sign of life has lapsed (5 s).
    run = lab.finished(run_id, 30)
    assert run["status"] == "failed"
    assert run["error"]["fault"] == "platform"
    assert "worker" in run["error"]["title"].lower()
    assert lab.get("/api/v1/readyz").status == 503


def test_a_worker_killed_mid_run_and_restarted_carries_the_run_out(lab):
    run_id = start_slow(lab)
    lab.pause("maintenance")  # on a busy machine the reaper might be there before the new worker
    lab.kill("cpu")
    alive = "attention-lab:alive:cpu"
    wait_until(lambda: not lab.redis.client.exists(alive), 20, "the dead worker counts as dead")
    lab.start("cpu")
    wait_until(lambda: lab.redis.client.exists(alive), 60, "a new worker is there")
    lab.resume("maintenance")
    run = lab.finished(run_id, 90)
    assert (run["status"], run["attempt"]) == ("succeeded", 2), run["error"]


def test_a_frozen_worker_cannot_overwrite_what_was_decided_without_it(lab):
    run_id = start_slow(lab)
    lab.pause("cpu")
    run = lab.finished(run_id, 60)
    assert run["status"] == "failed"
    lab.resume("cpu")
    assert lab.post_run(QUICK, wait=60).status == 200
    time.sleep(3)
    assert lab.run(run_id) == run


def test_a_worker_asked_to_stop_finishes_its_run(lab):
    run_id = start_slow(lab)
    lab.terminate("cpu", 60)
    run = lab.run(run_id)
    assert (run["status"], run["attempt"]) == ("succeeded", 1)


def test_jobs_queued_in_a_redis_that_is_flushed_still_finish(lab):
    lab.kill("cpu")
    ids = [submit(lab) for _ in range(12)]
    assert {lab.run(run_id)["status"] for run_id in ids} == {"queued"}
    lab.redis.client.flushall()
    lab.start("cpu")
    assert [lab.finished(run_id, 60)["status"] for run_id in ids] == ["succeeded"] * 12


def test_jobs_queued_in_a_redis_that_restarts_still_finish(lab):
    lab.kill("cpu")
    ids = [submit(lab) for _ in range(5)]
    lab.redis.stop(signal.SIGTERM)
    time.sleep(2)
    lab.redis.start()
    lab.start("cpu")
    assert [lab.finished(run_id, 60)["status"] for run_id in ids] == ["succeeded"] * 5


def test_workers_find_a_redis_that_was_away_for_a_while(lab):
    lab.redis.stop()
    assert lab.get("/api/v1/readyz").status == 503
    assert lab.get("/api/v1/healthz").status == 200
    time.sleep(5)
    lab.redis.start()
    wait_until(lab.ready, 30, "ready again")
    assert lab.post_run(QUICK, wait=60).status == 200


def test_a_worker_outlives_a_redis_that_goes_away_in_the_middle_of_its_run(lab):
    """Its acknowledgement has no connection to go by; the worker connects anew and takes the next run."""
    run_id = start_slow(lab)
    worker = lab.process("cpu")
    lab.redis.stop()
    wait_until(lambda: f"run {run_id}: flash" in lab.log("cpu"), 60, "the run ends without Redis")
    lab.redis.start()
    assert lab.finished(run_id, 60)["status"] == "succeeded"
    assert lab.post_run(QUICK, wait=60).status == 200
    assert worker.is_running(), "the worker gave up"


def test_a_submission_while_redis_is_away_is_refused_or_carried_out_never_lost(lab):
    lab.redis.stop()
    answer = lab.post_run(QUICK)
    lab.redis.start()
    assert answer.status in {202, 503}, answer
    if answer.status == 202:
        assert lab.finished(answer.json()["id"], 60)["status"] == "succeeded"
    else:
        assert answer.headers["Retry-After"]
        assert answer.headers["Content-Type"].startswith("application/problem+json")


def test_one_job_delivered_often_is_claimed_once(lab):
    lab.kill("cpu")
    run_id = submit(lab)
    queue = next(key for key in lab.redis.client.scan_iter("*cpu") if lab.redis.client.type(key) == "list")
    message = lab.redis.client.lindex(queue, 0)
    lab.redis.client.rpush(queue, *[message] * 20)
    lab.start("cpu")
    run = lab.finished(run_id)
    wait_until(lambda: not lab.redis.client.llen(queue), 30, "the queue is empty")
    later = submit(lab)
    lab.finished(later)
    assert lab.run(run_id) == run
    assert (run["status"], run["attempt"]) == ("succeeded", 1)


def test_many_clients_at_once_all_get_their_own_answer(lab):
    def ask(number):
        body = {**QUICK, "inputs": {**QUICK["inputs"], "v": [[number, 0], [number, 0]]}}
        answer = lab.post_run(body, wait=60)
        return answer.status, answer.json()["result"]["out"][0][0]

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(48)))
    assert answers == [(200, pytest.approx(number)) for number in range(48)]


def test_housekeeping_never_stands_in_line_with_runs(lab):
    """A dead or busy cpu worker must not keep the reaper from its work."""
    wait_until(lambda: "Task workers.reap" in lab.log("maintenance"), 30, "the reaper runs")
    assert "Task workers.reap" not in lab.log("cpu")


def test_a_canceled_run_never_comes_back(lab):
    run_id = start_slow(lab)
    assert lab.request("DELETE", f"/api/v1/runs/{run_id}").status in {200, 202, 204}
    assert lab.post_run(QUICK, wait=60).status == 200
    time.sleep(3)
    assert lab.run(run_id)["status"] == "canceled"


def test_a_flood_of_redis_errors_reaches_no_client(lab):
    """Redis out of memory refuses writes (noeviction): the API says 503, not 500."""
    lab.redis.client.config_set("maxmemory", 1)
    try:
        answer = lab.post_run(QUICK)
    finally:
        lab.redis.client.config_set("maxmemory", 0)
    assert all(lab.alive(name) for name in lab.processes), "a worker gave up"
    assert answer.status in {202, 503}, answer
    if answer.status == 202:
        assert lab.finished(answer.json()["id"], 60)["status"] == "succeeded"
