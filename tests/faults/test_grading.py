"""What may go wrong between an answer and its verdict, done to the running product on purpose.

Each on SQLite and on PostgreSQL, with a real Redis and real graders. That a submission was graded once is
told by the webhooks that its verdicts make: one each.
"""

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.support.services import wait_until

pytestmark = pytest.mark.slow

SMALL = [{"name": "a", "points": 2, "shape": {"q_len": 4, "kv_len": 4, "head_dim": 4}}]
# Seconds of a grader, for answers that are wrong: long enough to be interrupted.
LARGE = [
    {"name": f"c{n}", "points": 1, "shape": {"q_len": 1024, "kv_len": 1024, "head_dim": 4}} for n in range(8)
]
OVER = {"graded", "error", "canceled"}


class Course:
    """A teacher and an assignment in a running deployment."""

    def __init__(self, lab, cases=SMALL, **fields):
        self.lab = lab
        self.token = lab.token("teacher")
        body = {"slug": "p", "title": "P", "answer": [{"name": "out"}], "cases": cases}
        assert self.ask("POST", "/problems", body).status == 201
        # Its matrix is not what is tried here, and of the large one would take minutes.
        lab.sql("UPDATE workers_problemversion SET published_at = created_at WHERE published_at IS NULL")
        answer = self.ask("POST", "/assignments", {"problem": "p", **fields})
        assert answer.status == 201, answer
        self.id = answer.json()["id"]
        hook = self.ask("POST", "/webhooks", {"url": "https://8.8.8.8/", "assignment": self.id})
        self.hook = hook.json()["id"]

    def ask(self, method, path, body=None, **options):
        return self.lab.request(method, f"/api/v1{path}", body, token=self.token, **options)

    def right(self, user_ref):
        variant = self.ask("GET", f"/assignments/{self.id}/variants/{user_ref}").json()
        answers = {}
        for case, inputs in variant["cases"].items():
            q, k, v = (np.array(inputs[name]) for name in "qkv")
            scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            answers[case] = {"out": (weights / weights.sum(-1, keepdims=True) @ v).tolist()}
        return answers

    def submit(self, user_ref="ada", answers=None, **options):
        answers = self.right(user_ref) if answers is None else answers
        body = {"user_ref": user_ref, "answers": answers}
        return self.ask("POST", f"/assignments/{self.id}/submissions", body, **options)

    def submitted(self, user_ref="ada", answers=None):
        answer = self.submit(user_ref, answers)
        assert answer.status == 202, answer
        return answer.json()["id"]

    def see(self, submission_id):
        answer = self.ask("GET", f"/submissions/{submission_id}?view=staff")
        assert answer.status == 200, answer
        return answer.json()

    def attempts(self):
        """{id: how often a grader took it}"""
        rows = "SELECT id, attempt FROM workers_submission WHERE assignment_id = %s"
        return dict(self.lab.sql(rows, self.id))

    def statuses(self):
        rows = "SELECT status, count(*) FROM workers_submission WHERE assignment_id = %s GROUP BY status"
        return dict(self.lab.sql(rows, self.id))

    def all_over(self, seconds=90):
        try:
            wait_until(lambda: set(self.statuses()) <= OVER, seconds, "every submission has ended", 0.2)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.statuses()}\n{self.lab.logs()}") from None

    def grading(self, seconds=30):
        wait_until(lambda: self.statuses().get("grading"), seconds, "a grader has it")

    def verdicts_told(self):
        """{submission: how many verdicts of it were made}"""
        rows = "SELECT payload FROM workers_delivery WHERE endpoint_id = %s"
        said = [json.loads(payload) for (payload,) in self.lab.sql(rows, self.hook)]
        return Counter(each["data"]["submission"] for each in said if each["type"] == "submission.graded")


def restart(lab, name="grader"):
    lab.kill(name)
    lab.start(name)


def wrong(course):
    """Answers that take long: every mistake is tried on them."""
    rng = np.random.default_rng(1)
    return {f"c{n}": {"out": rng.normal(size=(1, 1, 1024, 4)).tolist()} for n in range(len(LARGE))}


def test_a_submission_crosses_the_queue_and_comes_back_to_the_waiting_request(lab):
    course = Course(lab)
    answer = course.submit(prefer="wait=30")
    assert answer.status == 200, answer
    assert (answer.json()["verdict"], answer.json()["score"]) == ("accepted", 2)


