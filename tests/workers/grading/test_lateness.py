"""A due date that moves, and what was handed in before it did."""

from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from workers.grading import lateness, regrades, submissions, tasks
from workers.grading.models import Assignment, Submission

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def room(classroom):
    """Due 30 hours ago, half of the points for each day."""
    now = timezone.now()
    return classroom(
        due_date=now - timedelta(hours=30),
        late_due_date=now + timedelta(hours=1),
        late_policy={"type": "per_day", "fraction": 0.25},
        total_points=100,
    )


def move(room, **ago):
    with transaction.atomic():
        held = Assignment.objects.select_for_update().get(pk=room.assignment.pk)
        held.due_date = timezone.now() - timedelta(**ago)
        held.save(update_fields=["due_date"])
        lateness.reckon_anew(held)


def cost(user_ref):
    found = Submission.objects.get(user_ref=user_ref)
    return found.is_late, found.deduction, found.score


def test_at_the_very_moment_it_is_still_in_time(classroom):
    due = timezone.now() - timedelta(hours=2)
    last = due + timedelta(hours=1)
    room = classroom(due_date=due, late_due_date=last)
    instant = timedelta(microseconds=1)
    handed = [
        room.submit(f"s{n}", submitted_at=at)
        for n, at in enumerate((due, due + instant, last, last + instant))
    ]
    assert [each.is_late for each in handed[:3]] == [False, True, True]
    assert isinstance(handed[3], submissions.Refusal)


def test_what_was_late_is_late_no_more_and_costs_nothing(room):
    room.submit("ada")
    room.submit("bob", room.zeros("bob"))
    room.grade()
    assert cost("ada") == (True, 0.5, 50)
    move(room, minutes=-30)
    assert cost("ada") == (False, 0.0, 100)
    assert cost("bob") == (False, 0.0, 0)


def test_who_lost_everything_gets_it_back_too(room):
    Assignment.objects.update(late_policy={"type": "fixed", "fraction": 1.0})
    room.assignment.refresh_from_db()
    room.submit("ada")
    room.grade()
    assert cost("ada") == (True, 1.0, 0)
    move(room, minutes=-30)
    assert cost("ada") == (False, 0.0, 100)


def test_a_date_that_moves_the_other_way_counts_as_well(room):
    room.submit("ada", submitted_at=timezone.now() - timedelta(hours=40))
    room.grade()
    assert cost("ada") == (False, 0.0, 100)
    move(room, hours=50)
    assert cost("ada") == (True, 0.25, 75)


def test_what_is_queued_is_graded_by_the_new_date(room):
    room.submit("ada")
    move(room, hours=3)
    room.grade()
    assert cost("ada") == (True, 0.25, 75)


def test_a_grader_who_has_it_does_not_store_the_score_of_before(room, sent):
    room.submit("ada")
    claimed = room.claim()
    sent.clear()
    move(room, minutes=-30)
    assert len(sent) == 1, "somebody is told to grade it again"
    assert submissions.finish(claimed, tasks.judging.judge(claimed)) == 0
    room.grade()
    assert cost("ada") == (False, 0.0, 100)
    assert Submission.objects.get().attempt == 1, "nothing was lost"


def test_what_stays_as_it_was_is_not_touched(room):
    for n in range(3):
        room.submit(f"s{n}")
    claimed = room.claim()
    move(room, hours=31)
    assert submissions.finish(claimed, tasks.judging.judge(claimed)) == 3


def test_a_regrade_counts_lateness_as_it_is_in_the_end(room, monkeypatch):
    room.submit("ada", submitted_at=timezone.now() - timedelta(hours=3))
    room.grade()
    judge = regrades.judging.judge_again

    def judge_while_the_date_moves(*args):
        found = judge(*args)
        move(room, minutes=-30)
        return found

    monkeypatch.setattr(regrades.judging, "judge_again", judge_while_the_date_moves)
    row = regrades.start(
        room.assignment, room.assignment.problem_version, scope="all", policy="replace", dry_run=False
    )
    tasks.regrade.run(row.pk)
    assert cost("ada") == (False, 0.0, 100)
