"""A reader adds sequences to a step, and looks at it under the roof."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import WIDTHS

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_sequences_are_added_and_the_roof_is_met(open_page: OpenPage, width: int, javascript: bool) -> None:
    page = open_page("/en/concepts/decode-bandwidth/", width=width, javascript=javascript)

    def compute(figure: str) -> None:
        if not javascript:
            page.locator(f"#{figure}").get_by_role("button", name="Compute").click()

    pace, roof = page.locator("#pace-status"), page.locator("#roof-status")
    expect(pace).to_contain_text("A step takes 4.8 ms or more: 15.01 GB of weights and 1.07 GB of cache")
    page.locator("#pace-batch").fill("16")
    compute("pace")
    expect(pace).to_contain_text("17.18 GB of cache at 3,350 GB/s")
    page.locator("#pace-gpu").select_option("H200")
    compute("pace")
    expect(pace).to_contain_text("at 4,800 GB/s")
    page.locator("#roof-rows").fill("512")
    compute("roof")
    expect(roof).to_contain_text("Memory can feed 100")
    page.locator("#roof-shape").get_by_text("Falcon 7B").click()
    compute("roof")
    expect(roof).to_contain_text("71 in attention")
    for said in ("batch=16", "gpu=h200", "rows=512", "shape=falcon-7b"):
        expect(page).to_have_url(re.compile(said))
    page.locator("#roof-run a").click()
    expect(page.locator("#lab-heads")).to_have_value("71")
