"""A reader rounds a cache, four numbers, and sees who is evicted."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import WIDTHS

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_cache_is_rounded_and_cut_down(open_page: OpenPage, width: int, javascript: bool) -> None:
    page = open_page("/en/concepts/kv-compression/", width=width, javascript=javascript)

    def compute(figure: str) -> None:
        if not javascript:
            page.locator(f"#{figure}").get_by_role("button", name="Compute").click()

    page.get_by_role("link", name="Let keys share a scale within a token").click()
    status = page.locator("#fewbits-status")
    expect(status).to_contain_text("both per token: the output is off by 36.1")
    page.locator("#fewbits-bits").get_by_text("8, as FP8").click()
    compute("fewbits")
    expect(status).to_contain_text("FP8 is 8.03 bits a number")
    page.locator("#fourcodes-x14").fill("5.5")
    compute("fourcodes")
    expect(page.locator("#fourcodes-status")).to_contain_text("step 2.10")
    expect(page.locator("#fourcodes-status")).to_contain_text("off by 1.")
    evicted = page.locator("#evict-status")
    expect(evicted).to_contain_text("gives “4719” the most weight")
    expect(evicted).to_contain_text("output: SnapKV (11.1")
    page.locator("#evict-asks").get_by_text("the dog, asked for afterwards").click()
    compute("evict")
    expect(evicted).to_contain_text("gives “Rex” the most weight")
    expect(evicted).to_contain_text("output: none. Evicted: window")
    page.locator("#evict-budget").fill("16")
    compute("evict")
    expect(evicted).to_contain_text("SnapKV (1.")
    for said in ("keys=token", "bits=fp8", "asks=dog", "budget=16"):
        expect(page).to_have_url(re.compile(said))
    page.locator("#evict-run a").click()
    expect(page.locator("#lab-option_budget")).to_have_value("16")
