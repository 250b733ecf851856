"""A student at a desk: the inputs, handing in every way there is, and reading why it was wrong."""

import io
import json
import re
from datetime import timedelta
from html import unescape

import numpy as np
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from safetensors.numpy import save as save_safetensors

from api.models import ApiToken
from classroom import words
from classroom.students import verdicts
from kernels.arrays import float32_to_bfloat16
from tests.site.classroom.conftest import BODY, CASES, HIDDEN
from workers.grading import judging, submissions
from workers.grading.models import Assignment

TWO_ANSWERS = {**BODY, "answer": [{"name": "out"}, {"name": "lse"}]}


def text(answer):
    """What a reader sees, without tags."""
    html = answer if isinstance(answer, str) else answer.content.decode()
    html = re.sub(r"<(script|style|title).*?</\1>", " ", html, flags=re.DOTALL)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", html)))


def upload(course, way="files", user_ref="ada", **files):
    """Hand in files, by name."""
    sent = [SimpleUploadedFile(name, content) for name, content in files.items()]
    return Client().post(course.desk(user_ref).address(), {"way": way, "files": sent})


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


# --- Who sees what ---------------------------------------------------------------------------


def test_a_link_shows_the_statement_and_the_students_own_inputs(course):
    c = course()
    page = Client().get(c.desk("ada").address())
    assert page.status_code == 200
    shown = text(page)
    assert "Attention, plainly" in shown
    assert "<math" in page.content.decode()
    assert "Divide by the root." in shown
    q = c.inputs("ada")["small"]["q"]
    assert f"{q[0, 0, 0, 0]:.4f}".replace("-", "−") in shown
    assert text(Client().get(c.desk("bob").address())) != shown


def test_many_numbers_are_not_drawn_for_a_page_that_shows_few(course, monkeypatch):
    shape = {"num_heads": 4, "q_len": 32, "kv_len": 600, "head_dim": 64}
    c = course({**BODY, "cases": [{"name": "long", "points": 1, "shape": shape}]})
    monkeypatch.setattr(judging, "inputs_of_case", lambda *_: pytest.fail("numbers were drawn"))
    page = Client().get(c.desk().address())
    assert page.status_code == 200
    assert "k 1 × 4 × 600 × 64 float32" in text(page)
    assert "too many numbers for a page" in text(page).lower()
    assert "format=npy&amp;array=long%2Fk" in page.content.decode()


@pytest.mark.parametrize(
    "spoil", [lambda key: key[:-1], lambda key: key + "x", lambda key: "", lambda key: "a:b"]
)
def test_a_key_that_is_not_whole_opens_nothing(course, spoil):
    c = course()
    address, key = c.desk().address().split("?key=")
    answer = Client().get(f"{address}?key={spoil(key)}")
    assert answer.status_code == 404
    assert "plainly" not in text(answer)


def test_a_key_opens_one_assignment_and_one_students_submissions(course):
    one, other = course(), course({**BODY, "slug": "other"})
    mine = one.hand_in("ada")
    key = one.desk("bob").key
    assert Client().get(f"/en/hand-in/{other.id}/?key={key}").status_code == 404
    for page in ("", "live/"):
        assert Client().get(f"/en/hand-in/{one.id}/submissions/{mine.id}/{page}?key={key}").status_code == 404
    for page in ("take-back/", "lab/"):
        address = f"/en/hand-in/{one.id}/submissions/{mine.id}/{page}?key={key}"
        assert Client().post(address, {"case": "small"}).status_code == 404


def test_a_token_that_hands_in_opens_the_desk_of_whom_one_says(course):
    c = course()
    _, token = ApiToken.issue("harness", assignment=c.assignment)
    address = f"/en/hand-in/{c.id}/"
    assert Client().get(address).status_code == 200
    answer = Client().post(address, {"user_ref": "ada", "token": token})
    assert answer["Location"] == c.desk("ada").address()


@pytest.mark.parametrize("scopes", [["author", "runs"], []])
def test_a_token_that_may_not_hand_in_opens_nothing(course, scopes):
    c = course()
    _, token = ApiToken.issue("other", scopes=scopes)
    known = Client().post(f"/en/hand-in/{c.id}/", {"user_ref": "ada", "token": token})
    unknown = Client().post("/en/hand-in/nosuchassignment/", {"user_ref": "ada", "token": token})
    assert known.status_code == unknown.status_code == 422
    assert "This token does not open this assignment" in text(known)
    assert text(known) == text(unknown)


