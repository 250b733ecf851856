"""A sweep in a real browser: typed, priced while it is typed, run by workers, drawn as its points end."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import WIDTHS
from tests.support import accessible
from tests.support.deployment import Lab

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]
NEW = "/en/lab/sweeps/new/"
SMALL = f"{NEW}?engine=eager&engine=flash&q_len=16,32,64&heads=1&head_dim=16"
PAGE = re.compile(r"/lab/sweeps/(?!new)\w+/")


def run_it(page: Page) -> None:
    page.get_by_role("button", name="Run the sweep").click()
    page.wait_for_url(PAGE)


def finished(page: Page) -> None:
    expect(page.locator('#sweep-now[data-status="finished"]')).to_be_visible(timeout=60_000)


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_sweep_is_run_and_its_points_are_drawn(open_page: OpenPage, width: int, javascript: bool) -> None:
    page = open_page("/en/lab/", width=width, javascript=javascript)
    page.get_by_role("button", name="Sweep this").click()
    page.wait_for_url("**/sweeps/new/**")
    page.locator("#sweep-q_len").fill("16..64")
    page.locator("#sweep-heads").fill("1")
    page.get_by_label("Eager (torch)").check()
    if javascript:
        expect(page.locator("#sweep-preview")).to_contain_text("6 points")
        expect(page.locator("#sweep-q_len-error")).to_contain_text("3 values: 16, 32, 64")
        assert "q_len=16..64" in page.url
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    else:
        page.get_by_role("button", name="Only check it").click()
        expect(page.locator("#sweep-preview")).to_contain_text("6 points")
    run_it(page)
    finished(page)
    expect(page.locator("#plot-flops .lineplot path.mark")).to_have_count(6)
    expect(page.locator("#plot-flops .sweep-growth")).to_contain_text("grows as the power")
    expect(page.get_by_text("Time is drawn where it is a speed.")).to_be_visible()
    page.locator("#plot-flops summary").click()
    rows = page.locator("#table-flops tbody tr")
    assert [row.locator("th").inner_text() for row in rows.all()] == ["16", "32", "64"]
    if javascript:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator("#table-flops a").first.click()
    expect(page.locator("h1")).to_contain_text(re.compile("Eager|Flash"))


def test_mistakes_are_told_at_their_fields_while_they_are_typed(open_page: OpenPage) -> None:
    page = open_page(NEW)
    length = page.locator("#sweep-q_len")
    length.fill("64, oops")
    expect(page.locator("#sweep-q_len-error")).to_contain_text("oops")
    expect(length).to_have_attribute("aria-invalid", "true")
    expect(length).to_be_focused()
    length.fill("64, 128")
    expect(page.locator("#sweep-preview")).to_contain_text("2 points")
    expect(length).not_to_have_attribute("aria-invalid", "true")
    page.get_by_label("Flash (our Triton kernel)").uncheck()
    page.get_by_label("Linear attention (our Triton kernels)").check()
    expect(page.locator("#sweep-options")).to_contain_text("feature_map")


def test_points_come_in_without_taking_the_focus_or_closing_what_was_opened(open_page: OpenPage) -> None:
    page = open_page(f"{NEW}?q_len=16,32,48,64,80,96&heads=1&head_dim=16")
    loads: list[str] = []
    run_it(page)
    page.wait_for_load_state()
    page.on("load", lambda _: loads.append("loaded"))
    summary = page.locator("#summary-memory")
    summary.click()
    summary.focus()
    finished(page)
    assert not loads, "the points came by a reload"
    expect(summary).to_be_focused()
    expect(page.locator("#fold-memory")).to_have_attribute("open", "")
    expect(page.locator("#table-memory tbody tr")).to_have_count(6)
    expect(page.locator("#sweep-announcement")).to_contain_text("The sweep has ended. 6 succeeded.")


def test_what_is_plotted_can_be_chosen_by_keyboard_and_is_in_the_address(open_page: OpenPage) -> None:
    page = open_page(SMALL)
    run_it(page)
    finished(page)
    choice = page.get_by_label("Against", exact=True)
    choice.focus()
    choice.select_option("engine")
    expect(page.locator("#table-memory thead th").first).to_have_text("engine")
    assert "x=engine" in page.url
    expect(page.locator("#sweep-x")).to_be_focused()
    page.get_by_label("length 32", exact=True).uncheck()
    expect(page.locator("#plot-flops .lineplot path.mark")).to_have_count(4)
    page.reload()
    expect(page.locator("#plot-flops .lineplot path.mark")).to_have_count(4)


def test_a_sweep_is_canceled_midway_and_keeps_what_it_has(open_page: OpenPage, sqlite_lab: Lab) -> None:
    inputs = {name: {"seed": 1, "shape": [1, 4, 512, 64]} for name in "qkv"}
    body = {
        "engine": "flash",
        "inputs": inputs,
        "timing": {"warmup": 0, "iters": 40},
        "vary": {"seed": [1, 2, 3]},
    }
    answer = sqlite_lab.request("POST", "/api/v1/sweeps", body)
    page = open_page(f"/en/lab/sweeps/{answer.json()['id']}/")
    expect(page.locator("#sweep-now")).to_contain_text("Running: seed")
    page.get_by_role("button", name="Cancel what has not ended").click()
    expect(page.locator('#sweep-now[data-status="canceled"]')).to_be_visible()
    expect(page.locator("#points")).to_contain_text("Canceled before it had a result.")


@accessible.LOOKS
def test_pages_of_sweeps_are_accessible(open_page: OpenPage, width: int, scheme: str) -> None:
    page = open_page(f"{SMALL}&kv_heads=x", width=width, scheme=scheme)
    expect(page.locator("#sweep-kv_heads-error")).to_contain_text("x")
    accessible.check(page)
    page = open_page(SMALL, width=width, scheme=scheme)
    accessible.check(page)
    run_it(page)
    finished(page)
    accessible.check(page)
