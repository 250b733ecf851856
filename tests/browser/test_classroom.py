"""The whole way of a problem, in a real browser on real graders: written, refused, mended, published, given;
handed in wrong, understood in the lab, handed in right; and seen by who teaches."""

import itertools
import json
import re
from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import WIDTHS
from tests.support import accessible
from tests.support.deployment import Lab

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]
PASSWORD = "correct horse 9"
SECONDS = 30_000
names = (f"teacher-{n}" for n in itertools.count(1))


def sign_up(open_page: OpenPage, **options: object) -> Page:
    page = open_page("/en/account/sign-up/", **options)
    page.locator("#id_username").fill(next(names))
    page.locator("#id_password1").fill(PASSWORD)
    page.locator("#id_password2").fill(PASSWORD)
    page.get_by_role("button", name="Make the account").click()
    expect(page.get_by_role("heading", name="Classroom", exact=True)).to_be_visible()
    return page


def write_problem(page: Page, slug: str) -> None:
    """A problem that is far too generous."""
    page.get_by_role("link", name="Write a problem").click()
    page.get_by_label("Title", exact=True).fill("Attention, causally")
    page.get_by_label("Name in addresses").fill(slug)
    page.get_by_label("Statement").fill("Compute $\\operatorname{softmax}(QK^T/\\sqrt d)V$.")
    page.get_by_label("Causal: no query sees a later key").check()
    page.get_by_label("How far an answer may be off").select_option("allclose")
    page.get_by_label("atol float32").fill("100")
    page.get_by_label("rtol float32").fill("1")


def right(inputs: dict[str, list[object]], *, scaled: bool) -> list[object]:
    """Causal attention, the last query at the last key, by plain numpy; without 1/√d where not `scaled`."""
    q, k, v = (np.array(inputs[name]) for name in "qkv")
    scores = q @ k.swapaxes(-1, -2) / (np.sqrt(q.shape[-1]) if scaled else 1.0)
    n, m = scores.shape[-2:]
    seen = np.arange(m)[None] <= np.arange(n)[:, None] + m - n
    weights = np.exp(np.where(seen, scores, -np.inf))
    out: list[object] = (weights / weights.sum(-1, keepdims=True) @ v).tolist()
    return out


def hand_in(page: Page, *, scaled: bool) -> None:
    """Fetch the inputs as the page links to them, compute, paste, hand in."""
    link = page.get_by_role("link", name="JSON", exact=True).get_attribute("href")
    assert link
    cases = page.request.get(link.replace("/", page.url.split("/en/")[0] + "/", 1)).json()["cases"]
    body = {case: {"out": right(inputs, scaled=scaled)} for case, inputs in cases.items()}
    page.get_by_label("JSON", exact=True).check()
    page.get_by_label("Answers as JSON").fill(json.dumps(body))
    page.get_by_role("button", name="Hand in", exact=True).click()
    page.wait_for_url("**/submissions/*/**")


