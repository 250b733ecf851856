"""Two requests at once, students behind one address, and what a list is asked that cannot be."""

import pytest

from api.grading import authoring, bodies
from tests.api.conftest import Api
from tests.api.grading.conftest import right, zeros
from tests.api.helpers import assert_problem
from workers.grading.models import Assignment, Submission

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def keys_of(teacher):
    def make(assignment, *user_refs):
        answer = teacher.api.post(f"/assignments/{assignment['id']}/keys", {"user_refs": list(user_refs)})
        return [each["key"] for each in answer.json()["keys"]]

    return make


def test_of_two_changes_at_once_both_cannot_be_wrong_together(teacher, monkeypatch):
    """Each is right by the dates that it read; the later one is refused by those that are."""
    made = teacher.assign(due_date="2031-01-01T00:00:00Z", late_due_date="2031-02-01T00:00:00Z")
    address, change = f"/assignments/{made['id']}", authoring.change

    def change_after_another(row, body):
        """This request has read its row already."""
        monkeypatch.setattr(authoring, "change", change)
        other = {"due_date": "2032-01-01T00:00:00Z", "late_due_date": "2032-02-01T00:00:00Z"}
        assert teacher.api.request("PATCH", address, other).status_code == 200
        return change(row, body)

    monkeypatch.setattr(authoring, "change", change_after_another)
    second = teacher.api.request("PATCH", address, {"late_due_date": "2031-01-15T00:00:00Z"})
    assert_problem(second, 422, says="late_due_date")
    assert Assignment.objects.get().late_due_date.year == 2032


def test_what_a_change_answers_is_what_there_is(teacher):
    made = teacher.assign(due_date="2031-01-01T00:00:00Z")
    answer = teacher.api.request("PATCH", f"/assignments/{made['id']}", {"title": "Week 3"}).json()
    assert (answer["title"], answer["due_date"]) == ("Week 3", "2031-01-01T00:00:00Z")
    assert set(bodies.DATES) < set(authoring.CHANGEABLE)


def test_of_feedback_too_only_what_is_named_changes(teacher):
    """Or whoever opens it for after the due date opens it for now, too."""
    made = teacher.assign(feedback={"normal": "none", "staff": "scores"})
    address = f"/assignments/{made['id']}"
    seen = teacher.api.request("PATCH", address, {"feedback": {"after_due": "verdict"}}).json()["feedback"]
    assert seen == {"normal": "none", "past_limit": "full", "after_due": "verdict", "staff": "scores"}
    back = teacher.api.request("PATCH", address, {"feedback": None}).json()["feedback"]
    assert set(back.values()) == {"full"}


def test_students_behind_one_address_have_idempotency_keys_of_their_own(teacher, keys_of, api):
    """A class room is one address, and a client may count: submission-1, submission-2 …"""
    made = teacher.assign()
    sent = []
    for user_ref, key in zip(("ada", "bob"), keys_of(made, "ada", "bob"), strict=True):
        query = f"?key={key}"
        variant = api.get(f"/assignments/{made['id']}/variants/{user_ref}{query}").json()
        body = {"user_ref": user_ref, "answers": right(variant)}
        for _ in range(2):
            address = f"/assignments/{made['id']}/submissions{query}"
            sent.append(api.post(address, body, **{"idempotency-key": "submission-1"}))
    assert [each.status_code for each in sent] == [202] * 4
    assert Submission.objects.count() == 2


@pytest.mark.parametrize("user_ref", ["x" * 128, "ü" * 128])
def test_a_long_name_has_idempotency_keys_too(teacher, keys_of, user_ref):
    made = teacher.assign()
    (key,) = keys_of(made, user_ref)
    body = {"user_ref": user_ref, "answers": {}}
    answer = Api().post(f"/assignments/{made['id']}/submissions?key={key}", body, **{"idempotency-key": "k"})
    assert answer.status_code == 202


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("status=done", "queued, grading, graded, error, canceled"),
        ("status=%00", "status must be one of"),
        ("user_ref=%00", "printable"),
        ("user_ref=", "1 to 128"),
        ("user_ref=" + "x" * 129, "1 to 128"),
        ("cursor=cD05OTk5LTEyLTMxVDIzOjU5OjU5LTEyOjAw", "cursor"),  # 9999-12-31T23:59:59-12:00
        ("cursor=cD0wMDAxLTAxLTAxVDAwOjAwOjAwKzEyOjAw", "cursor"),  # 0001-01-01T00:00:00+12:00
        ("cursor=cD0yMDI2LTAxLTAx", "cursor"),  # a day
    ],
)
def test_a_list_says_what_it_cannot_be_asked(teacher, query, says):
    made = teacher.assign()
    assert_problem(teacher.api.get(f"/assignments/{made['id']}/submissions?{query}"), 400, says=says)


def test_events_are_all_looked_at_and_kept_once(teacher):
    graded = ["submission.graded"] * 30
    hook = {"url": "https://8.8.8.8/"}
    assert teacher.api.post("/webhooks", {**hook, "events": graded}).json()["events"] == graded[:1]
    answer = teacher.api.post("/webhooks", {**hook, "events": [*graded, {"x": 1}]})
    assert assert_problem(answer, 422)["errors"][0]["pointer"] == "/events/30"


def test_where_nothing_was_handed_in_students_and_staff_read_the_same(teacher, graded):
    """Though one case is hidden."""
    seen = graded(teacher.assign(), make=lambda _: {})
    staff = teacher.api.get(f"/submissions/{seen['id']}?view=staff").json()
    assert seen["reason"] == staff["reason"] == "no_answers"
    assert seen["notes"] == staff["notes"] == ["Not handed in: small/out and wide/out."]


def test_which_cases_are_missing_is_said(teacher, graded):
    seen = graded(teacher.assign(), make=lambda variant: {"small": zeros(variant)["small"], "wide": None})
    assert (seen["verdict"], seen["notes"]) == ("wrong_answer", ["Not handed in: wide/out."])
