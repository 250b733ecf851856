"""The life of a submission, verb by verb."""

import threading
from datetime import timedelta
from unittest.mock import Mock

import numpy as np
import pytest
from django.db import IntegrityError, OperationalError, connection, transaction
from django.utils import timezone

from workers.grading import assignments, incidents, judging, sending, submissions, tasks
from workers.grading.models import Answers, Incident, State, Submission
from workers.runs import AlreadyFinished, QueueFull

pytestmark = pytest.mark.django_db(transaction=True)


def statuses():
    return sorted(Submission.objects.values_list("status", flat=True))


# --- Handing in ------------------------------------------------------------------------------


def test_what_is_handed_in_is_queued_and_its_assignment_sent(classroom, sent):
    room = classroom()
    submission = room.submit("ada", external_id="x1")
    assert (submission.status, submission.number, submission.attempt) == (State.QUEUED, 1, 0)
    assert sent == [room.assignment.id]


def test_a_rolled_back_submission_is_never_sent(classroom, sent):
    room = classroom()
    with transaction.atomic():
        room.submit()
        transaction.set_rollback(True)
    assert (sent, Submission.objects.count(), Answers.objects.count()) == ([], 0, 0)


def test_the_same_external_id_with_the_same_answers_is_the_same_submission(classroom):
    room = classroom()
    first = room.submit(external_id="x1")
    assert room.submit(external_id="x1").id == first.id
    assert Submission.objects.count() == 1


@pytest.mark.parametrize(
    "other", [{"user_ref": "bob"}, {"arrays": {"small": {"out": np.ones((1, 1, 3, 2))}}}]
)
def test_the_same_external_id_with_anything_else_is_refused(classroom, other):
    room = classroom()
    first = room.submit(external_id="x1")
    refused = room.submit(**{"user_ref": "ada", **other}, external_id="x1")
    assert isinstance(refused, submissions.Conflict)
    assert first.id in str(refused)
    assert Submission.objects.count() == 1


def test_the_order_of_cases_makes_no_other_submission(classroom):
    room = classroom()
    right = room.right("ada")
    first = room.submit(arrays=right, external_id="x1")
    assert room.submit(arrays=dict(reversed(right.items())), external_id="x1").id == first.id


def test_the_database_itself_keeps_external_ids_apart(classroom):
    room = classroom()
    first = room.submit(external_id="x1")
    copy = Submission.objects.get(pk=first.pk)
    copy.pk = "another"
    with pytest.raises(IntegrityError), transaction.atomic():
        copy.save(force_insert=True)


def test_beyond_the_limit_nothing_is_recorded(classroom, sent):
    room = classroom(limit_count=2)
    assert [type(room.submit("ada")) for _ in range(2)] == [Submission] * 2
    refused = room.submit("ada")
    assert isinstance(refused, submissions.OverLimit)
    assert refused.retry_after > 0
    assert isinstance(room.submit("bob"), Submission)
    assert Submission.objects.count() == 3


def test_a_limit_with_a_window_says_when_there_is_another_try(classroom):
    room = classroom(limit_count=2, limit_window_s=3600)
    first = room.submit("ada")
    room.age(first, submitted_at=timezone.now() - timedelta(minutes=50))
    room.submit("ada")
    refused = room.submit("ada")
    assert 550 < refused.retry_after <= 601
    room.age(first, submitted_at=timezone.now() - timedelta(minutes=61))
    assert isinstance(room.submit("ada"), Submission)


def test_the_limit_counts_within_one_batch_too(classroom):
    room = classroom(limit_count=2)
    entered = submissions.record(room.assignment.id, [room.draft("ada") for _ in range(4)])
    assert [isinstance(each, Submission) for each in entered] == [True, True, False, False]