@pytest.mark.parametrize(
    ("width", "javascript"), [(1280, True), (390, False)], ids=["desktop", "phone-without-javascript"]
)
def test_from_a_draft_to_a_grade(open_page: OpenPage, width: int, javascript: bool) -> None:
    options = {"width": width, "javascript": javascript}
    page = sign_up(open_page, **options)

    # Written, refused with the table, mended as it suggests, published.
    write_problem(page, f"causal-{width}")
    if javascript:
        expect(page.locator("#preview math")).to_be_visible()
        expect(page.locator("#preview")).to_contain_text("1 case, 1 points, out")
    page.get_by_role("button", name="Save").click()
    page.get_by_role("button", name="Check it, and publish").click()
    refused = page.get_by_text("It cannot be published like this")
    expect(refused).to_be_visible(timeout=SECONDS)
    expect(page.locator("tr.mutant-survives").first).to_contain_text("passes")
    page.get_by_role("link", name="Edit it so").first.click()
    assert page.get_by_label("How far an answer may be off").input_value() == "error_bound"
    page.get_by_role("button", name="Save").click()
    page.get_by_role("button", name="Check it, and publish").click()
    publish = page.get_by_role("button", name="Publish", exact=True)
    given = page.get_by_role("link", name="Give to students")
    expect(publish.or_(given)).to_be_visible(timeout=SECONDS)
    if publish.is_visible():  # the table took longer than the request waited
        publish.click()
    expect(page.locator("tr.mutant-survives")).to_have_count(0)

    # Given to students.
    given.click()
    page.get_by_label("Title", exact=True).fill("Week 1")
    page.get_by_label("Tries").fill("3")
    page.get_by_role("button", name="Give it").click()
    expect(page.get_by_text("Nobody has handed in yet.")).to_be_visible()
    dashboard = page.url
    page.get_by_role("link", name="Ways in").click()
    page.get_by_label("Students").fill("s-77")
    page.get_by_role("button", name="Show the links").click()
    link = page.locator("#links a").get_attribute("href")
    assert link

    # Handed in wrong, and told why.
    student = open_page(link[link.index("/en/") :], **options)
    expect(student.get_by_role("heading", name="Week 1")).to_be_visible()
    hand_in(student, scaled=False)
    said = student.locator(".diagnosis-sentence")
    expect(said).to_contain_text("This is the right computation without 1/√d: residual", timeout=SECONDS)
    expect(student.locator("#verdict")).to_contain_text("0 of 1 points")
    expect(student.get_by_text("2 tries left")).to_be_visible()
    desk = student.get_by_role("link", name="Hand in again").get_attribute("href")
    worst = student.locator(".test-figures tbody tr").first.locator("td").all_inner_texts()
    headings = student.locator(".test-figures thead th").all_inner_texts()
    query = worst[headings.index("query")]

    # The case in the lab: the same inputs, the worst row lit.
    student.get_by_role("button", name=re.compile("^Open small in the lab")).click()
    expect(student.locator('#run[data-status="succeeded"]')).to_be_visible(timeout=2 * SECONDS)
    lit = student.get_by_role("region", name="Output").locator("tr.lit")
    expect(lit.locator("th")).to_have_text(query)
    expect(student.locator("#numbers tr.lit")).to_be_visible()
    in_lab = [float(text.replace("−", "-")) for text in lit.locator("td:not(.beside)").all_inner_texts()]
    dim, expected = int(worst[headings.index("dim")]), worst[headings.index("right")]
    assert in_lab[dim] == pytest.approx(float(expected.replace("−", "-")), abs=1.1e-4)
    if javascript:
        assert student.evaluate("document.documentElement.scrollWidth") <= width

    # Handed in right.
    assert desk
    student.goto(page.url.split("/en/")[0] + desk)
    hand_in(student, scaled=True)
    expect(student.locator("#verdict")).to_contain_text("1 of 1 points", timeout=SECONDS)

    # And seen.
    page.goto(dashboard)
    row = page.get_by_role("row", name=re.compile("s-77"))
    expect(row).to_contain_text("Right")
    expect(page.locator(".mistakes tbody tr").first).to_contain_text("without 1/√d")
    row.get_by_role("link", name="s-77").click()
    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page.locator("tbody tr").nth(1)).to_contain_text("without 1/√d")


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_reader_checks_themselves_on_the_concept_page(
    open_page: OpenPage, width: int, javascript: bool
) -> None:
    page = open_page("/en/concepts/by-hand/", width=width, javascript=javascript)
    products = [[1, 0, 1], [0, 1, 1], [1, 1, 2]]
    for scale, says in ((1.0, "without 1/√d"), (2**-0.5, "Right so far.")):
        for i, row in enumerate(products, 1):
            for j, product in enumerate(row, 1):
                page.get_by_label(f"scores, row {i}, column {j}").fill(f"{product * scale:.3f}")
        page.locator("#check-by-hand-go").click()
        expect(page.locator("#check-by-hand-form")).to_contain_text(says)
    if javascript:
        assert "scores" not in page.url, "the page was loaded again"
        expect(page.locator("#check-by-hand-status")).to_contain_text("Right so far.")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.get_by_label("scores, row 3, column 3").input_value() == "1.414"


