"""The life of a run, verb by verb, without a broker: what is sent to it is recorded."""

import io
import os
import time
from datetime import timedelta

import numpy as np
import pytest
import redis
from billiard.exceptions import WorkerLostError
from django.core.files.storage import default_storage
from django.db import transaction
from django.utils import timezone
from safetensors import numpy as safetensors

from kernels.spec import parse_run
from workers import artifacts, broker, health, quotas, runs, tasks
from workers.models import Run, Status

pytestmark = pytest.mark.django_db(transaction=True)

BODY = {"engine": "eager", "inputs": {"q": [[1, 0]], "k": [[1, 0], [0, 1]], "v": [[1, 2], [3, 4]]}}


@pytest.fixture(autouse=True)
def _alone(sent, charged, monkeypatch):
    """No Redis; the broker holds nothing, and a worker is there."""
    monkeypatch.setattr(broker, "waiting", lambda _queue: 0)
    monkeypatch.setattr(health, "has_worker", lambda _queue: True)


def submit(**changes):
    parsed = parse_run({**BODY, **changes})
    return runs.submit(parsed, owner="", caller="somebody", budget_seconds=30)


def finish(run):
    return runs.finish(
        run,
        inputs={"q": np.ones((1, 2), np.float32)},
        results={"out": np.full((1, 2), 7, np.float32)},
        input_info={"q": {"shape": [1, 2], "dtype": "float32", "sha256": "…"}},
        result={"numerics": {}},
        environment={"device": "cpu"},
    )


def aged(run, **fields):
    Run.objects.filter(pk=run.pk).update(**fields)
    return runs.get(run.pk)


def test_a_submitted_run_is_queued_and_its_id_sent(sent):
    run = submit()
    assert (runs.get(run.id).status, sent) == (Status.QUEUED, [run.id])


def test_a_rolled_back_submission_is_never_sent(sent):
    with transaction.atomic():
        submit()
        transaction.set_rollback(True)
    assert sent == []
    assert not Run.objects.exists()


def test_a_broker_that_is_away_loses_nothing(monkeypatch, sent):
    def away(*_args, **_options):
        raise ConnectionError

    with monkeypatch.context() as patch:
        patch.setattr(runs.app, "send_task", away)
        run = submit()
    aged(run, queued_at=timezone.now() - timedelta(minutes=1))
    assert runs.reap()["queued again"] == 1
    assert sent == [run.id]


def test_what_was_sent_is_what_the_worker_loads():
    run = submit()
    spec, arrays = runs.load(runs.claim(run.id))
    assert spec.engine == "eager"
    np.testing.assert_array_equal(arrays["v"], [[1, 2], [3, 4]])


def test_only_one_of_two_claims_gets_the_run():
    run = submit()
    assert runs.claim(run.id).attempt == 1
    assert runs.claim(run.id) is None


def test_a_finished_run_has_its_arrays_and_figures():
    run = runs.claim(submit().id)
    assert finish(run)
    run = runs.get(run.id)
    assert run.status == Status.SUCCEEDED
    np.testing.assert_array_equal(artifacts.load_results(run)["out"], np.full((1, 2), 7, np.float32))


@pytest.mark.parametrize("inline_bytes", [0, 1024])
@pytest.mark.parametrize("name", ["out.npy", "q.npy", "result.npz", "result.safetensors", "inputs.npz"])
def test_every_artifact_named_can_be_read(monkeypatch, inline_bytes, name):
    monkeypatch.setattr(artifacts, "INLINE_BYTES", inline_bytes)
    run = runs.claim(submit().id)
    finish(run)
    run = runs.get(run.id)
    assert name in artifacts.names(run)
    content, _media_type = artifacts.open_artifact(run, name)
    read = {
        "npy": lambda: np.load(io.BytesIO(content)),
        "npz": lambda: dict(np.load(io.BytesIO(content))),
        "safetensors": lambda: safetensors.load(content),
    }[name.rpartition(".")[2]]()
    expected = {"out": np.full((1, 2), 7, np.float32), "q": np.ones((1, 2), np.float32)}
    for member, array in (read if isinstance(read, dict) else {name.removesuffix(".npy"): read}).items():
        np.testing.assert_array_equal(array, expected[member])


@pytest.mark.parametrize("name", ["../secret-key", "submitted.npz", "out", "out.npz", "nothing.npy", ""])
def test_other_names_are_not_artifacts(name):
    run = runs.claim(submit().id)
    finish(run)
    with pytest.raises(KeyError):
        artifacts.open_artifact(runs.get(run.id), name)


def test_the_dead_cannot_write_over_their_successor():
    first = runs.claim(submit().id)
    aged(first, heartbeat_at=timezone.now() - timedelta(minutes=1))
    assert runs.reap()["worker lost"] == 1
    second = runs.claim(first.id)
    assert second.attempt == 2
    assert not runs.beat(first)
    assert not finish(first)
    assert not runs.fail(first, Status.FAILED, {})
    assert runs.get(first.id).status == Status.RUNNING
    assert finish(second)
    np.testing.assert_array_equal(artifacts.load_results(runs.get(first.id))["out"][0, 0], 7)


def test_a_run_that_loses_its_worker_twice_fails_and_says_so():
    run = submit()
    for _ in range(2):
        taken = runs.claim(run.id)
        aged(taken, heartbeat_at=timezone.now() - timedelta(minutes=1))
        runs.reap()
    run = runs.get(run.id)
    assert run.status == Status.FAILED
    assert run.error["fault"] == "platform"


def test_a_lost_run_fails_at_once_when_nobody_could_take_it(monkeypatch):
    monkeypatch.setattr(health, "has_worker", lambda _queue: False)
    run = runs.claim(submit().id)
    aged(run, heartbeat_at=timezone.now() - timedelta(minutes=1))
    runs.reap()
    assert runs.get(run.id).status == Status.FAILED


