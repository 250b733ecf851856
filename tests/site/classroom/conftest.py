"""People at their browsers: a teacher who is signed in, students at their desks; graders who are called by
hand."""

from unittest import mock

import numpy as np
import pytest
from django.test import Client
from django.utils import timezone

# The project's own modules are imported in the fixtures: this file is read before Django is set up.

PASSWORD = "correct horse 9"
CASES = [
    {"name": "small", "points": 1, "shape": {"q_len": 3, "kv_len": 4, "head_dim": 2}},
    {"name": "wide", "points": 3, "shape": {"num_heads": 2, "q_len": 5, "kv_len": 5, "head_dim": 4}},
]
BODY = {
    "slug": "plain",
    "title": "Attention, plainly",
    "statement": "Compute $softmax(QK^T/\\sqrt d)V$.",
    "hints": ["Divide by the root."],
    "answer": [{"name": "out"}],
    "cases": CASES,
}
HIDDEN = {**BODY, "cases": [CASES[0], {**CASES[1], "visibility": "hidden"}]}


@pytest.fixture(autouse=True)
def _no_broker(sent, monkeypatch):
    """What is sent to graders and workers stays here, and nobody waits for them."""
    from workers import broker, events, health

    monkeypatch.setattr(broker, "waiting", lambda _queue: 0)
    monkeypatch.setattr(health, "has_worker", lambda _queue: True)
    monkeypatch.setattr(events, "wait", lambda *_args, **_options: None)


@pytest.fixture
def account(db):
    """`account("grace")`: a new account of that name."""
    from django.contrib.auth import get_user_model

    def account(name="grace"):
        return get_user_model().objects.create_user(name, password=PASSWORD)

    return account


@pytest.fixture
def at(account):
    """`at("grace")`: the browser of that teacher, signed in."""
    from django.contrib.auth import get_user_model

    def at(name="grace"):
        client = Client()
        found = get_user_model().objects.filter(username=name).first()
        client.force_login(found or account(name))
        return client

    return at


@pytest.fixture
def teacher(at):
    return at("grace")


class Course:
    """One assignment, and what its students do at their desks."""

    def __init__(self, owner, body=BODY, **fields):
        from kernels.grading.problem import parse_problem
        from workers.grading import assignments, problems

        self.problem = parse_problem(body)
        self.version, _ = problems.save(owner, self.problem)
        self.version.published_at = timezone.now()
        self.version.save(update_fields=["published_at"])
        fields = {"total_points": self.problem.max_score, "late_policy": {"type": "none"}, **fields}
        # Of some seeds in a hundred a mistake passes the small case.
        with mock.patch("workers.grading.assignments.secrets.token_bytes", lambda count: bytes(range(count))):
            self.assignment = assignments.create(owner, self.version, **fields)

    @property
    def id(self):
        return self.assignment.id

    def desk(self, user_ref="ada"):
        from api.grading import keys
        from classroom.students.access import Desk

        return Desk(self.assignment, *keys.of(self.id, [user_ref]))

    def inputs(self, user_ref="ada", number=1):
        from workers.grading import judging

        problem, seeds = judging.attempt_of(self.assignment, user_ref, number)
        return {case.name: judging.inputs_of_case(problem, case, seeds) for case in problem.cases}

    def answers(self, user_ref="ada", number=1, scaled=True):
        """{case: array}: right in float64, or without 1/√d."""
        return {
            case: attention_of(named, scaled=scaled) for case, named in self.inputs(user_ref, number).items()
        }

    def post(self, user_ref="ada", answers=None, client=None, **more):
        """Hand in, in boxes, as a browser does."""
        answers = self.answers(user_ref) if answers is None else answers
        names = {case.name: f"box-{i}-0" for i, case in enumerate(self.problem.cases)}
        boxes = {names[case]: str(array.tolist()) for case, array in answers.items()}
        body = {"way": "boxes", **boxes, **more}
        return (client or Client()).post(self.desk(user_ref).address(), body)

    def hand_in(self, user_ref="ada", **options):
        """A submission, graded."""
        answer = self.post(user_ref, **options)
        assert answer.status_code == 302, answer.content.decode()
        self.grade()
        return self.assignment.submissions.order_by("-number", "-created_at").filter(user_ref=user_ref)[0]

    def grade(self):
        from workers.grading import tasks

        tasks.grade.run(self.assignment.id)

    def page(self, submission, client=None):
        address = self.desk(submission.user_ref).address("submission", submission_id=submission.id)
        answer = (client or Client()).get(address)
        assert answer.status_code == 200
        return answer.content.decode()


def attention_of(inputs, scaled=True):
    """softmax(QKᵀ/√d)V in float64, written out."""
    q, k, v = (np.asarray(inputs[name], np.float64) for name in "qkv")
    scores = q @ np.swapaxes(k, -1, -2) / (np.sqrt(q.shape[-1]) if scaled else 1.0)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.fixture
def course(db):
    """`course(…)`: an assignment of grace's, or of `owner`'s."""
    from django.contrib.auth import get_user_model

    from api.models import owner_of

    def course(body=BODY, owner=None, **fields):
        if owner is None:
            grace, _ = get_user_model().objects.get_or_create(username="grace")
            owner = owner_of(grace.pk)
        return Course(owner, body, **fields)

    return course
