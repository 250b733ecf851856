"""The course for everybody: exercises filled in on a page, and whole problems, judged without an account."""

import io
import os
import re
import subprocess
import sys
from html import unescape

import numpy as np
import pytest
from django.conf import settings
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import call_command
from django.test import Client

from classroom.checks import library
from concepts.errors import ContentError
from concepts.markup import Check, Context, render
from tests.site.classroom.test_students import text
from workers.grading.models import Submission

PROBLEMS, BY_HAND, CONCEPT = "/en/problems/", "/en/problems/by-hand/", "/en/concepts/by-hand/"
HTMX = {"HX-Request": "true"}

# By hand, that is by nobody's program: QKᵀ of the exercise.
PRODUCTS = np.array([[1, 0, 1], [0, 1, 1], [1, 1, 2]])
SCORES = PRODUCTS / np.sqrt(2)
WEIGHTS = np.exp(SCORES) / np.exp(SCORES).sum(1, keepdims=True)
OUT = WEIGHTS @ np.array([[4, 0], [0, 2], [1, 3]])


def cells(digits=3, **answers):
    """The query string of an exercise that is filled in with these."""
    return {
        f"by-hand.{name}.{i + 1}.{j + 1}": f"{value:.{digits}f}"
        for name, rows in answers.items()
        for i, row in enumerate(np.asarray(rows, dtype=float))
        for j, value in enumerate(row)
    }


def exercise(answer):
    html = answer.content.decode()
    return html[html.index('class="check-form"') : html.index("</form>", html.index('class="check-form"'))]


# --- An exercise on a page -------------------------------------------------------------------


def test_the_concept_page_has_its_exercise_and_needs_no_database(client):
    answer = client.get(CONCEPT)
    html = answer.content.decode()
    assert html.count('class="check-yourself"') == 1
    assert "css/check.css" in html
    assert exercise(answer).count("<input") == 3 * 3 + 3 * 3 + 3 * 2
    assert "Right" not in text(exercise(answer))
    assert "Cookie" not in answer.get("Vary", "")
    assert not answer.cookies


@pytest.mark.parametrize("page", [CONCEPT, f"{BY_HAND}check/"])
def test_right_numbers_to_three_decimals_are_right(client, page):
    answer = client.get(page, cells(scores=SCORES, weights=WEIGHTS, out=OUT), headers=HTMX)
    shown = text(exercise(answer))
    assert "Right, all of it." in shown
    assert shown.count("right") >= 3
    assert "aria-invalid" not in exercise(answer)


def test_a_part_can_be_checked_by_itself(client):
    shown = text(exercise(client.get(CONCEPT, cells(weights=WEIGHTS))))
    assert "Right so far." in shown
    assert "weights right" in shown


def test_a_mistake_is_named_and_what_is_off_is_lit_but_not_said(client):
    answer = client.get(CONCEPT, cells(scores=PRODUCTS, weights=WEIGHTS))
    html, shown = exercise(answer), text(exercise(answer))
    assert "Not right yet." in shown
    assert "This is the right computation without 1/√d" in shown
    assert "scores 7 numbers are off" in shown
    assert "weights right" in shown
    lit = re.findall(r'name="by-hand\.(\w+)\.(\d)\.(\d)"[^>]*aria-invalid="true"', html)
    assert lit
    for name, i, j in lit:
        assert name == "scores"
        assert PRODUCTS[int(i) - 1, int(j) - 1] != 0  # 0/√2 is right
    assert "0.707" not in html
    assert "1.414" not in html


def test_what_was_typed_stays_and_what_is_no_number_is_said(client):
    state = {**cells(out=OUT), "by-hand.out.2.1": "0,5", "by-hand.out.3.2": "many<b>"}
    html = exercise(client.get(CONCEPT, state))
    assert 'value="0,5"' in html
    assert 'value="many&lt;b&gt;"' in html
    shown = text(html)
    assert "out, row 2, column 1:" in shown
    assert "“many<b>” is not a number." in unescape(html)


