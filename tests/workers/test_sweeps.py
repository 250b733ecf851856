"""The life of a sweep, verb by verb, without a broker: what is sent to it is recorded."""

from datetime import timedelta

import numpy as np
import pytest
from django.db import transaction
from django.utils import timezone

from kernels.spec import parse_run
from workers import artifacts, broker, health, limits, quotas, runs, sweeps, tasks
from workers.models import Run, Status, Sweep

pytestmark = pytest.mark.django_db(transaction=True)

TOO_LONG = timedelta(days=2)


@pytest.fixture(autouse=True)
def _alone(sent, charged, monkeypatch, settings):
    """No Redis; the broker holds nothing, and a worker is there. Quotas are counted by hand."""
    settings.SWEEP_POINTS_AT_ONCE = 1
    monkeypatch.setattr(broker, "waiting", lambda _queue: 0)
    monkeypatch.setattr(health, "has_worker", lambda _queue: True)
    monkeypatch.setattr(quotas, "charge", lambda caller, *amounts: charged.append((caller, *amounts)))
    monkeypatch.setattr(quotas, "refund", lambda caller, *amounts: charged.append((caller, "back", *amounts)))


def point(length, **more):
    given = {name: {"seed": 1, "shape": [length, 4]} for name in "qkv"}
    parsed = parse_run({"engine": "eager", "inputs": given, **more})
    return sweeps.admit({"len": length}, parsed, 30)


def prepare(*lengths, owner="", caller="somebody", points=None):
    return sweeps.prepare(
        points or [point(length) for length in lengths],
        body={"engine": "eager"},
        vary={"len": list(lengths)},
        owner=owner,
        caller=caller,
        budget_seconds=30,
    )


def submit(*lengths, **more):
    sweep = prepare(*lengths, **more)
    sweeps.record(sweep)
    return sweeps.get(sweep.id)


def statuses(sweep):
    return [run.status for run in sweeps.points(sweep)]


def ids(sweep):
    return [run.id for run in sweeps.points(sweep)]


def work(run_id):
    """What a worker does with a message, computing nothing."""
    run = runs.claim(run_id)
    result = {"out": np.ones((1, 4), np.float32)}
    assert runs.finish(run, inputs={}, results=result, input_info={}, result={}, environment={})
    tasks._go_on(run)


def test_points_are_runs_in_order_of_size_of_which_the_first_is_sent(sent):
    sweep = submit(64, 16, 32)
    assert [run.spec["inputs"]["q"]["shape"][0] for run in sweeps.points(sweep)] == [16, 32, 64]
    assert [values["len"] for values in sweep.values] == [16, 32, 64]
    assert sent == ids(sweep)[:1]
    assert statuses(sweep) == ["queued"] * 3
    assert sweep.status == "running"


def test_when_one_has_ended_the_next_is_sent_until_all_have(sent):
    sweep = submit(16, 32, 64)
    for number in (1, 2, 3):
        assert sent == ids(sweep)[:number]
        work(sent[-1])
    assert (len(sent), sweep.status) == (3, "finished")


def test_a_point_that_fails_does_not_stop_the_rest(sent, monkeypatch):
    sweep = submit(16, 32)

    def fails(_run):
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(tasks, "_compute", fails)
        tasks.carry_out(sent[0])
    assert sent == ids(sweep)
    work(sent[1])
    assert statuses(sweep) == ["failed", "succeeded"]
    assert sweep.status == "finished"


def test_a_broker_that_is_away_when_a_point_ends_spoils_neither_it_nor_the_next(sent, monkeypatch):
    sweep = submit(16, 32)

    def away(*_args, **_options):
        raise ConnectionError

    with monkeypatch.context() as patch:
        patch.setattr(runs.app, "send_task", away)
        work(sent[0])
    assert statuses(sweep) == ["succeeded", "queued"]
    Run.objects.filter(status=Status.QUEUED).update(queued_at=timezone.now() - timedelta(minutes=1))
    runs.reap()
    assert sent == ids(sweep)


# --- Fairness -------------------------------------------------------------------------------------