def test_an_assignment_of_another_time_shows_nothing_yet(course):
    c = course(release_date=timezone.now() + timedelta(days=1))
    shown = text(Client().get(c.desk().address()))
    assert "not open yet" in shown
    assert "Divide by the root" not in shown
    assert "small" not in shown
    assert c.post().status_code == 409
    assert not c.assignment.submissions.exists()


# --- Handing in ------------------------------------------------------------------------------


def test_right_answers_in_boxes_are_accepted(course):
    c = course()
    submission = c.hand_in()
    assert (submission.verdict, submission.score) == ("accepted", 4.0)
    shown = text(c.page(submission))
    assert "Right" in shown
    assert "4 of 4 points" in shown
    desk = text(Client().get(c.desk().address()))
    assert "Right" in desk


def test_every_kind_of_file_is_read_by_the_names_of_its_arrays(course):
    c = course()
    right = {case: array.astype(np.float32) for case, array in c.answers().items()}
    by_path = {f"{case}/out": array for case, array in right.items()}
    files = [
        {"all.npz": npz(**right)},
        {"all.npz": npz(**by_path)},
        {"all.safetensors": save_safetensors(by_path)},
        {f"{case}.npy": npy(array) for case, array in right.items()},
        {f"{case}-out.npy": npy(array) for case, array in right.items()},
    ]
    for sent in files:
        assert upload(c, **sent).status_code == 302, list(sent)
    c.grade()
    assert {row.verdict for row in c.assignment.submissions.all()} == {"accepted"}


def test_a_bfloat16_is_held_to_what_bfloat16_can_do(course):
    c = course({**BODY, "cases": [CASES[0]]})
    out = c.answers()["small"].astype(np.float32)
    bits = float32_to_bfloat16(out).astype("<u2").tobytes()
    head = {"out": {"dtype": "BF16", "shape": list(out.shape), "data_offsets": [0, len(bits)]}}
    header = json.dumps(head).encode()
    content = len(header).to_bytes(8, "little") + header + bits
    assert upload(c, **{"x.safetensors": content}).status_code == 302
    c.grade()
    (submission,) = c.assignment.submissions.all()
    assert submission.verdict == "accepted"
    assert "less precise than the number format" in text(c.page(submission))


def test_json_by_case_and_name_is_read_as_over_rest(course):
    c = course(TWO_ANSWERS)
    out = c.answers()
    body = json.dumps({case: {"out": array.tolist()} for case, array in out.items()})
    assert Client().post(c.desk().address(), {"way": "json", "json": body}).status_code == 302
    c.grade()
    (submission,) = c.assignment.submissions.all()
    shown = text(c.page(submission))
    assert submission.score == 2.0
    assert "No lse was handed in for case small." in shown


def test_numbers_that_numpy_prints_can_be_pasted(course):
    c = course({**BODY, "cases": [CASES[0]]})
    with np.printoptions(precision=17):
        printed = repr(c.answers()["small"][0, 0])
    assert Client().post(c.desk().address(), {"way": "boxes", "box-0-0": printed}).status_code == 302
    c.grade()
    assert c.assignment.submissions.get().verdict == "accepted"


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        ({"way": "boxes"}, "Nothing is there to hand in yet."),
        ({"way": "boxes", "box-0-0": "1 2\n3 oops"}, "Line 2, column 3: “oops” is not a number."),
        ({"way": "json", "json": "{"}, "Not JSON"),
        ({"way": "json", "json": "[1]"}, "answers must be an object"),
        ({"way": "json", "json": '{"small": {"out": 5}}'}, "small/out: an array must be nested lists"),
        ({"way": "json", "json": '{"nothing": {"out": [1]}}'}, "None of it is asked for"),
        ({"way": "files"}, "Nothing is there to hand in yet."),
        ({"way": "telepathy"}, "Select a valid choice"),
        ({}, "This field is required"),
    ],
)
def test_what_is_no_answer_is_said_so_and_costs_no_try(course, sent, says):
    c = course(limit_count=1)
    answer = Client().post(c.desk().address(), sent)
    assert answer.status_code == 422
    assert says in text(answer)
    assert "no try used" in text(answer)
    assert not c.assignment.submissions.exists()
    for box, typed in sent.items():
        assert box == "way" or unescape(answer.content.decode()).count(typed)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("x.npy", b"\x80\x04pickle", "pickle"),
        ("x.npz", b"PK\x03\x04 broken", "x.npz"),
        ("x.npy", npy(np.zeros(3)), "None of it is asked for"),
    ],
)
def test_a_file_that_cannot_be_used_is_said_why(course, name, content, says):
    c = course()
    answer = upload(c, **{name: content})
    assert answer.status_code == 422
    assert says in text(answer)
    assert not c.assignment.submissions.exists()


