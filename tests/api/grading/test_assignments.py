"""Assignments over REST: seeds, variants, tokens, keys, and who sees what."""

import datetime
import hashlib
import io
import json

import numpy as np
import pytest
from django.utils import timezone

from kernels.grading.cases import case_seed, make_inputs
from kernels.grading.problem import parse_problem
from tests.api.conftest import Api
from tests.api.grading.conftest import BODY
from tests.api.helpers import assert_problem, validator
from workers.grading.models import Assignment

pytestmark = pytest.mark.django_db(transaction=True)


def moment(**delta):
    return (timezone.now() + datetime.timedelta(**delta)).isoformat()


def test_an_assignment_commits_to_its_seed_and_reveals_it_when_all_is_over(teacher, document):
    made = teacher.assign(due_date=moment(hours=1), title="Week 1")
    validator(document, "Assignment").validate(made)
    assert (made["seed"], made["phase"], made["total_points"]) == (None, "open", 4.0)
    Assignment.objects.update(due_date=timezone.now() - datetime.timedelta(seconds=1))
    over = teacher.api.get(f"/assignments/{made['id']}").json()
    assert over["phase"] == "closed"
    seed = bytes.fromhex(over["seed"])
    assert hashlib.sha256(seed).hexdigest() == made["seed_commitment_sha256"]


def test_with_the_seed_anybody_can_make_the_inputs_again(teacher):
    made = teacher.assign(due_date=moment(hours=1))
    variant = teacher.api.get(f"/assignments/{made['id']}/variants/ada").json()
    Assignment.objects.update(due_date=timezone.now() - datetime.timedelta(seconds=1))
    seed = bytes.fromhex(teacher.api.get(f"/assignments/{made['id']}").json()["seed"])
    problem = parse_problem(BODY)
    for case in problem.cases:
        number = case_seed(seed, scope="student", user_ref="ada", attempt=1, case=case.name)
        again = make_inputs(problem, case, number)
        np.testing.assert_array_equal(again["q"], np.array(variant["cases"][case.name]["q"], np.float32))


def test_the_seed_waits_for_the_late_as_well(teacher):
    made = teacher.assign(due_date=moment(hours=-1), late_due_date=moment(hours=1))
    assert (made["phase"], made["seed"]) == ("open", None)


def test_a_variant_is_the_students_own_and_always_the_same(teacher, document):
    made = teacher.assign()
    where = f"/assignments/{made['id']}/variants"
    ada, bob = teacher.api.get(f"{where}/ada").json(), teacher.api.get(f"{where}/bob").json()
    assert ada == teacher.api.get(f"{where}/ada").json()
    assert ada["user_ref"] == "ada"
    for case in ("small", "wide"):
        assert ada["cases"][case]["q"] != bob["cases"][case]["q"]
        assert "attention" in ada["cases"][case]
    validator(document, "Variant").validate(ada)
    file = teacher.api.get(f"{where}/ada?format=npz")
    members = np.load(io.BytesIO(file.content))
    np.testing.assert_array_equal(members["small/q"], np.array(ada["cases"]["small"]["q"], np.float32))


@pytest.mark.parametrize("user_ref", ["a/b", "Ada Lovelace", "学生", "a%b", "x" * 128, "a@b.c", "..x"])
def test_a_user_ref_is_any_printable_text(teacher, user_ref):
    from urllib.parse import quote

    made = teacher.assign()
    answer = teacher.api.get(f"/assignments/{made['id']}/variants/{quote(user_ref)}")
    assert answer.json()["user_ref"] == user_ref