def test_no_two_at_the_same_moment_are_both_the_last(classroom):
    """On SQLite and on PostgreSQL: as many as there are tries, however many come at once."""
    room = classroom(limit_count=3)
    drafts = [room.draft("ada") for _ in range(8)]
    entered = []

    def submit(draft):
        entered.extend(submissions.record(room.assignment.id, [draft]))
        connection.close()

    threads = [threading.Thread(target=submit, args=(draft,)) for draft in drafts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(isinstance(each, Submission) for each in entered) == [False] * 5 + [True] * 3
    assert sorted(Submission.objects.values_list("number", flat=True)) == [1, 2, 3]


def test_before_it_opens_and_after_it_closed_nothing_is_recorded(classroom):
    now = timezone.now()
    for dates in ({"release_date": now + timedelta(hours=1)}, {"due_date": now - timedelta(hours=1)}):
        room = classroom(**dates)
        refused = room.submit()
        assert isinstance(refused.__cause__, assignments.NotOpen)
    assert Submission.objects.count() == 0


def test_what_is_late_is_marked_and_costs_what_the_policy_says(classroom):
    now = timezone.now()
    room = classroom(
        due_date=now - timedelta(hours=30),
        late_due_date=now + timedelta(hours=1),
        late_policy={"type": "per_day", "fraction": 0.25},
        total_points=100,
    )
    room.submit()
    room.grade()
    submission = Submission.objects.get()
    assert (submission.is_late, submission.deduction, submission.score) == (True, 0.5, 50)


def test_answers_to_inputs_that_are_no_longer_asked_for_are_refused(classroom):
    room = classroom()
    room.submit("ada", number=1)
    refused = room.submit("ada", number=1)
    assert isinstance(refused, submissions.StaleInputs)
    assert Submission.objects.count() == 1


def test_a_full_queue_takes_no_more(classroom, settings):
    settings.MAX_QUEUED_SUBMISSIONS = 2
    room = classroom()
    room.submit("ada")
    room.submit("bob")
    with pytest.raises(QueueFull):
        room.submit("eve")
    assert Submission.objects.count() == 2


# --- Grading ---------------------------------------------------------------------------------


def test_right_answers_are_accepted_and_wrong_ones_are_not(classroom):
    room = classroom(total_points=10)
    good = room.submit("ada")
    bad = room.submit("bob", room.zeros("bob"))
    room.grade()
    good.refresh_from_db()
    bad.refresh_from_db()
    assert (good.status, good.verdict, good.score, good.max_score) == ("graded", "accepted", 10, 10)
    assert (bad.status, bad.verdict, bad.score) == ("graded", "wrong_answer", 0)
    assert [test["status"] for test in good.result["tests"]] == ["passed", "passed"]


def test_many_are_claimed_together_and_each_once(classroom):
    room = classroom()
    ids = {room.submit(f"s{n}").id for n in range(5)}
    first, second, third = room.claim(3), room.claim(3), room.claim(3)
    assert [len(first.submissions), len(second.submissions), third] == [3, 2, None]
    assert {s.id for c in (first, second) for s in c.submissions} == ids
    assert {s.attempt for s in first.submissions} == {1}
    assert set(first.answers) == {s.id for s in first.submissions}


def test_a_grader_takes_no_more_than_it_can_hold(classroom, monkeypatch):
    room = classroom()
    size = len(room.draft("s0").content)
    monkeypatch.setattr(submissions, "MOST_BYTES", 2 * size + 1)
    for n in range(3):
        room.submit(f"s{n}")
    assert [len(room.claim().submissions) for _ in range(2)] == [2, 1]
    monkeypatch.setattr(submissions, "MOST_BYTES", 1)
    room.submit("large")
    assert len(room.claim().submissions) == 1, "one at least"


def test_two_graders_never_get_the_same(classroom):
    room = classroom()
    for n in range(20):
        room.submit(f"s{n}")
    claims = []

    def take():
        while claimed := room.claim(4):
            claims.append([s.id for s in claimed.submissions])
        connection.close()

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    taken = [pk for claim in claims for pk in claim]
    assert len(taken) == len(set(taken)) == 20


def test_verdicts_and_a_reaper_that_come_together_do_not_stop_each_other(classroom):
    """Each wants rows that the other has changed already: PostgreSQL stopped one of the two."""
    room = classroom()
    for n in range(6):
        room.submit(f"s{n}")
    claimed = room.claim()
    ended = []

    def lose():
        try:
            ended.append(incidents.lost(claimed.rows, incidents.WORKER_LOST))
        except OperationalError as error:
            ended.append(error)
        connection.close()

    reaper = threading.Thread(target=lose)

    class HalfWay(list):
        """Verdicts in the middle of which the reaper comes."""

        def __iter__(self):
            for number, each in enumerate(super().__iter__()):
                if number == len(self) // 2:
                    reaper.start()
                    reaper.join(1)
                yield each

    judged = sorted(judging.judge(claimed), key=lambda each: each.submission.pk, reverse=True)
    assert submissions.finish(claimed, HalfWay(judged)) == 6
    reaper.join(30)
    assert ended == [0], "it found them graded"


def test_only_the_claim_that_counts_may_write(classroom, long_ago):
    room = classroom()
    room.submit()
    first = room.claim()
    room.age(first.submissions[0], heartbeat_at=long_ago)
    assert incidents.reap()["graders lost"] == 1
    second = room.claim()
    assert not submissions.beat(first)
    assert submissions.finish(first, judging.judge(first)) == 0
    assert Submission.objects.get().status == State.GRADING
    assert submissions.finish(second, judging.judge(second)) == 1
    assert Submission.objects.get().attempt == 2


def test_a_delivery_that_comes_again_finds_nothing_to_do(classroom):
    room = classroom()
    room.submit()
    room.grade()
    before = Submission.objects.values().get()
    room.grade()
    assert Submission.objects.values().get() == before


def test_a_message_is_sent_again_when_a_turn_is_over(classroom, settings, sent, monkeypatch):
    settings.GRADE_TURN = -1
    monkeypatch.setattr(submissions, "MOST_AT_ONCE", 2)
    room = classroom()
    for n in range(3):
        room.submit(f"s{n}")
    sent.clear()
    room.grade()
    assert statuses() == ["graded", "graded", "queued"]
    assert sent == [room.assignment.id]


def test_a_grader_that_may_leave_some_asks_another_for_help(classroom, sent, monkeypatch):
    monkeypatch.setattr(judging, "at_once", lambda _version: 2)
    room = classroom()
    for n in range(3):
        room.submit(f"s{n}")
    sent.clear()
    room.grade()
    assert statuses() == ["graded"] * 3
    assert sent == [room.assignment.id], "once: the last claim was of one, and left nothing"


def test_a_grader_who_cannot_ask_for_help_does_it_alone(classroom, monkeypatch):
    monkeypatch.setattr(judging, "at_once", lambda _version: 1)
    room = classroom()
    room.submit()
    monkeypatch.setattr(sending, "_send", Mock(side_effect=OSError("no broker")))
    room.grade()
    assert statuses() == ["graded"]


def test_ten_thousand_points_are_still_within_their_maximum(classroom):
    room = classroom(total_points=10_000 / 3)
    room.submit()
    room.grade()
    submission = Submission.objects.get()
    assert submission.score <= submission.max_score


def test_the_number_of_queries_does_not_grow_with_the_submissions(classroom, django_assert_max_num_queries):
    room = classroom()
    submissions.record(room.assignment.id, [room.draft(f"s{n}") for n in range(30)])
    with django_assert_max_num_queries(8):
        claimed = room.claim()
    with django_assert_max_num_queries(2):
        judged = judging.judge(claimed)
    with django_assert_max_num_queries(30 + 5):  # an UPDATE each, conditional on its attempt
        submissions.finish(claimed, judged)
    with django_assert_max_num_queries(12):
        submissions.record(room.assignment.id, [room.draft(f"s{n}") for n in range(30)])


# --- Cancel ----------------------------------------------------------------------------------


@pytest.mark.parametrize("claimed", [False, True])
def test_cancel_ends_a_submission_and_frees_its_try(classroom, claimed):
    room = classroom(limit_count=1)
    submission = room.submit("ada")
    taken = room.claim() if claimed else None
    assert isinstance(room.submit("ada"), submissions.OverLimit)
    assert submissions.cancel(submission.id).status == State.CANCELED
    assert submissions.cancel(submission.id).status == State.CANCELED
    if taken:
        assert not submissions.beat(taken)
        assert submissions.finish(taken, judging.judge(taken)) == 0
    again = room.submit("ada")
    assert again.number == 1, "the same inputs, since the try was given back"
    room.grade()
    assert sorted(Submission.objects.values_list("status", "counts_towards_limit")) == [
        ("canceled", False), ("graded", True),
    ]  # fmt: skip


def test_a_graded_submission_cannot_be_canceled(classroom):
    room = classroom()
    submission = room.submit()
    room.grade()
    with pytest.raises(AlreadyFinished, match="graded"):
        submissions.cancel(submission.id)


# --- Losing a grader -------------------------------------------------------------------------


def test_a_lost_grader_gives_back_and_the_second_time_it_is_an_error_that_costs_nothing(
    classroom, long_ago, sent
):
    room = classroom(limit_count=1)
    submission = room.submit("ada")
    sent.clear()
    for attempt in (1, 2):
        (taken,) = room.claim().submissions
        assert taken.attempt == attempt
        room.age(taken, heartbeat_at=long_ago)
        assert incidents.reap()["graders lost"] == 1
    submission.refresh_from_db()
    assert (submission.status, submission.fault, submission.counts_towards_limit) == (
        "error",
        "platform",
        False,
    )
    assert (submission.verdict, submission.score) == (None, None)
    assert submission.error["fault"] == "platform"
    assert sent == [room.assignment.id], "sent again after the first loss only"
    assert isinstance(room.submit("ada"), Submission)
    assert [i.kind for i in submission.incidents.all()] == ["worker-lost"] * 2


def test_those_that_were_lost_are_tried_alone(classroom, long_ago):
    room = classroom()
    for n in range(3):
        room.submit(f"s{n}")
    room.claim()
    Submission.objects.update(heartbeat_at=long_ago)
    incidents.reap()
    room.submit("fresh")
    assert [s.user_ref for s in room.claim().submissions] == ["fresh"]
    assert [len(room.claim().submissions) for _ in range(3)] == [1, 1, 1]


def test_what_breaks_the_judge_takes_nothing_else_along(classroom, monkeypatch):
    real = judging.judge_attempts

    def judge(problem, attempts):
        if any(np.any(a.answers.get("small", "out").array == 666) for a in attempts):
            raise ZeroDivisionError
        return real(problem, attempts)

    monkeypatch.setattr(judging, "judge_attempts", judge)
    room = classroom()
    for n in range(3):
        room.submit(f"s{n}")
    evil = room.right("eve")
    evil["small"]["out"] = np.full((1, 1, 3, 2), 666.0)
    room.submit("eve", evil)
    room.grade()
    assert dict(Submission.objects.values_list("user_ref", "status")) == {
        "s0": "graded", "s1": "graded", "s2": "graded", "eve": "error",
    }  # fmt: skip
    assert Incident.objects.filter(kind="judge-failed").count() == 2


def test_a_judge_that_looked_at_nothing_gives_no_verdict(classroom, monkeypatch):
    class Empty:
        def to_dict(self):
            return {"verdict": "accepted", "reason": None, "score": 4.0, "max_score": 4.0, "tests": []}

    monkeypatch.setattr(judging, "judge_attempts", lambda _problem, attempts: [Empty() for _ in attempts])
    room = classroom()
    room.submit()
    room.grade()
    submission = Submission.objects.get()
    assert (submission.status, submission.score, submission.verdict) == ("error", None, None)
    assert submission.counts_towards_limit is False


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -1.0, 5.0])
def test_a_score_that_is_none_is_no_verdict(classroom, monkeypatch, score):
    class Odd:
        def to_dict(self):
            tests = [{"name": "small"}, {"name": "wide"}]
            return {"verdict": "accepted", "reason": None, "score": score, "max_score": 4.0, "tests": tests}

    monkeypatch.setattr(judging, "judge_attempts", lambda _problem, attempts: [Odd() for _ in attempts])
    room = classroom()
    room.submit()
    room.grade()
    assert Submission.objects.get().status == State.ERROR


