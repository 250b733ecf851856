"""What every page holds to for everyone: axe finds nothing, and nothing hangs over the side."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
# Two of the four pairs meet every rule: contrast depends on the colours, the rest on the width.
LOOKS = pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])


def check(page: Page) -> None:
    """The page as it is now, with all that is folded open."""
    page.wait_for_load_state()  # a click returns as soon as the next document has begun
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    found = Axe().run(page, options={"runOnly": {"type": "tag", "values": RULES}}).response["violations"]
    assert not found, [
        (page.url, each["id"], each["help"], [node["html"][:200] for node in each["nodes"][:3]])
        for each in found
    ]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{page.url} scrolls sideways"
