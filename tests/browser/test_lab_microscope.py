"""The kernel under the microscope in a browser: traced and stepped through, tiled, compiled, compared."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import WIDTHS
from tests.support import accessible
from tests.support.deployment import Lab

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]


@pytest.fixture(scope="session")
def run_path(sqlite_lab: Lab) -> str:
    """A run with four tiles of keys, untraced."""
    seeded = {"seed": 3, "distribution": "peaked", "shape": [1, 2, 64, 8]}
    body = {"engine": "flash", "inputs": dict.fromkeys("qkv", seeded), "attention": {"is_causal": True}}
    run = sqlite_lab.post_run(body, wait=60).json()
    assert run["status"] == "succeeded", run
    return f"/en/lab/runs/{run['id']}/"


def fits(page: Page, width: int) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_run_is_traced_and_stepped_through(
    open_page: OpenPage, run_path: str, width: int, javascript: bool
) -> None:
    page = open_page(f"{run_path}steps/?head=1&row=40", width=width, javascript=javascript)
    page.get_by_role("button", name="Trace this run").click()
    step = page.locator("#step")
    expect(step).to_contain_text("Query 40 after tile 0", timeout=60_000)
    page.get_by_role("link", name="Next tile").click()
    expect(step).to_contain_text("Query 40 after tile 1")
    expect(page).to_have_url(re.compile("tile=1"))
    if not javascript:
        page.locator("#step-tile").fill("2")
        page.locator("form.step-choice").get_by_role("button", name="Show").click()
        expect(step).to_contain_text("Query 40 after tile 2")
        return
    fits(page, width)
    page.keyboard.press("ArrowRight")
    expect(step).to_contain_text("Query 40 after tile 2")
    expect(page.locator("#step-slider")).to_have_value("2")
    page.locator("#step-slider").fill("3")
    expect(step).to_contain_text("Tile 3 is skipped")
    expect(page).to_have_url(re.compile("head=1&row=40&tile=3$"))


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_tiles_follow_the_form(open_page: OpenPage, width: int, javascript: bool) -> None:
    page = open_page("/en/lab/tiles/", width=width, javascript=javascript)
    page.get_by_label("Causal: no query").check()
    if not javascript:
        page.locator(".tiles-form").get_by_role("button", name="Show").click()
    expect(page.locator("#tiles desc")).to_have_text(re.compile("28 full, 8 masked, 28 skipped"))
    expect(page).to_have_url(re.compile("causal=1"))
    page.get_by_role("link", name="From the start").click()
    expect(page.locator("#tiles")).to_contain_text("Visit 1 of 36")
    if javascript:
        page.locator("h1").click()
        page.keyboard.press("ArrowRight")
        expect(page.locator("#tiles")).to_contain_text("Visit 2 of 36")
        fits(page, width)


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_two_kernels_are_compiled_and_compared(open_page: OpenPage, width: int, javascript: bool) -> None:
    page = open_page(
        "/en/lab/compiled/?block_m=32&block_n=32&head_dim=32&b_target=sm_90",
        width=width,
        javascript=javascript,
    )
    page.get_by_role("button", name="Compile").click()
    page.wait_for_url("**/lab/compiled/?a=*&b=*")
    page.get_by_role("link", name="Show the difference").click(timeout=120_000)
    expect(page.locator(".diff")).to_contain_text(".target sm_90a")
    if javascript:
        fits(page, width)
    page.locator(".sides a").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("flash_forward for sm_80")
    if javascript:
        fits(page, width)
        page.locator("#fold-ptx summary").click()
        expect(page.locator("#fold-ptx .code-table").first).to_contain_text(".target sm_80")
    page.get_by_role("link", name="The code, line by line").click()
    page.locator("#find").fill("mma.sync")
    page.get_by_role("button", name="Find").click()
    page.locator(".code-table tbody td a").first.click()
    expect(page.locator(".source-pane tr.lit")).to_contain_text("tl.dot")


@accessible.LOOKS
@pytest.mark.parametrize("path", ["steps/", "tiles/", "/en/lab/tiles/?causal=1&step=9", "/en/lab/compiled/"])
def test_axe_finds_nothing(open_page: OpenPage, run_path: str, path: str, scheme: str, width: int) -> None:
    page = open_page(path if path.startswith("/") else run_path + path, scheme=scheme, width=width)
    accessible.check(page)
