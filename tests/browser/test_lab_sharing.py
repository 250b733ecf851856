"""What leaves a run: its link, the commands that repeat it, a frame; and what a browser remembers of them."""

import ast
import http.server
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import WIDTHS
from tests.support import accessible
from tests.support.deployment import Lab

# Where each is, at one moment: pictures still come, and push the rest down. What is folded away is nowhere.
PLACES = """all => all.filter(one => one.checkVisibility({ contentVisibilityAuto: true }))
  .map(one => one.getBoundingClientRect()).map(({ top, bottom }) => [top, bottom])"""
pytestmark = pytest.mark.slow

OpenPage = Callable[..., Page]
BOTH = pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
RETURNED = ("out", "lse", "weights")
TYPED = {
    "q": [[3, 0, -1], [0.25, 1, 2]],
    "k": [[1, 0, 0.5], [0, 1, 1], [1, 1, -2], [0, 0, 1]],
    "v": [[1, 0], [0, 2], [2, 2], [-1, 3]],
}


@pytest.fixture(scope="module")
def run(sqlite_lab: Lab) -> dict:
    body = {
        "engine": "flash",
        "inputs": TYPED,
        "attention": {"is_causal": True, "softcap": 3.0},
        "return": list(RETURNED),
    }
    found = sqlite_lab.post_run(body, wait=60).json()
    assert found["status"] == "succeeded", found
    return found


def address(run: dict) -> str:
    return f"/en/lab/runs/{run['id']}/"


def snippet(page: Page, name: str) -> str:
    text = page.locator(f"#{name}").text_content()
    assert text
    return text


def numbers(run: dict) -> dict[str, list]:
    return {name: run["result"][name] for name in RETURNED}


@BOTH
def test_no_part_of_the_page_lies_on_another(open_page: OpenPage, run: dict, width: int) -> None:
    page = open_page(address(run), width=width)
    expect(page.locator("#share")).to_be_visible()
    boxes = page.locator("main h2, #share p").evaluate_all(PLACES)
    for above, below in pairwise(boxes):
        assert above[1] <= below[0], (above, below)


@BOTH
@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
def test_a_link_opens_the_same_in_a_clean_browser(
    open_page: OpenPage, run: dict, width: int, javascript: bool
) -> None:
    mine = open_page(address(run), width=width, javascript=javascript)
    link = mine.locator("#share a").first.get_attribute("href")
    assert link
    theirs = open_page(address(run), width=width, javascript=javascript)
    theirs.goto(link)
    for page in (mine, theirs):
        expect(page.locator(".verdict.good")).to_be_visible()
    cell = "#cell"
    assert mine.locator(cell).inner_text() == theirs.locator(cell).inner_text()
    assert theirs.context.cookies() == [] or all(
        cookie["name"] != "lab_history" for cookie in theirs.context.cookies()
    )


def test_curl_repeats_the_run_to_the_last_bit(open_page: OpenPage, run: dict) -> None:
    command = snippet(open_page(address(run), javascript=False), "curl")
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=90, check=True)
    again = json.loads(done.stdout)
    assert again["status"] == "succeeded"
    assert again["id"] != run["id"]
    assert numbers(again) == numbers(run)


def test_python_with_requests_repeats_the_run_to_the_last_bit(open_page: OpenPage, run: dict) -> None:
    program = snippet(open_page(address(run), javascript=False), "requests")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=90, check=True
    )
    status, result = done.stdout.split("\n", 1)
    assert status.startswith("succeeded http")
    assert numbers({"result": ast.literal_eval(result)}) == numbers(run)


def test_plain_pytorch_comes_to_the_same_within_the_bound(
    open_page: OpenPage, sqlite_lab: Lab, run: dict, tmp_path: Path
) -> None:
    page = open_page(address(run), javascript=False)
    program = snippet(page, "torch")
    file = sqlite_lab.get(f"/en/lab/runs/{run['id']}.npz")
    (tmp_path / f"{run['id']}.npz").write_bytes(file.body)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    with np.load(tmp_path / f"{run['id']}.npz", allow_pickle=False) as arrays:
        assert np.isfinite(arrays["out"]).all()
    said = [float(number) for number in re.findall(r"(\d(?:\.\d+)?e-\d+)", done.stdout)]
    pairs = list(
        zip(said[::2], said[1::2], strict=True)
    )  # of each result how far it is, and how far it may be
    assert len(pairs) == len(RETURNED), done.stdout
    assert all(difference <= bound for difference, bound in pairs)
    assert pairs[0][1] == pytest.approx(run["result"]["numerics"]["bound"], rel=0.01)


@BOTH
@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
def test_this_browser_remembers_what_it_ran_until_it_forgets(
    open_page: OpenPage, width: int, javascript: bool
) -> None:
    page = open_page("/en/lab/", width=width, javascript=javascript)
    page.get_by_role("button", name="Run it").click()
    page.wait_for_url("**/lab/runs/*/")
    run_id = page.url.rstrip("/").rpartition("/")[2]
    page.goto(page.url.partition("/lab/")[0] + "/lab/history/")
    entry = page.locator(f'a[href*="{run_id}"]')
    expect(entry).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_role("button", name=re.compile("^Forget (?!all)")).first.click()
    expect(entry).to_have_count(0)
    stranger = open_page("/en/lab/history/", width=width, javascript=javascript)
    expect(stranger.get_by_text("Nothing yet.")).to_be_visible()


@pytest.fixture
def elsewhere() -> Iterator[Callable[[str], str]]:
    """A server of another origin: give it a page, and it gives an address."""
    pages: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(pages[-1].encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def address_of(page: str) -> str:
        pages.append(page)
        return f"http://127.0.0.1:{server.server_port}/"

    yield address_of
    server.shutdown()
    server.server_close()


def test_the_frame_shows_the_run_in_another_page(
    browser: Browser, sqlite_lab: Lab, run: dict, elsewhere: Callable[[str], str]
) -> None:
    """On a page of another origin; any other page of ours refuses to be framed."""
    context = browser.new_context()
    page = context.new_page()
    frame = f'<iframe src="{sqlite_lab.url}{address(run)}{{}}" width="600" title="a run"></iframe>'
    page.goto(elsewhere(frame.format("embed/")))
    framed = page.frame_locator("iframe")
    expect(framed.locator(".embed-verdict")).to_contain_text("within the bound")
    expect(framed.locator("svg").first).to_be_visible()
    assert context.cookies() == []
    page.goto(elsewhere(frame.format("")))
    expect(page.frame_locator("iframe").locator(".verdict")).to_have_count(0)
    context.close()


@accessible.LOOKS
@pytest.mark.parametrize("path", ["embed/", "history"])
def test_pages_are_accessible_and_fit(
    open_page: OpenPage, run: dict, path: str, width: int, scheme: str
) -> None:
    page = open_page(
        "/en/lab/history/" if path == "history" else address(run) + path, width=width, scheme=scheme
    )
    accessible.check(page)
