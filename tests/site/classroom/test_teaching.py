"""A teacher: gives a problem, sees how it stands, judges again, tells others; and sees nobody else's."""

import csv
import io
import json
import re
from datetime import timedelta
from html import unescape

import numpy as np
import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone

from api.models import ApiToken, owner_of
from tests.site.classroom.conftest import BODY, CASES
from tests.site.classroom.test_students import text
from workers.grading.models import Assignment, Delivery, ProblemVersion, Regrade, WebhookEndpoint

HOME = "/en/classroom/"
HOOKS = "/en/classroom/webhooks/"


def of(course, page=""):
    return f"/en/classroom/assignments/{course.id}/{page}"


@pytest.fixture
def public(monkeypatch):
    """Every host is known and public, without asking anybody."""
    from workers.grading import outgoing

    monkeypatch.setattr(outgoing, "addresses_of", lambda *_: ["93.184.216.34"])


def form_key(client, address):
    return re.search(r'name="form_key" value="([^"]+)"', client.get(address).content.decode())[1]


# --- To give a problem -----------------------------------------------------------------------


def assign(client, course, **fields):
    problem = course.version.problem_id
    body = {"problem": problem, "late_type": "none", "limit_window": "", "score_policy": "best", **fields}
    return client.post("/en/classroom/assignments/new/", body)


def test_a_problem_is_given_with_all_that_its_form_says(teacher, course):
    c = course()
    answer = assign(
        teacher, c, title="Week 3", release_date="2026-05-01T08:00", due_date="2026-05-08T12:30",
        late_due_date="2026-05-09T12:30", late_type="per_day", late_percent="12.5", total_points="10",
        limit_count="4", limit_window="3600", score_policy="last", normal="scores", after_due="full",
    )  # fmt: skip
    made = Assignment.objects.exclude(pk=c.id).get()
    assert answer["Location"] == f"/en/classroom/assignments/{made.id}/"
    assert made.owner == c.assignment.owner
    assert (made.title, made.total_points, made.score_policy) == ("Week 3", 10.0, "last")
    assert made.due_date.isoformat() == "2026-05-08T12:30:00+00:00"
    assert made.late_policy == {"type": "per_day", "fraction": 0.125}
    assert (made.limit_count, made.limit_window_s) == (4, 3600)
    assert made.feedback["normal"] == "scores"
    assert made.feedback["past_limit"] == "full"
    assert made.seed_commitment_sha256 in text(teacher.get(answer["Location"]))


def test_an_empty_form_gives_the_latest_version_without_dates_or_limits(teacher, course):
    c = course()
    assert assign(teacher, c).status_code == 302
    made = Assignment.objects.exclude(pk=c.id).get()
    assert (made.due_date, made.limit_count, made.total_points) == (None, None, 4.0)
    assert made.problem_version == c.version


@pytest.mark.parametrize(
    ("fields", "label"),
    [
        ({"due_date": "2026-05-08T12:30", "late_due_date": "2026-05-01T12:30"}, "Late until"),
        ({"due_date": "soon"}, "Due"),
        ({"late_due_date": "2026-05-01T12:30"}, "Due"),
        ({"limit_count": "0"}, "Tries"),
        ({"limit_count": "many"}, "Tries"),
        ({"total_points": "-3"}, "Points"),
        ({"total_points": "1e9"}, "Points"),
        ({"late_type": "fixed", "late_percent": "150"}, "That share, in percent"),
        ({"late_type": "fixed", "late_percent": ""}, "That share, in percent"),
        ({"problem_version": "99"}, "Version"),
        ({"title": "x" * 201}, "Title"),
    ],
)
def test_what_is_wrong_is_said_beside_its_field(teacher, course, fields, label):
    answer = assign(teacher, course(), **fields)
    html = answer.content.decode()
    assert answer.status_code == 422
    listed = text(re.search(r'problems-list">.*?</ul>', html, re.DOTALL)[0])
    assert f"{label} :" in listed
    assert not re.search(r"[a-z]_[a-z]|: (count|fraction|title) ", listed), "a name of REST"
    for value in fields.values():
        assert unescape(html).count(value)
    assert Assignment.objects.count() == 1