def test_one_who_has_no_try_left_is_told_and_nothing_is_recorded(course):
    c = course(limit_count=1)
    c.hand_in()
    shown = text(Client().get(c.desk().address()))
    assert "0 of 1" in shown
    assert "You have used all your tries." in shown
    answer = c.post()
    assert answer.status_code == 429
    assert int(answer["Retry-After"]) > 0
    assert c.assignment.submissions.count() == 1
    assert c.post("bob").status_code == 302


def test_a_try_comes_back_with_time_where_the_limit_has_a_window(course):
    c = course(limit_count=1, limit_window_s=3600)
    submission = c.hand_in()
    at = submission.submitted_at + timedelta(hours=1)
    assert f"The next one is yours at {at:%Y-%m-%d %H:%M} UTC" in text(Client().get(c.desk().address()))


def test_answers_to_earlier_inputs_are_not_taken_for_new_ones(course):
    body = {**BODY, "cases": [{**CASES[0], "seed_scope": "submission"}]}
    c = course(body)
    assert c.post(attempt="1").status_code == 302
    answer = c.post(attempt="1")
    assert answer.status_code == 409
    assert "answers to earlier inputs" in text(answer)
    assert re.search(r'name="attempt" value="(\d+)"', answer.content.decode())[1] == "2"
    assert c.post(attempt="2", answers=c.answers(number=2)).status_code == 302


def test_late_is_said_before_and_after(course):
    due = timezone.now() - timedelta(hours=1)
    policy = {"type": "per_day", "fraction": 0.25}
    c = course(due_date=due, late_due_date=due + timedelta(days=2), late_policy=policy)
    assert "loses 25 % of its points" in text(Client().get(c.desk().address()))
    submission = c.hand_in()
    assert submission.score == 3.0
    assert "late: 25 % off" in text(c.page(submission))


def test_after_the_last_due_date_nothing_is_taken_and_the_seed_is_known(course):
    c = course(due_date=timezone.now() + timedelta(days=1))
    assert "secret until it closes" in text(Client().get(c.desk().address()))
    c.assignment.due_date = timezone.now() - timedelta(minutes=1)
    c.assignment.save()
    shown = text(Client().get(c.desk().address()))
    assert "nothing can be handed in any more" in shown
    assert bytes(c.assignment.seed).hex() in shown
    assert c.post().status_code == 409


def test_in_time_is_what_had_arrived_in_time_however_long_we_take(course, monkeypatch):
    c = course(due_date=timezone.now() + timedelta(hours=1))
    record = submissions.record

    def record_when_it_is_over(*args):
        Assignment.objects.update(due_date=timezone.now())
        return record(*args)

    monkeypatch.setattr(submissions, "record", record_when_it_is_over)
    assert c.post().status_code == 302
    assert not c.assignment.submissions.get().is_late


def test_a_form_without_its_cookie_is_refused(course):
    c = course()
    answer = Client(enforce_csrf_checks=True).post(c.desk().address(), {"way": "boxes"})
    assert answer.status_code == 403


def test_students_have_a_quota_each(course, redis_server, settings):
    settings.SUBMISSIONS_PER_MINUTE = 2
    c = course()
    assert [c.post("ada").status_code for _ in range(3)] == [302, 302, 429]
    assert c.post("bob").status_code == 302


# --- Reading the verdict ---------------------------------------------------------------------


