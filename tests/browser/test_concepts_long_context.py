"""A reader stretches a context, takes another way, and raises the price of wild scores."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import WIDTHS

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_context_is_stretched_and_run(open_page: OpenPage, width: int, javascript: bool) -> None:
    page = open_page("/en/concepts/long-context/", width=width, javascript=javascript)

    def compute(figure: str) -> None:
        if not javascript:
            page.locator(f"#{figure}").get_by_role("button", name="Compute").click()

    status = page.locator("#stretch-status")
    expect(status).to_contain_text("18 of 64 pairs do not turn once within 4,096 tokens")
    expect(status).to_contain_text("with NTK-aware scaling 17, with YaRN 0")
    page.locator("#stretch-n").fill("16384")
    compute("stretch")
    expect(status).to_contain_text("with NTK-aware scaling 0, with YaRN 0")
    page.locator("#stretch-way").select_option("yarn")
    compute("stretch")
    expect(page.locator("#stretch-view")).to_contain_text("Pair 60, YaRN")
    page.locator("#wild-price").fill("1")
    compute("wild")
    expect(page.locator("#wild-status")).not_to_contain_text("10⁴")
    for said in ("n=16384", "way=yarn", "price=1"):
        expect(page).to_have_url(re.compile(said))
    page.locator("#stretch-run a").click()
    expect(page.locator("#lab-rope_scaling")).to_have_value("yarn")
    expect(page.locator("#lab-scaling_factor")).to_have_value("8")