def test_a_problem_that_is_not_published_or_anothers_cannot_be_given(at, course):
    c, other = course(), course({**BODY, "slug": "theirs"}, owner="user:424242")
    teacher = at("grace")
    assert assign(teacher, other).status_code == 422
    ProblemVersion.objects.filter(pk=c.version.pk).update(published_at=None)
    assert assign(teacher, c).status_code == 422
    assert Assignment.objects.count() == 2


def test_settings_change_what_can_change(teacher, course):
    c = course(title="Old", due_date=timezone.now() + timedelta(days=2))
    page = teacher.get(of(c, "settings/")).content.decode()
    assert 'value="Old"' in page
    assert f'value="{c.assignment.due_date:%Y-%m-%dT%H:%M}"' in page
    body = {"title": "New", "due_date": "2099-01-01T00:00", "normal": "none", "after_due": "full"}
    assert teacher.post(of(c, "settings/"), body)["Location"] == of(c)
    c.assignment.refresh_from_db()
    assert (c.assignment.title, c.assignment.due_date.year) == ("New", 2099)
    assert c.assignment.feedback["normal"] == "none"


def test_an_assignment_whose_seed_is_known_cannot_be_opened_again(teacher, course):
    c = course(due_date=timezone.now() - timedelta(days=2))
    answer = teacher.post(of(c, "settings/"), {"due_date": "2099-01-01T00:00"})
    assert answer.status_code == 422
    assert "The seed of this assignment is known by now" in text(answer)
    c.assignment.refresh_from_db()
    assert c.assignment.due_date < timezone.now()


def test_publishing_grades_shows_what_was_hidden_until_then(teacher, course):
    body = {**BODY, "cases": [CASES[0], {**CASES[1], "visibility": "after_published"}]}
    c = course(body)
    submission = c.hand_in()
    assert "test-hidden" in c.page(submission)
    teacher.post(of(c, "publish-grades/"), {"published": "yes"})
    assert "test-hidden" not in c.page(submission)
    teacher.post(of(c, "publish-grades/"), {"published": "no"})
    assert "test-hidden" in c.page(submission)


def test_an_assignment_without_a_title_goes_by_that_of_its_problem(teacher, course):
    c = course()
    c.hand_in("ada")
    assert re.search(r"Attention, plainly open 1 student 1 submission", text(teacher.get(HOME)))
    for address in (of(c), HOOKS, c.desk().address()):
        assert "Attention, plainly" in text(teacher.get(address)), address


# --- How it stands ---------------------------------------------------------------------------


@pytest.fixture
def crowd(course):
    """Four students: right, right at last, half right without 1/√d, nothing right."""
    c = course()
    c.hand_in("ada")
    c.hand_in("bob", answers=c.answers("bob", scaled=False))
    c.hand_in("bob")
    half = {"small": c.answers("cleo")["small"], "wide": c.answers("cleo", scaled=False)["wide"]}
    c.hand_in("cleo", answers=half)
    c.hand_in("dan", answers={case: np.zeros_like(array) for case, array in c.answers("dan").items()})
    return c


def test_the_dashboard_counts_students_scores_and_mistakes(teacher, crowd):
    html = teacher.get(of(crowd)).content.decode()
    stats = dict(re.findall(r"<dt>([^<]+)</dt><dd>([^<]+?)\s*<", html))
    assert (stats["students"], stats["all right"], stats["submissions"]) == ("4", "2", "5")
    assert stats["median"] == "2.5"
    assert stats["mean"] == "2.25"
    shares = dict(re.findall(r"</span>([^<]+): <b class=\"nums\">(\d+)</b>", html))
    assert shares == {
        "all right": "2",
        "partly right": "1",
        "nothing right yet": "1",
        "without a verdict": "0",
    }
    bins = dict(re.findall(r'<th scope="row">([\d–]+ %)</th><td class="num">(\d+)</td>', html))
    assert {name: count for name, count in bins.items() if count != "0"} == {
        "0–10 %": "1", "20–30 %": "1", "90–100 %": "2",
    }  # fmt: skip
    mistakes = re.findall(
        r'<code>(\w+)</code></th><td class="num">(\d+)</td><td class="num">(\d+)</td>', html
    )
    assert ("no_scale", "2", "1") in mistakes
    assert ("zeros", "1", "1") in mistakes
    assert "without 1/√d" in text(html)


