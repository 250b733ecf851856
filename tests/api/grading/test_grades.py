"""Grades as JSON and CSV, regrades, grading in one call, quotas."""

import csv
import io
import json
import re

import numpy as np
import pytest

from api.grading import reports
from tests.api.conftest import Api
from tests.api.grading.conftest import CASES, Teacher, right, work, zeros
from tests.api.helpers import assert_problem, validator
from workers.grading import incidents
from workers.grading.models import Regrade, Submission

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def assigned(teacher, graded, handed):
    """Ada right, Bob wrong, Eve wrong and then right, Fay still waiting."""
    made = teacher.assign(total_points=8)
    graded(made, "ada", external_id="x-ada")
    graded(made, "bob", make=zeros)
    graded(made, "eve", make=zeros)
    graded(made, "eve")
    handed(made, "fay")
    return made


# --- Grades ----------------------------------------------------------------------------------


def test_a_row_for_each_student(assigned, teacher, document):
    found = teacher.api.get(f"/assignments/{assigned['id']}/grades").json()
    validator(document, "Grades").validate(found)
    rows = {row["user_ref"]: row for row in found["results"]}
    assert {name: row["score"] for name, row in rows.items()} == {"ada": 8, "bob": 0, "eve": 8, "fay": None}
    assert (rows["fay"]["status"], rows["fay"]["max_score"]) == ("queued", 8)
    assert (rows["eve"]["submissions"], rows["ada"]["external_id"]) == (2, "x-ada")


def test_failure_1_outage_graded_as_a_pass(teacher, handed, monkeypatch):
    """No test was executed: an error, and in the grades nothing, which is neither 0 nor a pass."""
    from workers.grading import judging

    class Nothing:
        def to_dict(self):
            return {"verdict": "accepted", "reason": None, "score": 4.0, "max_score": 4.0, "tests": []}

    made = teacher.assign()
    monkeypatch.setattr(judging, "judge_attempts", lambda _problem, attempts: [Nothing() for _ in attempts])
    submission = handed(made).json()
    work()
    seen = teacher.api.get(f"/submissions/{submission['id']}").json()
    assert (seen["status"], seen["verdict"], seen["score"]) == ("error", "internal_error", None)
    (row,) = teacher.api.get(f"/assignments/{made['id']}/grades").json()["results"]
    assert (row["score"], row["status"]) == (None, "error")
    text = teacher.api.get(f"/assignments/{made['id']}/grades?format=csv").content.decode()
    (line,) = csv.DictReader(io.StringIO(text))
    assert (line["score"], line["status"]) == ("", "error")


def test_grades_as_csv(assigned, teacher):
    answer = teacher.api.get(f"/assignments/{assigned['id']}/grades?format=csv")
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert "attachment" in answer["Content-Disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.content.decode())))
    assert [row["user_ref"] for row in rows] == ["ada", "bob", "eve", "fay"]
    assert [row["score"] for row in rows] == ["8.0", "0.0", "8.0", ""]
    assert {"max_score", "status", "submitted_at", "is_late"} <= set(rows[0])
    assert_problem(teacher.api.get(f"/assignments/{assigned['id']}/grades?format=xlsx"), 400)


def test_a_score_in_a_table_has_no_digits_that_are_but_rounding():
    late = 3 * (1 - 0.2)
    assert str(late) == "2.4000000000000004"
    assert reports.to_csv(("score",), [{"score": late}]) == "score\r\n2.4\r\n"


NAMES = ["=1+1", "@cmd", "+x", "-x", " =1", "＝1", "a;=1", 'a; "=1', ";-1", 'a"b', "a,b", "a;b-c", "学生"]


@pytest.mark.parametrize("user_ref", NAMES)
def test_a_spreadsheet_takes_no_user_for_a_formula(teacher, user_ref):
    made = teacher.assign()
    body = {"user_ref": user_ref, "answers": {}}
    assert teacher.api.post(f"/assignments/{made['id']}/submissions", body).status_code == 202
    text = teacher.api.get(f"/assignments/{made['id']}/grades?format=csv").content.decode()
    (row,) = csv.DictReader(io.StringIO(text))
    assert row["user_ref"].replace("'", "") == user_ref
    cells = re.split("[,;]", text.splitlines()[1])  # by commas, or where these are semicolons
    assert all(cell.lstrip(' "')[:1] not in {*"=@+-＝"} for cell in cells)


# --- Regrades --------------------------------------------------------------------------------


def test_a_regrade_by_a_mended_version_dry_and_then_for_good(assigned, teacher, graded, document):
    half = graded(assigned, "dan", make=lambda v: {"small": right(v)["small"]})
    assert half["score"] == 2
    teacher.author(cases=[{**CASES[0], "points": 3}, {**CASES[1], "points": 1}])
    teacher.publish()
    body = {"dry_run": True, "problem_version": 2}
    path = f"/assignments/{assigned['id']}/regrades"
    answer = teacher.api.post(path, body)
    assert answer.status_code == 202
    work()
    dry = teacher.api.get(answer["Location"].split("/api/v1")[1]).json()
    validator(document, "Regrade").validate(dry)
    assert (dry["status"], dry["judged"], dry["changed"]) == ("done", 6, 1)
    (dan,) = dry["differences"]
    assert (dan["user_ref"], dan["before"], dan["after"]) == ("dan", 2, 6)
    assert teacher.api.get(f"/submissions/{half['id']}").json()["score"] == 2
    teacher.api.post(path, {"problem_version": 2})
    work()
    after = teacher.api.get(f"/submissions/{half['id']}?view=staff").json()
    assert (after["score"], after["problem_version"]) == (6, 2)
    assert after["earlier"][0].items() >= {"score": 2.0, "verdict": "wrong_answer"}.items()
    assert teacher.api.get(f"/submissions/{half['id']}").json()["earlier"] == []
    listed = teacher.api.get(path).json()
    validator(document, "RegradePage").validate(listed)
    assert [each["dry_run"] for each in listed["results"]] == [False, True]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [({"scope": "some"}, "/scope"), ({"policy": "min"}, "/policy"), ({"dry_run": "yes"}, "/dry_run"),
     ({"problem_version": 9}, "/problem_version"), ({"dryrun": True}, "/dryrun"), ([], "")],
)  # fmt: skip
def test_odd_regrades_are_refused(assigned, teacher, body, pointer):
    answer = teacher.api.post(f"/assignments/{assigned['id']}/regrades", body)
    assert answer.status_code in (400, 422)
    assert_problem(answer, answer.status_code, pointer=pointer)
    assert not Regrade.objects.exists()


