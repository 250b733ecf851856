"""Problems and their matrices, regrades, grades: what graders do beside submissions."""

import json
from datetime import timedelta

import numpy as np
import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from kernels.grading.problem import parse_problem
from tests.workers.grading.conftest import BODY, CASES
from workers.grading import judging, problems, regrades, scoring, tasks, work
from workers.grading.models import COURSE, Check, Problem, ProblemVersion, Regrade, Submission, WorkStatus

pytestmark = pytest.mark.django_db(transaction=True)


def save(owner="token:1", **changes):
    return problems.save(owner, parse_problem({**BODY, **changes}))


# --- Problems --------------------------------------------------------------------------------


def test_another_content_is_another_version_and_the_same_is_none():
    first, new = save()
    assert (first.number, new) == (1, True)
    again, new = save()
    assert (again.pk, new) == (first.pk, False)
    second, new = save(title="Another")
    assert (second.number, new) == (2, True)
    assert ProblemVersion.objects.get(pk=first.pk).body["title"] == "Attention"


def test_a_version_never_changes():
    version, _ = save()
    version.body = {}
    for fields in ({}, {"update_fields": ["body"]}, {"update_fields": ["body", "published_at"]}):
        with pytest.raises(TypeError, match="never changes"):
            version.save(**fields)


def test_everybody_has_slugs_of_their_own_and_means_them():
    mine, _ = save("token:1")
    save("token:2", title="Theirs")
    course, _ = save(COURSE, title="The course's")
    ProblemVersion.objects.exclude(pk=mine.pk).update(published_at=timezone.now())
    assert problems.find("plain", "token:1") == mine.problem
    assert problems.find("plain", "token:3") == course.problem
    assert problems.find("plain", "") == course.problem
    assert problems.find("nothing", "token:1") is None


def test_drafts_are_their_authors_alone():
    draft, _ = save()
    assert problems.find("plain", "token:2") is None
    assert problems.find(draft.problem.id, "") is None
    assert problems.version_of(draft.problem, "token:1") == draft
    assert problems.version_of(draft.problem, "token:2") is None


def test_the_matrix_is_computed_once_and_decides(sent):
    version, _ = save()
    check = problems.check_of(version)
    assert (check.status, sent) == ("queued", [check.pk])
    assert problems.check_of(version).pk == check.pk
    assert sent == [check.pk]
    tasks.check.run(check.pk)
    check.refresh_from_db()
    assert check.status == "done"
    problems.publish(version, check.result)
    assert version.published_at is not None


def test_a_lost_matrix_is_computed_again_and_the_second_time_given_up(sent, long_ago):
    version, _ = save()
    check = problems.check_of(version)
    for expected in ("queued", "error"):
        taken = work.claim(Check, check.pk, "task")
        Check.objects.update(heartbeat_at=long_ago)
        assert work.reap()["work lost"] == 1
        assert not work.finish(taken, {})
        check.refresh_from_db()
        assert check.status == expected
    assert problems.check_of(version).status == "queued", "asked again, it is tried again"
    assert sent == [check.pk] * 3


# --- Regrades --------------------------------------------------------------------------------


@pytest.fixture
def room(classroom):
    """Ada right, Bob wrong, Eve both; graded."""
    room = classroom(total_points=8)
    for user_ref, arrays in (("ada", None), ("bob", "zeros"), ("eve", "zeros"), ("eve", None)):
        room.submit(user_ref, room.zeros(user_ref) if arrays else None)
    room.grade()
    return room


def mended(room):
    """A version of the problem with other points."""
    heavier = [{**CASES[0], "points": 3}, {**CASES[1], "points": 1}]
    version, _ = save(cases=heavier)
    version.published_at = timezone.now()
    version.save(update_fields=["published_at"])
    return version


def half(room, user_ref):
    """Right in the small case alone."""
    right = room.right(user_ref)
    return {**right, "wide": {"out": np.zeros_like(right["wide"]["out"])}}


def regrade(room, version, **fields):
    fields = {"scope": "all", "policy": "replace", "dry_run": False, **fields}
    row = regrades.start(room.assignment, version, **fields)
    tasks.regrade.run(row.pk)
    row.refresh_from_db()
    assert row.status == "done", row.error
    return row


def test_a_dry_run_says_what_would_change_for_whom_and_changes_nothing(room):
    room.submit("dan", half(room, "dan"))
    room.grade()
    before = list(Submission.objects.order_by("pk").values())
    row = regrade(room, mended(room), dry_run=True)
    assert list(Submission.objects.order_by("pk").values()) == before
    assert (row.result["judged"], row.result["changed"]) == (5, 1)
    (dan,) = row.result["differences"]
    assert (dan["user_ref"], dan["before"], dan["after"]) == ("dan", 2.0, 6.0)
    room.assignment.refresh_from_db()
    assert room.assignment.problem_version.number == 1


def test_a_regrade_replaces_scores_and_keeps_the_old_ones(room):
    dan = room.submit("dan", half(room, "dan"))
    room.grade()
    version = mended(room)
    row = regrade(room, version)
    dan.refresh_from_db()
    assert (dan.score, dan.problem_version) == (6.0, version)
    (old,) = dan.earlier
    assert (old["score"], old["verdict"], old["regrade"]) == (2.0, "wrong_answer", row.id)
    room.assignment.refresh_from_db()
    assert room.assignment.problem_version == version
    assert Submission.objects.filter(earlier=[]).count() == 4, "who lost and won nothing has nothing to keep"


