"""A reader moves a figure and answers a question, with JavaScript and without, on a phone and on a desk."""

import re
from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.browser.conftest import WIDTHS

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
PAGES = ("weighted-average", "masks")


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_figure_follows_its_controls_and_its_address_says_so(
    open_page: OpenPage, width: int, javascript: bool
) -> None:
    page = open_page("/en/concepts/weighted-average/", width=width, javascript=javascript)
    status = page.locator("#average-status")
    expect(status).to_contain_text("The query at 0.50")
    page.locator("#average-sharpness").fill("20")
    page.locator("#average-query").fill("2")
    if not javascript:
        page.locator("#average").get_by_role("button", name="Compute").click()
    expect(status).to_contain_text(
        "The query at 2 gives most weight, 1.000, to the key at 2; its output is 4.000"
    )
    expect(page).to_have_url(re.compile("query=2&sharpness=20"))
    if javascript:
        expect(page.locator("[data-moves=average-query]")).to_have_value("2")
        page.locator("[data-moves=average-query]").fill("-2")
        expect(page.locator("#average-query")).to_have_value("-2")
        expect(status).to_contain_text("its output is 1.000")
    page.locator("#average-query").fill("7")
    if not javascript:
        page.locator("#average").get_by_role("button", name="Compute").click()
    expect(page.locator("#average-query-problems")).to_have_text("7 is outside −3 to 3. The figure shows 3.")
    page.locator("#average-run a").click()
    expect(page.locator("#lab-q")).to_have_value(re.compile(r"\[\[60, ?20\]\]"))


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_question_is_judged_and_the_figure_stays_as_it_was(
    open_page: OpenPage, width: int, javascript: bool
) -> None:
    page = open_page("/en/concepts/weighted-average/?query=1", width=width, javascript=javascript)
    form = page.locator("#ask-mean")
    form.get_by_role("textbox").fill("0")
    form.get_by_role("button", name="Check").click()
    expect(form.get_by_role("status")).to_contain_text("Not so.")
    form.get_by_role("textbox").fill("3")
    form.get_by_role("button", name="Check").click()
    expect(form.get_by_role("status")).to_contain_text("Right.")
    expect(page.locator("#average-status")).to_contain_text("The query at 1 ")
    expect(page).to_have_url(re.compile("query=1&ask-mean=3"))


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_mask_is_painted_cell_by_cell_and_keeps_its_paint(
    open_page: OpenPage, width: int, javascript: bool
) -> None:
    page = open_page("/en/concepts/masks/", width=width, javascript=javascript)
    status = page.locator("#masks-status")
    expect(status).to_contain_text("15 of 25 pairs are open")
    page.locator("#masks-cell-11").click()
    expect(status).to_contain_text("14 of 25 pairs are open. Query 1 sees no key")
    expect(page).to_have_url(re.compile("flip=11"))
    page.locator("#masks").get_by_label("softmax as it is").check()
    if javascript:  # one stop of the tab key, and arrows from there
        expect(status).to_contain_text("row 1: NaN")
        page.locator("#masks-cell-11").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        expect(status).to_contain_text("13 of 25")
        expect(page.locator("#masks-cell-22")).to_be_focused()
        expect(page.locator("#masks-cell-11")).to_have_attribute("tabindex", "-1")
        page.locator("#masks-cell-22").click()
    else:
        page.locator("#masks").get_by_role("button", name="Compute").click()
    expect(status).to_contain_text("row 1: NaN")
    page.get_by_role("link", name="Wipe off the paint").click()
    expect(status).to_contain_text("15 of 25 pairs are open")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("slug", PAGES)
def test_pages_are_accessible_and_fit(open_page: OpenPage, slug: str, width: int, scheme: str) -> None:
    page = open_page(f"/en/concepts/{slug}/", width=width, scheme=scheme)
    found = Axe().run(page, options={"runOnly": {"type": "tag", "values": RULES}})
    assert not found.response["violations"], found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
