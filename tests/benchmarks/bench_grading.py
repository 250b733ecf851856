"""Submissions of a problem with five cases (64 queries and keys, 32 wide): one by one, and a batch of 1,000.

Three in ten are wrong, so that what students did is looked for as it is in a class.
"""

import base64
import json
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.benchmarks.measure import Connection, line, p95

CLIENTS, SINGLES, BATCH = 16, 480, 1_000
CASES = [{"name": f"c{n}", "shape": {"q_len": 64, "head_dim": 32}} for n in range(5)]
PROBLEM = {
    "title": "Causal attention",
    "spec": {"dtype": "float32", "attention": {"is_causal": True}},
    "answer": [{"name": "out"}],
    "cases": CASES,
}


class Course:
    """An assignment, and the answers of its students."""

    def __init__(self, lab, slug):
        self.lab = lab
        self.token = lab.token(slug)
        self.headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        written = lab.request("POST", "/api/v1/problems", {**PROBLEM, "slug": slug}, token=self.token)
        assert written.status in (200, 201)
        published = lab.request("POST", f"/api/v1/problems/{slug}/publish", None, token=self.token)
        assert published.status == 200, published.body[:1000]
        made = lab.request("POST", "/api/v1/assignments", {"problem": slug}, token=self.token).json()
        self.path = f"/api/v1/assignments/{made['id']}"
        with ThreadPoolExecutor(4) as pool:
            self.answers = list(pool.map(self.solve, range(SINGLES)))

    def solve(self, student):
        variant = self.lab.get(f"{self.path}/variants/s{student}", token=self.token).json()
        scale = 1.0 if student % 10 < 3 else 32**-0.5  # the former forgot it
        answers = {}
        for case, inputs in variant["cases"].items():
            q, k, v = (np.array(inputs[name]) for name in "qkv")
            scores = np.where(np.tri(64, dtype=bool), scale * q @ np.swapaxes(k, -1, -2), -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            answers[case] = weights / weights.sum(-1, keepdims=True) @ v
        return answers

    def body(self, student, dtype):
        answers = {
            case: {"out": {"b64": encoded(out, dtype), "dtype": dtype, "shape": list(out.shape)}}
            for case, out in self.answers[student % SINGLES].items()
        }
        return {"user_ref": f"s{student % SINGLES}", "answers": answers}

    def hand_in_batch(self):
        """(milliseconds, bytes) of a batch of which everything is graded when it is answered.

        As float16, in which a thousand fit a body of 32 MiB.
        """
        body = {"submissions": [self.body(student, "float16") for student in range(BATCH)]}
        data = json.dumps(body).encode()
        headers = {**self.headers, "Prefer": "wait=60"}
        took, status, content = Connection(self.lab.port).send(
            "POST", f"{self.path}/submissions:batch", data, headers
        )
        states = Counter(result["status"] for result in json.loads(content)["results"])
        assert (status, states) == (200, {"graded": BATCH})
        return took, len(data)


def encoded(array, dtype):
    return base64.b64encode(array.astype(dtype).tobytes()).decode()


@pytest.fixture(scope="module")
def course(sqlite_lab):
    return Course(sqlite_lab, "speed")


def test_single_submissions_end_to_end(course):
    bodies = [json.dumps(course.body(student, "float32")).encode() for student in range(SINGLES)]
    places, lock = iter(range(SINGLES)), threading.Lock()
    times, verdicts = [], Counter()

    def client(_):
        connection = Connection(course.lab.port)
        while True:
            with lock:
                student = next(places, None)
            if student is None:
                return
            headers = {**course.headers, "Prefer": "wait=30"}
            took, status, content = connection.send(
                "POST", f"{course.path}/submissions", bodies[student], headers
            )
            times.append(took)
            verdicts[status, json.loads(content).get("verdict")] += 1

    began = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(client, range(CLIENTS)))
    rate = SINGLES / (time.perf_counter() - began)
    print("\n" + line(f"{CLIENTS} clients, a submission each", times) + f"   {rate:.0f} submissions/s")
    assert set(verdicts) == {(200, "accepted"), (200, "wrong_answer")}
    assert rate >= 60
    assert p95(times) <= 500


def test_a_batch_of_a_thousand(course):
    took, size = course.hand_in_batch()
    print(f"\na batch of {BATCH:,}: {took / 1000:.1f} s, {took / BATCH:.1f} ms each ({size / 2**20:.0f} MiB)")
    assert took <= 10_000
