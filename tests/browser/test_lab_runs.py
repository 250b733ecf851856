"""The page of a run: one cell in all matrices, near and far, with and without JavaScript; then its kernel."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import WIDTHS
from tests.support import accessible
from tests.support.deployment import Lab
from tests.support.settled import settled

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]
LENGTH = 80
BOTH = pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)


def a_run(lab: Lab, length: int, engine: str = "flash", **attention: object) -> str:
    seeded = {"seed": 5, "distribution": "peaked", "shape": [1, 2, length, 16]}
    body = {"engine": engine, "inputs": dict.fromkeys("qkv", seeded), "attention": attention,
            "return": ["out"]}  # fmt: skip
    run = lab.post_run(body, wait=60).json()
    assert run["status"] == "succeeded", run
    return f"/en/lab/runs/{run['id']}/"


@pytest.fixture(scope="module")
def large(sqlite_lab: Lab) -> str:
    return a_run(sqlite_lab, LENGTH, is_causal=True)


@pytest.fixture(scope="module")
def small(sqlite_lab: Lab) -> str:
    return a_run(sqlite_lab, 6, is_causal=True)


@pytest.fixture(scope="module")
def linear(sqlite_lab: Lab) -> str:
    return a_run(sqlite_lab, 9, engine="linear")


def box(page: Page, name: str) -> Locator:
    return page.locator(f'[data-map="{name}"] [data-box]')


def point_at(page: Page, name: str, row: int, column: int, *, click: bool = False) -> None:
    """At a cell of a picture of LENGTH queries and keys."""
    area = box(page, name)
    area.scroll_into_view_if_needed()
    size = area.bounding_box()
    assert size is not None
    at = {"x": (column + 0.5) / LENGTH * size["width"], "y": (row + 0.5) / LENGTH * size["height"]}
    (area.click if click else area.hover)(position=at)  # type: ignore[operator]


def frame(page: Page, name: str) -> tuple[float, float]:
    """Where the frame of a picture begins: (row, column), in cells."""
    path = box(page, name).locator("[data-cross]").get_attribute("d") or ""
    x, y = re.match(r"M([\d.]+) ([\d.]+)", path).groups()  # type: ignore[union-attr]
    return float(y), float(x)


def no_wider(page: Page, width: int) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@BOTH
def test_one_cell_is_in_all_matrices_and_its_arithmetic_follows(
    open_page: OpenPage, large: str, width: int
) -> None:
    page = open_page(large, width=width)
    point_at(page, "weights", 60, 20)
    for name in ("scores", "masked_scores", "weights"):
        row, column = frame(page, name)
        assert abs(row - 60) <= 1, name
        assert abs(column - 20) <= 1, name
    assert abs(frame(page, "out")[0] - 60) <= 1
    expect(page.locator("#cell")).to_contain_text("Query 0 and key 0")  # pointing is not choosing
    point_at(page, "weights", 60, 20, click=True)
    expect(page.locator("#cell")).to_contain_text(re.compile("Query (59|60|61) and key (19|20|21)"))
    expect(page).to_have_url(re.compile(r"row=\d+&col=\d+"))
    expect(page.locator("#cell tr[data-of=weights]")).to_contain_text("∕")
    no_wider(page, width)


def test_the_keyboard_moves_the_cell_and_zooms_to_it(open_page: OpenPage, large: str) -> None:
    page = open_page(f"{large}?row=63&col=10")
    box(page, "scores").focus()
    page.keyboard.press("+")
    expect(box(page, "scores")).to_have_attribute("data-top", "0")
    expect(box(page, "scores")).to_be_focused()
    expect(page).to_have_url(re.compile("zoom=64"))
    expect(box(page, "scores")).to_have_attribute("data-rows", "64")
    settled(page)
    page.keyboard.press("ArrowDown")  # out of the square, into the next
    expect(box(page, "scores")).to_have_attribute("data-top", "64")
    expect(box(page, "scores")).to_be_focused()
    expect(page.locator("#cell")).to_contain_text("Query 64 and key 10")
    settled(page)
    page.keyboard.press("+")
    cell = page.locator('[data-map="weights"] td.lit a')
    expect(cell).to_have_attribute("aria-label", re.compile("^query 64, key 10: "))
    settled(page)
    page.locator('[data-map="scores"] td.lit a').focus()
    page.keyboard.press("-")
    expect(box(page, "weights")).to_have_attribute("data-rows", "16")
    page.go_back()
    page.reload()
    expect(page.locator("#cell")).to_contain_text(re.compile("Query 6[34] and key 10"))


def test_what_is_chosen_next_keeps_the_cell(open_page: OpenPage, large: str) -> None:
    page = open_page(large)
    page.locator("[data-cell-row]").fill("70")
    expect(page.locator("#cell")).to_contain_text("Query 70 and key 0")
    page.get_by_role("navigation", name="Head").get_by_role("link", name="1").click()
    expect(page).to_have_url(re.compile("head=1"))
    expect(page).to_have_url(re.compile("row=70"))
    expect(page.locator("#cell")).to_contain_text("Query 70 and key 0")
    expect(page.locator("[data-cell-row]")).to_have_value("70")
    page.get_by_role("link", name="returned by the engine").click()
    expect(page.locator("[data-map]")).to_have_count(1)  # the output is all that it returned
    expect(page).to_have_url(re.compile("head=1.*row=70|row=70.*head=1"))


@BOTH
def test_small_matrices_are_cells_to_walk_through(open_page: OpenPage, small: str, width: int) -> None:
    page = open_page(small, width=width)
    page.locator('[data-map="weights"] a[aria-label^="query 3, key 2"]').click()
    expect(page.locator("#cell")).to_contain_text("Query 3 and key 2")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#cell")).to_contain_text("Query 3 and key 3")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#cell")).to_contain_text("causal: the key’s position 4 is after the query’s 3")
    no_wider(page, width)


@BOTH
def test_without_javascript_cells_are_links_and_boxes(
    open_page: OpenPage, small: str, large: str, width: int
) -> None:
    page = open_page(small, width=width, javascript=False)
    page.locator('[data-map="scores"] a[aria-label^="query 4, key 1"]').click()
    expect(page.locator("#cell")).to_contain_text("Query 4 and key 1")
    page = open_page(large, width=width, javascript=False)
    page.locator("#cell-row").fill("41")
    page.locator("#cell-col").fill("7")
    page.locator(".cell-choice").get_by_role("button", name="Show").click()
    expect(page.locator("#cell")).to_contain_text("Query 41 and key 7")
    page.get_by_role("link", name="8 × 8").click()
    expect(page.locator('[data-map="weights"] td.lit a')).to_have_attribute(
        "aria-label", re.compile("^query 41, key 7: ")
    )


def test_a_large_picture_is_sharp_once_it_is_in_view(open_page: OpenPage, sqlite_lab: Lab) -> None:
    page = open_page(a_run(sqlite_lab, 300), width=WIDTHS["phone"])
    picture = page.locator('[data-map="scores"] img.only-light')
    expect(picture).to_have_attribute("src", re.compile("preview"))
    picture.scroll_into_view_if_needed()
    expect(picture).not_to_have_attribute("src", re.compile("preview"))
    assert picture.evaluate("(image) => image.naturalWidth") == 300
    expect(page.get_by_role("link", name="The picture in full")).to_have_count(0)


def test_a_close_look_of_before_is_on_the_page_now(open_page: OpenPage, small: str) -> None:
    page = open_page(f"{small}closeup/?row=2&col=1")
    expect(page).to_have_url(re.compile(r"/runs/\w+/\?row=2&col=1#look$"))
    expect(page.locator("#cell")).to_contain_text("Query 2 and key 1")


@BOTH
def test_from_a_run_to_the_source_of_its_kernel(open_page: OpenPage, small: str, width: int) -> None:
    page = open_page(small, width=width)
    page.locator("#kernel").get_by_role("link").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("FlashAttention, forward")
    expect(page.locator(".source-numbers")).to_contain_text("BLOCK_M")
    expect(page.locator(".source-part", has_text="def attend_tile").first).to_be_visible()
    no_wider(page, width)


@accessible.LOOKS
@pytest.mark.parametrize("path", ["small", "large", "zoomed", "linear", "/en/lab/kernels/flash/"])
def test_axe_finds_nothing(
    open_page: OpenPage, request: pytest.FixtureRequest, path: str, scheme: str, width: int
) -> None:
    if path == "zoomed":
        path = request.getfixturevalue("large") + "?zoom=8&row=70"
    address = path if path.startswith("/") else request.getfixturevalue(path)
    page = open_page(address, scheme=scheme, width=width)
    accessible.check(page)