def test_a_wrong_answer_is_explained(course):
    c = course()
    submission = c.hand_in(answers=c.answers(scaled=False))
    html = c.page(submission)
    shown = text(html)
    assert "Not right yet" in shown
    assert "0 of 4 points" in shown
    assert re.search(r"This is the right computation without 1/√d: residual \S+\.", shown)
    assert "Multiply q·k by the scale" in shown
    worst = re.search(r"<tbody><tr>(.*?)</tr>", html[html.index("furthest off") :], re.DOTALL)[1]
    cells = [cell.replace("−", "-") for cell in re.findall(r">([^<]+)</td>", worst)]
    query, dim = int(cells[0]), int(cells[1])
    assert float(cells[2]) == pytest.approx(c.answers(scaled=False)["small"][0, 0, query, dim], abs=6e-5)
    assert float(cells[3]) == pytest.approx(c.answers()["small"][0, 0, query, dim], abs=6e-5)


@pytest.mark.parametrize(
    ("actual", "expected", "shown"),
    [
        (0.5, 0.25, ("0.5000", "0.2500")),
        (0.40131, 0.40134, ("0.401310", "0.401340")),
        (8e-7, 0.1, ("8.00e−7", "0.1000")),
    ],
)
def test_what_is_off_is_seen_in_the_digits(actual, expected, shown):
    cell = {"index": {"query": 0}, "actual": actual, "expected": expected, "allowed": 1e-8}
    (row,) = verdicts.worst({"worst": [{**cell, "abs_err": abs(actual - expected)}]})["rows"]
    assert (row["actual"], row["expected"]) == shown


def test_exponents_are_written_as_everywhere():
    assert words.typeset("6.596e-07 (residual 8e-17), 1.5e+08") == "6.596e−7 (residual 8e−17), 1.5e8"


def test_every_axis_that_an_answer_can_have_has_a_column():
    from kernels.grading import report, traces

    named = [*report.AXES.values(), report.PAIRS, *traces.AXES.values()]
    assert {axis for axes in named for axis in axes} <= verdicts.AXES.keys()
    for axes in named:
        assert list(axes) == [axis for axis in verdicts.AXES if axis in axes]


def test_a_hidden_case_shows_nothing_of_itself(course):
    c = course(HIDDEN)
    submission = c.hand_in(answers=c.answers(scaled=False))
    html = c.page(submission)
    item = re.findall(r'<li class="test test-hidden">.*?</li>', html, re.DOTALL)
    assert len(item) == 1
    assert text(item[0]).split() == ["wide", "out", "hidden"]
    right = c.answers()["wide"]
    assert not any(f"{value:.4f}".replace("-", "−") in html for value in right.ravel())


def test_hidden_until_the_due_date_is_shown_after_it(course):
    body = {**BODY, "cases": [CASES[0], {**CASES[1], "visibility": "after_due_date"}]}
    c = course(body, due_date=timezone.now() + timedelta(days=1))
    submission = c.hand_in(answers=c.answers(scaled=False))
    assert "test-hidden" in c.page(submission)
    c.assignment.due_date = timezone.now() - timedelta(minutes=1)
    c.assignment.save()
    assert "test-hidden" not in c.page(submission)


@pytest.mark.parametrize(
    ("level", "has", "has_not"),
    [
        ("none", ["show the result later"], ["points", "Not right yet", "1/√d"]),
        ("verdict", ["Not right yet", "0 of 4 points"], ["1/√d", "small"]),
        ("scores", ["Not right yet", "small", "0 of 1"], ["1/√d", "furthest off"]),
    ],
)
def test_a_teacher_decides_how_much_is_shown(course, level, has, has_not):
    c = course(feedback={"normal": level, "past_limit": level, "after_due": level, "staff": "full"})
    shown = text(c.page(c.hand_in(answers=c.answers(scaled=False))))
    main = shown[shown.index("Submission 1") :]
    assert [each for each in has if each not in main] == []
    assert [each for each in has_not if each in main.replace("Attention, plainly", "")] == []


def test_a_history_takes_as_many_queries_as_one_submission(course):
    c = course(limit_count=6, feedback={"normal": "full", "past_limit": "none"})
    c.hand_in()
    with CaptureQueriesContext(connection) as of_one:
        Client().get(c.desk().address())
    for _ in range(4):
        c.hand_in()
    with CaptureQueriesContext(connection) as of_five:
        assert "not shown yet" not in text(Client().get(c.desk().address()))
    assert len(of_five) == len(of_one)
    c.hand_in()
    assert text(Client().get(c.desk().address())).count("graded; not shown yet") == 6, "the last try is used"


