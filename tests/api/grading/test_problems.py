"""Problems over REST: drafts, versions, publication, inputs."""

import io

import numpy as np
import pytest
from safetensors import numpy as safetensors

from tests.api.conftest import Api
from tests.api.grading.conftest import BODY, CASES, work
from tests.api.helpers import assert_problem, validator
from workers.grading.models import Check, ProblemVersion

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_problem_is_authored_published_and_seen(teacher, api, document):
    draft = teacher.author()
    assert (draft["version"], draft["published_at"], draft["is_mine"]) == (1, None, True)
    assert_problem(api.get("/problems/plain"), 404)
    assert teacher.publish().status_code == 200
    seen = api.get("/problems/plain").json()
    assert (seen["title"], seen["is_mine"], seen["versions"]) == ("Attention", False, [1])
    assert seen["mutants"]["total"] == seen["mutants"]["killed"] > 0
    validator(document, "GradingProblem").validate(seen)
    listed = api.get("/problems").json()
    validator(document, "GradingProblemPage").validate(listed)
    assert [problem["slug"] for problem in listed["results"]] == ["plain"]


def test_another_content_is_another_version_and_the_same_is_the_one_there(teacher, api):
    assert teacher.api.post("/problems", BODY).status_code == 201
    same = teacher.api.post("/problems", BODY)
    assert (same.status_code, same.json()["version"]) == (200, 1)
    teacher.publish()
    changed = teacher.api.post("/problems", {**BODY, "title": "Again"})
    assert (changed.status_code, changed.json()["version"]) == (201, 2)
    assert changed["Location"].endswith("/api/v1/problems/plain")
    assert teacher.api.get("/problems/plain").json()["version"] == 2
    assert api.get("/problems/plain").json()["version"] == 1, "a draft is its author's alone"
    assert_problem(api.get("/problems/plain?version=2"), 404)
    assert teacher.api.get("/problems/plain?version=1").json()["title"] == "Attention"


def test_failure_3_inputs_too_easy(teacher, api, document):
    """Refused with the table: with flat inputs many a wrong computation gives the right answer."""
    flat = {"name": "flat", "distribution": "uniform", "shape": {"q_len": 2, "kv_len": 64, "head_dim": 64}}
    tolerance = {"policy": "allclose", "per_dtype": {"float32": {"atol": 0.5, "rtol": 0.5}}}
    teacher.author(slug="flat", cases=[flat], tolerance=tolerance)
    refused = teacher.publish("flat")
    problem = assert_problem(refused, 409)
    assert problem["type"].endswith("mutants-survive")
    assert problem["mutants"]["killed"] < problem["mutants"]["total"]
    validator(document, "MutantTable").validate(problem["mutants"])
    assert_problem(api.get("/problems/flat"), 404)
    assert ProblemVersion.objects.get().published_at is None


def test_publishing_waits_for_a_grader_and_says_when_to_ask_again(teacher, sent):
    teacher.author()
    answer = teacher.api.post("/problems/plain/publish", prefer="wait=0")
    assert (answer.status_code, answer["Retry-After"]) == (202, "1")
    assert sent == [Check.objects.get().pk]
    assert teacher.api.post("/problems/plain/publish", prefer="wait=0").status_code == 202
    assert len(sent) == 1
    work()
    assert teacher.api.post("/problems/plain/publish", prefer="wait=0").status_code == 200


def test_a_matrix_that_could_not_be_computed_is_our_fault(teacher):
    teacher.author()
    teacher.api.post("/problems/plain/publish", prefer="wait=0")
    from django.utils import timezone

    Check.objects.update(status="error", finished_at=timezone.now(), error={"title": "x"})
    answer = teacher.api.post("/problems/plain/publish", prefer="wait=0")
    assert answer.status_code == 202, "it is tried again"


def test_only_the_author_publishes(teacher, bob, api):
    teacher.author()
    teacher.publish()
    assert_problem(bob.post("/problems/plain/publish"), 403)
    assert_problem(api.post("/problems/plain/publish"), 401)
    assert_problem(bob.post("/problems/nothing/publish"), 404)


def test_authoring_needs_the_scope(api, db):
    from api.models import ApiToken

    assert_problem(api.post("/problems", BODY), 401)
    runs_only = Api(ApiToken.issue("x", scopes=["runs"])[1])
    assert_problem(runs_only.post("/problems", BODY), 403, says=["author", "runs"])
    for path in ("/assignments", "/webhooks"):
        assert_problem(runs_only.get(path), 403)
        assert_problem(api.get(path), 401)


