"""An assignment of a small problem, with no broker and no web: what is sent to graders is recorded."""

from datetime import timedelta

import numpy as np
import pytest
from django.utils import timezone

# The project's own modules are imported in the fixtures: this file is read before Django is set up.

CASES = [
    {"name": "small", "points": 1, "shape": {"q_len": 3, "kv_len": 4, "head_dim": 2}},
    {"name": "wide", "points": 3, "shape": {"num_heads": 2, "q_len": 5, "kv_len": 5, "head_dim": 4}},
]
BODY = {"slug": "plain", "title": "Attention", "answer": [{"name": "out"}], "cases": CASES}


class Classroom:
    """One assignment, and what its students do."""

    def __init__(self, body=BODY, **fields):
        from kernels.grading.problem import parse_problem
        from workers.grading import assignments, problems

        self.problem = parse_problem(body)
        version, _ = problems.save("token:1", self.problem)
        version.published_at = timezone.now()
        version.save(update_fields=["published_at"])
        fields = {"total_points": self.problem.max_score, "late_policy": {"type": "none"}, **fields}
        self.assignment = assignments.create("token:1", version, **fields)

    def right(self, user_ref, number=1):
        """The right answers of a student, in float64."""
        from workers.grading import judging

        problem, seeds = judging.attempt_of(self.assignment, user_ref, number)
        inputs = {case.name: judging.inputs_of_case(problem, case, seeds) for case in problem.cases}
        return {case: {"out": attention_of(named)} for case, named in inputs.items()}

    def zeros(self, user_ref, number=1):
        return {case: {"out": np.zeros_like(named["out"])} for case, named in self.right(user_ref).items()}

    def draft(self, user_ref="ada", arrays=None, **fields):
        from kernels.grading.answers import read_answers
        from workers.grading import answers
        from workers.grading.submissions import Draft

        arrays = self.right(user_ref, fields.get("number") or 1) if arrays is None else arrays
        body = {case: {name: a.tolist() for name, a in named.items()} for case, named in arrays.items()}
        content = answers.pack(read_answers(self.problem, body))
        return Draft(user_ref, content, answers.fingerprint(user_ref, content), **fields)

    def submit(self, user_ref="ada", arrays=None, **fields):
        """The submission, or the refusal."""
        from workers.grading import submissions

        (entered,) = submissions.record(self.assignment.id, [self.draft(user_ref, arrays, **fields)])
        return entered

    def claim(self, at_most=100, task_id="task"):
        from workers.grading import submissions

        return submissions.claim(self.assignment, task_id, at_most)

    def grade(self):
        """What a grader does, until nothing is left."""
        from workers.grading import tasks

        tasks.grade.run(self.assignment.id)

    def age(self, row, **fields):
        type(row).objects.filter(pk=row.pk).update(**fields)
        row.refresh_from_db()
        return row


def attention_of(inputs):
    """softmax(QKᵀ/√d)V in float64, written out."""
    q, k, v = (np.asarray(inputs[name], np.float64) for name in "qkv")
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.fixture(autouse=True)
def _alone(sent, monkeypatch):
    """No Redis; the broker holds nothing, and a grader is there."""
    from workers import broker, health

    monkeypatch.setattr(broker, "waiting", lambda _queue: 0)
    monkeypatch.setattr(health, "has_worker", lambda _queue: True)


@pytest.fixture
def classroom(db):
    return Classroom


@pytest.fixture
def long_ago():
    return timezone.now() - timedelta(minutes=5)
