"""A teacher, students, and what they do over REST; graders work when a test says so."""

import numpy as np
import pytest

# The project's own modules are imported in the fixtures: this file is read before Django is set up.

CASES = [
    {"name": "small", "points": 1, "shape": {"q_len": 3, "kv_len": 4, "head_dim": 2}},
    {
        "name": "wide",
        "points": 3,
        "visibility": "after_due_date",
        "shape": {"num_heads": 2, "q_len": 5, "kv_len": 5, "head_dim": 4},
    },
]
BODY = {"slug": "plain", "title": "Attention", "answer": [{"name": "out"}], "cases": CASES}


class Teacher:
    """Whoever has a token with every scope, and one assignment."""

    def __init__(self, api):
        self.api = api

    def author(self, **changes):
        answer = self.api.post("/problems", {**BODY, **changes})
        assert answer.status_code in (200, 201), answer.content
        return answer.json()

    def publish(self, slug="plain"):
        """As if a grader had done its part already."""
        work()
        answer = self.api.post(f"/problems/{slug}/publish", prefer="wait=0")
        if answer.status_code == 202:
            work()
            answer = self.api.post(f"/problems/{slug}/publish", prefer="wait=0")
        return answer

    def assign(self, **fields):
        self.author()
        assert self.publish().status_code == 200
        answer = self.api.post("/assignments", {"problem": "plain", **fields})
        assert answer.status_code == 201, answer.content
        return answer.json()


def work():
    """What graders do with all that is queued."""
    from workers.grading import tasks
    from workers.grading.models import Check, Regrade, Submission

    for check in Check.objects.filter(status="queued"):
        tasks.check.run(check.pk)
    for regrade in Regrade.objects.filter(status="queued"):
        tasks.regrade.run(regrade.pk)
    waiting = Submission.objects.filter(status="queued").order_by()
    for assignment_id in waiting.values_list("assignment", flat=True).distinct():
        tasks.grade.run(assignment_id)


def right(variant):
    """The right answers to a variant's inputs: softmax(QKᵀ/√d)V in float64, written out."""
    answers = {}
    for case, inputs in variant["cases"].items():
        q, k, v = (np.array(inputs[name]) for name in "qkv")
        scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        answers[case] = {"out": (weights @ v).tolist()}
    return answers


def zeros(variant):
    return {
        case: {"out": np.zeros_like(np.array(named["out"])).tolist()}
        for case, named in right(variant).items()
    }


@pytest.fixture(autouse=True)
def _graders(sent, monkeypatch):
    from workers import broker, health

    monkeypatch.setattr(broker, "waiting", lambda _queue: 0)
    monkeypatch.setattr(health, "has_worker", lambda _queue: True)


@pytest.fixture
def teacher(alice):
    return Teacher(alice)


@pytest.fixture
def handed(teacher):
    """Hand in for a student: `handed(assignment, "ada", answers)`, graded; the answer."""

    def hand_in(assignment, user_ref="ada", make=right, api=None, query="", **fields):
        api = api or teacher.api
        variant = api.get(f"/assignments/{assignment['id']}/variants/{user_ref}{query}")
        assert variant.status_code == 200, variant.content
        body = {"user_ref": user_ref, "answers": make(variant.json()), **fields}
        return api.post(f"/assignments/{assignment['id']}/submissions{query}", body)

    return hand_in


@pytest.fixture
def graded(handed, teacher):
    """As `handed`, and what it came to."""

    def hand_in(assignment, *args, **fields):
        answer = handed(assignment, *args, **fields)
        assert answer.status_code in (200, 202), answer.content
        work()
        return teacher.api.get(f"/submissions/{answer.json()['id']}").json()

    return hand_in
