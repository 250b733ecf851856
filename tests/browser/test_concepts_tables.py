"""The long tables: narrowed, sorted, and left for the estimator and the lab."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import WIDTHS

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_models_are_found_sorted_and_left_for_the_estimator(
    open_page: OpenPage, width: int, javascript: bool
) -> None:
    page = open_page("/en/concepts/models/", width=width, javascript=javascript)
    status, first = page.locator("#models-status"), page.locator("#models tbody th").first
    expect(status).to_contain_text("47 rows, by cache of a token (KiB): from GPT-3 175B (4,608)")
    page.locator("#models-find").fill("falcon")
    if not javascript:
        page.locator("#models").get_by_role("button", name="Compute").click()
    expect(status).to_contain_text(
        "3 rows, by cache of a token (KiB): from Falcon 180B (160) to Falcon 7B (8)"
    )
    page.locator("#models").get_by_role("link", name="layers", exact=True).click()
    expect(page).to_have_url(re.compile("find=falcon&sort=layers"))
    expect(status).to_contain_text("3 rows, by layers: from Falcon 7B (32)")
    page.locator("#models").get_by_role("link", name="layers", exact=True).click()
    expect(first).to_contain_text("Falcon 180B")
    page.locator("#models").get_by_role("link", name="Falcon 180B", exact=True).click()
    expect(page.locator("#fit-status")).to_contain_text("Falcon 180B with a text of 4,096 tokens needs")
    page.go_back()
    page.get_by_role("link", name="Run a layer of Falcon 7B").click()
    expect(page.locator("#lab-heads")).to_have_value("71")


def test_the_names_stay_where_a_table_scrolls(open_page: OpenPage) -> None:
    page = open_page("/en/concepts/gpus/", width=WIDTHS["phone"])
    box, name = page.locator("#gpus .tight"), page.locator("#gpus tbody th").first
    before = name.bounding_box()
    box.evaluate("box => { box.scrollLeft = 400; }")
    after = name.bounding_box()
    assert before
    assert after
    assert abs(before["x"] - after["x"]) < 8
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS["phone"]


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
def test_a_thread_of_the_timeline_and_the_run_of_a_paper(open_page: OpenPage, javascript: bool) -> None:
    page = open_page("/en/concepts/timeline/", width=WIDTHS["phone"], javascript=javascript)
    page.get_by_text("beyond full attention", exact=True).click()
    if not javascript:
        page.locator("#timeline").get_by_role("button", name="Compute").click()
    expect(page.locator("#timeline-status")).to_contain_text(
        "8 rows, by first public: from Reformer (2020-01)"
    )
    page.get_by_role("link", name="Run BigBird").click()
    expect(page.locator("#lab-pattern")).to_have_value("bigbird")


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
def test_a_kind_of_trap_and_the_run_of_one(open_page: OpenPage, javascript: bool) -> None:
    page = open_page("/en/concepts/numerics/", width=WIDTHS["phone"], javascript=javascript)
    page.locator("#numerics").get_by_text("rounding", exact=True).first.click()
    if not javascript:
        page.locator("#numerics").get_by_role("button", name="Compute").click()
    expect(page.locator("#numerics-status")).to_contain_text("2 rows.")
    expect(page.get_by_role("cell", name="−56")).to_be_attached()
    page.get_by_role("link", name="Run: A store that wraps").click()
    expect(page).to_have_url(re.compile("option_kv_dtype=int8"))
    expect(page.locator("#lab-kv_len")).to_have_value("32")


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
def test_engines_with_a_feature_and_the_run_of_one(open_page: OpenPage, javascript: bool) -> None:
    page = open_page("/en/concepts/engines/", width=WIDTHS["phone"], javascript=javascript)
    page.locator("#engines-needs").select_option("delta_rule")
    if not javascript:
        page.locator("#engines").get_by_role("button", name="Compute").click()
    expect(page.locator("#engines-status")).to_contain_text("1 row.")
    page.locator("#onnx-case-find").fill("neginf")
    if not javascript:
        page.locator("#onnx").get_by_role("button", name="Compute").click()
    expect(page.locator("#onnx-status")).to_contain_text("2 rows.")
    expect(page.locator("#engines-status")).to_contain_text("1 row.")
    page.get_by_role("link", name="Run linear").click()
    expect(page).to_have_url(re.compile("engine=linear"))


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
def test_the_measure_and_the_bill_of_the_debates(open_page: OpenPage, javascript: bool) -> None:
    page = open_page("/en/concepts/debates/", width=WIDTHS["phone"], javascript=javascript)
    page.locator("#emergence-k").fill("1")
    if not javascript:
        page.locator("#emergence").get_by_role("button", name="Compute").click()
    expect(page.locator("#emergence-status")).to_contain_text("are (k = 1); two powers of ten further, 86")
    page.get_by_role("link", name="Reckon it").click()
    expect(page.locator("#training-status")).to_contain_text("for 2.80 million $")
    page.locator("#emergence-run a").click()
    expect(page.locator("#lab-heads")).to_have_value("8")
