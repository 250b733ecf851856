"""Submissions over REST: handing in, reading verdicts, what stays hidden, batches, reports."""

import base64
import datetime
import json

import numpy as np
import pytest
from django.utils import timezone

from kernels.arrays import float32_to_bfloat16
from tests.api.conftest import Api
from tests.api.grading.conftest import CASES, right, work, zeros
from tests.api.helpers import assert_problem, validator
from workers.grading import submissions
from workers.grading.models import Answers, Assignment, Submission

pytestmark = pytest.mark.django_db(transaction=True)

FULL_OF_ZEROS = {"small": {"out": np.zeros((1, 1, 3, 2)).tolist()}}


def variant_of(teacher, assignment, user_ref="ada"):
    return teacher.api.get(f"/assignments/{assignment['id']}/variants/{user_ref}").json()


def post(api, assignment, body, **headers):
    return api.post(f"/assignments/{assignment['id']}/submissions", body, **headers)


def test_a_right_answer_is_accepted(teacher, graded, document):
    made = teacher.assign(total_points=10)
    seen = graded(made)
    validator(document, "Submission").validate(seen)
    assert (seen["status"], seen["verdict"], seen["score"], seen["max_score"]) == (
        "graded",
        "accepted",
        10,
        10,
    )
    assert seen["counts_towards_limit"] is True
    assert [test["name"].split(":")[0] for test in seen["tests"]] == ["small", "wide"]


def test_until_it_is_graded_there_is_no_verdict(teacher, handed, document):
    answer = handed(teacher.assign())
    assert (answer.status_code, answer["Retry-After"]) == (202, "1")
    assert answer["Location"].endswith(f"/api/v1/submissions/{answer.json()['id']}")
    seen = answer.json()
    validator(document, "Submission").validate(seen)
    assert (seen["status"], seen["verdict"], seen["score"], seen["tests"]) == ("queued", None, None, [])


def test_a_wrong_answer_says_what_was_done(teacher, graded):
    def unscaled(variant):
        answers = {}
        for case, inputs in variant["cases"].items():
            q, k, v = (np.array(inputs[name]) for name in "qkv")
            scores = q @ np.swapaxes(k, -1, -2)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            answers[case] = {"out": (weights / weights.sum(-1, keepdims=True) @ v).tolist()}
        return answers

    seen = graded(teacher.assign(), make=unscaled)
    assert (seen["verdict"], seen["reason"], seen["score"]) == ("wrong_answer", "numeric_mismatch", 0)
    assert seen["hypotheses"][0]["code"] == "no_scale"
    assert seen["numerics"]["mismatched"] > 0
    assert seen["numerics"]["worst"][0]["index"].keys() == {"batch", "head", "query", "dim"}


# --- external_id and Idempotency-Key ---------------------------------------------------------


def test_an_external_id_sent_again_is_the_same_submission_and_with_another_body_409(teacher, handed):
    made = teacher.assign()
    first = handed(made, external_id="x1")
    again = handed(made, external_id="x1")
    assert first.json()["id"] == again.json()["id"]
    assert_problem(handed(made, make=zeros, external_id="x1"), 409, says=["x1", "new external_id"])
    assert_problem(handed(made, "bob", external_id="x1"), 409)
    assert Submission.objects.count() == 1
    work()
    done = handed(made, external_id="x1")
    assert (done.status_code, done.json()["status"]) == (200, "graded")


def test_an_idempotency_key_makes_one_submission(teacher):
    made = teacher.assign()
    body = {"user_ref": "ada", "answers": right(variant_of(teacher, made))}
    answers = [post(teacher.api, made, body, **{"idempotency-key": "k"}) for _ in range(2)]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert answers[1]["Idempotent-Replayed"] == "true"
    refused = post(teacher.api, made, {**body, "user_ref": "bob"}, **{"idempotency-key": "k"})
    assert_problem(refused, 422)
    assert Submission.objects.count() == 1


def test_what_was_refused_with_a_key_can_be_sent_again_with_it(teacher):
    made = teacher.assign(submission_limit={"count": 1})
    body = {"user_ref": "ada", "answers": right(variant_of(teacher, made))}
    first = post(teacher.api, made, body).json()
    assert post(teacher.api, made, body, **{"idempotency-key": "k"}).status_code == 429
    teacher.api.delete(f"/submissions/{first['id']}")
    assert post(teacher.api, made, body, **{"idempotency-key": "k"}).status_code == 202