@pytest.mark.parametrize("state", [
    {"by-hand.out.1.1": "nan"}, {"by-hand.out.1.1": "9" * 5000}, {"by-hand.out.1.1": "1e999"},
    {"by-hand.out.9.9": "1"}, {"by-hand..": ""}, {"by-hand.out.1.1": "[[["}, {"by-hand.out.1.1": "\0"},
    cells(out=np.full((3, 2), np.inf)), cells(out=np.full((3, 2), np.nan)), cells(out=np.full((3, 2), 1e300)),
])  # fmt: skip
def test_whatever_is_typed_there_is_a_page(client, state):
    for page in (CONCEPT, f"{BY_HAND}check/"):
        answer = client.get(page, state, headers=HTMX)
        assert answer.status_code == 200
        assert "Right" not in text(exercise(answer))


def test_the_fragment_says_its_verdict_to_who_cannot_see_it(client):
    answer = client.get(f"{BY_HAND}check/", cells(scores=PRODUCTS), headers=HTMX).content.decode()
    assert "<html" not in answer
    status = re.search(r'<p id="check-by-hand-status" hx-swap-oob="innerHTML">(.*?)</p>', answer, re.DOTALL)[
        1
    ]
    assert "Not right yet." in status
    assert "without 1/√d" in status


def test_a_fragment_that_is_opened_by_itself_leads_to_its_page(client):
    answer = client.get(f"{BY_HAND}check/", {"by-hand.out.1.1": "1"})
    assert answer["Location"] == f"{BY_HAND}?by-hand.out.1.1=1#check-by-hand"


def test_checking_is_charged_to_the_address(client, redis_server, settings):
    settings.ANONYMOUS_COMPUTING_SECONDS_PER_MINUTE = 0
    shown = text(exercise(client.get(CONCEPT, cells(out=OUT))))
    assert "processor time" in shown
    assert "Right" not in shown


def test_only_what_can_be_filled_in_can_be_embedded():
    assert library.can_be_filled_in("by-hand", "")
    assert not library.can_be_filled_in("rope", "")
    assert not library.can_be_filled_in("speculative", "")
    assert not library.can_be_filled_in("no-such-problem", "")
    assert not library.can_be_filled_in("by-hand", "no-such-case")


def test_the_directive_of_concept_pages_is_checked():
    context = Context("x.md", 1, {}, frozenset(), {}, {}, [], can_check=library.can_be_filled_in)
    pieces, _ = render("Before.\n\n::: check by-hand\n:::\n\nAfter.", context)
    assert pieces[1] == Check("by-hand", "")
    with pytest.raises(ContentError, match=r"x\.md:3: .*rope"):
        render("One.\n\n::: check rope\n:::\n", context)


# --- A problem -------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize("slug", library.slugs())
def test_every_problem_of_the_course_has_a_page(client, slug):
    html = client.get(f"{PROBLEMS}{slug}/").content.decode()
    problem = library.problem(slug)
    assert f"<h1>{problem.title}</h1>" in html
    assert html.count("<summary>Hint") == len(problem.hints)
    solution = html.index("Worked solution")
    assert html.index("<details", solution) < html.index("</details>", solution)
    assert f'href="{PROBLEMS}{slug}/"' in client.get(PROBLEMS).content.decode()


def solved(problem, seed, scaled=True):
    """{case/out, case/weights} of a problem without a mask, in float64."""
    from kernels.grading.cases import make_inputs, seeds_of_number

    found, seeds = {}, seeds_of_number(problem, seed)
    for case in problem.cases:
        q, k, v = (make_inputs(problem, case, seeds[case.name])[name].astype(float) for name in "qkv")
        scores = case.spec.scale * (q @ np.swapaxes(k, -1, -2)) * (1 if scaled else q.shape[-1] ** 0.5)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        found[case.name] = {"scores": scores, "weights": weights, "out": weights @ v}
    return found


def post(client, slug, arrays, seed=0):
    buffer = io.BytesIO()
    names = {part.name for part in library.problem(slug).answers}
    members = {f"{case}/{name}": array for case, named in arrays.items() for name, array in named.items()
               if name in names}  # fmt: skip
    np.savez(buffer, **members)
    sent = SimpleUploadedFile("answers.npz", buffer.getvalue())
    return client.post(f"{PROBLEMS}{slug}/?seed={seed}", {"way": "files", "files": sent})


