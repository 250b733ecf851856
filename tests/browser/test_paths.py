"""A reader follows a path, with JavaScript and without; what was read is kept by the browser alone."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import WIDTHS
from tests.support import accessible

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]
KEPT = "localStorage.getItem('pages-read')"


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_reader_stays_on_the_path_while_a_figure_is_used(
    open_page: OpenPage, width: int, javascript: bool
) -> None:
    page = open_page("/en/", width=width, javascript=javascript)
    page.locator("#paths").get_by_role("link", name="Attention in an hour").click()
    page.locator(".stops").get_by_role("link", name="Attention is a weighted average").click()
    page.locator("#average-query").fill("2")
    if not javascript:
        page.locator("#average").get_by_role("button", name="Compute").click()
    expect(page).to_have_url(re.compile("query=2"))
    expect(page).to_have_url(re.compile("path=in-an-hour"))
    page.locator(".way-end").get_by_role("link", name="Next: Attention by hand").click()
    expect(page.locator(".way-where").first).to_contain_text("page 2 of 7")
    expect(page.locator(".read-mark")).to_be_visible(visible=javascript)
    page.locator(".way-end").get_by_role("link", name="Attention in an hour").click()
    expect(page.locator(".stops .tick")).to_have_count(1 if javascript else 0)


def test_what_was_read_is_shown_and_forgotten(open_page: OpenPage) -> None:
    page = open_page("/en/concepts/masks/")
    assert page.evaluate(KEPT) is None
    button = page.get_by_role("button", name="I have read this page")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    assert page.evaluate(KEPT) == '["masks"]'
    button.click()
    assert page.evaluate(KEPT) is None
    button.click()
    page.goto(page.url.replace("concepts/masks/", ""))
    expect(page.locator(".contents [data-page=masks]")).to_have_accessible_name(re.compile("read$"))
    expect(page.locator("#paths .card").first).to_contain_text("1 of 7 read")
    page.locator("#paths-title a").click()
    page.get_by_role("button", name="Forget it").click()
    expect(page.get_by_role("status").filter(has_text="Forgotten.")).to_be_focused()
    expect(page.get_by_role("button", name="Forget it")).to_be_hidden()
    expect(page.locator("main")).not_to_contain_text("1 of 7 read")
    assert page.evaluate(KEPT) is None


@accessible.LOOKS
@pytest.mark.parametrize(
    "path", ["paths/", "paths/in-an-hour/", "paths/for-instructors/", "concepts/masks/?path=in-an-hour"]
)
def test_paths_are_for_everyone(open_page: OpenPage, path: str, scheme: str, width: int) -> None:
    page = open_page("/en/", scheme=scheme, width=width)
    page.evaluate("localStorage.setItem('pages-read', '[\"by-hand\", \"masks\"]')")
    page.goto(page.url + path)
    accessible.check(page)


def test_a_page_describes_itself_and_no_policy_minds(open_page: OpenPage) -> None:
    """What the browser complains of fails the test: data in a <script> is no inline script."""
    page = open_page("/en/concepts/masks/")
    assert '"@type": "LearningResource"' in page.locator("script[type='application/ld+json']").inner_text()