def test_a_grader_whose_heart_beats_is_left_alone(classroom):
    room = classroom()
    room.submit()
    assert submissions.beat(room.claim())
    assert not any(incidents.reap().values())


def test_a_message_that_is_lost_is_sent_again(classroom, sent, long_ago):
    room = classroom()
    submission = room.submit()
    sent.clear()
    room.age(submission, queued_at=long_ago)
    assert incidents.reap()["assignments sent again"] == 1
    assert sent == [room.assignment.id]
    assert incidents.reap()["assignments sent again"] == 0, "not at every look"


def test_what_no_grader_takes_ends_without_cost(classroom, long_ago, settings):
    room = classroom()
    submission = room.submit()
    too_old = timezone.now() - timedelta(seconds=settings.GRADE_MAX_AGE + 60)
    room.age(submission, created_at=too_old, queued_at=long_ago)
    incidents.reap()
    submission.refresh_from_db()
    assert (submission.status, submission.counts_towards_limit) == ("error", False)
    assert submission.incidents.get().kind == "never-taken"


def test_a_child_that_died_is_settled_by_its_worker(classroom):
    from billiard.exceptions import WorkerLostError

    room = classroom()
    room.submit()
    room.claim(task_id="task-1")
    lost = {"sender": tasks.grade, "exception": WorkerLostError(), "args": (room.assignment.id,)}
    tasks.settle_lost_work(task_id="task-2", **lost)
    assert statuses() == ["grading"]
    tasks.settle_lost_work(task_id="task-1", **lost)
    assert statuses() == ["queued"]


# --- What the database itself refuses --------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"status": "done"},
        {"status": "graded", "finished_at": timezone.now()},
        {"verdict": "accepted"},
        {"score": 1.0},
        {"status": "error", "finished_at": timezone.now(), "fault": "platform"},
        {"status": "error", "finished_at": timezone.now(), "counts_towards_limit": False},
        {"status": "canceled", "finished_at": timezone.now()},
        {"finished_at": timezone.now()},
        {
            "status": "graded",
            "finished_at": timezone.now(),
            "verdict": "accepted",
            "score": 2.0,
            "max_score": 1.0,
        },
    ],
)
def test_no_row_contradicts_itself(classroom, wrong):
    room = classroom()
    submission = room.submit()
    with pytest.raises(IntegrityError), transaction.atomic():
        Submission.objects.filter(pk=submission.pk).update(**wrong)
