"""What comes again, or while something else is under way."""

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from kernels.grading.problem import parse_problem
from tests.workers.grading.conftest import BODY, CASES
from workers.grading import incidents, judging, problems, regrades, sending, submissions, tasks
from workers.grading.models import Submission

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def room(classroom):
    return classroom()


def failed(room, user_ref="ada", **fields):
    """A submission that we failed to grade."""
    submission = room.submit(user_ref, external_id="x1", **fields)
    incidents.lost(Submission.objects.filter(pk=submission.pk), incidents.WORKER_LOST, last=True)
    submission.refresh_from_db()
    assert submission.status == "error"
    return submission


def another_version(room, points):
    """Of the problem, with other points of its cases; published."""
    cases = [{**case, "points": each} for case, each in zip(CASES, points, strict=True)]
    version, _ = problems.save("token:1", parse_problem({**BODY, "cases": cases}))
    version.published_at = timezone.now()
    version.save(update_fields=["published_at"])
    return version


def regrade(room, version, policy="replace", scope="all"):
    made = regrades.start(room.assignment, version, scope=scope, policy=policy, dry_run=False)
    tasks.regrade.run(made.pk)
    made.refresh_from_db()
    assert made.status == "done"
    return made


# --- Handing in again what we failed to grade --------------------------------------------------------------


def test_what_we_failed_to_grade_is_graded_when_it_is_sent_again(room, sent):
    first = failed(room)
    sending.taken(room.assignment.id)
    sent.clear()
    again = room.submit("ada", external_id="x1")
    assert (again.pk, again.status, again.counts_towards_limit) == (first.pk, "queued", True)
    assert sent, "a grader is told"
    assert room.submit("ada", external_id="x1").status == "queued", "sent a third time it is under way"
    room.grade()
    again.refresh_from_db()
    assert (again.status, again.verdict, again.fault, again.error) == ("graded", "accepted", "", None)
    assert (again.submitted_at, again.number) == (first.submitted_at, first.number)
    assert room.submit("ada", external_id="x1").status == "graded"
    assert Submission.objects.count() == 1


def test_it_is_in_time_if_it_was_so_when_it_was_first_sent(classroom):
    room = classroom(due_date=timezone.now() + timedelta(hours=1))
    failed(room)
    room.age(room.assignment, due_date=timezone.now())
    again = room.submit("ada", external_id="x1")
    assert (again.status, again.is_late) == ("queued", False)


def test_it_is_taken_alone_and_lost_once_more_is_an_error_again(room):
    first = failed(room)
    room.submit("bob")
    room.submit("ada", external_id="x1")
    assert [each.user_ref for each in room.claim().submissions] == ["bob"]
    assert [each.pk for each in room.claim().submissions] == [first.pk]
    incidents.lost(Submission.objects.filter(pk=first.pk), incidents.WORKER_LOST)
    first.refresh_from_db()
    assert (first.status, first.counts_towards_limit) == ("error", False)


def test_the_reaper_gives_it_a_whole_day_again(room, long_ago, settings):
    first = failed(room)
    room.age(first, created_at=timezone.now() - timedelta(seconds=settings.GRADE_MAX_AGE + 60))
    room.submit("ada", external_id="x1")
    room.age(first, queued_at=long_ago)
    incidents.reap()
    first.refresh_from_db()
    assert first.status == "queued"


def test_a_try_that_was_used_elsewhere_is_not_used_twice(classroom):
    room = classroom(limit_count=1)
    failed(room)
    assert isinstance(room.submit("ada"), Submission), "the try was given back"
    refused = room.submit("ada", external_id="x1")
    assert isinstance(refused, submissions.OverLimit)
    assert Submission.objects.get(external_id="x1").status == "error"


def test_other_answers_under_its_name_are_a_conflict_still(room):
    failed(room)
    refused = room.submit("ada", room.zeros("ada"), external_id="x1")
    assert isinstance(refused, submissions.Conflict)


def test_what_was_taken_back_stays_so(room):
    submissions.cancel(room.submit("ada", external_id="x1").pk)
    assert room.submit("ada", external_id="x1").status == "canceled"


# --- When it was handed in ---------------------------------------------------------------------------------


@pytest.mark.parametrize("years", [1, 2000])
def test_a_window_reaches_back_before_the_calendar(classroom, years):
    room = classroom(limit_count=1, limit_window_s=60)
    at = datetime(years, 1, 1, tzinfo=UTC)
    assert room.submit(submitted_at=at).status == "queued"
    assert isinstance(room.submit(submitted_at=at + timedelta(seconds=30)), submissions.OverLimit)
    assert room.submit(submitted_at=at + timedelta(seconds=61)).status == "queued"


def test_what_is_handed_in_late_by_a_harness_is_in_a_window_of_its_own(classroom):
    room = classroom(limit_count=1, limit_window_s=60)
    now = timezone.now()
    assert room.submit(submitted_at=now - timedelta(seconds=10)).status == "queued"
    assert room.submit(submitted_at=now - timedelta(days=1)).status == "queued"


# --- Regrades, while others write --------------------------------------------------------------------------


def meanwhile(monkeypatch, happens):
    """Something happens, once, after submissions were judged again and before anything of it is stored."""
    judge_again, happened = judging.judge_again, []

    def judge_and_wait(*args):
        found = judge_again(*args)
        if not happened:
            happened.append(True)
            happens()
        return found

    monkeypatch.setattr(judging, "judge_again", judge_and_wait)


def test_what_is_graded_during_a_regrade_is_judged_by_the_new_version_too(room, monkeypatch):
    room.submit("ada", room.zeros("ada") | {"small": room.right("ada")["small"]})
    room.grade()

    def another_is_graded():
        room.submit("bob", room.zeros("bob") | {"small": room.right("bob")["small"]})
        room.grade()

    meanwhile(monkeypatch, another_is_graded)
    version = another_version(room, (3, 1))
    assert regrade(room, version).result["judged"] == 2
    assert set(Submission.objects.values_list("score", "problem_version")) == {(3.0, version.pk)}


def test_a_verdict_by_a_version_that_is_no_longer_the_assignments_is_not_stored(room):
    room.submit("ada", room.zeros("ada") | {"small": room.right("ada")["small"]})
    claimed = room.claim()
    judged = judging.judge(claimed)
    version = another_version(room, (3, 1))
    regrade(room, version)
    assert submissions.finish(claimed, judged) == 0
    submission = Submission.objects.get()
    assert (submission.status, submission.attempt) == ("queued", 0)
    room.grade()
    submission.refresh_from_db()
    assert (submission.score, submission.problem_version_id) == (3.0, version.pk)


def test_nobody_loses_points_by_two_regrades_at_once(room, monkeypatch):
    submission = room.submit("ada", room.zeros("ada") | {"small": room.right("ada")["small"]})
    room.grade()  # 1 of 4
    generous, mean = another_version(room, (3, 1)), another_version(room, (2, 2))
    meanwhile(monkeypatch, lambda: regrade(room, generous, policy="max"))
    slow = regrade(room, mean, policy="max")
    submission.refresh_from_db()
    assert submission.score == 3.0
    assert [each["score"] for each in submission.earlier] == [1.0], "what was replaced is kept"
    assert slow.result["changed"] == 0