# --- Limits ----------------------------------------------------------------------------------


def test_over_the_limit_nothing_is_recorded_or_charged(teacher, handed, sent):
    made = teacher.assign(submission_limit={"count": 2, "window_s": 3600})
    assert [handed(made).status_code for _ in range(2)] == [202, 202]
    sent.clear()
    refused = handed(made)
    problem = assert_problem(refused, 429, says="2 submissions in 3600 s")
    assert problem["type"].endswith("submission-limit")
    assert 3000 < int(refused["Retry-After"]) <= 3601
    assert (Submission.objects.count(), Answers.objects.count(), sent) == (2, 2, [])
    assert handed(made, "bob").status_code == 202


def test_failure_10_cancel_that_does_not_cancel(teacher, handed):
    """DELETE frees the slot, and a grader that has the submission changes nothing any more."""
    made = teacher.assign(submission_limit={"count": 1})
    submission = handed(made).json()
    assert handed(made).status_code == 429
    canceled = teacher.api.delete(f"/submissions/{submission['id']}")
    assert (canceled.status_code, canceled.json()["status"]) == (200, "canceled")
    assert canceled.json()["counts_towards_limit"] is False
    assert teacher.api.delete(f"/submissions/{submission['id']}").status_code == 200
    assert handed(made).status_code == 202
    work()
    assert teacher.api.get(f"/submissions/{submission['id']}").json()["status"] == "canceled"


def test_what_is_graded_is_not_canceled(teacher, graded):
    seen = graded(teacher.assign())
    assert_problem(teacher.api.delete(f"/submissions/{seen['id']}"), 409)


def test_failure_12_student_charged_for_platform_faults(teacher, handed, monkeypatch):
    from workers.grading import judging

    def broken(*_args):
        raise MemoryError

    made = teacher.assign(submission_limit={"count": 1})
    with monkeypatch.context() as patch:
        patch.setattr(judging, "judge_attempts", broken)
        submission = handed(made).json()
        work()
    seen = teacher.api.get(f"/submissions/{submission['id']}").json()
    assert (seen["status"], seen["verdict"], seen["score"]) == ("error", "internal_error", None)
    assert (seen["fault"], seen["counts_towards_limit"]) == ("platform", False)
    assert handed(made).status_code == 202, "the try was given back"
    incidents = teacher.api.get(f"/assignments/{made['id']}/incidents").json()["results"]
    assert {each["kind"] for each in incidents} == {"judge-failed"}
    assert {touched["id"] for each in incidents for touched in each["submissions"]} == {submission["id"]}


def test_late_means_marked_deducted_or_refused(teacher, graded, handed):
    made = teacher.assign(
        due_date=(timezone.now() - datetime.timedelta(hours=1)).isoformat(),
        late_due_date=(timezone.now() + datetime.timedelta(hours=1)).isoformat(),
        late_policy={"type": "fixed", "fraction": 0.25},
    )
    seen = graded(made)
    assert (seen["is_late"], seen["deduction"], seen["score"]) == (True, 0.25, 3.0)
    Assignment.objects.update(late_due_date=timezone.now())
    refused = assert_problem(handed(made), 409, says="closed at")
    assert refused["type"].endswith("not-open")


def test_in_time_is_what_had_arrived_in_time_however_long_we_take(teacher, handed, monkeypatch):
    made = teacher.assign(due_date=(timezone.now() + datetime.timedelta(hours=1)).isoformat())
    record = submissions.record

    def record_when_it_is_over(*args):
        Assignment.objects.update(due_date=timezone.now())
        return record(*args)

    monkeypatch.setattr(submissions, "record", record_when_it_is_over)
    late = teacher.api.get(f"/submissions/{handed(made).json()['id']}").json()
    assert (late["status"], late["is_late"]) == ("queued", False)


def test_who_hands_in_for_others_may_say_when_it_was(teacher, graded, api):
    made = teacher.assign(due_date=timezone.now().isoformat())
    before = (timezone.now() - datetime.timedelta(hours=1)).isoformat()
    seen = graded(made, submitted_at=before)
    assert (seen["verdict"], seen["is_late"]) == ("accepted", False)
    future = (timezone.now() + datetime.timedelta(hours=1)).isoformat()
    body = {"user_ref": "ada", "answers": {}, "submitted_at": future}
    assert_problem(post(teacher.api, made, body), 422, pointer="/submitted_at")
    (key,) = teacher.api.post(f"/assignments/{made['id']}/keys", {"user_refs": ["ada"]}).json()["keys"]
    answer = api.post(
        f"/assignments/{made['id']}/submissions?key={key['key']}", {**body, "submitted_at": before}
    )
    assert_problem(answer, 400, pointer="/submitted_at", code="unknown-field")