def test_what_is_wrong_is_told_with_its_place(teacher):
    answer = teacher.api.post("/problems", {**BODY, "cases": [{**CASES[0], "points": -1}], "titel": "x"})
    problem = assert_problem(answer, 400, pointer="/titel")
    assert {error["pointer"] for error in problem["errors"]} >= {"/cases/0/points", "/titel"}
    assert not ProblemVersion.objects.exists()


@pytest.mark.parametrize("points", [-1, 1e9, "many", None, True, "nan"])
def test_failure_13_points_that_are_none_never_become_a_score(teacher, points):
    answer = teacher.api.post("/problems", {**BODY, "cases": [{**CASES[0], "points": points}]})
    assert 400 <= answer.status_code < 500
    assert_problem(answer, answer.status_code, pointer="/cases/0/points")


def test_the_solution_of_others_stays_theirs(teacher, api):
    teacher.author(solution="The answer is 42.")
    teacher.publish()
    assert teacher.api.get("/problems/plain").json()["solution"] == "The answer is 42."
    assert api.get("/problems/plain").json()["solution"] == ""


def test_of_two_with_one_slug_everybody_means_their_own(teacher, bob, api):
    from tests.api.grading.conftest import Teacher

    teacher.author(title="Alice's")
    teacher.publish()
    other = Teacher(bob)
    other.author(title="Bob's")
    other.publish()
    assert bob.get("/problems/plain").json()["title"] == "Bob's"
    assert api.get("/problems/plain").json()["title"] == "Alice's"


def test_a_list_of_many_takes_few_queries(teacher, django_assert_max_num_queries):
    for n in range(12):
        teacher.author(slug=f"p{n}")
    with django_assert_max_num_queries(8):
        assert len(teacher.api.get("/problems?mine=true").json()["results"]) == 12


# --- Inputs ----------------------------------------------------------------------------------


@pytest.fixture
def published(teacher):
    teacher.author()
    teacher.publish()


def test_inputs_follow_from_the_seed_alone(published, teacher, api, document):
    one = api.get("/problems/plain/inputs?seed=1").json()
    assert one == teacher.api.get("/problems/plain/inputs?seed=1").json()
    assert (
        one["cases"]["small"]["q"] != api.get("/problems/plain/inputs?seed=2").json()["cases"]["small"]["q"]
    )
    assert np.array(one["cases"]["wide"]["q"]).shape == (1, 2, 5, 4)
    assert one["cases"]["wide"]["attention"]["is_causal"] is False
    validator(document, "ProblemInputs").validate(one)


@pytest.mark.parametrize("form", ["npz", "safetensors"])
def test_inputs_come_as_files_with_a_member_each(published, api, form):
    answer = api.get(f"/problems/plain/inputs?seed=1&format={form}")
    assert answer.status_code == 200
    load = {"npz": lambda data: dict(np.load(io.BytesIO(data))), "safetensors": safetensors.load}[form]
    members = load(answer.content)
    assert set(members) == {f"{case}/{name}" for case in ("small", "wide") for name in "qkv"}
    listed = api.get("/problems/plain/inputs?seed=1").json()["cases"]
    for name, array in members.items():
        case, array_name = name.split("/")
        np.testing.assert_array_equal(array, np.array(listed[case][array_name], array.dtype))


def test_large_arrays_are_links_that_lead_to_them(teacher, api):
    large = {"name": "large", "shape": {"num_heads": 8, "q_len": 128, "kv_len": 128, "head_dim": 128}}
    teacher.author(cases=[large])
    inputs = teacher.api.get("/problems/plain/inputs?seed=3").json()["cases"]["large"]["q"]
    assert (inputs["shape"], inputs["dtype"]) == ([1, 8, 128, 128], "float32")
    path = inputs["artifact"].split("/api/v1")[1]
    array = np.load(io.BytesIO(teacher.api.get(path).content))
    assert array.shape == (1, 8, 128, 128)


@pytest.mark.parametrize("query", ["seed=-1", "seed=x", f"seed={2**63}", "format=xml", "version=0", "seed=٣"])
def test_odd_queries_are_400(published, api, query):
    assert_problem(api.get(f"/problems/plain/inputs?{query}"), 400)