def test_the_picture_shows_what_its_table_says(teacher, crowd):
    html = teacher.get(of(crowd)).content.decode()
    bins = re.findall(r'<th scope="row">([\d–]+ %)</th><td class="num">(\d+)</td>', html)
    picture = re.search(r'<svg class="histogram".*?</svg>', html, re.DOTALL)[0]
    assert re.findall(r"<title>([\d–]+ %): (\d+)</title>", picture) == bins
    heights = [float(height) for height in re.findall(r'class="hist-bar"[^>]*height="([\d.]+)"', picture)]
    counts = [int(count) for _, count in bins]
    assert [height / max(heights) for height in heights] == [count / max(counts) for count in counts]


def test_students_are_found_and_sorted(teacher, crowd):
    def names(query=""):
        table = teacher.get(of(crowd) + query).content.decode().split('id="students"')[1]
        return re.findall(r'user_ref=\w+">(\w+)</a></th>', table)

    assert names() == ["ada", "bob", "cleo", "dan"]
    assert names("?sort=score")[2:] == ["cleo", "dan"]
    assert names("?sort=submissions")[0] == "bob"
    assert names("?sort=submitted_at")[0] == "dan"
    assert names("?find=L") == ["cleo"]
    assert names("?sort=nonsense&find=") == ["ada", "bob", "cleo", "dan"]


def test_grades_are_downloaded_as_they_are_over_rest(teacher, crowd):
    answer = teacher.get(of(crowd, "grades.csv"))
    assert "attachment" in answer["Content-Disposition"]
    found = list(csv.DictReader(io.StringIO(answer.content.decode())))
    assert [(row["user_ref"], row["score"]) for row in found] == [
        ("ada", "4.0"), ("bob", "4.0"), ("cleo", "1.0"), ("dan", "0.0"),
    ]  # fmt: skip
    document = json.loads(teacher.get(of(crowd, "grades.json")).content)
    user = get_user_model().objects.get(username="grace")
    _, token = ApiToken.issue("x", user=user)
    rest = Client().get(
        f"/api/v1/assignments/{crowd.id}/grades", headers={"Authorization": f"Bearer {token}"}
    )
    assert document == rest.json()


def test_a_students_history_says_what_every_try_was(teacher, crowd):
    html = teacher.get(of(crowd, "student/?user_ref=bob")).content.decode()
    rows = [text(row) for row in re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)[1:]]
    assert len(rows) == 2
    assert "Right" in rows[0]
    assert "Not right yet" in rows[1]
    assert "without 1/√d" in rows[1]
    assert crowd.desk("bob").address() in unescape(html)
    assert teacher.get(of(crowd, "student/?user_ref=")).status_code == 404
    assert "Nothing was handed in" in text(teacher.get(of(crowd, "student/?user_ref=zoe")))


def test_a_name_that_would_be_markup_is_text(teacher, course):
    c = course()
    c.hand_in('<b onclick="x">&')
    for address in (of(c), of(c, "student/?user_ref=%3Cb%20onclick%3D%22x%22%3E%26")):
        assert "<b onclick" not in teacher.get(address).content.decode()


def test_staff_reads_what_is_hidden_from_the_student_and_opens_it_in_the_lab(teacher, course):
    body = {**BODY, "cases": [CASES[0], {**CASES[1], "visibility": "hidden"}]}
    c = course(body)
    submission = c.hand_in(answers=c.answers(scaled=False))
    address = of(c, f"submissions/{submission.id}/")
    html = teacher.get(address).content.decode()
    assert "test-hidden" not in html
    assert "wide" in html
    assert teacher.post(f"{address}lab/", {"case": "wide"})["Location"].startswith("/en/lab/runs/")