def test_a_stale_attempt_is_refused(teacher):
    made = teacher.assign()
    variant = variant_of(teacher, made)
    body = {"user_ref": "ada", "attempt": variant["attempt"], "answers": right(variant)}
    assert post(teacher.api, made, body).status_code == 202
    assert assert_problem(post(teacher.api, made, body), 409)["type"].endswith("stale-inputs")


def test_failure_4_replayed_outputs(teacher, graded):
    """What was right for one student is wrong for another and, drawn for each submission, the next time."""
    made = teacher.assign()
    adas = right(variant_of(teacher, made))
    assert graded(made, "ada", make=lambda _: adas)["verdict"] == "accepted"
    assert graded(made, "bob", make=lambda _: adas)["verdict"] == "wrong_answer"
    teacher.author(cases=[{**CASES[0], "seed_scope": "submission"}])
    teacher.publish()
    fresh = teacher.api.post("/assignments", {"problem": "plain"}).json()
    first = right(variant_of(teacher, fresh))
    assert graded(fresh, make=lambda _: first)["verdict"] == "accepted"
    assert graded(fresh, make=lambda _: first)["verdict"] == "wrong_answer"
    assert graded(fresh)["verdict"] == "accepted"


# --- Bad answers are graded, and what is none is refused -------------------------------------


@pytest.mark.parametrize(
    ("answers", "pointer"),
    [
        (None, "/answers"),
        ([], "/answers"),
        ("all right", "/answers"),
        ({"small": 1}, "/answers/small"),
        ({"small": {"out": "0.5"}}, "/answers/small/out"),
        ({"small": {"out": {"b64": "####", "dtype": "float32", "shape": [1]}}}, "/answers/small/out/b64"),
        ({"small": {"out": {"seed": 1, "shape": [3, 2]}}}, "/answers/small/out"),
    ],
)
def test_what_is_no_array_is_refused_with_its_place(teacher, answers, pointer):
    made = teacher.assign()
    answer = post(teacher.api, made, {"user_ref": "ada", "answers": answers})
    assert 400 <= answer.status_code < 500
    assert_problem(answer, answer.status_code, pointer=pointer)
    assert Submission.objects.count() == 0


ODD = {
    "ragged": ([[1, 2], [3]], "shape_mismatch"),
    "another shape": (np.zeros((3, 3)).tolist(), "shape_mismatch"),
    "empty": ([], "shape_mismatch"),
    "NaN": ([[[["nan", 0], [0, 0], [0, 0]]]], "non_finite"),
    "infinite": ([[[["inf", 0], [0, 0], [0, 0]]]], "non_finite"),
    "huge": ([[[[1e308, 0], [0, 0], [0, 0]]]], "numeric_mismatch"),
    "denormal": ([[[[5e-324, 0], [0, 0], [0, 0]]]], "numeric_mismatch"),
    "minus zero": ([[[[-0.0, -0.0], [-0.0, 0], [0, 0]]]], "numeric_mismatch"),
    "booleans": ([[[[True, False], [True, True], [False, False]]]], "dtype_mismatch"),
    "beyond float64": ([[[[10**400, 0], [0, 0], [0, 0]]]], "non_finite"),
}


@pytest.mark.parametrize("odd", ODD)
def test_failure_6_checker_with_a_nan_wildcard(teacher, graded, odd):
    """NaN, inf, −0, huge and denormal answers, and shapes that are none: wrong, and no error of ours."""
    array, reason = ODD[odd]
    seen = graded(teacher.assign(), make=lambda variant: {**right(variant), "small": {"out": array}})
    assert (seen["status"], seen["verdict"], seen["reason"]) == ("graded", "wrong_answer", reason)
    assert seen["score"] == 3
    json.dumps(seen, allow_nan=False)