def test_a_regrade_of_another_assignment_is_not_there(assigned, teacher):
    other = teacher.assign()
    regrade = teacher.api.post(f"/assignments/{other['id']}/regrades", {}).json()
    assert_problem(teacher.api.get(f"/assignments/{assigned['id']}/regrades/{regrade['id']}"), 404)


def test_a_regrade_by_a_draft_is_refused(assigned, teacher):
    teacher.author(cases=[{**CASES[0], "points": 3}, {**CASES[1], "points": 1}])
    answer = teacher.api.post(f"/assignments/{assigned['id']}/regrades", {"problem_version": 2})
    assert_problem(answer, 422, pointer="/problem_version")
    assert not Regrade.objects.exists()


# --- Incidents -------------------------------------------------------------------------------


def test_an_incident_that_touched_many_is_told_to_each_of_their_own(teacher, handed, bob):
    mine, others = teacher.assign(), Teacher(bob).assign()
    touched = handed(mine, "ada").json()
    handed(others, "bob", api=bob)
    queued = Submission.objects.filter(status="queued")
    assert incidents.lost(queued, incidents.NEVER_TAKEN, last=True) == 2
    handed(others, "cleo", api=bob)
    assert incidents.lost(queued, incidents.NEVER_TAKEN, last=True) == 1
    (told,) = teacher.api.get(f"/assignments/{mine['id']}/incidents").json()["results"]
    assert told["kind"] == "never-taken"
    assert told["submissions"] == [{"id": touched["id"], "user_ref": "ada", "status": "error"}]
    assert len(bob.get(f"/assignments/{others['id']}/incidents").json()["results"]) == 2


# --- In one call -----------------------------------------------------------------------------

QUESTION = {
    "spec": {"dtype": "float32", "attention": {}},
    "inputs": {"q": [[1, 0], [0, 1]], "k": [[1, 0], [0, 1]], "v": [[1, 0], [0, 2]]},
}


def question_right():
    q, k, v = (np.array(QUESTION["inputs"][name], float) for name in "qkv")
    weights = np.exp(q @ k.T / np.sqrt(2))
    return (weights / weights.sum(-1, keepdims=True) @ v).tolist()


def test_a_computation_graded_in_one_call(api, document):
    answer = api.post("/grade", {**QUESTION, "answers": {"out": question_right()}})
    assert answer.status_code == 200, answer.content
    judged = answer.json()
    validator(document, "Judgement").validate(judged)
    assert (judged["verdict"], judged["score"], judged["max_score"]) == ("accepted", 1, 1)
    wrong = api.post("/grade", {**QUESTION, "answers": {"out": [[0, 0], [0, 0]]}}).json()
    assert (wrong["verdict"], wrong["hypotheses"][0]["code"]) == ("wrong_answer", "zeros")
    assert not Submission.objects.exists()