def test_publishing_waits_for_the_matrix(lab):
    token = lab.token("author")
    cases = [{"name": "a", "shape": {"num_heads": 2, "q_len": 12, "kv_len": 16, "head_dim": 8}}]
    body = {"slug": "m", "title": "M", "answer": [{"name": "out"}], "cases": cases}
    assert lab.request("POST", "/api/v1/problems", body, token=token).status == 201
    answer = lab.request("POST", "/api/v1/problems/m/publish", None, token=token)
    assert answer.status in (200, 409), answer
    assert answer.json()["mutants"]["total"] > 10


def test_a_grader_killed_in_the_middle_grades_each_once_and_charges_nobody(lab):
    course = Course(lab, submission_limit={"count": 1})
    users = [f"s{n}" for n in range(60)]
    answers = {user: course.right(user) for user in users}
    lab.pause("maintenance")  # so that what is lost is lost for a while
    with ThreadPoolExecutor(8) as pool:
        handed = pool.map(lambda user: course.submitted(user, answers[user]), users)
        time.sleep(0.3)
        restart(lab)
        ids = list(handed)
    # As if the grader had died with two in its hands, whatever it had just then.
    lab.kill("grader")
    lab.sql(
        "UPDATE workers_submission SET status = 'grading', attempt = 1, claim = 'dead', "
        "heartbeat_at = created_at WHERE id IN (SELECT id FROM workers_submission "
        "WHERE assignment_id = %s AND status = 'queued' LIMIT 2)",
        course.id,
    )
    lab.start("grader")
    lab.resume("maintenance")
    course.all_over()
    assert course.statuses() == {"graded": 60}
    assert course.verdicts_told() == dict.fromkeys(ids, 1)
    assert max(course.attempts().values()) <= 2
    seen = [course.see(submission) for submission in ids]
    assert {(each["verdict"], each["score"], each["counts_towards_limit"]) for each in seen} == {
        ("accepted", 2, True)
    }
    assert course.submit("s0", answers["s0"]).status == 429, "one try, used once"


def test_failure_7_stuck_for_ever_queued_in_a_redis_that_is_flushed(lab):
    course = Course(lab)
    lab.kill("grader")
    ids = [course.submitted(f"s{n}") for n in range(8)]
    lab.redis.client.flushall()
    lab.start("grader")
    course.all_over()
    assert course.verdicts_told() == dict.fromkeys(ids, 1)


def test_failure_7_stuck_for_ever_lost_between_insert_and_enqueue(lab):
    """Redis is away at the moment of the commit: the row is there, the message is not."""
    course = Course(lab)
    answers = course.right("ada")
    lab.redis.stop()
    answer = course.submit("ada", answers)
    lab.redis.start()
    lab.heal()
    assert answer.status in {202, 503}, answer
    if answer.status == 202:
        course.all_over()
        assert course.statuses() == {"graded": 1}


def test_failure_8_graded_twice(lab):
    """One message delivered twenty times, to two graders: one verdict, on the first attempt."""
    course = Course(lab)
    lab.kill("grader")
    submission = course.submitted()
    queue = next(key for key in lab.redis.client.scan_iter("*grade") if lab.redis.client.type(key) == "list")
    message = lab.redis.client.lindex(queue, 0)
    lab.redis.client.rpush(queue, *[message] * 20)
    lab.start("grader")
    course.all_over()
    wait_until(lambda: not lab.redis.client.llen(queue), 60, "the queue is empty")
    assert course.attempts() == {submission: 1}
    assert course.verdicts_told() == {submission: 1}


def test_failure_8_only_the_current_attempt_may_write(lab):
    """A grader that was frozen, given up, and comes back."""
    course = Course(lab, LARGE)
    submission = course.submitted("ada", wrong(course))
    course.grading()
    lab.pause("grader")
    wait_until(lambda: course.statuses().get("queued"), 60, "it was given back")
    lab.sql(
        "UPDATE workers_submission SET status = 'canceled', finished_at = created_at,"
        " counts_towards_limit = %s WHERE id = %s",
        False,
        submission,
    )
    before = course.see(submission)
    lab.resume("grader")
    assert Course(lab).submit(prefer="wait=60").status == 200
    time.sleep(2)
    assert course.see(submission) == before
    assert course.verdicts_told() == {}