@pytest.mark.parametrize("name", ["time_ms", "duration", "score", "verdict", "timing"])
def test_failure_5_fabricated_times(teacher, name):
    """Nothing that a student says of themselves is taken: no time, no score."""
    made = teacher.assign()
    body = {"user_ref": "ada", "answers": {}, name: 1}
    assert_problem(post(teacher.api, made, body), 400, pointer=f"/{name}", code="unknown-field")
    assert Submission.objects.count() == 0


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 0.5])
def test_failure_2_zeros_pass(teacher, graded, value):
    def constant(variant):
        return {
            case: {"out": np.full_like(np.array(named["out"]), value).tolist()}
            for case, named in right(variant).items()
        }

    seen = graded(teacher.assign(), make=constant)
    staff = teacher.api.get(f"/submissions/{seen['id']}?view=staff").json()
    assert (seen["verdict"], seen["score"]) == ("wrong_answer", 0)
    assert [test["status"] for test in staff["tests"]] == ["failed", "failed"]


def test_missing_and_extra_cases_are_said(teacher, graded):
    seen = graded(
        teacher.assign(), make=lambda v: {"small": {**right(v)["small"], "lse": [1]}, "other": {"out": [[1]]}}
    )
    assert (seen["verdict"], seen["score"]) == ("wrong_answer", 1)
    assert any("other" in note for note in seen["notes"])


def test_nothing_at_all_is_rejected_and_not_a_fault_of_ours(teacher, graded):
    seen = graded(teacher.assign(), make=lambda _: {})
    assert (seen["status"], seen["verdict"], seen["score"]) == ("graded", "rejected", 0)


def test_failure_15_noise_ranked_as_skill(teacher):
    """The same answer twenty times, alone and together: the same verdict to the last digit."""
    made = teacher.assign()
    almost = right(variant_of(teacher, made))
    almost["small"]["out"][0][0][0][0] += 3e-6
    results = []
    for number in range(10):
        body = {"user_ref": "ada", "answers": almost}
        results.append(post(teacher.api, made, body).json()["id"])
        if number % 3 == 0:
            work()
    batch = {"submissions": [{"user_ref": "ada", "answers": almost}] * 10}
    answer = teacher.api.post(f"/assignments/{made['id']}/submissions:batch", batch)
    results += [result["id"] for result in answer.json()["results"]]
    work()
    rows = Submission.objects.filter(pk__in=results)
    assert len({json.dumps(row.result, sort_keys=True) for row in rows}) == 1
    assert rows.count() == 20


def test_base64_decides_by_its_own_dtype(teacher, graded):
    def halves(variant):
        return {
            case: {"out": packed(np.array(named["out"], "<f2"), "float16")}
            for case, named in right(variant).items()
        }

    seen = graded(teacher.assign(), make=halves)
    assert (seen["verdict"], seen["notes"]) == ("accepted", ["low_precision"])


def packed(array, dtype):
    return {"b64": base64.b64encode(array.tobytes()).decode(), "dtype": dtype, "shape": list(array.shape)}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"answers": {}},
        {"user_ref": 7, "answers": {}},
        {"user_ref": "", "answers": {}},
        {"user_ref": "x" * 129, "answers": {}},
        {"user_ref": "a\nb", "answers": {}},
        {"user_ref": "ada", "answers": {}, "external_id": 5},
        {"user_ref": "ada", "answers": {}, "score": 1.0},
        {"user_ref": "ada", "answers": {}, "attempt": 0},
        [],
        "x",
    ],
)
def test_odd_bodies_are_refused_with_a_place(teacher, body):
    made = teacher.assign()
    answer = post(teacher.api, made, body)
    assert answer.status_code in (400, 422)
    assert assert_problem(answer, answer.status_code)["errors"]
    assert Submission.objects.count() == 0


def test_too_many_numbers_are_413(teacher):
    made = teacher.assign()
    big = packed(np.zeros((1025, 1024), "<f2"), "float16")
    answer = post(teacher.api, made, {"user_ref": "ada", "answers": {"small": {"out": big}}})
    assert_problem(answer, 413)
    assert Submission.objects.count() == 0


def in_base64(_api, bits):
    text = base64.b64encode(bits.tobytes()).decode()
    return {"b64": text, "dtype": "bfloat16", "shape": list(bits.shape)}


def in_a_file(api, bits):
    head = {"out": {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [0, bits.nbytes]}}
    header = json.dumps(head).encode()
    content = len(header).to_bytes(8, "little") + header + bits.tobytes()
    return {"upload": api.upload(content, "mine.safetensors").json()["id"], "name": "out"}


