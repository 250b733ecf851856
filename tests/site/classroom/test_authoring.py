"""Writing a problem: in a form or as JSON, checked as one writes, refused while wrong answers pass."""

import json
import re
from html import unescape
from html.parser import HTMLParser

import pytest
from django.conf import settings
from django.contrib.auth import get_user_model
from django.http import QueryDict
from django.test import Client

from api.models import owner_of
from classroom.authoring import mutants
from classroom.authoring.editor import Editor, pretty, state_of
from kernels.grading.problem import parse_problem
from tests.site.classroom.conftest import BODY, CASES
from tests.site.classroom.test_students import text
from workers.grading.models import Check, Problem, ProblemVersion
from workers.management.commands.load_problems import read

NEW, PREVIEW = "/en/classroom/problems/new/", "/en/classroom/problems/preview/"
PLAIN = "/en/classroom/problems/plain/"
COURSE = sorted(settings.COURSE_DIR.glob("*.md"))
GENEROUS = {"policy": "allclose", "per_dtype": {"float32": {"atol": 100.0, "rtol": 1.0}}}
EASY = {
    **BODY,
    "cases": [{**CASES[0], "shape": {"q_len": 4, "kv_len": 4, "head_dim": 2}}],
    "tolerance": GENEROUS,
}


def fields(body=BODY):
    """What a browser sends of a form that shows this problem."""
    return {name: value for name, value in state_of(body) if value not in ("", [])}


def post(client, address=NEW, body=BODY, act="save", **changes):
    return client.post(address, {**fields(body), "act": act, **changes})


class Form(HTMLParser):
    """The fields of the form of a page, as a browser would send them."""

    def __init__(self, html):
        super().__init__()
        self.found, self.text_of, self.select, self.inside = {}, "", "", False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.inside = self.inside or given.get("id") == "problem-form"
        name = given.get("name")
        if not self.inside:
            return
        if tag == "input" and (given.get("type") != "checkbox" or "checked" in given):
            default = "on" if given.get("type") == "checkbox" else ""
            self.found.setdefault(name, []).append(given.get("value", default))
        elif tag == "textarea":
            self.found[name], self.text_of = [""], name
        elif tag == "select":
            self.select = name
        elif tag == "option" and ("selected" in given or self.select not in self.found):
            self.found[self.select] = [given["value"]]

    def handle_endtag(self, tag):
        self.text_of = "" if tag == "textarea" else self.text_of
        self.inside = self.inside and tag != "form"

    def handle_data(self, data):
        if self.text_of:
            self.found[self.text_of] = [self.found[self.text_of][0] + data]


def shown(answer):
    found = Form(answer.content.decode()).found
    # The newline after <textarea> is not part of what is in it.
    boxes = [name for name, texts in found.items() if texts[0].startswith("\n")]
    return {**found, **{name: [found[name][0].removeprefix("\n")] for name in boxes}}


def work():
    """What a grader does with the checks that are queued."""
    from workers.grading import tasks

    for check in Check.objects.filter(status="queued"):
        tasks.check.run(check.pk)


# --- The form says what JSON says ------------------------------------------------------------


@pytest.mark.parametrize("path", COURSE, ids=[path.stem for path in COURSE])
def test_every_problem_of_the_course_goes_into_the_form_and_out_again(path):
    problem = parse_problem(read(path))
    again = Editor.of_body(problem.to_dict()).read()
    assert again is not None
    assert again.to_dict() == problem.to_dict()


def test_a_browser_sends_back_what_the_form_shows(teacher):
    body = {
        **BODY,
        "hints": ["One.\n\nTwo.", "<b>three</b>"],
        "solution": "So.",
        "spec": {"dtype": "float64", "attention": {"is_causal": True, "scale": 0.25, "window": [3, 0]}},
        "answer": [{"name": "out", "points": 2}, {"name": "lse", "points": 0.5}],
        "properties": ["future_keys_do_not_matter"],
        "tolerance": {"policy": "allclose", "per_dtype": {"float64": {"atol": 1e-6, "rtol": 0.0}}},
        "cases": [
            {
                **CASES[1],
                "visibility": "after_published",
                "seed_scope": "fixed",
                "seed": 9,
                "distribution": "normal",
            },
            {"name": "given", "inputs": {"q": [[1, 2]], "k": [[1, 2]], "v": [[0.25, 0.5]]}},
        ],
    }
    first = post(teacher, body=body, act="check")
    assert first.status_code == 200, text(first)
    sent = shown(first)
    assert Editor(as_state(sent)).read().to_dict() == parse_problem(body).to_dict()


def as_state(found):
    state = QueryDict(mutable=True)
    for name, values in found.items():
        state.setlist(name, values)
    return state


