"""A reader changes a word under each mask, and takes the mask along into the lab."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import WIDTHS

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_changed_word_moves_what_the_mask_lets_it(
    open_page: OpenPage, width: int, javascript: bool
) -> None:
    page = open_page("/en/concepts/gpt-and-bert/", width=width, javascript=javascript)
    figure, status = page.locator("#objectives"), page.locator("#objectives-status")

    def compute() -> None:
        if not javascript:
            figure.get_by_role("button", name="Compute").click()

    expect(status).to_contain_text("5 predictions. Change “river” into “money”, and 1 of 5 outputs changes")
    figure.get_by_label("BERT: no mask, a hidden word").check()
    compute()
    expect(status).to_contain_text("1 prediction. Change “river” into “money”, and every output changes.")
    page.locator("#objectives-place").fill("2")
    compute()
    expect(status).to_contain_text("no output changes: the word is hidden")
    figure.get_by_label("the word itself").check()
    compute()
    expect(status).to_contain_text("1 position sees the word that it has to predict")
    figure.get_by_role("link", name="wrong", exact=True).click()
    expect(status).to_contain_text("4 positions see the word that they have to predict")
    expect(figure.get_by_role("cell", name="of (seen!)")).to_be_visible()
    figure.get_by_role("link", name="T5", exact=True).click()
    expect(figure.get_by_role("region", name="Decoder, at the encoder")).to_be_visible()
    figure.get_by_role("link", name="prefix LM", exact=True).click()
    expect(status).to_contain_text("One pass makes 3 predictions.")
    expect(page).to_have_url(re.compile("kind=prefix&place=2&stead=kept"))
    page.locator("#objectives-run a").click()
    expect(page.locator("#lab-q")).to_have_value(re.compile(r"^\[\["))
    expect(page.locator("#lab-in_attn_mask")).to_have_value(re.compile("false"))
