"""The whole book on one page, for everyone, and on paper."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.support import accessible

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]
ADDRESS = "/en/concepts/all/"


# What is checked is what differs from their own pages, which have tests: of all, axe would take minutes.
CHECKED = ("by-hand", "masks", "sdpa-in-code", "glossary", "misconceptions")


@accessible.LOOKS
def test_the_whole_book_is_for_everyone(open_page: OpenPage, scheme: str, width: int) -> None:
    page = open_page(ADDRESS, scheme=scheme, width=width)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.evaluate(
        """kept => document.querySelectorAll(".chapter").forEach(
             chapter => kept.includes(chapter.querySelector("h3").id) || chapter.remove())""",
        CHECKED,
    )
    accessible.check(page)


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
def test_contents_and_links_lead_to_places_of_the_page(open_page: OpenPage, javascript: bool) -> None:
    page = open_page(ADDRESS, javascript=javascript)
    page.locator(".whole-contents").get_by_role("link", name="Attention by hand").click()
    expect(page.locator("#by-hand")).to_be_in_viewport()
    page.locator("#by-hand ~ p").get_by_role("link", name="Attention is a weighted average").click()
    expect(page.locator("#weighted-average")).to_be_in_viewport()


def test_on_paper_there_is_the_book_and_nothing_to_operate(open_page: OpenPage) -> None:
    page = open_page(ADDRESS)
    page.emulate_media(media="print")
    expect(page.locator("#by-hand--by-hand")).to_be_visible()
    for what in (".site-nav", ".site-footer ul", ".search-dialog"):
        expect(page.locator(what)).to_be_hidden()
    page.set_viewport_size({"width": 720, "height": 1000})  # a sheet of A4
    for table in page.locator(".listing.long").all():
        assert table.evaluate("table => table.getBoundingClientRect().right <= innerWidth")
    page.goto(page.url.replace("concepts/all/", "concepts/by-hand/?path=in-an-hour"))
    for what in (".way >> nth=0", ".read-mark", ".toc", ".onward"):
        expect(page.locator(what)).to_be_hidden()
