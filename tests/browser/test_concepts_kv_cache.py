"""A reader steps through a text with a cache, finds when it fails, and computes the bytes of one."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import WIDTHS

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_steps_a_failing_cache_and_its_bytes(open_page: OpenPage, width: int, javascript: bool) -> None:
    page = open_page("/en/concepts/kv-cache/", width=width, javascript=javascript)

    def compute(figure: str) -> None:
        if not javascript:
            page.locator(f"#{figure}").get_by_role("button", name="Compute").click()

    page.locator("#kvbytes").get_by_role("link", name="Llama 3 8B").click()
    expect(page.locator("#kvbytes-status")).to_contain_text("128 KiB per token; 4,096 tokens take 512 MiB")
    status = page.locator("#step-status")
    expect(status).to_contain_text("Step 5, “and”: 15 scores without a cache, 5 with one")
    page.locator("#step").get_by_role("link", name="A step back").click()
    expect(status).to_contain_text("Step 4, “tea”: 10 scores without a cache, 4 with one")
    expect(page.locator("#past-status")).to_contain_text("For 5 of the 5 words that stay")
    page.locator("#past-mask").get_by_text("no later word").click()
    compute("past")
    expect(page.locator("#past-status")).to_contain_text("No key and no value of the 5 words before changes")
    page.locator("#writing-new").fill("1")
    compute("writing")
    expect(page.locator("#writing-status")).to_contain_text("costs the same either way")
    page.locator("#kvbytes-length").fill("16384")
    compute("kvbytes")
    expect(page.locator("#kvbytes-status")).to_contain_text("16,384 tokens take 2 GiB")
    for said in ("step=4", "mask=causal", "new=1", "layers=32", "length=16384"):
        expect(page).to_have_url(re.compile(said))
    page.locator("#step-run a").click()
    expect(page.locator("#lab-in_past_key")).to_have_value(re.compile(r"^\[\["))
