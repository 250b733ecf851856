"""The lab's form in a real browser: numbers typed into a grid, files dropped, fields that come and go."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import WIDTHS
from tests.support import accessible

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]


def run_it(page: Page) -> None:
    page.get_by_role("button", name="Run it").click()
    page.wait_for_url("**/lab/runs/*/")
    expect(page.locator('#run[data-status="succeeded"]')).to_be_visible(timeout=60_000)


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_numbers_typed_into_the_grid_are_computed(open_page: OpenPage, width: int, javascript: bool) -> None:
    page = open_page("/en/lab/", width=width, javascript=javascript)
    page.get_by_label("Type in a grid").check()
    page.locator("#lab-grid_q_len").select_option("2")
    if not javascript:
        page.get_by_role("button", name="Change size").click()
    expect(page.locator("#lab-grid_q tr")).to_have_count(2)
    page.get_by_label("Q, row 1, column 2", exact=True).fill("5")
    if javascript:
        expect(page.locator("#estimate")).to_contain_text("2 queries, 3 keys")
        expect(page).to_have_url(re.compile("source=grid"))
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    run_it(page)
    expect(page.locator("body")).to_contain_text("2 queries, 3 keys")
    page.get_by_role("link", name="Edit and run again").click()
    expect(page.locator("#lab-q")).to_have_value("[[1, 5],\n [0, 1]]")


def test_arrow_keys_and_pasting_fill_the_grid(open_page: OpenPage) -> None:
    page = open_page("/en/lab/?source=grid")
    box = page.get_by_label("K, row 1, column 1", exact=True)
    box.click()
    box.select_text()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_label("K, row 2, column 2", exact=True)).to_be_focused()
    page.evaluate("""() => {
      const data = new DataTransfer();
      data.setData("text", "7\\t8\\n9\\t10");
      document.querySelector("#cell_k_1_0").dispatchEvent(
        new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
    }""")
    shown = [page.locator(f"#cell_k_{row}_{column}").input_value() for row in range(3) for column in range(2)]
    assert shown == ["1", "0", "7", "8", "9", "10"]
    expect(page).to_have_url(re.compile(r"k=%5B%5B1%2C\+0%5D%2C%0A\+%5B7%2C\+8%5D"))


def test_the_caret_stays_while_the_panel_is_brought_up_to_date(open_page: OpenPage) -> None:
    page = open_page("/en/lab/?source=grid")
    box = page.get_by_label("V, row 1, column 1", exact=True)
    box.fill("12")
    page.keyboard.press("ArrowLeft")
    with page.expect_response("**/estimate/"):
        page.keyboard.type("5")
    expect(box).to_be_focused()
    page.keyboard.type("6")
    assert box.input_value() == "1562"


def test_a_dropped_file_goes_up_at_once_and_can_be_run(open_page: OpenPage, tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"
    rng = np.random.default_rng(3)
    np.savez(file, q=rng.normal(size=(4, 8)), k=rng.normal(size=(5, 8)), v=rng.normal(size=(5, 3)))
    page = open_page("/en/lab/")
    page.evaluate(
        """async (numbers) => {
      const data = new DataTransfer();
      data.items.add(new File([new Uint8Array(numbers)], "mine.npz"));
      const panel = document.querySelector(".lab-sources");
      for (const kind of ["dragenter", "dragover", "drop"])
        panel.dispatchEvent(new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true }));
    }""",
        list(file.read_bytes()),
    )
    panel = page.locator("#lab-inputs")
    expect(panel).to_contain_text("mine.npz: q 4 × 8 float64, k 5 × 8 float64, v 5 × 3 float64")
    expect(page.get_by_label("Upload a file")).to_be_checked()
    expect(page.locator("#estimate")).to_contain_text("4 queries, 5 keys, dimension 8, value dimension 3")
    expect(page.locator("#inputs-status")).to_contain_text("mine.npz")
    run_it(page)


def test_a_chosen_file_needs_no_script(open_page: OpenPage, tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"
    np.savez(file, q=np.eye(3), k=np.eye(3), v=np.eye(3))
    page = open_page("/en/lab/", javascript=False)
    page.get_by_label("Upload a file").check()
    page.locator("#lab-files").set_input_files(file)
    run_it(page)


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
def test_a_file_that_was_sent_can_be_removed(open_page: OpenPage, tmp_path: Path, javascript: bool) -> None:
    files = [tmp_path / f"{name}.npy" for name in "qkv"]
    for file in files:
        np.save(file, np.eye(3))
    page = open_page("/en/lab/?source=upload", javascript=javascript)
    page.locator("#lab-files").set_input_files(files)
    if not javascript:
        page.get_by_role("button", name="Only check it").click()
    page.get_by_role("button", name="Remove k.npy").click()
    expect(page.locator(".sent li")).to_have_count(2)
    expect(page.locator(".sent")).not_to_contain_text("k.npy")
    if javascript:
        expect(page.locator("#lab-files")).to_be_focused()
    page.locator("#lab-files").set_input_files(files[1])
    if javascript:
        expect(page.locator(".sent li")).to_have_count(3)
    run_it(page)


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
def test_a_pattern_brings_its_fields(open_page: OpenPage, javascript: bool) -> None:
    page = open_page("/en/lab/?seed=1&q_len=16&heads=1", javascript=javascript)
    page.locator("#lab-group-masks summary").click()
    page.get_by_label("Pattern", exact=True).focus()
    page.get_by_label("Pattern", exact=True).select_option("chunked")
    if javascript:
        expect(page.get_by_label("Pattern", exact=True)).to_be_focused()
    else:
        page.locator("#lab-group-masks").get_by_role("button", name="Show what goes with them").click()
    size = page.get_by_label("size", exact=True)
    expect(size).to_be_visible()
    size.fill("4")
    if javascript:
        expect(page.locator("#estimate")).to_contain_text("25 %")
    run_it(page)


def test_another_kind_of_engine_brings_other_inputs(open_page: OpenPage) -> None:
    page = open_page("/en/lab/")
    page.get_by_label("Engine", exact=True).select_option("mla")
    expect(page.locator("#lab-inputs")).to_contain_text("In the place of Q, K and V")
    page.get_by_label("d_c", exact=True).fill("48")
    expect(page.locator("#estimate")).to_contain_text("1 × 64 × 48")
    page.get_by_label("Engine", exact=True).select_option("flash")
    expect(page.locator("#lab-q")).to_have_value("[[1, 0],\n [0, 1],\n [1, 1]]")


@pytest.mark.parametrize(
    "path",
    [
        "/en/lab/?source=grid",
        "/en/lab/?engine=scan",
        "/en/lab/?seed=1&rope=half&rope_scaling=yarn&pattern=bigbird&how_attn_mask=text&softcap=-1",
        "/en/lab/presets/",
    ],
)
@accessible.LOOKS
def test_axe_finds_nothing(open_page: OpenPage, path: str, scheme: str, width: int) -> None:
    page = open_page(path, scheme=scheme, width=width)
    accessible.check(page)