def test_an_editor_keeps_what_was_typed_while_cases_come_and_go(open_page: OpenPage) -> None:
    page = sign_up(open_page)
    page.get_by_role("link", name="Write a problem").click()
    page.get_by_label("Title", exact=True).fill("Kept")
    page.get_by_role("button", name="Add a case").click()
    second = page.get_by_role("group", name="Case 2", exact=True)
    second.get_by_label("Name").fill("mine")
    page.get_by_role("button", name="Copy case 2").click()
    third = page.get_by_role("group", name="Case 3", exact=True)
    expect(third.get_by_label("Name")).to_have_value("mine-2")
    page.get_by_role("button", name="Remove case 1").click()
    expect(third).to_have_count(0)
    expect(page.get_by_role("group", name="Case 1", exact=True).get_by_label("Name")).to_have_value("mine")
    assert page.get_by_label("Title", exact=True).input_value() == "Kept"
    page.get_by_label("Kind").select_option("paging")
    expect(page.get_by_label("num_blocks").first).to_be_visible()
    assert page.get_by_label("Title", exact=True).input_value() == "Kept"


@pytest.fixture(scope="session")
def graded(sqlite_lab: Lab) -> dict[str, str]:
    """Addresses of an assignment of the course's problem with a wrong submission, over REST."""
    token = sqlite_lab.token("axe")
    made = sqlite_lab.request("POST", "/api/v1/assignments", {"problem": "root-d"}, token=token).json()
    zeros = {"one-head": {"out": [[0.0, 1.0]]}}
    body = {"user_ref": "ada", "answers": zeros}
    path = f"/api/v1/assignments/{made['id']}"
    done = sqlite_lab.request("POST", f"{path}/submissions", body, token=token, prefer="wait=30").json()
    keys = sqlite_lab.request("POST", f"{path}/keys", {"user_refs": ["ada"]}, token=token).json()
    desk = f"/en/hand-in/{made['id']}/"
    key = f"?key={keys['keys'][0]['key']}"
    return {"desk": desk + key, "entrance": desk, "submission": f"{desk}submissions/{done['id']}/{key}"}


@accessible.LOOKS
@pytest.mark.parametrize(
    "path",
    ["/en/account/sign-in/", "/en/account/sign-up/", "/en/problems/", "/en/problems/by-hand/",
     "/en/problems/rope/", "desk", "entrance", "submission"],
)  # fmt: skip
def test_axe_finds_nothing_on_pages_for_everybody(
    open_page: OpenPage, graded: dict[str, str], path: str, scheme: str, width: int
) -> None:
    accessible.check(open_page(graded.get(path, path), scheme=scheme, width=width))


@accessible.LOOKS
def test_axe_finds_nothing_in_the_classroom(open_page: OpenPage, scheme: str, width: int) -> None:
    page = sign_up(open_page, scheme=scheme, width=width)
    accessible.check(page)
    here = page.url.split("/en/")[0]
    for path in ("account/tokens", "account/password", "classroom/webhooks", "classroom/problems/new",
                 "classroom/assignments/new"):  # fmt: skip
        page.goto(f"{here}/en/{path}/")
        accessible.check(page)
    page.get_by_label("Problem", exact=True).select_option(label="Rotary positions")
    page.get_by_role("button", name="Give it").click()
    page.wait_for_url(re.compile(r"/assignments/(?!new/)\w+/$"))
    assignment = page.url
    accessible.check(page)
    for part in ("ways-in", "regrades", "settings"):
        page.goto(f"{assignment}{part}/")
        accessible.check(page)