@pytest.mark.parametrize("sent", [in_base64, in_a_file])
def test_a_bfloat16_is_held_to_what_bfloat16_can_do(teacher, graded, sent):
    made = teacher.assign()

    def rounded(variant):
        bits = {
            case: float32_to_bfloat16(np.array(each["out"], np.float32)).astype("<u2")
            for case, each in right(variant).items()
        }
        return {case: {"out": sent(teacher.api, each)} for case, each in bits.items()}

    seen = graded(made, make=rounded)
    assert (seen["verdict"], seen["notes"]) == ("accepted", ["low_precision"])
    assert seen["numerics"]["dtype"] == "bfloat16"
    inputs = teacher.api.get("/problems/plain/inputs?seed=1").json()
    asked = {"problem": "plain", "seed": 1, "answers": rounded(inputs)}
    assert teacher.api.post("/grade", asked).json()["notes"] == ["low_precision"]


def test_uploads_are_answers_too(teacher, graded, api):
    import io

    made = teacher.assign()
    named = right(variant_of(teacher, made))
    buffer = io.BytesIO()
    np.savez(buffer, **{case: np.array(answer["out"], np.float32) for case, answer in named.items()})
    upload = teacher.api.upload(buffer.getvalue(), "mine.npz").json()["id"]
    seen = graded(made, make=lambda _: {case: {"out": {"upload": upload, "name": case}} for case in named})
    assert seen["verdict"] == "accepted"


# --- What stays hidden -----------------------------------------------------------------------


def test_a_hidden_tests_numbers_stay_hidden_until_it_says(teacher, graded):
    made = teacher.assign(due_date=(timezone.now() + datetime.timedelta(hours=1)).isoformat())

    def wide_wrong(variant):
        return {**right(variant), "wide": zeros(variant)["wide"]}

    seen = graded(made, make=wide_wrong)
    small, wide = seen["tests"]
    assert (small["status"], small["score"], small["visibility"]) == ("passed", 1, "visible")
    assert (wide["visibility"], wide["max_score"]) == ("after_due_date", 3)
    assert (wide["score"], wide["status"], wide["output"], wide["extra_data"]) == (None, None, "", {})
    assert seen["hypotheses"] == []
    assert seen["numerics"]["case"] == "small"
    assert (seen["verdict"], seen["reason"]) == ("wrong_answer", None)

    staff = teacher.api.get(f"/submissions/{seen['id']}?view=staff").json()
    assert [test["status"] for test in staff["tests"]] == ["passed", "failed"]
    assert staff["hypotheses"][0]["code"] == "zeros"

    Assignment.objects.update(due_date=timezone.now() - datetime.timedelta(seconds=1))
    later = teacher.api.get(f"/submissions/{seen['id']}").json()
    assert [test["status"] for test in later["tests"]] == ["passed", "failed"]
    assert later["hypotheses"] == staff["hypotheses"]


@pytest.mark.parametrize("visibility", ["hidden", "after_published"])
def test_other_visibilities_outlast_the_due_date(teacher, graded, visibility):
    teacher.author(cases=[CASES[0], {**CASES[1], "visibility": visibility}])
    teacher.publish()
    made = teacher.api.post("/assignments", {"problem": "plain"}).json()
    seen = graded(made)
    now = timezone.now()
    Assignment.objects.update(due_date=now - datetime.timedelta(seconds=1))
    assert teacher.api.get(f"/submissions/{seen['id']}").json()["tests"][1]["score"] is None
    teacher.api.request("PATCH", f"/assignments/{made['id']}", {"grades_published": True})
    shown = teacher.api.get(f"/submissions/{seen['id']}").json()["tests"][1]["score"]
    assert shown == (3 if visibility == "after_published" else None)


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("full", (2, True, "accepted")),
        ("scores", (2, False, "accepted")),
        ("verdict", (0, False, "accepted")),
        ("none", (0, False, None)),
    ],
)
def test_feedback_says_how_much_is_read(teacher, graded, level, shown):
    tests, has_output, verdict = shown
    seen = graded(teacher.assign(feedback={"normal": level}))
    assert (len(seen["tests"]), seen["verdict"], seen["feedback"]) == (tests, verdict, level)
    assert any(test["output"] for test in seen["tests"]) == has_output
    assert (seen["numerics"] is not None) == has_output
    assert teacher.api.get(f"/submissions/{seen['id']}?view=staff").json()["verdict"] == "accepted"