def test_with_policy_max_nobody_loses_points(room):
    right = room.right("dan")
    wide = {**right, "small": {"out": np.zeros_like(right["small"]["out"])}}
    dan = room.submit("dan", wide)
    room.grade()
    version = mended(room)
    assert regrade(room, version, policy="max", dry_run=True).result["changed"] == 0
    regrade(room, version, policy="max")
    dan.refresh_from_db()
    assert (dan.score, dan.earlier) == (6.0, [])


@pytest.mark.parametrize(("scope", "judged"), [("all", 4), ("latest", 3), ("best", 3)])
def test_the_scope_says_which_submissions_are_judged(room, scope, judged):
    assert regrade(room, room.assignment.problem_version, scope=scope).result["judged"] == judged


def test_a_grader_that_dies_in_a_regrade_leaves_every_score_as_it_was(room, long_ago, monkeypatch):
    room.submit("dan", half(room, "dan"))
    room.grade()
    before = list(Submission.objects.order_by("pk").values())
    row = regrades.start(room.assignment, mended(room), scope="all", policy="replace", dry_run=False)

    class Killed(BaseException):
        pass

    def die(*_args):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(work, "finish", die)
        with pytest.raises(Killed):
            tasks.regrade.run(row.pk)
    assert list(Submission.objects.order_by("pk").values()) == before
    Regrade.objects.update(heartbeat_at=long_ago)
    work.reap()
    tasks.regrade.run(row.pk)
    row.refresh_from_db()
    assert (row.status, row.attempt, row.result["changed"]) == (WorkStatus.DONE, 2, 1)


# --- Which submission counts -----------------------------------------------------------------


def scores(room, policy):
    room.assignment.score_policy = policy
    counting = scoring.counting(room.assignment, room.assignment.submissions.all())
    return {user_ref: each.score for user_ref, each in counting.items()}


def test_the_best_or_the_last_counts(room):
    room.submit("ada", room.zeros("ada"))
    room.grade()
    assert scores(room, "best") == {"ada": 8.0, "bob": 0.0, "eve": 8.0}
    assert scores(room, "last") == {"ada": 0.0, "bob": 0.0, "eve": 8.0}


def test_what_has_no_verdict_never_counts_as_0(room):
    room.submit("ada")  # still queued
    room.submit("fay")
    assert scores(room, "last") == {"ada": 8.0, "bob": 0.0, "eve": 8.0, "fay": None}


@pytest.mark.parametrize(
    ("policy", "hours", "lost"),
    [
        ({"type": "none"}, 30, 0),
        ({}, 30, 0),
        ({"type": "fixed", "fraction": 0.2}, 30, 0.2),
        ({"type": "per_day", "fraction": 0.2}, 24, 0.2),
        ({"type": "per_day", "fraction": 0.2}, 30, 0.4),
        ({"type": "per_day", "fraction": 0.2}, 24 * 9, 1),
        ({"type": "per_day", "fraction": 0.2}, 0, 0),
    ],
)
def test_what_lateness_costs(classroom, policy, hours, lost):
    due = timezone.now()
    room = classroom(due_date=due, late_policy=policy)
    assert scoring.deduction(room.assignment, due + timedelta(hours=hours)) == pytest.approx(lost)


# --- The course ------------------------------------------------------------------------------

FILE = """---
title: Attention by hand
answer: [{name: out}]
cases:
  - {name: small, points: 2, shape: {q_len: 3, kv_len: 4, head_dim: 2}}
---
Compute **softmax**(QKᵀ/√d)V.

## Hints

- Divide by √d.
- Softmax goes along
  the keys.

## Solution

Weights first.
"""


def test_answers_are_held_to_the_least_precise_dtype_in_which_mistakes_are_told(tmp_path, capsys):
    """In bfloat16 the rounding of so small a case could hide a missing 1/√d."""
    (tmp_path / "by-hand.md").write_text(FILE)
    call_command("load_problems", tmp_path)
    version = ProblemVersion.objects.get()
    assert version.least_dtype == "float16"
    assert judging.problem_of(version).tolerance.least_dtype == "float16"
    assert version.body["tolerance"]["least_dtype"] is None, "what the author wrote stays"


def test_files_become_published_problems_once(tmp_path, capsys):
    (tmp_path / "by-hand.md").write_text(FILE)
    call_command("load_problems", tmp_path)
    call_command("load_problems", tmp_path)
    assert "1 problems, 0 new" in capsys.readouterr().out
    version = ProblemVersion.objects.get()
    assert (version.problem.slug, version.problem.owner) == ("by-hand", COURSE)
    assert version.published_at is not None
    assert problems.matrix_of(version)["publishable"] is True
    assert version.body["statement"] == "Compute **softmax**(QKᵀ/√d)V."
    assert version.body["hints"] == ["Divide by √d.", "Softmax goes along\n  the keys."]
    assert version.body["solution"] == "Weights first."
    (tmp_path / "by-hand.md").write_text(FILE.replace("points: 2", "points: 3"))
    call_command("load_problems", tmp_path)
    assert sorted(Problem.objects.get().versions.values_list("number", flat=True)) == [1, 2]


@pytest.mark.parametrize(
    "broken", ["", "no front matter", FILE.replace("q_len: 3", "q_len: -3"), "---\n[\n---\n"]
)
def test_a_broken_file_names_itself(tmp_path, broken):
    (tmp_path / "odd.md").write_text(broken)
    with pytest.raises(CommandError, match=r"odd\.md"):
        call_command("load_problems", tmp_path)
    assert not Problem.objects.exists()


def test_what_the_rows_keep_is_json(room):
    """NaN in a result would break every reader of it."""
    for result in Submission.objects.values_list("result", flat=True):
        json.dumps(result, allow_nan=False)
