"""A word is walked through both stacks; the norm is moved; the bill of the first Transformer is reckoned."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import WIDTHS

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_word_goes_through_both_stacks(open_page: OpenPage, width: int, javascript: bool) -> None:
    page = open_page("/en/concepts/transformer/", width=width, javascript=javascript)
    status = page.locator("#walk-status")
    expect(status).to_contain_text("Step 12 of 18, decoder: “trinkt” asks")
    page.get_by_role("link", name="The next step").click()
    expect(page).to_have_url(re.compile("step=13"))
    expect(status).to_contain_text("what the sublayer made is added to what went around it")
    page.locator("#walk").get_by_role("link", name="Step 2, encoder: Self-attention").click()
    expect(status).to_contain_text("Step 2 of 18, encoder: “drinks” looks at all words of its text")
    page.locator("#walk").get_by_text("before the sublayer (pre-LN)").click()
    page.locator("#walk-text").fill("he reads books")
    if not javascript:
        page.locator("#walk").get_by_role("button", name="Compute").click()
    expect(status).to_contain_text("Step 2 of 20, encoder: of four numbers their mean")
    page.locator("#walk-run a").click()
    expect(page.locator("#lab-q")).to_have_value(re.compile(r"\[\["))


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
def test_depth_and_the_bill(open_page: OpenPage, javascript: bool) -> None:
    page = open_page("/en/concepts/transformer/", width=WIDTHS["phone"], javascript=javascript)
    page.locator("#depth-layers").fill("6")
    if not javascript:
        page.locator("#depth").get_by_role("button", name="Compute").click()
    expect(page.locator("#depth-status")).to_contain_text("After 6 layers the stream has size 1")
    page.get_by_role("link", name="here is the big one").click()
    expect(page.locator("#bill-status")).to_contain_text("672 hours of one GPU")
    expect(page.locator("#depth-layers")).to_have_value("6" if javascript else "24")
    page.locator(
        "form#ask-rate input[type=text], form.ask:has-text('How many TFLOP/s') input[type=text]"
    ).first.fill("76")
    page.locator("form.ask:has-text('How many TFLOP/s')").get_by_role("button", name="Check").click()
    expect(page.locator("form.ask:has-text('How many TFLOP/s') .ask-verdict")).to_contain_text(
        "all eight together"
    )