def test_a_problem_graded_in_one_call_by_its_seed(teacher, api):
    teacher.author()
    teacher.publish()
    inputs = api.get("/problems/plain/inputs?seed=7").json()
    body = {"problem": "plain", "seed": 7, "answers": right(inputs)}
    judged = api.post("/grade", body).json()
    assert (judged["verdict"], judged["score"], judged["seed"]) == ("accepted", 4, 7)
    assert judged["tests"][1]["score"] is None, "hidden until a due date that there is not"
    assert api.post("/grade", {**body, "seed": 8}).json()["verdict"] == "wrong_answer"


@pytest.mark.parametrize(
    ("body", "status", "pointer"),
    [
        ({"problem": "nothing", "answers": {}}, 422, "/problem"),
        ({"problem": 7, "answers": {}}, 400, "/problem"),
        ({"problem": "plain", "seed": -1, "answers": {}}, 422, "/seed"),
        ({"problem": "plain", "sead": 1, "answers": {}}, 400, "/sead"),
        ({"problem": "plain"}, 400, "/answers"),
        ({"spec": {}, "answers": {"out": [[1]]}}, 400, "/inputs"),
        ({**QUESTION, "answers": {"out": "x"}}, 400, "/answers/out"),
        ([], 400, ""),
        ("x", 400, ""),
    ],
)
def test_what_is_wrong_is_told_with_its_place(teacher, api, body, status, pointer):
    teacher.author()
    teacher.publish()
    assert_problem(api.post("/grade", body), status, pointer=pointer)


def test_drafts_are_graded_for_their_author_alone(teacher, api):
    teacher.author()
    inputs = teacher.api.get("/problems/plain/inputs?seed=7").json()
    body = {"problem": "plain", "seed": 7, "answers": right(inputs)}
    assert teacher.api.post("/grade", body).json()["verdict"] == "accepted"
    assert_problem(api.post("/grade", body), 422, pointer="/problem")


def test_what_takes_long_needs_an_assignment(teacher, api):
    large = {"seed": 1, "shape": [3, 1024, 8]}
    body = {"spec": {}, "inputs": dict.fromkeys("qkv", large), "answers": {"out": [[1]]}}
    assert_problem(api.post("/grade", body), 413, says="pairs")
    shape = {"q_len": 1024, "kv_len": 1024, "head_dim": 1}
    teacher.author(slug="long", cases=[{"name": f"c{n}", "points": 1, "shape": shape} for n in range(3)])
    answer = teacher.api.post("/grade", {"problem": "long", "answers": {}})
    assert_problem(answer, 422, code="too-slow", says="use an assignment")


# --- Webhooks --------------------------------------------------------------------------------


def test_a_webhook_is_registered_with_a_secret_shown_once(teacher, bob, document):
    answer = teacher.api.post("/webhooks", {"url": "https://8.8.8.8/hook"})
    assert answer.status_code == 201
    made = answer.json()
    validator(document, "NewWebhook").validate(made)
    assert made["secret"].startswith("whsec_")
    assert "secret" not in teacher.api.get(f"/webhooks/{made['id']}").json()
    listed = teacher.api.get("/webhooks").json()
    validator(document, "WebhookPage").validate(listed)
    assert [each["id"] for each in listed["results"]] == [made["id"]]
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/deliveries"),
        ("POST", "/deliveries/x/replay"),
    ):
        assert_problem(bob.request(method, f"/webhooks/{made['id']}{path}"), 404)
    assert bob.get("/webhooks").json()["results"] == []
    assert teacher.api.delete(f"/webhooks/{made['id']}").status_code == 204
    assert_problem(teacher.api.get(f"/webhooks/{made['id']}"), 404)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"url": "http://127.0.0.1:8000/"}, "/url"),
        ({"url": "http://localhost/"}, "/url"),
        ({"url": "http://169.254.169.254/latest/meta-data"}, "/url"),
        ({"url": "http://10.0.0.8/"}, "/url"),
        ({"url": "http://[::1]/"}, "/url"),
        ({"url": "file:///etc/passwd"}, "/url"),
        ({"url": 7}, "/url"),
        ({}, "/url"),
        ({"url": "https://8.8.8.8/", "events": ["everything"]}, "/events/0"),
        ({"url": "https://8.8.8.8/", "events": []}, "/events"),
        ({"url": "https://8.8.8.8/", "events": "all"}, "/events"),
        ({"url": "https://8.8.8.8/", "assignment": "nothing"}, "/assignment"),
        ({"url": "https://8.8.8.8/", "secret": "mine"}, "/secret"),
    ],
)
def test_odd_webhooks_are_refused(teacher, body, pointer):
    answer = teacher.api.post("/webhooks", body)
    assert answer.status_code in (400, 422)
    assert_problem(answer, answer.status_code, pointer=pointer)
    assert teacher.api.get("/webhooks").json()["results"] == []


