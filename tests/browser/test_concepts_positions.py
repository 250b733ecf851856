"""A reader moves a position, asks for one that a table has not, and takes the memory from segments."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import WIDTHS

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_positions_are_moved_asked_for_and_remembered(
    open_page: OpenPage, width: int, javascript: bool
) -> None:
    page = open_page("/en/concepts/positions/", width=width, javascript=javascript)

    def compute(figure: str) -> None:
        if not javascript:
            page.locator(f"#{figure}").get_by_role("button", name="Compute").click()

    page.locator("#waves-p").fill("7")
    compute("waves")
    expect(page.locator("#waves-status")).to_contain_text("Position 7 has a product of 16 with itself")
    expect(page.locator("#table-status")).to_contain_text("rows 0 to 1,023 and none for 1,024")
    page.locator("#table-at").fill("1000")
    compute("table")
    expect(page.locator("#table-view")).to_contain_text("row 1,000")
    segments = page.locator("#segments-status")
    expect(segments).to_contain_text("hears of 9 tokens before its own segment")
    page.locator("#segments").get_by_label("Keep the segment before").uncheck()
    compute("segments")
    expect(segments).to_contain_text("Without a memory the last token hears of the 3")
    for said in ("p=7", "at=1000", "memory=0"):
        expect(page).to_have_url(re.compile(said))
    page.locator("#segments-run a").click()
    expect(page.locator("#lab-q_len")).to_have_value("3")
    expect(page.locator("#lab-causal")).to_be_checked()
