"""A reader searches: by keyboard in the dialog, by hand on the page, with and without JavaScript."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import WIDTHS
from tests.support import accessible

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_slash_opens_arrows_move_enter_goes(open_page: OpenPage, width: int) -> None:
    page = open_page("/en/concepts/by-hand/", width=width)
    page.keyboard.press("/")
    box = page.get_by_role("searchbox")
    expect(box).to_be_focused()
    page.keyboard.type("rotery")
    first = page.locator("#search-results .search-title").first
    expect(first).to_have_text("Rotary positions (RoPE)")
    expect(page.locator("#search-status")).to_have_text(re.compile(r"^\d+ results$"))
    expect(page).to_have_url(re.compile(r"/by-hand/$"))
    page.keyboard.press("ArrowDown")
    expect(first).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(first).not_to_be_focused()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    expect(box).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/en/concepts/rope/$"))


def test_escape_closes_and_gives_the_focus_back(open_page: OpenPage) -> None:
    page = open_page("/en/")
    opener = page.get_by_role("link", name="Search")
    opener.click()
    dialog = page.get_by_role("dialog", name="Search")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(opener).to_be_focused()
    opener.click()
    page.get_by_role("button", name="Close").click()
    expect(dialog).to_be_hidden()
    opener.click()
    page.mouse.click(5, 700)  # beside it
    expect(dialog).to_be_hidden()


def test_a_slash_that_is_typed_stays_one(open_page: OpenPage) -> None:
    page = open_page("/en/concepts/sqrt-dk/")
    answer = page.locator("#ask-deviation-0")
    answer.fill("")
    answer.press_sequentially("1/2")
    expect(answer).to_have_value("1/2")
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_a_part_of_this_very_page_is_shown(open_page: OpenPage) -> None:
    page = open_page("/en/concepts/masks/")
    page.keyboard.press("/")
    page.keyboard.type("causal mask padding is taken care of")
    place = page.locator('#search-results a[href*="/masks/#wrong-"]').first
    expect(place).to_be_visible()
    anchor = (place.get_attribute("href") or "").partition("#")[2]
    place.click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page.locator(f"#{anchor}")).to_be_in_viewport()


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_the_page_searches_and_can_be_sent(open_page: OpenPage, width: int, javascript: bool) -> None:
    page = open_page("/en/search/", width=width, javascript=javascript)
    box = page.get_by_role("searchbox")
    box.fill("flash atention")
    if not javascript:
        page.get_by_role("button", name="Search").click()
    expect(page.locator(".search-note")).to_contain_text("these are results for attention")
    expect(page).to_have_url(re.compile(r"/en/search/\?q=flash"))
    page.reload()
    expect(page.get_by_role("searchbox")).to_have_value("flash atention")
    expect(page.locator("#search-results")).to_contain_text("FlashAttention: Fast and Memory-Efficient")


def test_the_link_leads_to_the_page_without_javascript(open_page: OpenPage) -> None:
    page = open_page("/en/lab/", javascript=False)
    page.get_by_role("link", name="Search").click()
    expect(page).to_have_url(re.compile("/en/search/$"))
    page.get_by_role("link", name="QKᵀ").click()
    expect(page.get_by_role("searchbox")).to_have_value("QKᵀ")
    expect(page.locator(".search-group").first).to_contain_text("QKᵀ/√d")


@accessible.LOOKS
def test_it_is_for_everybody(open_page: OpenPage, scheme: str, width: int) -> None:
    page = open_page("/en/search/?q=flash+atention", width=width, scheme=scheme)
    accessible.check(page)
    page.goto(page.url.split("?")[0] + "?q=blorptwang")
    accessible.check(page)
    page.goto(page.url.replace("/en/search/?q=blorptwang", "/en/concepts/by-hand/"))
    page.keyboard.press("/")
    page.keyboard.type("causal mask")
    expect(page.locator("#search-results mark").first).to_be_visible()
    accessible.check(page)