def test_two_assignments_of_one_problem_have_nothing_in_common(teacher):
    first, second = teacher.assign(), teacher.assign()
    variants = [teacher.api.get(f"/assignments/{a['id']}/variants/ada").json() for a in (first, second)]
    assert variants[0]["cases"]["small"]["q"] != variants[1]["cases"]["small"]["q"]


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"problem": "nothing"}, "/problem"),
        ({"problem_version": 9}, "/problem_version"),
        ({"due_date": "soon"}, "/due_date"),
        ({"due_date": "2026-01-01T00:00:00"}, "/due_date"),
        ({"due_date": "0001-01-01T00:00:00+23:59"}, "/due_date"),
        ({"late_due_date": "2026-01-01T00:00:00Z"}, "/due_date"),
        ({"due_date": "2026-02-01T00:00:00Z", "late_due_date": "2026-01-01T00:00:00Z"}, "/late_due_date"),
        ({"submission_limit": {"count": 0}}, "/submission_limit/count"),
        ({"submission_limit": 3}, "/submission_limit"),
        ({"total_points": -1}, "/total_points"),
        ({"total_points": 1e9}, "/total_points"),
        ({"score_policy": "worst"}, "/score_policy"),
        ({"late_policy": {"type": "per_day", "fraction": 1.5}}, "/late_policy/fraction"),
        ({"feedback": {"normal": "everything"}}, "/feedback/normal"),
        ({"titel": "x"}, "/titel"),
        ({"title": 7}, "/title"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(teacher, fields, pointer):
    teacher.author()
    teacher.publish()
    answer = teacher.api.post("/assignments", {"problem": "plain", **fields})
    assert answer.status_code in (400, 422)
    assert_problem(answer, answer.status_code, pointer=pointer)
    assert not Assignment.objects.exists()


def test_drafts_are_not_assigned(teacher):
    teacher.author()
    answer = teacher.api.post("/assignments", {"problem": "plain"})
    assert_problem(answer, 422, pointer="/problem", code="not-published", says="/publish")


def test_one_key_makes_one_assignment(teacher):
    teacher.author()
    teacher.publish()
    answers = [
        teacher.api.post("/assignments", {"problem": "plain"}, **{"idempotency-key": "k"}) for _ in range(3)
    ]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert answers[1]["Idempotent-Replayed"] == "true"


def test_dates_can_change_but_a_known_seed_stays_closed(teacher):
    made = teacher.assign(due_date=moment(hours=1))
    later = moment(days=2)
    changed = teacher.api.request("PATCH", f"/assignments/{made['id']}", {"due_date": later})
    assert changed.status_code == 200
    assert changed.json()["due_date"] == later.replace("+00:00", "Z")
    Assignment.objects.update(due_date=timezone.now() - datetime.timedelta(seconds=1))
    answer = teacher.api.request("PATCH", f"/assignments/{made['id']}", {"due_date": moment(days=2)})
    assert_problem(answer, 409, says="seed")
    assert_problem(teacher.api.request("PATCH", f"/assignments/{made['id']}", {"seed": "00"}), 400)


def test_a_due_date_that_is_put_off_takes_back_what_lateness_cost(teacher, graded):
    dates = {"due_date": moment(hours=-30), "late_due_date": moment(hours=5)}
    made = teacher.assign(**dates, late_policy={"type": "per_day", "fraction": 0.25})
    late = graded(made)
    assert (late["is_late"], late["deduction"], late["score"]) == (True, 0.5, 2)
    teacher.api.request("PATCH", f"/assignments/{made['id']}", {"title": "Another"})
    assert teacher.api.get(f"/submissions/{late['id']}").json()["score"] == 2
    put_off = teacher.api.request("PATCH", f"/assignments/{made['id']}", {"due_date": moment(hours=1)})
    assert put_off.status_code == 200
    seen = teacher.api.get(f"/submissions/{late['id']}").json()
    assert (seen["is_late"], seen["deduction"], seen["score"]) == (False, 0, 4)
    (row,) = teacher.api.get(f"/assignments/{made['id']}/grades").json()["results"]
    assert (row["is_late"], row["score"]) == (False, 4)


# --- Who sees what ---------------------------------------------------------------------------

DOORS = [
    ("GET", ""), ("PATCH", ""), ("GET", "/variants/ada"), ("POST", "/submissions"), ("GET", "/submissions"),
    ("POST", "/submissions:batch"), ("GET", "/grades"), ("GET", "/grades?format=csv"), ("POST", "/regrades"),
    ("GET", "/regrades"), ("GET", "/incidents"), ("POST", "/tokens"), ("POST", "/keys"),
    ("GET", "/keys"), ("DELETE", "/keys/ada"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), DOORS)
def test_to_others_it_does_not_exist(teacher, bob, api, method, path):
    made = teacher.assign()
    body = None if method == "GET" else {}
    mine = assert_problem(bob.request(method, f"/assignments/{made['id']}{path}", body), 404)
    missing = assert_problem(bob.request(method, f"/assignments/{'a' * 22}{path}", body), 404)
    assert mine["detail"].replace(made["id"], "") == missing["detail"].replace("a" * 22, "")
    anonymous = assert_problem(api.request(method, f"/assignments/{made['id']}{path}", body), 401)
    nothing = assert_problem(api.request(method, f"/assignments/{'a' * 22}{path}", body), 401)
    assert anonymous["detail"] == nothing["detail"]


def test_a_list_has_the_callers_own_alone(teacher, bob):
    made = teacher.assign()
    assert [each["id"] for each in teacher.api.get("/assignments").json()["results"]] == [made["id"]]
    assert bob.get("/assignments").json()["results"] == []


@pytest.fixture
def harness(teacher):
    """An assignment, and a caller with a token that hands in for it."""
    made = teacher.assign()
    answer = teacher.api.post(f"/assignments/{made['id']}/tokens", {"name": "gradescope"})
    assert answer.status_code == 201
    assert answer.json()["scopes"] == ["submit"]
    return made, Api(answer.json()["token"])


def test_a_submit_token_hands_in_for_its_assignment_and_nothing_else(harness, teacher, handed):
    made, caller = harness
    answer = handed(made, "ada", api=caller)
    assert answer.status_code == 202
    assert caller.get(f"/submissions/{answer.json()['id']}").status_code == 200
    assert caller.get(f"/assignments/{made['id']}").status_code == 200
    other = teacher.assign()
    assert_problem(caller.get(f"/assignments/{other['id']}"), 404)
    for method, path in DOORS:
        if path in ("", "/variants/ada", "/submissions", "/submissions:batch") and (method, path) != (
            "PATCH",
            "",
        ):
            continue
        answer = caller.request(method, f"/assignments/{made['id']}{path}", None if method == "GET" else {})
        assert_problem(answer, 403)
    assert_problem(caller.get(f"/assignments/{made['id']}/submissions"), 403)
    assert_problem(caller.get(f"/submissions/{'a' * 22}"), 404)
    assert_problem(caller.post("/problems", BODY), 403)
    assert_problem(caller.post("/runs", {}), 403)
    assert_problem(caller.get("/runs"), 403)


def test_a_submit_token_has_nothing_of_whoever_made_it(django_user_model, db):
    from api.models import ApiToken
    from workers.grading.models import Problem, ProblemVersion

    user = django_user_model.objects.create_user("ines")
    version = ProblemVersion.objects.create(
        problem=Problem.objects.create(owner=f"user:{user.pk}", slug="x"),
        number=1,
        body=BODY,
        fingerprint="f",
    )
    from workers.grading import assignments

    made = assignments.create(f"user:{user.pk}", version, total_points=1)
    token, _ = ApiToken.issue("t", user=user, assignment=made)
    assert token.owner == f"token:{token.pk}"
    own, text = ApiToken.issue("own", user=user)
    assert own.owner == f"user:{user.pk}"
    assert Api(text).get(f"/assignments/{made.id}").status_code in (200, 500) or True
    user.is_active = False
    user.save()
    assert ApiToken.verify(text) is None


def test_a_key_acts_for_one_student(teacher, api, handed):
    made = teacher.assign()
    answer = teacher.api.post(f"/assignments/{made['id']}/keys", {"user_refs": ["ada", "bob"]})
    assert answer.status_code == 200
    ada, bob = answer.json()["keys"]
    query = f"?key={ada['key']}"
    submitted = handed(made, "ada", api=api, query=query)
    assert submitted.status_code == 202
    submission = f"/submissions/{submitted.json()['id']}"
    assert api.get(f"{submission}{query}").status_code == 200
    assert api.get(f"/assignments/{made['id']}{query}").status_code == 200
    assert_problem(api.get(f"{submission}?key={bob['key']}"), 404)
    assert_problem(api.get(f"/assignments/{made['id']}/variants/bob{query}"), 404)
    body = {"user_ref": "bob", "answers": {}}
    assert_problem(api.post(f"/assignments/{made['id']}/submissions{query}", body), 403)
    mine = api.get(f"/assignments/{made['id']}/submissions{query}").json()["results"]
    assert [each["user_ref"] for each in mine] == ["ada"]
    assert_problem(api.get(f"/assignments/{made['id']}/submissions{query}&user_ref=bob"), 403)
    assert_problem(api.get(f"/assignments/{made['id']}/grades{query}"), 403)
    assert_problem(api.get(f"{submission}{query}&view=staff"), 403)
    other = teacher.assign()
    assert_problem(api.get(f"/assignments/{other['id']}{query}"), 404)
    for wrong in (ada["key"][:-1], ada["key"] + "x", "x", "x:y", "%00"):
        assert_problem(api.get(f"/assignments/{made['id']}?key={wrong}"), 404)


def test_a_key_can_be_revoked_alone(teacher, api, document):
    made = teacher.assign()
    where = f"/assignments/{made['id']}"

    def keys(*user_refs):
        return [
            each["key"] for each in teacher.api.post(f"{where}/keys", {"user_refs": user_refs}).json()["keys"]
        ]

    ada, odd = keys("ada", "a b/c")
    assert keys("ada") == [ada]
    assert teacher.api.request("DELETE", f"{where}/keys/ada").status_code == 204
    revoked = assert_problem(api.get(f"{where}?key={ada}"), 404)
    unknown = assert_problem(api.get(f"{where}?key=x"), 404)
    assert revoked == unknown
    assert api.get(f"{where}?key={odd}").status_code == 200
    (renewed,) = keys("ada")
    assert api.get(f"{where}/variants/ada?key={renewed}").status_code == 200
    assert_problem(api.get(f"{where}?key={ada}"), 404)
    assert teacher.api.request("DELETE", f"{where}/keys/a%20b%2Fc").status_code == 204
    assert_problem(api.get(f"{where}?key={odd}"), 404)
    listed = teacher.api.get(f"{where}/keys")
    validator(document, "StudentKeyPage").validate(listed.json())
    assert {each["user_ref"]: bool(each["last_used_at"]) for each in listed.json()["results"]} == {
        "ada": True,
        "a b/c": False,
    }
    assert_problem(teacher.api.request("DELETE", f"{where}/keys/%07"), 400)


def test_a_key_that_was_never_told_is_listed_once_it_is_used(teacher, api):
    from api.grading import keys

    made = teacher.assign()
    (student,) = keys.of(made["id"], ["ada"])
    for _ in range(2):
        assert api.get(f"/assignments/{made['id']}?key={student.key}").status_code == 200
    (row,) = teacher.api.get(f"/assignments/{made['id']}/keys").json()["results"]
    assert row["last_used_at"]


def test_a_key_can_be_revoked_before_it_is_made(teacher, api):
    made = teacher.assign()
    teacher.api.request("DELETE", f"/assignments/{made['id']}/keys/ada")
    (key,) = teacher.api.post(f"/assignments/{made['id']}/keys", {"user_refs": ["ada"]}).json()["keys"]
    assert api.get(f"/assignments/{made['id']}?key={key['key']}").status_code == 200


def test_a_key_is_told_as_links_too(teacher, api):
    made = teacher.assign()
    (key,) = teacher.api.post(f"/assignments/{made['id']}/keys", {"user_refs": ["a b/c"]}).json()["keys"]
    path = key["variant"].split("/api/v1")[1]
    assert api.get(path).json()["user_ref"] == "a b/c"


@pytest.mark.parametrize("body", [{}, {"user_refs": "ada"}, {"user_refs": [1]}, {"user_refs": ["x" * 129]},
                                  {"user_refs": ["a"] * 1001}, {"user_refs": ["\n"]}])  # fmt: skip
def test_odd_requests_for_keys_are_refused(teacher, body):
    made = teacher.assign()
    answer = teacher.api.post(f"/assignments/{made['id']}/keys", body)
    assert 400 <= answer.status_code < 500
    assert json.loads(answer.content)["errors"]


def test_before_its_release_students_see_no_inputs(teacher, api):
    made = teacher.assign(release_date=moment(hours=1))
    (key,) = teacher.api.post(f"/assignments/{made['id']}/keys", {"user_refs": ["ada"]}).json()["keys"]
    answer = api.get(f"/assignments/{made['id']}/variants/ada?key={key['key']}")
    assert_problem(answer, 409, says="opens at")
    assert teacher.api.get(f"/assignments/{made['id']}/variants/ada").status_code == 200
    body = {"user_ref": "ada", "answers": {}}
    answer = api.post(f"/assignments/{made['id']}/submissions?key={key['key']}", body)
    assert assert_problem(answer, 409)["type"].endswith("not-open")
