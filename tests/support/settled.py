"""When what was asked for has come: texts beside a part are put in place before the part itself is."""

from playwright.sync_api import Page, expect

UNDER_WAY = ".htmx-request, .htmx-swapping, .htmx-settling, .htmx-added"


def settled(page: Page) -> None:
    """Wait until nothing is on its way or being put in its place: before keys are pressed there."""
    expect(page.locator(UNDER_WAY)).to_have_count(0)
