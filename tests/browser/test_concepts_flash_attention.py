"""A reader steps through tiles, finds what the way back needs, compares bits and picks a kernel."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import WIDTHS

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_tiles_slopes_bits_and_a_kernel(open_page: OpenPage, width: int, javascript: bool) -> None:
    page = open_page("/en/concepts/flash-attention/", width=width, javascript=javascript)

    def compute(figure: str) -> None:
        if not javascript:
            page.locator(f"#{figure}").get_by_role("button", name="Compute").click()

    status = page.locator("#tiles-status")
    expect(status).to_contain_text("Step 8 of 10: queries 13–16 meet keys 5–8")
    page.locator("#tiles").get_by_role("link", name="The next step").click()
    expect(status).to_contain_text("Step 9 of 10: queries 13–16 meet keys 9–12")
    page.locator("#tiles").get_by_role("link", name="End").click()
    expect(status).to_contain_text("240 numbers were moved; one operation after another moves 1,152")
    page.locator("#tiles-bm").fill("8")
    compute("tiles")
    expect(status).to_contain_text("the last: 176 numbers were moved")
    page.locator("#backward-lost").get_by_text("D is left out").click()
    compute("backward")
    expect(page.locator("#backward-status")).to_contain_text("are wrong")
    page.locator("#bits-format").get_by_text("bfloat16").click()
    compute("bits")
    expect(page.locator("#bits-status")).to_contain_text("In bfloat16")
    page.locator("#utilisation-on").get_by_text("B200").click()
    compute("utilisation")
    expect(page.locator("#utilisation-status")).to_contain_text("FlashAttention-4, BF16 on B200, 71.7 %")
    page.locator("#backends-device").select_option("v100")
    compute("backends")
    expect(page.locator("#backends-status")).to_contain_text("needs an Ampere GPU or a newer one")
    for said in ("at=10", "bm=8", "lost=delta", "format=bfloat16", "on=b200", "device=v100"):
        expect(page).to_have_url(re.compile(said))


def test_the_tiles_that_were_stepped_through_go_to_the_lab(open_page: OpenPage) -> None:
    page = open_page("/en/concepts/flash-attention/?n=24&bm=16&bn=16")
    page.locator("#tiles-run a").click()
    expect(page.locator("[name=option_block_m]")).to_have_value("16")
    expect(page.locator("[name=causal]").first).to_be_checked()


def test_a_question_says_why(open_page: OpenPage) -> None:
    page = open_page("/en/concepts/flash-attention/")
    page.locator("[name=ask-slope]").fill("1.25")
    page.locator("[name=ask-slope]").press("Enter")
    expect(page.get_by_text("That leaves D out")).to_be_visible()
