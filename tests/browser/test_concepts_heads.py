"""A reader splits heads wrongly, looks what heads cost, and asks whether they parse."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import WIDTHS

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_heads_are_split_wrongly_priced_and_followed(
    open_page: OpenPage, width: int, javascript: bool
) -> None:
    page = open_page("/en/concepts/multi-head/", width=width, javascript=javascript)

    def compute(figure: str) -> None:
        if not javascript:
            page.locator(f"#{figure}").get_by_role("button", name="Compute").click()

    page.get_by_role("link", name="GPT-3", exact=True).click()
    expect(page.locator("#budget-status")).to_contain_text("96 heads of 128 numbers")
    heads, status = page.locator("#heads"), page.locator("#heads-status")
    expect(status).to_contain_text("head 1 most to “she”, 0.68; head 2 most to “him”")
    heads.get_by_label("reshape alone, merged correctly").check()
    heads.get_by_label("Causal").check()
    compute("heads")
    expect(status).to_contain_text("The output of “she” now depends on “him”, a later word.")
    expect(heads.get_by_role("cell", name="yes !").first).to_be_visible()
    heads.get_by_text("Head 2, from its columns").click()
    expect(heads.get_by_role("region", name="Queries, head 2")).to_be_visible()
    page.locator("#parse-which").get_by_text("4", exact=True).click()
    compute("parse")
    expect(page.locator("#parse-status")).to_contain_text("makes a tree here")
    expect(status).to_contain_text("a later word")
    for said in ("split=split", "causal=1", "width=12288", "which=4"):
        expect(page).to_have_url(re.compile(said))
    page.locator("#heads-run a").click()
    expect(page.locator("#lab-q")).to_have_value(re.compile(r"^\[\[\["))
