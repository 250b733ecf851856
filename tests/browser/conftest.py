"""A real browser on the real product. Every request it makes is watched: none may leave the host."""

import shutil
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.support.deployment import Lab

QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync"]  # fmt: skip
# How long a page may take to show what is expected: not how fast it is, and two cores may be busy.
expect.set_options(timeout=20_000)
WIDTHS = {"phone": 390, "desktop": 1280}


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert path, "These tests need Chromium (Debian: apt-get install chromium)."
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=QUIET)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Browser, sqlite_lab: Lab) -> Iterator[Callable[..., Page]]:
    """`open_page(path, width=…, javascript=…, scheme=…)`; what a browser complains of fails the test."""
    contexts: list[BrowserContext] = []
    strangers: list[str] = []
    complaints: list[str] = []

    def watch(url: str) -> None:
        if (
            not url.startswith(("data:", "about:"))
            and urlsplit(url).netloc != urlsplit(sqlite_lab.url).netloc
        ):
            strangers.append(url)

    def complain(kind: str, text: str) -> None:
        refused = "status of 422" in text  # a form with a mistake: Chromium calls that answer an error
        # A newer request took the place of one under way (hx-sync), which htmx calls an error.
        replaced = text.startswith(("htmx:sendAbort", "htmx:afterRequest"))
        if kind in ("error", "warning") and not refused and not replaced:
            complaints.append(text)

    def open_page(path: str, *, width: int = 1280, javascript: bool = True, scheme: str = "light") -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            java_script_enabled=javascript,
            color_scheme=scheme,  # type: ignore[arg-type]
            reduced_motion="reduce",
        )
        contexts.append(context)
        context.on("request", lambda request: watch(request.url))
        page = context.new_page()
        page.on("console", lambda line: complain(line.type, line.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(sqlite_lab.url + path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not strangers, "requests that left the host"
    assert not complaints, "what the browser complained about"
