"""One thing changed in a run, and which cells changed; numbers from elsewhere, and their convention."""

import math
import re
from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import WIDTHS
from tests.support import accessible

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]
RUN = "q=[[1,0],[0,1],[1,1]]&k=[[1,0],[0,1],[1,1]]&v=[[1,0],[0,2],[2,2]]"
DONE = 60_000


def finished_run(open_page: OpenPage, **options: object) -> Page:
    """The page of a run of three queries and keys."""
    page = open_page(f"/en/lab/?{RUN}", **options)
    page.get_by_role("button", name="Run it").click()
    expect(page.locator('#run[data-status="succeeded"]')).to_be_visible(timeout=DONE)
    return page


def fits(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_one_convention_flipped(open_page: OpenPage, width: int, javascript: bool) -> None:
    page = finished_run(open_page, width=width, javascript=javascript)
    page.get_by_role("button", name="Causal mask: on").click()
    page.wait_for_url("**/lab/compare/?runs=*")
    expect(page.locator("#matrices")).to_be_visible(timeout=DONE)
    expect(page.get_by_role("heading", level=1)).to_have_text("Causal mask: on")
    expect(page.get_by_text("A causal mask forbids every key after the query’s position")).to_be_visible()
    expect(page.get_by_text("A alone sees 3 and B alone sees 0.")).to_be_visible()
    kinds = page.locator('[data-map="kinds"] tbody td').all_inner_texts()
    assert kinds == ["≠", "A", "A", "≠", "≠", "A", "=", "=", "="]
    if javascript:
        assert fits(page)
    # One cell, by its link or by a click: its weight is e^0.7071 / (1 + 2 e^0.7071) before.
    page.locator('[data-map="weights"] tbody tr').nth(1).locator("a").nth(2).click()
    expect(page.locator("#cell h3")).to_have_text("Query 1 and key 2")
    before = math.exp(math.sqrt(0.5)) / (1 + 2 * math.exp(math.sqrt(0.5)))
    row = page.locator("#cell tr", has=page.locator("th", has_text=re.compile("^weight")))
    expect(row.locator("td").nth(0)).to_contain_text(f"{before:.4f}")
    expect(row.locator("td").nth(1)).to_contain_text("= 0")
    assert "row=1" in page.url
    assert "col=2" in page.url


def test_the_comparison_comes_by_itself(open_page: OpenPage) -> None:
    page = finished_run(open_page)
    loads: list[str] = []
    page.get_by_role("button", name="Number format: float16").click()
    page.wait_for_url("**/lab/compare/?runs=*")
    page.on("load", lambda _: loads.append("loaded"))
    expect(page.get_by_role("heading", name="Where the error comes from")).to_be_visible(timeout=DONE)
    assert len(loads) <= 1, "it came by a reload"
    expect(page.locator("#compare-announcement")).not_to_be_empty()


@accessible.LOOKS
def test_pages_that_everybody_can_read(open_page: OpenPage, width: int, scheme: str) -> None:
    page = finished_run(open_page, width=width, scheme=scheme)
    page.locator("#change").scroll_into_view_if_needed()
    assert fits(page)
    page.get_by_role("button", name="Number format: bfloat16").click()
    expect(page.locator("#matrices")).to_be_visible(timeout=DONE)
    accessible.check(page)
    for address in ("/en/lab/compare/", "/en/lab/compare/conventions/"):
        page.goto(page.url.partition("/en/")[0] + address)
        accessible.check(page)
    page.get_by_role("button", name="Use these inputs: Which causal alignment does this model use?").click()
    expect(page.locator("#elsewhere-out")).to_be_visible(timeout=DONE)
    accessible.check(page)
    page.locator("#elsewhere-out").fill("1 2 3 4\n5 6 7 8\n9 0 1 2")
    page.get_by_role("button", name="Which convention is it?").click()
    expect(page.get_by_text("No convention that we know gives these numbers")).to_be_visible()
    accessible.check(page)


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
def test_which_causal_alignment_it_is(open_page: OpenPage, javascript: bool) -> None:
    """Somebody who knows only the question, from the front page of the lab to the answer."""
    page = open_page("/en/lab/", javascript=javascript)
    page.get_by_role("link", name=re.compile("Which causal alignment does this model use")).click()
    page.get_by_role("button", name="Use these inputs: Which causal alignment does this model use?").click()
    expect(page.locator("#elsewhere-out")).to_be_visible(timeout=DONE)
    given: dict[str, np.ndarray] = {}
    exec(page.locator("#inputs").inner_text(), given)
    q, k, v = (given[name][0, 0] for name in "qkv")
    scores = q @ k.T / math.sqrt(q.shape[1])
    scores[np.arange(len(k))[None] > np.arange(len(q))[:, None]] = -np.inf  # top left
    weights = np.exp(scores - scores.max(1, keepdims=True))
    out = weights / weights.sum(1, keepdims=True) @ v
    page.locator("#elsewhere-out").fill("\n".join(" ".join(f"{x:.4f}" for x in row) for row in out))
    page.get_by_role("button", name="Which convention is it?").click()
    expect(page.locator("#verdict")).to_contain_text("It is another convention")
    expect(page.locator("#verdict")).to_contain_text("Causal alignment: top left")
