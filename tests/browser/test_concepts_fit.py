"""What fits: a reader sets the figure, follows an example and a card, and is told how long a text may get."""

import json
import re
import shlex
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import WIDTHS

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_reader_finds_what_fits(open_page: OpenPage, width: int, javascript: bool) -> None:
    page = open_page("/en/concepts/inference-memory/", width=width, javascript=javascript)
    figure, status = page.locator("#fit"), page.locator("#fit-status")

    def compute() -> None:
        if not javascript:
            figure.get_by_role("button", name="Compute").click()

    expect(status).to_contain_text("needs 18.00 GB (16.76 GiB), and the card has 24 GB: it fits")
    page.locator("#fit-batch").fill("64")
    compute()
    expect(status).to_contain_text("27.86 GB are missing; up to 775 tokens each would fit")
    figure.locator("#fit-cache").get_by_label("4", exact=True).check()
    figure.locator("#fit-weights").get_by_label("4", exact=True).check()
    compute()
    expect(status).to_contain_text("it fits, 7.71 GB are left")
    page.locator("#fit-model").select_option("llama-2-70b")
    compute()
    expect(status).to_contain_text("Llama 2 70B with 64 texts of 4,096 tokens needs")
    for said in ("model=llama-2-70b", "batch=64", "weights=int4", "cache=int4"):
        expect(page).to_have_url(re.compile(said))
    figure.get_by_role("link", name="H200").click()
    expect(status).to_contain_text("the card has 141 GB: it fits")
    command = figure.get_by_role("region", name="asked by a program").inner_text()
    words = shlex.split(command.replace("\\\n", " ").split("curl")[1])
    assert words[1] == page.url.partition("/en/")[0] + "/api/v1/estimates/memory"
    answered = page.request.post(words[1], data=json.loads(words[-1])).json()
    assert answered["fits"] is True
    expect(status).to_contain_text(f"needs {answered['bytes'] / 1e9:.2f} GB")
    figure.get_by_role("link", name="DeepSeek-V3, as published").click()
    expect(status).to_contain_text("on each of 8 cards, which have 141 GB: it fits")
    expect(page.locator("#fit-batch")).to_have_value("1")


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_layer_of_it_opens_in_the_lab(open_page: OpenPage, width: int) -> None:
    page = open_page("/en/concepts/inference-memory/?n=2000&cache=fp8_e4m3", width=width)
    page.locator("#fit-run a").click()
    for name, value in (("kv_len", "2000"), ("kv_heads", "8"), ("heads", "32"), ("head_dim", "128")):
        expect(page.locator(f"#lab-{name}")).to_have_value(value)
    expect(page.locator("#lab-option_kv_dtype")).to_have_value("fp8_e4m3")