def test_incidents_are_listed_with_the_submissions_they_touched(teacher, course):
    from workers.grading import incidents

    c = course()
    c.post("ada")
    incidents.lost(c.assignment.submissions.all(), incidents.WORKER_LOST, last=True)
    shown = text(teacher.get(of(c)))
    assert "The process that graded this stopped without an answer." in shown
    assert "ada 1" in shown
    shown = text(teacher.get(of(c, f"submissions/{c.assignment.submissions.get().id}/")))
    assert "no try of the student’s" in shown
    assert "of yours" not in shown, "said to the student"


def test_the_seed_is_shown_when_it_is_everybodys(teacher, course):
    c = course(due_date=timezone.now() + timedelta(days=1))
    seed = bytes(c.assignment.seed).hex()
    assert seed not in text(teacher.get(of(c)))
    Assignment.objects.update(due_date=timezone.now() - timedelta(minutes=1))
    assert seed in text(teacher.get(of(c)))


# --- Judging again ---------------------------------------------------------------------------


def run_regrades():
    from workers.grading import tasks

    for regrade in Regrade.objects.filter(status="queued"):
        tasks.regrade.run(regrade.pk)


@pytest.fixture
def mended(course):
    """A problem that was too strict, with a student who suffered; and its second version, which is not."""
    from kernels.grading.problem import parse_problem
    from workers.grading import problems

    strict = {"policy": "allclose", "per_dtype": {"float32": {"atol": 1e-12, "rtol": 0.0}}}
    c = course({**BODY, "tolerance": strict})
    rounded = {case: array.astype(np.float16).astype(float) for case, array in c.answers("ada").items()}
    c.hand_in("ada", answers=rounded)
    c.hand_in("bob", answers={case: np.zeros_like(array) for case, array in c.answers("bob").items()})
    generous = {"policy": "allclose", "per_dtype": {"float32": {"atol": 1e-2, "rtol": 1e-2}}}
    version, _ = problems.save(c.assignment.owner, parse_problem({**BODY, "tolerance": generous}))
    ProblemVersion.objects.filter(pk=version.pk).update(published_at=timezone.now())
    return c


def test_a_regrade_is_tried_first_and_changes_nothing(teacher, mended):
    body = {"scope": "all", "policy": "replace", "problem_version": "2", "try": "1"}
    page = teacher.post(of(mended, "regrades/"), body)["Location"]
    waiting = teacher.get(page).content.decode()
    assert "waiting for a grader" in text(waiting)
    assert "hx-get" in waiting
    run_regrades()
    live = unescape(re.search(r'hx-get="([^"]+)"', waiting)[1])
    for shown in (teacher.get(page), teacher.get(live)):
        found = text(shown)
        assert "2 submissions judged, 1 with another outcome." in found
        assert re.search(r"ada 0 4 Not right yet, 0 → Right, 4", found)
        assert "bob" not in found
    assert {row.score for row in mended.assignment.submissions.all()} == {0.0}


def test_carrying_it_out_after_the_try_changes_the_grades(teacher, mended):
    body = {"scope": "all", "policy": "replace", "problem_version": "2"}
    tried = teacher.post(of(mended, "regrades/"), {**body, "try": "1"})["Location"]
    run_regrades()
    html = teacher.get(tried).content.decode()
    again = dict(
        re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', html.split('id="regrade"')[1])
    )
    page = teacher.post(of(mended, "regrades/"), {**again, "carry_out": "1"})["Location"]
    run_regrades()
    assert "Judged again: what changed" in text(teacher.get(page))
    scores = dict(mended.assignment.submissions.values_list("user_ref", "score"))
    assert scores == {"ada": 4.0, "bob": 0.0}
    ada = mended.assignment.submissions.get(user_ref="ada")
    shown = text(teacher.get(of(mended, f"submissions/{ada.id}/")))
    assert "Before it was judged again" in shown
    assert "Not right yet, 0" in shown