def test_while_it_waits_the_page_asks_again_by_itself_and_it_can_be_taken_back(course):
    c = course(limit_count=1)
    assert c.post().status_code == 302
    submission = c.assignment.submissions.get()
    html = c.page(submission)
    assert "waiting for a grader" in html
    assert 'http-equiv="refresh"' in html
    live = unescape(re.search(r'hx-get="([^"]+)"', html)[1])
    answer = Client().get(live).content.decode()
    assert "<html" not in answer
    assert "hx-get" in answer
    taken = Client().post(c.desk().address("submission-take-back", submission_id=submission.id))
    assert taken.status_code == 302
    assert "taken back" in text(c.page(submission))
    assert "1 of 1" in text(Client().get(c.desk().address()))


def test_the_live_part_brings_the_verdict_and_says_it(course):
    c = course()
    c.post()
    submission = c.assignment.submissions.get()
    live = f"{c.desk().address('submission-live', submission_id=submission.id)}&seen=queued"
    c.grade()
    answer = Client().get(live).content.decode()
    assert 'hx-swap-oob="innerHTML">Right, 4 of 4 points' in answer
    assert "hx-trigger" not in answer


def test_what_failed_on_our_side_is_said_and_is_no_try(course):
    from workers.grading import incidents

    c = course(limit_count=1)
    c.post()
    incidents.lost(c.assignment.submissions.all(), incidents.JUDGE_FAILED, last=True)
    submission = c.assignment.submissions.get()
    shown = text(c.page(submission))
    assert "Not graded, through our fault" in shown
    assert "It is no try of yours." in shown
    assert "1 try left" in shown


# --- To the lab ------------------------------------------------------------------------------


def test_a_failed_case_opens_in_the_lab_with_its_inputs_and_its_worst_row_lit(course):
    from kernels import arrays
    from kernels.spec import RunSpec
    from workers.models import Run

    c = course()
    submission = c.hand_in(answers=c.answers(scaled=False))
    address = c.desk().address("submission-lab", submission_id=submission.id)
    answer = Client().post(address, {"case": "wide"})
    run = Run.objects.get()
    test = next(test for test in submission.result["tests"] if test["name"] == "wide: out")
    worst = test["extra_data"]["numerics"]["worst"][0]["index"]
    place = f"batch={worst['batch']}&head={worst['head']}&row={worst['query']}"
    assert answer["Location"] == f"/en/lab/runs/{run.id}/?{place}"
    spec = RunSpec.from_dict(run.spec)
    for name, array in c.inputs()["wide"].items():
        if name != "attention":
            given = spec.inputs[name]
            same = arrays.generate(name, given.seed, given.shape, given.distribution, spec.dtype)
            assert np.array_equal(same, array)
    assert spec.engine == "reference"
    assert Client().get(answer["Location"]).status_code == 200


def test_the_lab_gets_masks_positions_and_whatever_else_a_case_has(course):
    from kernels.spec import RunSpec
    from workers import artifacts
    from workers.models import Run

    attention = {"rope": {"style": "half"}, "softcap": 5.0}
    body = {**BODY, "spec": {"attention": attention}, "cases": [{**CASES[1], "mask": "boolean"}]}
    c = course(body)
    submission = c.hand_in(answers={"wide": np.zeros((1, 2, 5, 4))})
    Client().post(c.desk().address("submission-lab", submission_id=submission.id), {"case": "wide"})
    run = Run.objects.get()
    spec = RunSpec.from_dict(run.spec)
    assert (spec.attention.rope.style, spec.attention.softcap) == ("half", 5.0)
    stored = artifacts.load_submitted(run)
    assert np.array_equal(stored["attn_mask"], c.inputs()["wide"]["attn_mask"])


@pytest.mark.parametrize("case", ["wide", "small", "nothing", ""])
def test_a_hidden_or_a_right_case_does_not_open(course, case):
    c = course(HIDDEN)
    answers = {"small": c.answers()["small"], "wide": c.answers(scaled=False)["wide"]}
    submission = c.hand_in(answers=answers)
    address = c.desk().address("submission-lab", submission_id=submission.id)
    assert Client().post(address, {"case": case}).status_code == 404