def test_after_the_last_try_feedback_may_be_less(teacher, graded):
    made = teacher.assign(submission_limit={"count": 2}, feedback={"past_limit": "verdict"})
    assert graded(made)["feedback"] == "full"
    assert graded(made)["feedback"] == "verdict"


# --- Lists -----------------------------------------------------------------------------------


def test_staff_lists_submissions_page_by_page(teacher, handed, document):
    made = teacher.assign()
    ids = [handed(made, f"s{n}").json()["id"] for n in range(5)]
    seen, path = [], f"/assignments/{made['id']}/submissions?limit=2"
    while path:
        page = teacher.api.get(path).json()
        validator(document, "SubmissionPage").validate(page)
        seen += [row["id"] for row in page["results"]]
        path = page["next"] and page["next"].split("/api/v1")[1]
    assert seen == ids[::-1]
    one = teacher.api.get(f"/assignments/{made['id']}/submissions?user_ref=s3&status=queued").json()
    assert [row["id"] for row in one["results"]] == [ids[3]]


def test_a_list_of_many_takes_few_queries(teacher, django_assert_max_num_queries):
    made = teacher.assign(submission_limit={"count": 1}, feedback={"past_limit": "verdict"})
    batch = {"submissions": [{"user_ref": f"s{n}", "answers": FULL_OF_ZEROS} for n in range(40)]}
    teacher.api.post(f"/assignments/{made['id']}/submissions:batch", batch)
    work()
    with django_assert_max_num_queries(5):
        page = teacher.api.get(f"/assignments/{made['id']}/submissions?limit=40").json()
    assert [row["feedback"] for row in page["results"]] == 40 * ["verdict"]
    with django_assert_max_num_queries(5):
        assert len(teacher.api.get(f"/assignments/{made['id']}/grades").json()["results"]) == 40


# --- Batches ---------------------------------------------------------------------------------


def batch(api, assignment, submissions, **headers):
    return api.post(
        f"/assignments/{assignment['id']}/submissions:batch", {"submissions": submissions}, **headers
    )


def test_a_batch_takes_each_by_itself_and_answers_in_order(teacher, document):
    made = teacher.assign(submission_limit={"count": 1})
    ok = {"user_ref": "ada", "external_id": "x1", "answers": right(variant_of(teacher, made))}
    answer = batch(
        teacher.api,
        made,
        [
            ok,
            {"user_ref": "bob", "answers": {"small": {"out": "text"}}},
            {"user_ref": "ada", "external_id": "x2", "answers": {}},
            ok,
            {**ok, "user_ref": "eve"},
            {"user_ref": "dan", "answers": {}},
        ],
    )
    assert answer.status_code == 202
    document = validator(document, "BatchAnswer")
    document.validate(answer.json())
    results = answer.json()["results"]
    assert [result["status"] for result in results] == [
        "queued", "refused", "refused", "queued", "refused", "queued",
    ]  # fmt: skip
    assert [result["external_id"] for result in results] == ["x1", None, "x2", "x1", "x1", None]
    assert results[3]["id"] == results[0]["id"]
    assert [results[n]["error"]["status"] for n in (1, 2, 4)] == [400, 429, 409]
    assert results[1]["error"]["errors"][0]["pointer"] == "/submissions/1/answers/small/out"
    assert Submission.objects.count() == 2


def test_a_batch_with_a_key_is_taken_once(teacher):
    made = teacher.assign()
    submissions = [{"user_ref": f"s{n}", "answers": FULL_OF_ZEROS} for n in range(3)]
    first = batch(teacher.api, made, submissions, **{"idempotency-key": "k"})
    work()
    again = batch(teacher.api, made, submissions, **{"idempotency-key": "k"})
    assert again["Idempotent-Replayed"] == "true"
    assert (first.status_code, again.status_code) == (202, 200)
    assert [r["id"] for r in first.json()["results"]] == [r["id"] for r in again.json()["results"]]
    assert {r["status"] for r in again.json()["results"]} == {"graded"}
    assert Submission.objects.count() == 3


@pytest.mark.parametrize(
    ("body", "status", "pointer"),
    [
        ({}, 400, "/submissions"),
        ({"submissions": {}}, 400, "/submissions"),
        ({"submissions": [{}] * 1001}, 413, "/submissions"),
        ({"submissions": [], "more": 1}, 400, "/more"),
        ([], 400, ""),
    ],
)
def test_odd_batches_are_refused_as_a_whole(teacher, body, status, pointer):
    made = teacher.assign()
    answer = teacher.api.post(f"/assignments/{made['id']}/submissions:batch", body)
    assert_problem(answer, status, pointer=pointer)