def test_all_sweeps_of_a_caller_together_have_one_point_under_way(sent):
    first, second = submit(16, 32), submit(16, 32)
    assert sent == ids(first)[:1]
    for _ in range(4):
        work(sent[-1])
    assert sent == ids(first) + ids(second)


def test_callers_do_not_wait_for_each_other(sent):
    callers = [
        {"caller": "a"},
        {"caller": "b"},
        {"owner": "token:1", "caller": "a"},
        {"owner": "token:2", "caller": "a"},
    ]
    started = [submit(16, 32, **who) for who in callers]
    assert sent == [ids(sweep)[0] for sweep in started]
    work(sent[0])
    assert sent[4:] == [ids(started[0])[1]]


def test_an_owner_is_one_from_wherever_it_asks(sent):
    submit(16, owner="token:1", caller="a")
    submit(16, owner="token:1", caller="b")
    assert len(sent) == 1


def test_a_point_that_is_sent_or_canceled_meanwhile_is_not_sent_again(sent):
    """Two workers may look for what follows at the same moment."""
    sweep = submit(16, 32, 64)
    first, second, third = sweeps.points(sweep)
    runs.cancel(third.id)
    assert sweeps._send(second)
    assert not any(map(sweeps._send, [first, second, third]))
    assert sent == [first.id, second.id]


def test_several_points_may_be_under_way_where_the_deployment_says_so(sent, settings):
    settings.SWEEP_POINTS_AT_ONCE = 2
    sweep = submit(16, 32, 64, 128)
    assert len(sent) == 2
    work(sent[0])
    assert sent == ids(sweep)[:3]


def test_a_single_run_waits_for_the_points_that_were_sent_and_no_others():
    sweep = submit(*range(16, 32))
    run = runs.submit(point(16).parsed, owner="", caller="other", budget_seconds=30)
    assert runs.ahead(run) == 1
    first, second, *_rest, last = sweeps.points(sweep)
    assert runs.ahead(first) == 0
    assert runs.ahead(second) == 2, "the first, and the single run"
    assert runs.ahead(last) == 16
    work(first.id)
    assert runs.ahead(run) == 0, "the second was sent later"


# --- What nobody did ------------------------------------------------------------------------------


def test_the_reaper_goes_on_where_no_worker_did(sent):
    sweep = submit(16, 32, 64)
    run = runs.claim(sent[0])
    runs.fail(run, Status.FAILED, {})  # and its worker died before it could send the next
    assert sweeps.reap() == {"points sent": 1}
    assert sent == ids(sweep)[:2]
    assert sweeps.reap() == {"points sent": 0}


def test_a_lost_worker_costs_its_point_alone(sent):
    sweep = submit(16, 32)
    for _ in range(2):
        runs.claim(sent[-1])
        Run.objects.filter(status=Status.RUNNING).update(heartbeat_at=timezone.now() - timedelta(minutes=1))
        tasks.reap()
    assert statuses(sweep) == ["failed", "queued"]
    work(sent[-1])
    assert sweep.status == "finished"


def test_a_point_waits_for_its_turn_as_long_as_the_sweep_gets_on(sent, settings):
    sweep = submit(16, 32)
    hours = timedelta(seconds=settings.QUEUE_MAX_AGE + 60)
    Run.objects.update(created_at=timezone.now() - hours)
    assert runs.reap()["never taken"] == 0
    work(sent[0])
    assert runs.reap()["never taken"] == 0, "it is the second one's turn just now"
    Run.objects.filter(pk=sent[1]).update(queued_at=timezone.now() - hours)
    assert runs.reap()["never taken"] == 1
    assert statuses(sweep) == ["succeeded", "failed"]


def test_a_sweep_that_never_gets_on_ends():
    sweep = submit(16, 32)
    Run.objects.update(created_at=timezone.now() - TOO_LONG)
    assert runs.reap()["never taken"] == 2
    assert sweep.status == "finished"


def test_what_waits_for_its_turn_is_not_taken_for_a_lost_message(sent):
    submit(16, 32)
    work(sent[0])
    Run.objects.filter(pk=sent[1]).update(status=Status.CANCELED, finished_at=timezone.now())
    submit(16, 32, caller="another")
    assert len(sent) == 3
    assert runs.reap()["queued again"] == 0


# --- Canceling ------------------------------------------------------------------------------------