def test_json_is_written_for_people():
    body = parse_problem(read(next(path for path in COURSE if path.stem == "by-hand"))).to_dict()
    written = pretty(body)
    assert json.loads(written) == body
    assert (
        max(
            len(line)
            for line in written.splitlines()
            if '"statement"' not in line and '"solution"' not in line
        )
        < 400
    )


# --- Saving ----------------------------------------------------------------------------------


def test_a_new_problem_is_a_draft_of_its_author(teacher, course):
    answer = post(teacher)
    version = ProblemVersion.objects.get()
    assert answer["Location"] == f"{PLAIN}?version=1"
    assert version.problem.owner == owner_of(get_user_model().objects.get(username="grace").pk)
    assert version.published_at is None
    assert version.body == parse_problem(BODY).to_dict()
    page = teacher.get(answer["Location"])
    assert "a draft, which nobody else sees" in text(page)
    assert "<math" in page.content.decode()


def test_an_edit_is_another_version_and_the_old_one_stays(teacher):
    post(teacher)
    edited = {**BODY, "title": "Attention, again", "slug": "cannot-be-changed-here"}
    assert post(teacher, f"{PLAIN}edit/", edited)["Location"] == f"{PLAIN}?version=2"
    assert ProblemVersion.objects.count() == 2
    assert "Attention, plainly" in text(teacher.get(f"{PLAIN}?version=1"))
    assert "Attention, again" in text(teacher.get(PLAIN))
    post(teacher, f"{PLAIN}edit/", {**edited, "slug": "plain"})
    assert ProblemVersion.objects.count() == 2
    assert Problem.objects.count() == 1


def test_a_name_that_is_taken_makes_no_version_by_accident(teacher):
    post(teacher)
    answer = post(teacher, body={**BODY, "title": "Something else"})
    assert answer.status_code == 422
    assert "You have a problem of this name" in text(answer)
    assert ProblemVersion.objects.count() == 1