def test_an_empty_batch_is_done_at_once(teacher):
    answer = batch(teacher.api, teacher.assign(), [])
    assert (answer.status_code, answer.json()) == (200, {"results": []})


# --- Reports ---------------------------------------------------------------------------------


def test_results_for_gradescope(teacher, graded, document):
    seen = graded(teacher.assign(total_points=10))
    path = f"/submissions/{seen['id']}/results?format=gradescope"
    report = teacher.api.get(f"{path}&view=student").json()
    validator(document, "GradescopeResults").validate(report)
    assert report["score"] == 10
    small, wide = report["tests"]
    assert (small["score"], small["max_score"], small["status"]) == (1, 1, "passed")
    assert {"name", "number", "output", "output_format", "tags", "visibility", "extra_data"} <= set(small)
    assert "score" not in wide
    staff = teacher.api.get(path).json()
    assert (staff["tests"][1]["score"], staff["tests"][1]["visibility"]) == (3, "after_due_date")


def test_results_for_prairielearn(teacher, graded, document):
    seen = graded(teacher.assign(total_points=10), make=lambda v: {"small": right(v)["small"]})
    report = teacher.api.get(f"/submissions/{seen['id']}/results?format=prairielearn").json()
    validator(document, "PrairieLearnResults").validate(report)
    assert (report["gradable"], report["score"]) == (True, 0.25)
    assert report["tests"][0].items() >= {"points": 1, "max_points": 1}.items()
    empty = graded(teacher.assign(), make=lambda _: {})
    report = teacher.api.get(f"/submissions/{empty['id']}/results?format=prairielearn").json()
    assert (report["gradable"], report["score"]) == (False, 0)


def test_there_is_no_report_of_what_has_no_verdict(teacher, handed):
    """Failure 1: an outage is no pass, and no fail either."""
    submission = handed(teacher.assign()).json()
    path = f"/submissions/{submission['id']}/results?format=gradescope"
    waiting = teacher.api.get(path)
    assert_problem(waiting, 409)
    assert waiting["Retry-After"]
    teacher.api.delete(f"/submissions/{submission['id']}")
    assert "Retry-After" not in teacher.api.get(path)
    assert_problem(teacher.api.get(f"/submissions/{submission['id']}/results?format=word"), 400)
    assert_problem(teacher.api.get(f"/submissions/{submission['id']}/results"), 400)


# --- Waiting ---------------------------------------------------------------------------------


def test_prefer_wait_says_what_it_waited(teacher, handed, monkeypatch):
    from workers import events

    def grade_meanwhile(row, _seconds, **_):
        work()
        row.refresh_from_db(fields=row.CHANGING)

    monkeypatch.setattr(events, "wait", grade_meanwhile)
    made = teacher.assign()
    body = {"user_ref": "ada", "answers": right(variant_of(teacher, made))}
    answer = post(teacher.api, made, body, prefer="wait=5")
    assert (answer.status_code, answer["Preference-Applied"]) == (200, "wait=5")
    assert answer.json()["verdict"] == "accepted"
    several = [{"user_ref": f"s{n}", "answers": FULL_OF_ZEROS} for n in range(3)]
    answer = batch(teacher.api, made, several, prefer="wait=5")
    assert answer.status_code == 200
    assert {result["status"] for result in answer.json()["results"]} == {"graded"}


def test_nobody_elses_submission_exists(teacher, bob, api, handed):
    submission = handed(teacher.assign()).json()["id"]
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/results?format=gradescope")):
        mine = assert_problem(bob.request(method, f"/submissions/{submission}{path}"), 404)
        missing = assert_problem(bob.request(method, f"/submissions/{'a' * 22}{path}"), 404)
        assert mine["detail"].replace(submission, "") == missing["detail"].replace("a" * 22, "")
        assert_problem(api.request(method, f"/submissions/{submission}{path}"), 401)
        assert_problem(Api("").request(method, f"/submissions/{submission}{path}&key=x" if "?" in path else
                                       f"/submissions/{submission}{path}?key=x"), 404)  # fmt: skip
    assert Submission.objects.get().status == "queued"
