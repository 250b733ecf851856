"""The page of a run: what the web process takes for it and for its pictures, and a browser to draw them."""

import shutil

import pytest
from playwright.sync_api import sync_playwright

from tests.benchmarks.measure import Connection, line, median

FRESH = 5  # runs, each of which is computed anew
WATCHED = 20  # passes of a run that ends when its page has long been there


def submitted(lab, length, *, heads=8, seed=1, wait=60, iters=1):
    """The path of a run."""
    seeded = {"seed": seed, "shape": [1, heads, length, 64], "distribution": "normal"}
    body = {"engine": "flash", "inputs": dict.fromkeys("qkv", seeded), "return": ["out"],
            "timing": {"warmup": 0, "iters": iters}}  # fmt: skip
    run = lab.post_run(body, wait=wait).json()
    return f"/en/lab/runs/{run['id']}/"


@pytest.fixture
def browser():
    path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


def test_a_page_of_512_queries_with_its_head_computed_anew(sqlite_lab):
    connection, times = Connection(sqlite_lab.port), []
    for seed in range(FRESH):
        times.append(connection.ask("GET", submitted(sqlite_lab, 512, seed=seed))[0])
    print("\n" + line("run page, 8 heads of 512 × 64, first visit", times))
    assert median(times) <= 300


def test_a_picture_of_1024_squared(sqlite_lab):
    """The head is computed by then: encoding, sending."""
    connection = Connection(sqlite_lab.port)
    path = submitted(sqlite_lab, 1024, heads=1)
    connection.ask("GET", f"{path}look/")
    for name in ("scores", "weights"):
        times = [connection.ask("GET", f"{path}maps/{name}.png?theme=light")[0] for _ in range(20)]
        print("\n" + line(f"map of 1,024 × 1,024 as PNG: {name}", times))
        assert median(times) <= 200, name


@pytest.mark.parametrize("length", [1024, 4096])
def test_a_browser_decodes_a_picture(sqlite_lab, browser, length):
    """From the bytes to pixels: 4,096 × 4,096 numbers are a picture of 1,024 × 1,024 too."""
    path = submitted(sqlite_lab, length, heads=1)
    page = browser.new_page()
    page.goto(f"{sqlite_lab.url}{path}")
    page.wait_for_selector("[data-box][tabindex]", timeout=60_000)
    times = page.evaluate(
        """async () => {
          const found = [];
          const bytes = await (await fetch(document.querySelector("[data-box] img.only-light").src)).blob();
          for (let i = 0; i < 20; i++) {
            const began = performance.now();
            await createImageBitmap(bytes);
            found.push(performance.now() - began);
          }
          return found;
        }"""
    )
    nodes = page.evaluate("document.querySelectorAll('*').length")
    print("\n" + line(f"decoding the map of {length:,} × {length:,}", times) + f"   {nodes} elements")
    assert median(times) <= 200
    assert nodes < 5_000


def test_a_page_that_waits_is_interactive_soon_after_the_end(sqlite_lab, browser):
    """From the end of the run to matrices that take the keyboard, and pictures that are drawn."""
    times = []
    for seed in range(FRESH):
        path = submitted(sqlite_lab, 512, seed=100 + seed, wait=0, iters=WATCHED)
        page = browser.new_page()
        page.goto(f"{sqlite_lab.url}{path}")
        assert page.locator('#run[data-status="succeeded"]').count() == 0, "It ended before it was watched."
        times.append(page.evaluate(UNTIL_DRAWN))
        page.close()
    print("\n" + line("run page, 8 heads of 512 × 64: end to interactive", times))
    assert median(times) <= 300


# Milliseconds from the end of the run until its pictures are decoded and painted, as the page itself sees it.
UNTIL_DRAWN = """async () => {
  const box = '#run[data-status="succeeded"] [data-box][tabindex]';
  const isDrawn = () => {
    const shown = [...document.querySelectorAll(box + " img")].filter((one) => one.offsetParent);
    return shown.length && shown.every((one) => one.complete);
  };
  while (!isDrawn()) await new Promise(requestAnimationFrame);
  const ready = Date.now();
  const run = await (await fetch(location.pathname.replace(/.$/, ".json"))).json();
  return ready - Date.parse(run.finished_at);
}"""