@pytest.mark.parametrize(
    ("changes", "about"),
    [
        ({"title": ""}, "Title:"),
        ({"slug": "No Spaces"}, "Name in addresses:"),
        ({"case-0-name": ""}, "Case 1, Name:"),
        ({"case-1-points": "many"}, "Case 2, Points:"),
        ({"case-1-q_len": "-1"}, "Case 2, q_len:"),
        ({"case-1-q_len": "1e9"}, "Case 2, q_len:"),
        ({"case-1-num_kv_heads": "3"}, "Case 2"),
        ({"case-0-name": "wide"}, "Case 2, Name:"),
        ({"attention": "{"}, "Other settings:"),
        ({"attention": "[1]"}, "Other settings"),
        ({"attention": '{"rope": {"style": "sideways"}}'}, "Other settings: rope.style"),
        ({"scale": "tiny"}, "Scale:"),
        ({"dtype": "int3"}, "Number format:"),
        ({"case-0-attention": '{"softcap": -1}'}, "Case 1, Its own settings: softcap"),
        ({"case-0-inputs": '{"q": 5}'}, "Case 1, Inputs that are given: q"),
        ({"case-0-seed": "5"}, "Case 1, Seed:"),
        ({"policy": "allclose"}, "How far an answer may be off:"),
        ({"max_mismatch_ratio": "0.9"}, "Share of numbers that may be off:"),
        ({"atol-float32": "x", "policy": "allclose"}, "How far an answer may be off: float32 atol"),
        ({"properties": ["rows_sum_to_one"]}, "Checked besides"),
        ({"points-out": "0"}, "What is asked for:"),
        ({"cases": "0"}, "cases"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_where_it_is_and_nothing_typed_is_lost(teacher, changes, about):
    answer = post(teacher, **changes)
    assert answer.status_code == 422
    listed = re.search(r'role="alert".*?problems-list">(.*?)</ul>', answer.content.decode(), re.DOTALL)[1]
    assert about in re.sub(r" :", ":", text(listed)), text(listed)
    kept = shown(answer)
    for name, value in changes.items():
        if name not in ("cases", "dtype", "properties"):
            assert kept[name] == [value]
    assert not ProblemVersion.objects.exists()


def test_an_error_stands_beside_its_field(teacher):
    html = post(teacher, **{"case-1-q_len": "-1"}).content.decode()
    assert 'id="problem-case-1-q_len_error"' in html
    assert re.search(r'name="case-1-q_len"[^>]*aria-invalid="true"', html)


@pytest.mark.parametrize("changes", [
    {"cases": "99999999"}, {"cases": "-1"}, {"hints": "x"}, {"hints": "500"}, {"kind": "nonsense"},
    {"kind": "paging"}, {"act": "drop-case-77"}, {"act": "copy-case-"}, {"act": "add-"}, {"act": "drop-x-1"},
    {"act": "nonsense"}, {"title": "\0"}, {"case-0-inputs": "[" * 70},
    {"case-0-shape": "x"}, {"case-x-name": "y"}, {"attention": '{"a": {"b": ' * 30},
])  # fmt: skip
def test_whatever_is_sent_there_is_a_page(teacher, changes):
    for address in (NEW, PREVIEW):
        answer = post(teacher, address, **changes)
        assert answer.status_code in (200, 302, 400, 422)


# --- Its buttons -----------------------------------------------------------------------------


def test_cases_and_hints_are_added_copied_and_removed(teacher):
    def after(act, **changes):
        answer = post(teacher, act=act, **changes)
        assert answer.status_code == 200
        assert 'role="alert"' not in answer.content.decode()
        found = shown(answer)
        names = [found[f"case-{i}-name"][0] for i in range(int(found["cases"][0]))]
        hints = [found[f"hint-{i}-hint"][0] for i in range(int(found["hints"][0]))]
        return names, hints

    assert after("add-case") == (["small", "wide", "case-3"], ["Divide by the root."])
    assert after("copy-case-0") == (["small", "small-2", "wide"], ["Divide by the root."])
    assert after("drop-case-0") == (["wide"], ["Divide by the root."])
    assert after("add-hint") == (["small", "wide"], ["Divide by the root.", ""])
    assert after("drop-hint-0") == (["small", "wide"], [])
    assert after("drop-case-9") == (["small", "wide"], ["Divide by the root."])
    names, _ = after("drop-case-0", **{"case-1-q_len": "not a number"})
    assert names == ["wide"]


def test_another_kind_brings_its_own_fields(teacher):
    page = text(post(teacher, act="show", kind="paging"))
    assert "block_table" in page
    assert "num_blocks" in page
    assert "Causal alignment" not in page
    fresh = {
        "kind": "paging",
        "title": "Pages",
        "slug": "pages",
        "ask-lens": "on",
        "cases": "0",
        "hints": "0",
    }
    sent = shown(teacher.post(NEW, {**fresh, "act": "add-case"}))
    assert post_state(teacher, sent, act="save")["Location"] == "/en/classroom/problems/pages/?version=1"
    assert ProblemVersion.objects.get().body["kind"] == "paging"


def post_state(client, found, **changes):
    return client.post(NEW, {**found, **changes})


def test_the_same_as_json_and_back(teacher):
    as_json = shown(post(teacher, act="json"))
    assert as_json["view"] == ["json"]
    body = json.loads(as_json["body"][0])
    assert parse_problem(body) == parse_problem(BODY)
    body["title"] = "Renamed"
    back = shown(teacher.post(NEW, {"view": "json", "body": json.dumps(body), "act": "form"}))
    assert back["title"] == ["Renamed"]
    saved = teacher.post(NEW, {"view": "json", "body": json.dumps(body), "act": "save"})
    assert saved.status_code == 302
    assert ProblemVersion.objects.get().body["title"] == "Renamed"


@pytest.mark.parametrize(
    "body",
    ["", "{", "[]", "5", "null", '{"cases": 5}', '{"cases": [5]}', '{"cases": {}}', '{"answer": [{}]}',
     '{"spec": 5}', '{"tolerance": []}', '{"hints": 7}'],
)  # fmt: skip
def test_json_that_is_no_problem_is_said_why_and_kept(teacher, body):
    for act in ("save", "check", "form"):
        answer = teacher.post(NEW, {"view": "json", "body": body, "act": act})
        assert answer.status_code in (200, 422)
        if answer.status_code == 422 and "body" in shown(answer):
            assert shown(answer)["body"][0].strip() != "" or not body
    assert not ProblemVersion.objects.exists()


# --- Preview ---------------------------------------------------------------------------------


def test_the_preview_shows_the_statement_and_what_is_wrong(teacher):
    right = post(teacher, PREVIEW).content.decode()
    assert "<html" not in right
    assert "<math" in right
    assert "2 cases, 4 points, out" in text(right)
    assert "Nothing is wrong with it." in right
    wrong = post(teacher, PREVIEW, **{"case-0-q_len": "x"}).content.decode()
    assert "<math" in wrong
    assert re.search(r'<a href="#problem-case-0-q_len">Case 1, q_len</a>', wrong)
    assert "1 thing is wrong" in wrong


def test_reading_problems_is_charged_and_bounded(teacher, redis_server, settings):
    settings.TOKEN_COMPUTING_SECONDS_PER_MINUTE = 0
    shown_ = text(post(teacher, PREVIEW))
    assert "seconds of the web server's processor time" in shown_
    assert post(teacher).status_code == 422
    assert not ProblemVersion.objects.exists()


# --- Publishing ------------------------------------------------------------------------------


def test_a_problem_that_lets_mistakes_pass_is_refused_with_the_table(teacher):
    post(teacher, body=EASY)
    assert "Check it, and publish" in text(teacher.get(PLAIN))
    answer = teacher.post(f"{PLAIN}publish/?version=1")
    waiting = teacher.get(answer["Location"]).content.decode()
    assert "being computed" in waiting
    live = unescape(re.search(r'hx-get="([^"]+)"', waiting)[1])
    work()
    for page in (teacher.get(live), teacher.get(PLAIN)):
        refused = text(page)
        assert "It cannot be published like this" in refused
        assert re.search(r"Of the \d+ mistakes that can be made here, \d+ pass every case", refused)
        assert "What would help" in refused
    html = teacher.get(PLAIN).content.decode()
    row = re.search(r'<tr class="mutant-survives"><th scope="row">… ([^<]+)', html)
    assert row
    assert "passes" in html
    assert teacher.post(f"{PLAIN}publish/")["Location"] == f"{PLAIN}?version=1#mutants"
    assert ProblemVersion.objects.get().published_at is None


def test_a_suggestion_can_be_taken_and_then_it_is_published(teacher):
    post(teacher, body=EASY)
    teacher.post(f"{PLAIN}publish/")
    work()
    link = unescape(re.search(r'href="([^"]*apply=0)"', teacher.get(PLAIN).content.decode())[1])
    suggested = shown(teacher.get(link))
    assert suggested["policy"] == ["error_bound"]
    assert teacher.post(f"{PLAIN}edit/", {**suggested, "act": "save"}).status_code == 302
    teacher.post(f"{PLAIN}publish/?version=2")
    work()
    answer = teacher.post(f"{PLAIN}publish/?version=2", follow=True)
    said = text(answer)
    assert "Version 2 is published." in said
    assert re.search(r"It tells all \d+ mistakes", said)
    published = ProblemVersion.objects.filter(published_at__isnull=False)
    assert list(published.values_list("number", flat=True)) == [2]
    assert Client().get("/api/v1/problems/plain").json()["version"] == 2


def test_every_kind_of_suggestion_makes_a_problem():
    body = parse_problem(BODY).to_dict()
    shape = {"num_heads": 4, "num_kv_heads": 2, "q_len": 3, "kv_len": 9, "head_dim": 4}
    changes = [
        {"tolerance": {"policy": "error_bound"}},
        {"case": "wide", "distribution": "normal"},
        {"shape": shape, "distribution": "peaked"},
        {"answer": "weights"},
    ]
    for change in changes:
        changed = parse_problem(mutants.changed(body, change)).to_dict()
        assert (changed != body) == (change != changes[0])
    assert body == parse_problem(BODY).to_dict()


def test_the_table_tells_what_cannot_be_told_from_what_passes(teacher, course):
    post(teacher)
    teacher.post(f"{PLAIN}publish/")
    work()
    html = teacher.get(PLAIN).content.decode()
    rows = dict(re.findall(r'<tr class="mutant-(\w+)"><th[^>]*>[^<]*<code>(\w+)</code>', html))
    assert rows.keys() == {"killed", "coincides"}
    rows = dict(re.findall(r"<code>(\w+)</code></th><td>(.*?)</td>", html))
    assert "wide" in rows["no_scale"]
    assert "nobody could tell" in rows["lse_base2"]  # of a problem that does not ask for it
    cannot = html[html.index("These cannot be made here") :]
    assert "<code>rope_missing</code>" in cannot


# --- Nobody else's ---------------------------------------------------------------------------


def test_nobody_sees_edits_or_publishes_the_problem_of_another(at):
    grace, mallory = at("grace"), at("mallory")
    post(grace)
    for address in (PLAIN, f"{PLAIN}edit/", f"{PLAIN}live/", f"{PLAIN}?version=1"):
        assert mallory.get(address).status_code == 404, address
        assert Client().get(address).status_code == 302, address
    assert post(mallory, f"{PLAIN}edit/").status_code == 404
    assert mallory.post(f"{PLAIN}publish/").status_code == 404
    assert Client().post(NEW, fields()).status_code == 302
    assert "Attention, plainly" not in text(mallory.get("/en/classroom/"))
    assert post(mallory).status_code == 302
    assert ProblemVersion.objects.count() == 2


@pytest.mark.parametrize(
    "query", ["version=9", "version=x", "version=-1", "version=" + "9" * 30, "version=٣"]
)
def test_versions_that_there_are_not(teacher, query):
    post(teacher)
    assert teacher.get(f"{PLAIN}?{query}").status_code == 404