@pytest.mark.django_db
def test_answers_to_a_whole_problem_are_judged_and_kept_nowhere():
    client = Client(enforce_csrf_checks=True)  # there is no session to forge a request in
    right = post(client, "root-d", solved(library.problem("root-d"), 5), seed=5)
    assert "Right" in text(right)
    wrong = post(client, "root-d", solved(library.problem("root-d"), 5, scaled=False), seed=5)
    assert "without 1/√d" in text(wrong)
    other = post(client, "root-d", solved(library.problem("root-d"), 6), seed=5)
    assert "Not right yet" in text(other)
    assert not Submission.objects.exists()
    assert not right.cookies


@pytest.mark.django_db
def test_a_hidden_case_of_the_course_shows_no_numbers():
    problem = library.problem("rope")
    hidden = [case.name for case in problem.cases if case.visibility != "visible"]
    arrays = {case: {name: np.zeros_like(array) for name, array in named.items()}
              for case, named in solved(problem, 0).items()}  # fmt: skip
    html = post(Client(), "rope", arrays).content.decode()
    shut = re.findall(r'<li class="test test-hidden">(.*?)</li>', html, re.DOTALL)
    assert shut
    assert all(any(name in text(item) for name in hidden) for item in shut)


@pytest.mark.django_db
def test_the_mutant_table_of_a_published_problem_is_there(client):
    call_command("load_problems", verbosity=0)
    html = client.get(f"{PROBLEMS}rope/").content.decode()
    assert "What it tells apart" in html
    assert re.search(r"It tells all \d+ mistakes", text(html))
    assert re.search(r"It tells all \d+ mistakes", text(client.get(f"{PROBLEMS}speculative/")))


@pytest.mark.django_db
def test_the_course_is_listed_in_reading_order(client, teacher):
    call_command("load_problems", verbosity=0)
    order = [slug for part in library.parts() for slug in part.slugs]
    assert sorted(order) == list(library.slugs())
    for page in (client.get(PROBLEMS), teacher.get("/en/classroom/")):
        assert re.findall(r'class="row-title"><a href="/en/problems/([^/]+)/', page.content.decode()) == order


@pytest.mark.django_db
@pytest.mark.parametrize("address", [
    f"{PROBLEMS}nothing/", f"{PROBLEMS}rope/?seed=-1", f"{PROBLEMS}rope/?seed=x",
    f"{PROBLEMS}rope/?seed={2**63}", f"{PROBLEMS}nothing/check/", f"{PROBLEMS}rope/check/",
    f"{BY_HAND}check/?case=nothing",
])  # fmt: skip
def test_addresses_of_nothing_are_told_so(client, address):
    assert client.get(address, headers=HTMX).status_code == 404


@pytest.mark.django_db
def test_other_numbers_are_another_address(client):
    first = client.get(f"{PROBLEMS}rope/").content.decode()
    link = re.search(r'href="(\?seed=\d+#inputs)"', first)[1]
    second = client.get(f"{PROBLEMS}rope/{link.split('#')[0]}").content.decode()
    cell = r'<table class="matrix">.*?<td>([^<]+)</td>'
    assert re.search(cell, first, re.DOTALL)[1] != re.search(cell, second, re.DOTALL)[1]


def test_the_pages_of_the_classroom_load_no_torch():
    """The web process must not: it would take seconds to start, and gigabytes."""
    script = (
        "import sys, django; from django.conf import settings\n"
        "settings.STORAGES['staticfiles'] = "
        "{'BACKEND': 'django.contrib.staticfiles.storage.StaticFilesStorage'}\n"
        "django.setup(); from django.test import Client\n"
        "client = Client(SERVER_NAME='localhost')\n"
        f"assert client.get({CONCEPT!r}, {cells(out=OUT)!r}).status_code == 200\n"
        "import config.urls\n"
        "print(*sorted({'torch', 'triton'} & sys.modules.keys()))\n"
    )
    root = settings.ROOT
    paths = os.pathsep.join([str(root), str(root / "site")])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
