"""The whole way of a reader in a real browser: change a number, run it on a worker, read the answer."""

import json
import math
import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import WIDTHS
from tests.support import accessible
from tests.support.deployment import Lab

pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]

Q = [[3, 0], [0, 1], [1, 1]]
K = [[1, 0], [0, 1], [1, 1]]
V = [[1, 0], [0, 2], [2, 2]]

EVERYTHING = ("out", "lse", "weights", "masked_scores")  # that has a kind of map of its own
BUDGET, SCRIPT_BUDGET = 150 * 1024, 30 * 1024


def attention() -> tuple[np.ndarray, np.ndarray]:
    """Output [3, 2] and log-sum-exp [3] of the edited example, by plain numpy."""
    scores = np.array(Q) @ np.array(K).T / math.sqrt(2)
    lse = np.log(np.exp(scores).sum(1))
    return np.exp(scores - lse[:, None]) @ np.array(V), lse


def edit_one_number(page: Page, *, javascript: bool) -> None:
    page.locator("#by-hand-q11").fill("3")
    if not javascript:
        page.get_by_role("button", name="Compute").click()
    run = page.locator("#by-hand-run a")
    expect(run).to_have_attribute("href", re.compile(re.escape("q=[[3,0],[0,1],[1,1]]")))
    run.click()


def numbers(page: Page) -> list[list[float]]:
    """The table of the output: log-sum-exp first, then the row."""
    rows = page.get_by_role("region", name="Output").locator("tbody tr").all()
    return [[float(text.replace("−", "-")) for text in row.locator("td").all_inner_texts()] for row in rows]


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_number_changed_on_the_concept_page_is_computed_by_a_worker(
    open_page: OpenPage, width: int, javascript: bool
) -> None:
    page = open_page("/en/concepts/by-hand/", width=width, javascript=javascript)
    edit_one_number(page, javascript=javascript)

    box = page.locator("#lab-q")
    expect(box).to_be_visible()
    assert json.loads(box.input_value()) == Q
    assert json.loads(page.locator("#lab-k").input_value()) == K
    page.get_by_role("button", name="Run it").click()

    page.wait_for_url("**/lab/runs/*/")
    loads: list[str] = []
    page.on("load", lambda _: loads.append("loaded"))
    expect(page.locator('#run[data-status="succeeded"]')).to_be_visible(timeout=60_000)
    if javascript:
        assert len(loads) <= 1, "the result came by a reload"  # the page itself may still be loading
    out, lse = attention()
    assert np.allclose(numbers(page), np.column_stack([lse, out]), atol=5.1e-5)
    expect(page.locator(".verdict.good")).to_be_visible()
    expect(page.get_by_text("Interpreter: not a speed")).to_be_visible()
    assert page.locator('[data-map="weights"] td a').count() == 9
    if javascript:
        assert page.evaluate("document.documentElement.scrollWidth") <= width

    page.get_by_role("link", name="Edit and run again").click()
    assert json.loads(page.locator("#lab-q").input_value()) == Q


def test_typing_updates_the_cost_and_names_what_is_wrong(open_page: OpenPage) -> None:
    page = open_page("/en/lab/")
    estimate = page.locator("#estimate")
    page.locator("#lab-q").fill("1 0\n0 1\n1 1\n2 2")
    expect(estimate).to_contain_text("4 queries, 3 keys")
    page.locator("#lab-q").fill("1 0\n0 oops")
    expect(estimate).to_contain_text("Line 2, column 3: “oops” is not a number.")
    page.get_by_label("Random, from a seed").check()
    expect(page.locator("#lab-heads")).to_be_visible()
    expect(page.locator("#lab-q")).to_be_hidden()
    expect(estimate).to_contain_text("4 heads, 64 queries")


def test_a_refused_form_keeps_what_was_typed(open_page: OpenPage) -> None:
    page = open_page("/en/lab/", javascript=False)
    page.locator("#lab-q").fill("1 0\n0 oops")
    page.get_by_role("button", name="Run it").click()
    expect(page.locator("#lab-q_error")).to_contain_text("oops")
    assert page.locator("#lab-q").input_value() == "1 0\n0 oops"


def linear_attention() -> np.ndarray:
    """Output [3, 2] of the worked example with elu(x) + 1 as features, by plain numpy."""
    q, k = (np.array([[1, 0], [0, 1], [1, 1]]) + 1.0 for _ in range(2))  # x > 0, where elu(x) is x
    weights = q @ k.T
    return weights / weights.sum(1, keepdims=True) @ np.array(V)