@pytest.mark.parametrize("change", [{"scope": "none"}, {"policy": ""}, {"problem_version": "7"}])
def test_a_regrade_that_cannot_be_is_refused(teacher, mended, change):
    body = {"scope": "all", "policy": "replace", "problem_version": "2", "try": "1", **change}
    assert teacher.post(of(mended, "regrades/"), body).status_code == 422
    assert not Regrade.objects.exists()


# --- Ways in ---------------------------------------------------------------------------------


def test_a_link_for_each_student_opens_that_students_desk(teacher, course):
    c = course()
    answer = teacher.post(of(c, "ways-in/"), {"user_refs": "ada\n bob \n\nada\n"})
    links = re.findall(r'<a class="break" href="(http://[^"]+key=[^"]+)"', answer.content.decode())
    assert len(links) == 2
    shown = text(Client().get(unescape(links[1])))
    assert "Assignment for bob" in shown
    as_file = teacher.post(of(c, "ways-in/"), {"user_refs": "ada\nbob", "csv": "1"})
    found = list(csv.DictReader(io.StringIO(as_file.content.decode())))
    assert [row["user_ref"] for row in found] == ["ada", "bob"]
    assert found[1]["link"] == unescape(links[1])


def test_a_link_can_be_revoked_alone(teacher, course):
    c = course()
    teacher.post(of(c, "ways-in/"), {"user_refs": "ada\nbob"})
    ada, bob = c.desk("ada").address(), c.desk("bob").address()
    assert Client().get(ada).status_code == 200
    page = text(teacher.get(of(c, "ways-in/")))
    assert "Links that were made" in page
    answer = teacher.post(of(c, "ways-in/revoke/"), {"user_ref": "ada"}, follow=True)
    assert "The link of “ada” opens nothing any more" in text(answer)
    revoked, unknown = Client().get(ada), Client().get(ada + "x")
    assert (revoked.status_code, text(revoked)) == (404, text(unknown))
    assert Client().get(bob).status_code == 200
    assert c.desk("ada").address() != ada
    assert Client().get(c.desk("ada").address()).status_code == 200
    assert teacher.post(of(c, "ways-in/revoke/"), {"user_ref": "\x07"}).status_code == 404


@pytest.mark.parametrize(
    "user_refs", ["", "  \n ", "x" * 129, "a\u200b\x07b", "\n".join(map(str, range(1_001)))]
)
def test_names_that_cannot_be_are_refused(teacher, course, user_refs):
    assert teacher.post(of(course(), "ways-in/"), {"user_refs": user_refs}).status_code == 422


def test_a_token_of_an_assignment_is_shown_once_and_only_hands_in(teacher, course):
    c = course()
    key = form_key(teacher, of(c, "ways-in/"))
    body = {"name": "harness", "lifetime": "30", "form_key": key}
    answer = teacher.post(of(c, "ways-in/token/"), body)
    token = ApiToken.verify(re.search(r'id="new-token">([^<]+)<', answer.content.decode())[1])
    assert (token.assignment_id, token.scopes) == (c.id, ["submit"])
    assert teacher.post(of(c, "ways-in/token/"), body).status_code == 302
    assert ApiToken.objects.count() == 1
    assert "harness" in text(teacher.get(of(c, "ways-in/")))
    teacher.post(f"/en/account/tokens/{token.pk}/revoke/")
    assert "no longer valid" in text(teacher.get(of(c, "ways-in/")))


# --- Webhooks --------------------------------------------------------------------------------


def tell(client, url="https://hooks.example/x", **more):
    key = form_key(client, HOOKS)
    body = {"url": url, "events": ["submission.graded"], "assignment": "", "form_key": key, **more}
    return client.post(HOOKS, body)