def test_a_run_whose_heart_beats_is_left_alone():
    run = runs.claim(submit().id)
    assert runs.beat(run)
    assert not any(runs.reap().values())


def test_a_run_past_its_greatest_age_is_out_of_time_though_its_heart_beats(settings):
    run = runs.claim(submit().id)
    aged(run, started_at=timezone.now() - timedelta(seconds=settings.RUN_MAX_AGE + 1))
    runs.reap()
    run = runs.get(run.id)
    assert (run.status, run.error["fault"]) == (Status.TIMED_OUT, "user")


def test_a_run_that_nobody_takes_ends(settings):
    run = submit()
    aged(run, created_at=timezone.now() - timedelta(seconds=settings.QUEUE_MAX_AGE + 1))
    runs.reap()
    assert runs.get(run.id).status == Status.FAILED


def test_a_run_whose_message_is_lost_is_sent_again_once_a_later_one_runs(monkeypatch, sent):
    monkeypatch.setattr(broker, "waiting", lambda _queue: 1)
    lost, later = submit(), submit()
    aged(lost, queued_at=timezone.now() - timedelta(minutes=2))
    aged(later, queued_at=timezone.now() - timedelta(minutes=1))
    assert runs.reap()["queued again"] == 0
    runs.claim(later.id)
    assert runs.reap()["queued again"] == 1
    assert sent == [lost.id, later.id, lost.id]


def test_waiting_runs_are_not_sent_twice_while_the_broker_has_them(monkeypatch, sent):
    run = submit()
    aged(run, queued_at=timezone.now() - timedelta(minutes=1))
    monkeypatch.setattr(broker, "waiting", lambda _queue: 1)
    runs.reap()
    assert sent == [run.id]


def test_the_late_death_of_an_old_attempt_leaves_the_new_one_alone():
    first = runs.claim(submit().id, "task-1")
    aged(first, heartbeat_at=timezone.now() - timedelta(minutes=1))
    runs.reap()
    runs.claim(first.id, "task-2")
    lost = {"sender": tasks.carry_out, "exception": WorkerLostError(), "args": (first.id,)}
    tasks.settle_lost_run(task_id="task-1", **lost)
    assert runs.get(first.id).status == Status.RUNNING
    tasks.settle_lost_run(task_id="task-2", **lost)
    assert runs.get(first.id).status == Status.FAILED


@pytest.mark.parametrize("claimed", [False, True])
def test_cancel_ends_a_run_that_has_not_ended(claimed):
    run = submit()
    taken = runs.claim(run.id) if claimed else None
    assert runs.cancel(run.id).status == Status.CANCELED
    assert runs.cancel(run.id).status == Status.CANCELED
    assert runs.claim(run.id) is None
    if taken:
        assert not runs.beat(taken)
        assert not finish(taken)


def test_a_finished_run_cannot_be_canceled():
    run = runs.claim(submit().id)
    finish(run)
    with pytest.raises(runs.AlreadyFinished, match="succeeded"):
        runs.cancel(run.id)


def test_runs_ahead_are_those_queued_before_in_the_same_queue():
    first, second = submit(), submit()
    assert (runs.ahead(first), runs.ahead(second)) == (0, 1)
    runs.claim(first.id)
    assert runs.ahead(second) == 0


def test_a_full_queue_takes_no_more_and_charges_nothing(settings, charged, monkeypatch):
    settings.MAX_QUEUED = 1
    submit()
    monkeypatch.setattr(broker, "waiting", lambda _queue: 1)
    with pytest.raises(runs.QueueFull):
        submit()
    assert Run.objects.count() == len(charged) == 1


def test_a_full_queue_is_seen_without_redis_too(settings, monkeypatch):
    def away(_queue):
        raise redis.ConnectionError

    settings.MAX_QUEUED = 1
    monkeypatch.setattr(broker, "waiting", away)
    submit()
    with pytest.raises(runs.QueueFull):
        submit()


def test_an_owner_is_not_charged(charged):
    runs.submit(parse_run(BODY), owner="token:1", caller="somebody", budget_seconds=30)
    assert charged == []


def test_what_is_over_quota_is_not_recorded(monkeypatch):
    def over(_caller, _seconds):
        raise quotas.QuotaExceeded(quotas.quotas()[0], 7)

    monkeypatch.setattr(quotas, "charge", over)
    with pytest.raises(quotas.QuotaExceeded):
        submit()
    assert not Run.objects.exists()
    assert artifacts.stored_run_ids() == []


def test_what_is_small_needs_no_file():
    run = runs.claim(submit().id)
    finish(run)
    assert artifacts.stored_run_ids() == []


def test_expired_runs_and_stray_files_are_deleted_and_others_kept(monkeypatch):
    monkeypatch.setattr(artifacts, "INLINE_BYTES", 0)
    kept, gone = submit(), submit()
    aged(kept, expires_at=timezone.now() + timedelta(days=1))
    runs.cancel(gone.id)
    aged(gone, expires_at=timezone.now() - timedelta(days=1))
    stray = Run(id="stray", attempt=0)
    artifacts.save_submitted(stray, {"q": np.ones(1)})
    fresh = Run(id="fresh", attempt=0)
    artifacts.save_submitted(fresh, {"q": np.ones(1)})
    two_hours_ago = time.time() - 7200
    os.utime(default_storage.path("runs/stray/submitted.safetensors"), (two_hours_ago, two_hours_ago))
    assert runs.expire() == 2
    assert list(Run.objects.values_list("pk", flat=True)) == [kept.id]
    assert set(default_storage.listdir("runs")[0]) == {kept.id, "fresh"}