@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_another_engine_brings_its_options_and_says_what_it_found(
    open_page: OpenPage, width: int, javascript: bool
) -> None:
    page = open_page("/en/lab/", width=width, javascript=javascript)
    page.get_by_label("Engine", exact=True).select_option("linear")
    if not javascript:
        page.get_by_role("button", name="Show its options").click()
    form = page.get_by_label("form", exact=True)
    expect(form).to_be_visible()
    expect(page.get_by_label("block_m", exact=True)).to_have_count(0)
    expect(page).to_have_url(re.compile("engine=linear"))
    if javascript:
        expect(page.locator("#engine-status")).to_contain_text("feature_map, normalise, form, chunk_size")
    form.select_option("recurrent")
    page.locator("#lab-results summary").click()
    assert page.locator('#lab-results input[type="checkbox"]').count() == 3
    page.get_by_label(re.compile("^state ")).check()
    if javascript:
        expect(page).to_have_url(re.compile("option_form=recurrent"))
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_role("button", name="Run it").click()

    page.wait_for_url("**/lab/runs/*/")
    expect(page.locator('#run[data-status="succeeded"]')).to_be_visible(timeout=60_000)
    assert np.allclose(numbers(page), linear_attention(), atol=5.1e-5)
    expect(page.get_by_text("Against exact attention")).to_be_visible()
    found = page.locator("#found")
    expect(found.locator("dl > div").filter(has_text="what remains of all tokens")).to_contain_text(
        "24 bytes"
    )
    if javascript:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_role("navigation", name="Table").get_by_role("link", name="State").click()
    expect(page.get_by_role("region", name="State")).to_be_visible()

    page.get_by_role("link", name="Edit and run again").click()
    assert page.get_by_label("form", exact=True).input_value() == "recurrent"


def finished_run(lab: Lab, length: int, engine: str = "flash", returns: Sequence[str] = EVERYTHING,
                 **attention: object) -> str:  # fmt: skip
    """The path of a run with two heads."""
    seeded = {"seed": 5, "distribution": "peaked", "shape": [1, 2, length, 16]}
    body = {"engine": engine, "inputs": dict.fromkeys("qkv", seeded), "attention": attention,
            "return": [*returns]}  # fmt: skip
    run = lab.post_run(body, wait=60).json()
    assert run["status"] == "succeeded", run
    return f"/en/lab/runs/{run['id']}/"


@pytest.fixture(scope="session")
def run_path(sqlite_lab: Lab) -> str:
    """A run with pictures, masked and not."""
    return finished_run(sqlite_lab, 66, is_causal=True)


@pytest.fixture(scope="session")
def heaviest_path(sqlite_lab: Lab) -> str:
    """A page with much to send: large pictures of noise, which nothing makes smaller."""
    seeded = {"seed": 5, "distribution": "normal", "shape": [1, 8, 512, 64]}
    run = sqlite_lab.post_run({"engine": "flash", "inputs": dict.fromkeys("qkv", seeded)}, wait=60).json()
    assert run["status"] == "succeeded", run
    return f"/en/lab/runs/{run['id']}/"


@pytest.fixture(scope="session")
def linear_path(sqlite_lab: Lab) -> str:
    """A run that found something beside its arrays."""
    return finished_run(sqlite_lab, 9, engine="linear", returns=["out"])


@pytest.fixture(
    params=["/en/", "/en/concepts/by-hand/", "/en/lab/", "/en/lab/?engine=linear", "run_path", "linear_path"]
)
def path(request: pytest.FixtureRequest) -> str:
    return request.param if request.param.startswith("/") else request.getfixturevalue(request.param)


def test_choosing_a_head_replaces_the_matrices_and_the_address(open_page: OpenPage, run_path: str) -> None:
    page = open_page(run_path)
    before = numbers(page)
    page.get_by_role("navigation", name="Head").get_by_role("link", name="1").click()
    expect(page).to_have_url(re.compile(r"head=1"))
    expect(page.locator('[aria-label="Head"] [aria-current]')).to_have_text("1")
    assert numbers(page) != before


@accessible.LOOKS
def test_axe_finds_nothing(open_page: OpenPage, path: str, scheme: str, width: int) -> None:
    page = open_page(path, scheme=scheme, width=width)
    accessible.check(page)


@pytest.mark.parametrize(
    "path",
    ["/en/", "/en/concepts/by-hand/", "/en/lab/", "/en/lab/?engine=linear", "heaviest_path"],
    indirect=True,
)
def test_a_first_visit_stays_within_its_budget(browser: Browser, sqlite_lab: Lab, path: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 900})
    page = context.new_page()
    cdp = context.new_cdp_session(page)
    kinds: dict[str, str] = {}
    sizes: dict[str, float] = {}
    cdp.on("Network.responseReceived", lambda event: kinds.update({event["requestId"]: event["type"]}))
    cdp.on(
        "Network.loadingFinished",
        lambda event: sizes.update({event["requestId"]: event["encodedDataLength"]}),
    )
    cdp.send("Network.enable")
    page.goto(sqlite_lab.url + path, wait_until="networkidle")
    scripts = sum(size for request, size in sizes.items() if kinds.get(request) == "Script")
    context.close()
    print(f"{path}: {sum(sizes.values()) / 1024:.0f} KiB, of which script {scripts / 1024:.0f} KiB")
    assert sum(sizes.values()) <= BUDGET, f"{sum(sizes.values()):,.0f} bytes"
    assert scripts <= SCRIPT_BUDGET, f"{scripts:,.0f} bytes of script"
