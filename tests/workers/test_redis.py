"""Quotas, waiting and health on a real Redis."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.utils import timezone

from workers import broker, events, health, quotas
from workers.models import Run, Status


@pytest.fixture(autouse=True)
def _redis(redis_server):
    """A real Redis, empty."""


def charge_until_refused(caller, seconds=1.0):
    charged = 0
    while True:
        try:
            quotas.charge(caller, seconds)
        except quotas.QuotaExceeded as refusal:
            return charged, refusal
        charged += 1


def test_the_run_after_the_last_is_refused_and_says_when_to_come_back(settings):
    settings.ANONYMOUS_RUNS_PER_MINUTE = 3
    charged, refusal = charge_until_refused("alice")
    assert charged == 3
    assert 1 <= refusal.retry_after <= 60
    assert "3 runs per 60 s" in refusal.detail
    quotas.charge("bob", 1.0)


def test_worker_time_is_a_quota_of_its_own_and_a_refused_run_uses_none(settings):
    settings.ANONYMOUS_SECONDS_PER_HOUR = 10
    quotas.charge("alice", 8.0)
    with pytest.raises(quotas.QuotaExceeded, match="worker time"):
        quotas.charge("alice", 3.0)
    quotas.charge("alice", 2.0)


def test_callers_at_the_same_moment_cannot_share_the_last_run(settings):
    settings.ANONYMOUS_RUNS_PER_MINUTE = 10
    refused = []

    def charge(_):
        try:
            quotas.charge("alice", 0.1)
        except quotas.QuotaExceeded:
            refused.append(1)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(charge, range(40)))
    assert len(refused) == 30


def test_what_was_charged_can_be_given_back(settings):
    settings.ANONYMOUS_RUNS_PER_MINUTE = 1
    quotas.charge("alice", 1.0)
    quotas.refund("alice", 1.0)
    assert charge_until_refused("alice")[0] == 1


def test_the_quota_comes_back_with_its_window(settings):
    settings.ANONYMOUS_RUNS_PER_MINUTE = 1
    quotas.charge("alice", 1.0)
    (key,) = broker.connection().keys("*quota:runs:alice")
    assert 0 < broker.connection().ttl(key) <= 60
    broker.connection().pexpire(key, 1)
    time.sleep(0.05)
    quotas.charge("alice", 1.0)


def test_without_redis_nothing_is_charged_and_nothing_fails(redis_server, settings):
    settings.ANONYMOUS_RUNS_PER_MINUTE = 0
    redis_server.stop()
    quotas.charge("alice", 1.0)
    quotas.enter(quotas.Quota("computing", "seconds", 0, 60), "alice")
    quotas.spend(quotas.computing(anonymous=True), "alice", 1.0)


def test_what_computes_is_admitted_until_the_time_is_used_up(settings):
    settings.ANONYMOUS_COMPUTING_SECONDS_PER_MINUTE, settings.TOKEN_COMPUTING_SECONDS_PER_MINUTE = 3, 9
    quota = quotas.computing(anonymous=True)
    quotas.enter(quota, "alice")
    quotas.spend(quota, "alice", 2.5)
    quotas.enter(quota, "alice")
    quotas.spend(quota, "alice", 40)  # however much: it is known only now
    for _ in range(2):
        with pytest.raises(quotas.QuotaExceeded, match="3 seconds") as refusal:
            quotas.enter(quota, "alice")
        assert 1 <= refusal.value.retry_after <= 60
    quotas.enter(quota, "bob")
    quotas.charge("alice", 1.0)  # runs are counted apart
    (key,) = broker.connection().keys("*quota:computing:alice")
    assert float(broker.connection().get(key)) == pytest.approx(42.5 + 2 * quotas.ENTRANCE)
    broker.connection().pexpire(key, 1)
    time.sleep(0.05)
    quotas.enter(quota, "alice")


def test_a_window_that_ended_while_something_was_computed_begins_anew():
    quota = quotas.computing(anonymous=True)
    quotas.spend(quota, "alice", 5)
    (key,) = broker.connection().keys("*quota:computing:alice")
    assert 0 < broker.connection().ttl(key) <= 60


def test_times_of_many_at_the_same_moment_add_up():
    quota = quotas.computing(anonymous=True)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: quotas.spend(quota, "alice", 0.25), range(40)))
    (key,) = broker.connection().keys("*quota:computing:alice")
    assert float(broker.connection().get(key)) == pytest.approx(10)


def a_run(status=Status.QUEUED):
    now = timezone.now()
    return Run.objects.create(
        engine="eager", queue="cpu", status=status, budget_seconds=30, created_at=now, queued_at=now,
        expires_at=now, spec={},
    )  # fmt: skip


def change(run, status):
    finished_at = timezone.now() if status not in (Status.QUEUED, Status.RUNNING) else None
    Run.objects.filter(pk=run.pk).update(status=status, finished_at=finished_at)
    events.announce(run.id, status)


@pytest.mark.django_db
def test_a_change_before_the_wait_is_not_missed():
    run = a_run()
    change(run, Status.RUNNING)
    change(run, Status.SUCCEEDED)
    events.wait(run, 30)
    assert run.status == Status.SUCCEEDED


@pytest.mark.django_db
def test_waiting_for_any_change_returns_at_the_first():
    run = a_run()
    change(run, Status.RUNNING)
    events.wait(run, 30, for_any_change=True)
    assert run.status == Status.RUNNING


@pytest.mark.django_db
def test_time_runs_out_and_the_run_is_as_it_is():
    run = a_run()
    events.wait(run, 0.05)
    assert run.status == Status.QUEUED


@pytest.mark.django_db(transaction=True)
def test_every_waiter_is_woken():
    run = a_run()
    ended = []

    def wait():
        from django.db import connection

        mine = Run.objects.get(pk=run.pk)
        events.wait(mine, 30)
        ended.append(mine.status)
        connection.close()

    waiters = [threading.Thread(target=wait) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    change(run, Status.CANCELED)
    for waiter in waiters:
        waiter.join(30)
    assert ended == [Status.CANCELED] * 3


@pytest.mark.django_db
def test_without_redis_the_row_is_read_instead(redis_server):
    run = a_run()
    redis_server.stop()
    change(run, Status.FAILED)
    events.wait(run, 30)
    assert run.status == Status.FAILED


def test_a_worker_that_fell_silent_no_longer_counts():
    broker.connection().set("attention-lab:alive:cpu", "cpu@here", px=30)
    assert health.has_worker("cpu")
    time.sleep(0.05)
    assert not health.has_worker("cpu")


@pytest.mark.django_db
def test_readiness_names_what_is_missing(settings):
    settings.QUEUES = ["cpu", "compile"]
    broker.connection().set("attention-lab:ready:cpu", "cpu@here", ex=10)
    broker.connection().set("attention-lab:alive:compile", "compile@here", ex=10)  # not warm yet
    assert health.check() == {
        "ready": False, "database": True, "broker": True, "queues": {"cpu": True, "compile": False},
    }  # fmt: skip
