"""A reader moves a query and a key, pairs the wrong numbers, and sees positions rounded."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import WIDTHS

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_the_score_stays_until_the_wrong_numbers_are_paired(
    open_page: OpenPage, width: int, javascript: bool
) -> None:
    page = open_page("/en/concepts/rope/", width=width, javascript=javascript)

    def compute(figure: str) -> None:
        if not javascript:
            page.locator(f"#{figure}").get_by_role("button", name="Compute").click()

    status = page.locator("#rotation-status")
    expect(status).to_contain_text("at 13 and the key at 11 score −0.2619, and so they do wherever")
    page.locator("#rotation-move").fill("20")
    compute("rotation")
    expect(status).to_contain_text("at 25 and the key at 23 score −0.2619, and so they do wherever")
    page.locator("#rotation").get_by_text("wrong: neighbours in q, halves in k").click()
    compute("rotation")
    expect(status).to_contain_text("moved together they swing from")
    expect(page.locator("#rotation .dial")).to_have_count(2)
    page.locator("#turns-b").fill("500000")
    compute("turns")
    expect(page.locator("#turns-status")).to_contain_text("the slowest once in 2,559,196")
    page.locator("#rounding-place").fill("100")
    compute("rounding")
    expect(page.locator("#rounding-status")).to_contain_text("bfloat16 has both positions, 100 and 102")
    for said in ("move=20", "pairs=apart", "b=500000", "place=100"):
        expect(page).to_have_url(re.compile(said))
    page.locator("#rotation").get_by_text("halves (GPT-NeoX)").click()
    compute("rotation")
    expect(status).to_contain_text("wherever both are moved together")
    page.locator("#rotation-run a").click()
    expect(page.locator("#lab-rope")).to_have_value("half")
    expect(page.locator("#lab-q_positions")).to_have_value("25")