def test_canceling_ends_what_has_not_ended_and_keeps_the_rest(sent):
    sweep = submit(16, 32, 64)
    work(sent[0])
    running = runs.claim(sent[1])
    assert sweeps.cancel(sweep.id).status == "canceled"
    assert statuses(sweep) == ["succeeded", "canceled", "canceled"]
    assert not runs.beat(running)
    tasks._go_on(running)
    assert len(sent) == 2
    assert sweeps.cancel(sweep.id).status == "canceled"


def test_a_finished_sweep_cannot_be_canceled(sent):
    sweep = submit(16)
    work(sent[0])
    with pytest.raises(runs.AlreadyFinished):
        sweeps.cancel(sweep.id)
    with pytest.raises(Sweep.DoesNotExist):
        sweeps.cancel("nothing")


def test_canceling_one_point_leaves_the_rest(sent):
    sweep = submit(16, 32, 64)
    runs.cancel(ids(sweep)[1])
    work(sent[0])
    assert sent == [ids(sweep)[0], ids(sweep)[2]]


def test_the_message_of_a_canceled_point_sends_the_next_one(sent):
    sweep = submit(16, 32)
    first, second = ids(sweep)
    runs.cancel(first)
    tasks.carry_out(first)
    assert sent == [first, second]
    assert statuses(sweep) == ["canceled", "queued"]
    tasks.carry_out("gone")
    assert sent == [first, second]


def test_what_never_had_its_turn_is_given_back(charged, sent):
    sweep = submit(16, 32, 64)
    seconds = [run.predicted_seconds for run in sweeps.points(sweep)]
    assert charged == [("somebody", pytest.approx(sum(seconds)), 3)]
    sweeps.cancel(sweep.id)
    assert charged[1:] == [("somebody", "back", pytest.approx(sum(seconds[1:])), 2)]
    sweeps.cancel(sweep.id)
    assert len(charged) == 2


# --- Admission ------------------------------------------------------------------------------------


def test_a_point_that_costs_too_much_is_refused():
    with pytest.raises(limits.Refused):
        point(60_000)


def test_more_than_a_whole_quota_is_refused_with_what_helps(charged, settings):
    settings.ANONYMOUS_RUNS_PER_MINUTE = 2
    with pytest.raises(limits.Refused, match=r"3 runs together.*2 per 60 s.*token"):
        prepare(16, 32, 64)
    settings.ANONYMOUS_SECONDS_PER_HOUR = 0.01
    with pytest.raises(limits.Refused, match="seconds of predicted worker time"):
        prepare(16)
    assert charged == []
    assert prepare(16, 32, 64, owner="token:1").drafts


def test_a_full_queue_takes_no_sweep(charged, settings):
    settings.MAX_QUEUED = 3
    submit(16, 32, 64, 128)
    with pytest.raises(runs.QueueFull):
        submit(16)
    assert len(charged) == Sweep.objects.count() == 1


def test_a_rolled_back_sweep_is_never_sent_and_a_discarded_one_leaves_nothing(sent, charged):
    with transaction.atomic():
        submit(16, 32)
        transaction.set_rollback(True)
    assert (sent, Sweep.objects.count(), Run.objects.count()) == ([], 0, 0)
    large = {"v": np.ones((128, 128)).tolist()}
    given = {name: {"seed": 1, "shape": [128, 128]} for name in "qk"} | large
    parsed = parse_run({"engine": "eager", "inputs": given})
    sweep = prepare(points=[sweeps.admit({}, parsed, 30)])
    assert artifacts.stored_run_ids() == [sweep.drafts[0].id]
    sweeps.discard(sweep)
    assert artifacts.stored_run_ids() == []
    assert charged[-1][:2] == ("somebody", "back")


def test_sweeps_expire_with_their_points(sent):
    sweep = submit(16)
    work(sent[0])
    assert len({sweep.expires_at, *Run.objects.values_list("expires_at", flat=True)}) == 1
    Run.objects.update(expires_at=timezone.now() - timedelta(days=1))
    Sweep.objects.update(expires_at=timezone.now() - timedelta(days=1))
    assert sweeps.expire() == 0
    runs.expire()
    assert sweeps.expire() == 1