def test_a_webhook_shows_its_secret_once_and_logs_deliveries(teacher, course, public):
    from workers.grading import webhooks

    c = course()
    answer = tell(teacher)
    endpoint = WebhookEndpoint.objects.get()
    secret = re.search(r'id="new-secret">([^<]+)<', answer.content.decode())[1]
    assert secret == webhooks.secret_of(endpoint)
    assert secret not in teacher.get(HOOKS).content.decode()
    c.hand_in("ada")
    log = f"{HOOKS}{endpoint.id}/"
    shown = text(teacher.get(log))
    assert "to be tried" in shown
    assert "submission.graded ada" in shown
    delivery = Delivery.objects.get()
    tried = {"at": "2026-05-01T00:00:00+00:00", "status": 500, "error": "", "ms": 12}
    Delivery.objects.update(status="failed", next_try_at=None, tries=9, log=[tried])
    assert "given up" in text(teacher.get(log))
    assert "500 12 ms" in text(teacher.get(log))
    assert teacher.post(f"{log}deliveries/{delivery.id}/replay/")["Location"] == log
    delivery.refresh_from_db()
    assert (delivery.status, delivery.tries) == ("pending", 0)
    teacher.post(f"{log}delete/")
    assert not WebhookEndpoint.objects.exists()


@pytest.mark.parametrize(
    "change",
    [{"url": "http://127.0.0.1/"}, {"url": "ftp://x.example/"}, {"url": ""}, {"events": []},
     {"events": ["nothing"]}, {"assignment": "someoneelses"}],
)  # fmt: skip
def test_a_webhook_that_cannot_be_is_refused_beside_its_field(teacher, change):
    answer = tell(teacher, **change)
    assert answer.status_code == 422
    assert "problems-list" in answer.content.decode()
    assert not WebhookEndpoint.objects.exists()


# --- Nobody else's ---------------------------------------------------------------------------


def test_nobody_sees_or_touches_what_is_anothers(at, course, public):
    c = course()
    submission = c.hand_in("ada")
    grace, mallory = at("grace"), at("mallory")
    tell(grace)
    c.hand_in("bob")
    endpoint, delivery = WebhookEndpoint.objects.get(), Delivery.objects.get()
    regrade = Regrade.objects.create(assignment=c.assignment, problem_version=c.version, dry_run=True)
    pages = [
        of(c), of(c, "settings/"), of(c, "grades.csv"), of(c, "grades.json"), of(c, "student/?user_ref=ada"),
        of(c, f"submissions/{submission.id}/"), of(c, "ways-in/"), of(c, "regrades/"),
        of(c, f"regrades/{regrade.id}/"), of(c, f"regrades/{regrade.id}/live/"), f"{HOOKS}{endpoint.id}/",
    ]  # fmt: skip
    posts = [
        of(c, "settings/"), of(c, "publish-grades/"), of(c, "ways-in/"), of(c, "ways-in/token/"),
        of(c, "ways-in/revoke/"),
        of(c, "regrades/"), of(c, f"submissions/{submission.id}/lab/"), f"{HOOKS}{endpoint.id}/delete/",
        f"{HOOKS}{endpoint.id}/deliveries/{delivery.id}/replay/",
    ]  # fmt: skip
    for address in pages:
        assert grace.get(address).status_code == 200, address
        assert mallory.get(address).status_code == 404, address
        assert Client().get(address).status_code == 302, address
    for address in posts:
        assert mallory.post(address, {"user_refs": "ada"}).status_code == 404, address
        assert Client().post(address).status_code == 302, address
    assert "plainly" not in text(mallory.get(HOME))
    assert WebhookEndpoint.objects.exists()
    other = course(
        {**BODY, "slug": "other"}, owner=owner_of(get_user_model().objects.get(username="mallory").pk)
    )
    assert mallory.get(of(other, f"submissions/{submission.id}/")).status_code == 404
    assert mallory.get(of(other, f"regrades/{regrade.id}/")).status_code == 404


@pytest.mark.parametrize("strange", ["x", "nosuchassignment", "a%00b", "%F0%9F%92%A9", "2" * 200])
def test_addresses_of_nothing_are_told_so(teacher, strange):
    assert teacher.get(f"/en/classroom/assignments/{strange}/").status_code == 404
    assert Client().get(f"/en/hand-in/{strange}/?key=x").status_code == 404
    assert teacher.get(f"/en/classroom/webhooks/{strange}/").status_code == 404