def test_a_webhook_of_another_teachers_assignment_is_refused(teacher, bob):
    body = {"url": "https://8.8.8.8/", "assignment": teacher.assign()["id"]}
    assert_problem(bob.post("/webhooks", body), 422, pointer="/assignment")
    assert teacher.api.post("/webhooks", body).status_code == 201


def test_deliveries_are_listed_and_replayed(teacher, graded, document):
    hook = teacher.api.post("/webhooks", {"url": "https://8.8.8.8/hook"}).json()
    graded(teacher.assign())
    page = teacher.api.get(f"/webhooks/{hook['id']}/deliveries").json()
    validator(document, "DeliveryPage").validate(page)
    (delivery,) = page["results"]
    assert (delivery["event"], delivery["status"], delivery["tries"]) == ("submission.graded", "pending", [])
    assert delivery["payload"]["data"]["verdict"] == "accepted"
    answer = teacher.api.post(f"/webhooks/{hook['id']}/deliveries/{delivery['id']}/replay")
    assert (answer.status_code, answer.json()["status"]) == (202, "pending")
    assert_problem(teacher.api.post(f"/webhooks/{hook['id']}/deliveries/{'a' * 22}/replay"), 404)


def test_there_is_an_end_to_webhooks(teacher):
    statuses = [teacher.api.post("/webhooks", {"url": f"https://8.8.8.8/{n}"}).status_code for n in range(21)]
    assert statuses == [201] * 20 + [409]


# --- Quotas ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("redis_server")
def test_every_answer_says_what_is_left_of_the_quota(api, settings):
    settings.GRADING_REQUESTS_PER_MINUTE = 3
    answers = [api.get("/problems") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert answers[0]["RateLimit-Policy"] == '"requests";q=3;w=60'
    assert [answer["RateLimit"].split(";")[1] for answer in answers] == ["r=2", "r=1", "r=0", "r=0"]
    assert 1 <= int(answers[3]["Retry-After"]) <= 60
    assert_problem(answers[3], 429, says="3 requests per 60 s")
    assert Api(address="203.0.113.99").get("/problems").status_code == 200


@pytest.mark.usefixtures("redis_server")
def test_submissions_have_a_quota_and_a_batch_counts_each(teacher, settings):
    made = teacher.assign()
    settings.TOKEN_SUBMISSIONS_PER_MINUTE = 5
    path = f"/assignments/{made['id']}/submissions"
    four = {"submissions": [{"user_ref": f"s{n}", "answers": {}} for n in range(4)]}
    answer = teacher.api.post(f"{path}:batch", four)
    assert (answer.status_code, answer["RateLimit"].split(";")[1]) == (202, "r=1")
    assert teacher.api.post(f"{path}:batch", four).status_code == 429
    assert teacher.api.post(path, {"user_ref": "ada", "answers": {}}).status_code == 202
    refused = teacher.api.post(path, {"user_ref": "ada", "answers": {}})
    assert_problem(refused, 429, says="5 submissions")
    assert refused["RateLimit-Policy"] == '"submissions";q=5;w=60'
    assert Submission.objects.count() == 5
    assert teacher.api.get(f"/assignments/{made['id']}").status_code == 200, "reading has its own"


@pytest.mark.usefixtures("redis_server")
def test_students_behind_one_address_have_quotas_of_their_own(teacher, api, settings):
    made = teacher.assign()
    settings.SUBMISSIONS_PER_MINUTE = 1
    keys = teacher.api.post(f"/assignments/{made['id']}/keys", {"user_refs": ["ada", "bob"]}).json()["keys"]

    def post(key):
        path = f"/assignments/{made['id']}/submissions?key={key['key']}"
        return api.post(path, {"user_ref": key["user_ref"], "answers": {}}).status_code

    assert [post(keys[0]), post(keys[0]), post(keys[1])] == [202, 429, 202]


def test_the_limits_are_listed(api):
    limits = api.get("/engines").json()["limits"]["grading"]
    assert limits["batch"] == 1000
    assert limits["submissions_per_minute"]["token"] > limits["submissions_per_minute"]["key"]
    json.dumps(limits)
