"""A reader finds the wrong grouping, and compares what models keep."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import WIDTHS

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_wrong_grouping_is_found_and_caches_are_compared(
    open_page: OpenPage, width: int, javascript: bool
) -> None:
    page = open_page("/en/concepts/mqa-gqa-mla/", width=width, javascript=javascript)

    def compute(figure: str) -> None:
        if not javascript:
            page.locator(f"#{figure}").get_by_role("button", name="Compute").click()

    page.locator("#stored").get_by_role("link", name="DeepSeek-V2").click()
    expect(page.locator("#stored-status")).to_contain_text("DeepSeek-V2 keeps 67.5 KiB of each token")
    page.locator("#stored-length").fill("131072")
    compute("stored")
    expect(page.locator("#stored-status")).to_contain_text("8.44 GiB of 131,072 tokens")
    groups, status = page.locator("#groups"), page.locator("#groups-status")
    expect(status).to_contain_text("the cache is 1/4 of MHA’s")
    page.locator("#groups-expand").get_by_text("repeat", exact=True).click()
    compute("groups")
    expect(status).to_contain_text("query heads 2, 4, 5, 7 read the wrong group")
    expect(groups.get_by_role("cell", name="kv2 ! (kv1)").first).to_be_visible()
    page.locator("#groups-kv").get_by_text("1 (MQA)").click()
    compute("groups")
    expect(status).to_contain_text("a test of this case finds no bug")
    for said in ("kv=1", "expand=tiled", "model=deepseek-v2", "length=131072"):
        expect(page).to_have_url(re.compile(said))
    page.locator("#groups-run a").click()
    expect(page.locator("#lab-k")).to_have_value(re.compile(r"^\[\[\["))
