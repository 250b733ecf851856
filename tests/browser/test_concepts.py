"""A reader moves a figure and answers a question, with JavaScript and without, on a phone and on a desk."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import WIDTHS
from tests.support import accessible
from tests.support.settled import settled

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]
PAGES = (
    "glossary",
    "weighted-average",
    "multi-head",
    "mqa-gqa-mla",
    "masks",
    "self-and-cross",
    "gpt-and-bert",
    "sqrt-dk",
    "scoring",
    "soft-hard-local",
    "before-attention",
    "sdpa-in-code",
    "quadratic",
    "alibi",
    "inference-memory",
    "online-softmax",
    "memory-hierarchy",
    "positions",
    "rope",
    "long-context",
    "kv-cache",
    "decode-bandwidth",
    "kv-compression",
    "models",
    "gpus",
    "references",
    "flash-attention",
    "misconceptions",
    "timeline",
    "debates",
    "about",
    "numerics",
    "transformer",
    "engines",
)


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_figure_follows_its_controls_and_its_address_says_so(
    open_page: OpenPage, width: int, javascript: bool
) -> None:
    page = open_page("/en/concepts/weighted-average/", width=width, javascript=javascript)
    status = page.locator("#average-status")
    expect(status).to_contain_text("The query at 0.50")
    page.locator("#average-sharpness").fill("20")
    page.locator("#average-query").fill("2")
    if not javascript:
        page.locator("#average").get_by_role("button", name="Compute").click()
    expect(status).to_contain_text(
        "The query at 2 gives most weight, 1.000, to the key at 2; its output is 4.000"
    )
    expect(page).to_have_url(re.compile("query=2&sharpness=20"))
    if javascript:
        expect(page.locator("[data-moves=average-query]")).to_have_value("2")
        page.locator("[data-moves=average-query]").fill("-2")
        expect(page.locator("#average-query")).to_have_value("-2")
        expect(status).to_contain_text("its output is 1.000")
    page.locator("#average-query").fill("7")
    if not javascript:
        page.locator("#average").get_by_role("button", name="Compute").click()
    expect(page.locator("#average-query-problems")).to_have_text("7 is outside −3 to 3. The figure shows 3.")
    page.locator("#average-run a").click()
    expect(page.locator("#lab-q")).to_have_value(re.compile(r"\[\[60, ?20\]\]"))


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_question_is_judged_and_the_figure_stays_as_it_was(
    open_page: OpenPage, width: int, javascript: bool
) -> None:
    page = open_page("/en/concepts/weighted-average/?query=1", width=width, javascript=javascript)
    form = page.locator("#ask-mean")
    form.get_by_role("textbox").fill("0")
    form.get_by_role("button", name="Check").click()
    expect(form.get_by_role("status")).to_contain_text("Not so.")
    form.get_by_role("textbox").fill("3")
    form.get_by_role("button", name="Check").click()
    expect(form.get_by_role("status")).to_contain_text("Right.")
    expect(page.locator("#average-status")).to_contain_text("The query at 1 ")
    expect(page).to_have_url(re.compile("query=1&ask-mean=3"))


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_mask_is_painted_cell_by_cell_and_keeps_its_paint(
    open_page: OpenPage, width: int, javascript: bool
) -> None:
    page = open_page("/en/concepts/masks/", width=width, javascript=javascript)
    status = page.locator("#masks-status")
    expect(status).to_contain_text("15 of 25 pairs are open")
    page.locator("#masks-cell-11").click()
    expect(status).to_contain_text("14 of 25 pairs are open. Query 1 sees no key")
    expect(page).to_have_url(re.compile("flip=11"))
    page.locator("#masks").get_by_label("softmax as it is").check()
    if javascript:  # one stop of the tab key, and arrows from there
        expect(status).to_contain_text("row 1: NaN")
        settled(page)
        page.locator("#masks-cell-11").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        expect(status).to_contain_text("13 of 25")
        expect(page.locator("#masks-cell-22")).to_be_focused()
        expect(page.locator("#masks-cell-11")).to_have_attribute("tabindex", "-1")
        page.locator("#masks-cell-22").click()
    else:
        page.locator("#masks").get_by_role("button", name="Compute").click()
    expect(status).to_contain_text("row 1: NaN")
    page.get_by_role("link", name="Wipe off the paint").click()
    expect(status).to_contain_text("15 of 25 pairs are open")


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_the_figures_on_the_root_of_d(open_page: OpenPage, width: int, javascript: bool) -> None:
    """Four figures on one page, each of which keeps what was said to the others."""
    page = open_page("/en/concepts/sqrt-dk/", width=width, javascript=javascript)

    def put(figure: str, control: str, value: str) -> None:
        page.locator(f"#{figure}-{control}").fill(value)
        if not javascript:
            page.locator(f"#{figure}").get_by_role("button", name="Compute").click()

    put("spread", "d", "256")
    expect(page.locator("#spread-status")).to_contain_text("At d = 256 the scores spread by 1")
    put("softness", "gap", "17")
    expect(page.locator("#softness-status")).to_contain_text("A lead of 17 over 131,071 other keys")
    page.locator("#saturation").get_by_role("link", name="weight 3 by score 1: −0.0641").click()
    lines = page.locator("#saturation .lines p:visible")
    expect(lines).to_have_count(2)
    expect(lines.nth(1)).to_contain_text("weight 3 falls by 0.0641 times as much")
    put("stack", "width", "16")
    expect(page.locator("#stack-status")).to_contain_text(re.compile(r"9\.18.·.10⁶ times as large"))
    for said in ("d=256", "gap=17", "width=16", "cell=3(,|%2C)1"):
        expect(page).to_have_url(re.compile(said))
    page.locator("#spread-run a").click()
    expect(page.locator("#lab-head_dim")).to_have_value("256")
    expect(page.locator("#lab-scale")).to_have_value("1")


def test_a_link_to_one_figure_leaves_the_others_as_they_are_now(open_page: OpenPage) -> None:
    """Links in the text know nothing of them, and those inside a figure only what was so when it was drawn.
    What was typed and not sent stays as well."""
    page = open_page("/en/concepts/sqrt-dk/?width=16", width=1280)
    page.locator("#spread-d").fill("256")
    expect(page.locator("#spread-status")).to_contain_text("At d = 256 the scores spread by 1")
    typed = page.locator("form.ask input[type=text]").first
    typed.fill("3")
    page.get_by_role("link", name="See it").click()
    expect(page).to_have_url(re.compile(r"s=\[\[16\],.*#saturation"))
    expect(page.locator("#saturation-s11")).to_have_value("16")
    expect(page.locator("#spread-d")).to_have_value("256")
    expect(page.locator("#stack-width")).to_have_value("16")
    expect(typed).to_have_value("3")


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_scores_of_one_query_and_four_keys(open_page: OpenPage, width: int, javascript: bool) -> None:
    page = open_page("/en/concepts/scoring/", width=width, javascript=javascript)
    status = page.locator("#matches-status")
    expect(status).to_contain_text("By dot product the best match is key 2, with 5")
    page.locator("#matches-stretch").fill("2")
    page.locator("#matches-score").get_by_text("cosine", exact=True).click()
    if not javascript:
        page.locator("#matches").get_by_role("button", name="Compute").click()
    expect(status).to_contain_text("By cosine the best match is key 1, with 0.992")
    page.locator("#costs-hidden").fill("128")
    if not javascript:
        page.locator("#costs").get_by_role("button", name="Compute").click()
    expect(page.locator("#costs-status")).to_contain_text("take 4.25 times the multiply-adds")
    expect(page).to_have_url(re.compile("score=cosine&stretch=2"))
    page.locator("#matches-run a").click()
    expect(page.locator("#lab-option_score")).to_have_value("cosine")
    expect(page.locator("#lab-k")).to_have_value(re.compile(r"\[3, ?2\]"))


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_keys_are_drawn_and_a_window_moves(open_page: OpenPage, width: int, javascript: bool) -> None:
    page = open_page("/en/concepts/soft-hard-local/", width=width, javascript=javascript)
    page.locator("#hard-draws").fill("2000")
    page.locator("#hard-baseline").get_by_text("least variance").click()
    if not javascript:
        page.locator("#hard").get_by_role("button", name="Compute").click()
    expect(page.locator("#hard-status")).to_contain_text("2,000 draws answer 2.3")
    expect(page.locator("#hard-status")).to_contain_text("with the chosen one 1.25")
    page.locator("#window-reach").fill("32")
    if not javascript:
        page.locator("#window").get_by_role("button", name="Compute").click()
    expect(page.locator("#window-status")).to_contain_text("has 32 of 32 keys and 1 of the global weight")
    expect(page).to_have_url(re.compile("draws=2000&baseline=optimal"))
    page.locator("#window-run a").click()
    expect(page.locator("#lab-option_half_width")).to_have_value("32")


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_slopes_fade_and_an_alignment_is_read_by_columns(
    open_page: OpenPage, width: int, javascript: bool
) -> None:
    page = open_page("/en/concepts/before-attention/", width=width, javascript=javascript)
    page.locator("#paths-gain").fill("1.5")
    page.locator("#paths-causal").check()
    if not javascript:
        page.locator("#paths").get_by_role("button", name="Compute").click()
    expect(page.locator("#paths-status")).to_contain_text(
        "49 steps through the recurrence, and the slope is 0.5;"
    )
    expect(page.locator("#paths-view")).to_contain_text("1,275")
    page.locator("#translation-by").get_by_text("each column").click()
    if not javascript:
        page.locator("#translation").get_by_role("button", name="Compute").click()
    page.locator("#translation").get_by_role("link", name="la, Area:").click()
    expect(page.locator("#translation .lines p:visible")).to_contain_text("“la” gives “Area” 0.265")
    for said in ("gain=1.5", "causal=1", "by=columns", "cell=1,4"):
        expect(page).to_have_url(re.compile(said))
    page.locator("#translation-run a").click()
    expect(page.locator("#lab-scale")).to_have_value("4")


def test_a_cell_that_is_chosen_while_an_answer_is_on_its_way_stays(open_page: OpenPage) -> None:
    page = open_page("/en/concepts/before-attention/")
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/figure/translation.html*", hold)
    page.locator("#translation-by").get_by_text("each column").click()
    expect(page.locator(".htmx-request")).to_have_count(1)
    page.locator("#translation").get_by_role("link", name="la, Area:").click()
    expect(page).to_have_url(re.compile("cell=1,4"))
    held[0].continue_()
    expect(page.locator("#translation .lines p:visible")).to_contain_text("“la” gives “Area” 0.265")
    expect(page).to_have_url(re.compile("by=columns"))
    expect(page).to_have_url(re.compile("cell=1,4"))


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_words_are_projected_and_read_backwards(open_page: OpenPage, width: int, javascript: bool) -> None:
    page = open_page("/en/concepts/self-and-cross/", width=width, javascript=javascript)
    figure, status = page.locator("#projections"), page.locator("#projections-status")
    expect(status).to_contain_text("Read backwards, every word keeps its output")

    def compute() -> None:
        if not javascript:
            figure.get_by_role("button", name="Compute").click()

    figure.get_by_label("self-attention, causal").check()
    compute()
    expect(status).to_contain_text("“bit” gets another output")
    figure.get_by_label("cross-attention", exact=True).check()
    compute()
    expect(status).to_contain_text("every word keeps its output")
    expect(figure.get_by_role("rowheader", name="chien").first).to_be_visible()
    page.locator("#projections-text").fill("one two")
    compute()
    expect(figure.get_by_role("rowheader", name="two").first).to_be_visible()
    expect(page).to_have_url(re.compile("text=one.two&kind=cross"))


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_program_is_repaired_line_by_line(open_page: OpenPage, width: int, javascript: bool) -> None:
    """A repair turns an error into a wrong result, the next one that into the right one."""
    page = open_page("/en/concepts/sdpa-in-code/", width=width, javascript=javascript)
    figure, status = page.locator("#snippet"), page.locator("#snippet-status")
    expect(status).to_contain_text("20 of 20 weights are wrong. Of 11 inputs 2 come out right")

    def compute() -> None:
        if not javascript:
            figure.get_by_role("button", name="Compute").click()

    def tick(label: str) -> None:
        figure.get_by_label(label, exact=True).check()
        compute()

    figure.get_by_label("Input", exact=True).select_option("two new tokens and a cache, causal")
    compute()
    expect(status).to_contain_text("it stops with an error")
    expect(figure.get_by_text("RuntimeError: The size of tensor a (5)")).to_be_visible()
    tick("A mask of n × m")
    expect(status).to_contain_text("9 of 10 weights are wrong")
    expect(figure.locator("td.painted")).to_have_count(9)
    expect(figure.locator(".line.wrong")).to_have_count(1)
    tick("Let the last query see all")
    expect(status).to_contain_text("causal: right. Of 11 inputs 3 come out right")
    expect(figure.locator(".line.mended")).to_contain_text("device=q.device).triu(1 + m - n)")
    expect(page).to_have_url(re.compile("case=cache&(.*&)?shape=1&(.*&)?corner=1"))
    page.get_by_role("link", name="Repair everything").click()
    expect(status).to_contain_text("Of 11 inputs 11 come out right")
    page.locator("#snippet-run a").click()
    expect(page.locator("#lab-causal")).to_be_checked()


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
def test_a_term_says_what_it_means_where_it_is_used_first(open_page: OpenPage, javascript: bool) -> None:
    page = open_page("/en/concepts/sqrt-dk/", javascript=javascript)
    term, means = page.get_by_role("link", name="temperature"), page.locator("#means-temperature")
    expect(term).to_have_accessible_description(re.compile("^What scores are divided by"))
    expect(means).to_be_hidden()
    term.hover()
    expect(means).to_be_visible()
    means.hover()
    expect(means).to_be_visible()
    if javascript:
        page.keyboard.press("Escape")
        expect(means).to_be_hidden()
        page.mouse.move(0, 0)
        term.focus()
        expect(means).to_be_visible()
    term.click()
    expect(page).to_have_url(re.compile("/concepts/glossary/#term-temperature$"))
    expect(page.locator(":target")).to_contain_text("temperature")


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_meter_counts_what_a_longer_text_costs(open_page: OpenPage, width: int, javascript: bool) -> None:
    page = open_page("/en/concepts/quadratic/", width=width, javascript=javascript)
    figure, status = page.locator("#meter"), page.locator("#meter-status")

    def compute() -> None:
        if not javascript:
            figure.get_by_role("button", name="Compute").click()

    expect(status).to_contain_text("the n² part is 14.3\u202f% of the operations")
    page.locator("#meter-n").fill("24576")
    compute()
    expect(status).to_contain_text("the n² part is 50\u202f% of the operations")
    figure.get_by_label("Leave out masked pairs").check()
    compute()
    expect(status).to_contain_text("It is half of them at 49,151 tokens")
    expect(figure.get_by_role("row", name="one head 1.1 GiB")).to_be_visible()
    expect(page).to_have_url(re.compile("n=24576&.*causal=1"))
    page.locator("#meter-run a").click()
    expect(page.locator("#lab-q_len")).to_have_value("1024")
    expect(page.locator("#lab-causal")).to_be_checked()


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_slopes_leave_windows_and_a_sign_turns_them_over(
    open_page: OpenPage, width: int, javascript: bool
) -> None:
    page = open_page("/en/concepts/alibi/", width=width, javascript=javascript)
    status, row = page.locator("#penalty-status"), page.locator("#row")

    def compute(figure: str) -> None:
        if not javascript:
            page.locator(f"#{figure}").get_by_role("button", name="Compute").click()

    expect(status).to_contain_text("6 of 8 heads give 99")
    page.locator("#penalty-tokens").fill("1024")
    compute("penalty")
    expect(status).to_contain_text("7 of 8 heads")
    page.locator("#penalty-heads").fill("12")
    compute("penalty")
    expect(page.locator("#penalty").get_by_role("row", name="9 0.7071 7")).to_be_visible()
    row.get_by_label("both sides").check()
    compute("row")
    page.locator("#row-query").fill("5")
    compute("row")
    expect(page.locator("#row-status")).to_contain_text("stands 3 from query 5")
    row.get_by_label("without a mask").check()
    compute("row")
    expect(page.locator("#row-status")).to_contain_text("What comes later gains")
    for said in ("tokens=1024", "heads=12", "form=signed", "query=5"):
        expect(page).to_have_url(re.compile(said))
    page.locator("#row-run a").click()
    expect(page.locator("#lab-alibi_slopes")).to_have_value("auto")
    expect(page.locator("#lab-causal")).not_to_be_checked()


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_tiles_are_read_one_by_one_and_parts_are_merged(
    open_page: OpenPage, width: int, javascript: bool
) -> None:
    page = open_page("/en/concepts/online-softmax/", width=width, javascript=javascript)
    figure, status = page.locator("#online"), page.locator("#online-status")

    def compute(name: str) -> None:
        if not javascript:
            page.locator(f"#{name}").get_by_role("button", name="Compute").click()

    expect(status).to_contain_text("Tile 2 raises m from 1 to 3")
    page.locator("#online-at").fill("7")
    compute("online")
    expect(status).to_contain_text("Tile 4 raises m from 3 to 5")
    expect(figure.locator("td.painted")).to_have_count(0)
    figure.get_by_label("O is not rescaled").check()
    compute("online")
    expect(status).to_contain_text("O ∕ ℓ = 9.4821; right is 1.0775")
    expect(figure.locator("td.painted")).to_have_count(6)
    page.locator("#merge").get_by_label("their numbers of keys").check()
    compute("merge")
    expect(page.locator("#merge-status")).to_contain_text("averaged: 2.6045. Right is 1.0775")
    expect(status).to_contain_text("9.4821")
    figure.get_by_role("link", name="tile 2").click()
    expect(status).to_contain_text("Tile 2 raises m")
    figure.get_by_label("score 1", exact=True).fill("90")
    figure.get_by_label("nothing is subtracted").check()
    compute("online")
    expect(status).to_contain_text("O ∕ ℓ = NaN; right is 8")
    page.locator("#online-run a").click()
    expect(page.locator("#lab-k")).to_have_value(re.compile(r"\[90\]"))


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_bytes_are_counted_for_a_head_and_a_gpu(open_page: OpenPage, width: int, javascript: bool) -> None:
    page = open_page("/en/concepts/memory-hierarchy/", width=width, javascript=javascript)
    status = page.locator("#traffic-status")

    def compute(name: str) -> None:
        if not javascript:
            page.locator(f"#{name}").get_by_role("button", name="Compute").click()

    expect(status).to_contain_text("The first waits for memory, the second for arithmetic")
    page.locator("#traffic-d").fill("128")
    compute("traffic")
    expect(status).to_contain_text("that tiles move. The first waits for memory, the second for memory")
    page.locator("#traffic").get_by_label("from the L2 cache").check()
    compute("traffic")
    expect(status).to_contain_text("the second for arithmetic")
    page.locator("#levels").get_by_label("H100 SXM").check()
    compute("levels")
    expect(page.locator("#levels-status")).to_contain_text("All 132 multiprocessors together have 33 MiB")
    page.locator("#accesses-width").fill("256")
    compute("accesses")
    expect(page.locator("#accesses-status")).to_contain_text("M/d² is 0.8")
    page.locator("#traffic-run a").click()
    expect(page.locator("#lab-head_dim")).to_have_value("128")


@accessible.LOOKS
@pytest.mark.parametrize("slug", PAGES)
def test_pages_are_accessible_and_fit(open_page: OpenPage, slug: str, width: int, scheme: str) -> None:
    page = open_page(f"/en/concepts/{slug}/", width=width, scheme=scheme)
    accessible.check(page)


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_misconception_is_found_and_seen(open_page: OpenPage, width: int, javascript: bool) -> None:
    page = open_page("/en/concepts/misconceptions/", width=width, javascript=javascript)
    page.get_by_label("Those with these words").fill("falcon mqa")
    if not javascript:
        page.get_by_role("button", name="Find").click()
    claims = page.locator(".claims article")
    expect(claims.first).to_contain_text("so Falcon-180B is MQA")
    expect(page).to_have_url(re.compile(r"/misconceptions/\?find=falcon(%20|\+)mqa$"))
    expect(page.locator("#claims-count")).to_have_text(re.compile(rf"^{claims.count()} claims?$"))
    claims.first.locator(".wrong-claim a").click()
    expect(page).to_have_url(re.compile("/concepts/mqa-gqa-mla/#wrong-multi-query-true"))