def test_failure_9_a_dead_worker_process_poisons_the_next_job(lab):
    course = Course(lab, LARGE)
    submission = course.submitted("ada", wrong(course))
    course.grading()
    for child in lab.children("grader"):
        child.kill()
    small = Course(lab)
    answer = small.submit(prefer="wait=60")
    assert (answer.status, answer.json()["verdict"]) == (200, "accepted"), answer
    course.all_over()
    seen = course.see(submission)
    assert (seen["status"], seen["verdict"]) == ("graded", "wrong_answer"), "and the lost one is graded too"
    assert course.attempts() == {submission: 2}


def test_failure_12_a_grader_lost_twice_is_an_error_that_costs_no_try(lab):
    course = Course(lab, LARGE, submission_limit={"count": 1})
    submission = course.submitted("ada", wrong(course))

    def losses():
        found = course.ask("GET", f"/assignments/{course.id}/incidents").json()["results"]
        return [touched["id"] for each in found for touched in each["submissions"]]

    for lost in (1, 2):
        course.grading(60)
        restart(lab)
        wait_until(lambda n=lost: len(losses()) == n, 60, "the loss is noticed", 0.2)
    seen = course.see(submission)
    assert (seen["status"], seen["verdict"], seen["score"]) == ("error", "internal_error", None)
    assert (seen["fault"], seen["counts_towards_limit"]) == ("platform", False)
    assert losses() == [submission] * 2
    grades = course.ask("GET", f"/assignments/{course.id}/grades").json()["results"]
    assert (grades[0]["score"], grades[0]["status"]) == (None, "error")
    assert course.submit("ada", {}, prefer="wait=60").status == 200, "the try was given back"


def test_failure_10_cancel_frees_the_slot_while_graders_are_busy(lab):
    course = Course(lab, LARGE, submission_limit={"count": 1})
    submission = course.submitted("ada", wrong(course))
    course.grading()
    assert course.submit("ada", {}).status == 429
    assert course.ask("DELETE", f"/submissions/{submission}").status == 200
    again = course.submit("ada", {}, prefer="wait=60")
    assert (again.status, again.json()["verdict"]) == (200, "rejected")
    time.sleep(2)
    assert course.see(submission)["status"] == "canceled"


def test_many_hand_in_at_once_and_each_gets_its_own_verdict(lab):
    course = Course(lab)
    answers = {f"s{n}": course.right(f"s{n}") for n in range(16)}
    for n in range(0, 16, 2):
        answers[f"s{n}"] = {"a": {"out": np.zeros((1, 1, 4, 4)).tolist()}}

    def ask(user):
        return course.submit(user, answers[user], prefer="wait=60").json()["verdict"]

    with ThreadPoolExecutor(16) as pool:
        verdicts = list(pool.map(ask, answers))
    assert verdicts == ["wrong_answer", "accepted"] * 8


def test_of_a_burst_no_student_gets_more_tries_than_there_are(lab):
    course = Course(lab, submission_limit={"count": 2})
    answers = course.right("ada")
    with ThreadPoolExecutor(12) as pool:
        statuses = list(pool.map(lambda _: course.submit("ada", answers).status, range(12)))
    assert sorted(statuses) == [202] * 2 + [429] * 10


def test_a_grader_starts_without_torch(lab):
    for process in (lab.process("grader"), *lab.children("grader")):
        assert not any("libtorch" in mapped.path for mapped in process.memory_maps())


def test_three_hundred_students_hand_in_three_times_while_the_grader_is_killed_twice(lab):
    """Every submission is graded exactly once, none is charged twice, and the CSV is complete."""
    course = Course(lab, submission_limit={"count": 3})
    users = [f"s{n:03}" for n in range(300)]

    def hand_in(user):
        answers = course.right(user)
        return [course.submitted(user, answers) for _ in range(3)]

    with ThreadPoolExecutor(16) as pool:
        handed = [pool.submit(hand_in, user) for user in users]
        for share in (100, 200):
            wait_until(lambda n=share: sum(each.done() for each in handed) >= n, 300, "some are in", 0.1)
            restart(lab)
        ids = [submission for each in handed for submission in each.result()]
    course.all_over(180)
    assert course.statuses() == {"graded": 900}
    assert course.verdicts_told() == dict.fromkeys(ids, 1)
    text = course.ask("GET", f"/assignments/{course.id}/grades?format=csv").body.decode()
    rows = [line.split(",") for line in text.splitlines()[1:]]
    assert [row[0] for row in rows] == users
    assert {row[1] for row in rows} == {"2.0"}
    assert course.submit("s000", {}).status == 429
