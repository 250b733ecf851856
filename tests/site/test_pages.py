"""What every page of the reader's side owes: no inline code, no query, no outside request."""

import os
import re
import subprocess
import sys
from functools import cache
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import brotli
import pytest
from django.contrib.staticfiles import finders
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from concepts.pages import book

ADDRESSES = [
    "/en/",
    "/en/?angle=200&length=9",
    "/en/changes/",
    "/en/paths/",
    "/en/paths/serving-an-llm/",
    "/en/paths/for-instructors/",
    "/en/concepts/masks/?path=in-an-hour",
    *(f"/en/concepts/{slug}/" for slug in book("en").pages),
]
EVERY_PAGE = pytest.mark.parametrize("address", ADDRESSES)
ROOT = Path(__file__).resolve().parents[2]


class Tags(HTMLParser):
    """Every start tag with its attributes, and whether a <script> or <style> has content. JSON-LD is data,
    in an element whose type is no script."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.inline: list[str] = []
        self.inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        is_data = ("type", "application/ld+json") in attrs
        self.inside = tag if tag in ("script", "style") and not is_data else ""

    def handle_data(self, data: str) -> None:
        if self.inside and data.strip():
            self.inline.append(data)

    def all(self, name: str) -> list[str]:
        return [attrs[name] for _, attrs in self.tags if name in attrs]


@cache
def served(address: str) -> HttpResponse:
    """A page, which depends on nothing but its address: made once for all that is asked of it."""
    response = Client().get(address)
    assert response.status_code == 200, address
    return response


def html_of(address: str) -> str:
    return served(address).content.decode()


@cache
def tags_of(address: str) -> Tags:
    return Tags(html_of(address))


@cache
def compressed(name: str) -> int:
    """Bytes of a static file as it is served."""
    path = finders.find(name)
    assert path, f"{name} is not there"
    raw = Path(path).read_bytes()
    return len(raw) if name.endswith(".woff2") else len(brotli.compress(raw))


@EVERY_PAGE
def test_no_inline_style_script_or_handler(address: str) -> None:
    page = tags_of(address)
    assert page.inline == []
    assert "style" not in [tag for tag, _ in page.tags]
    names = {name for _, attrs in page.tags for name in attrs}
    assert not [name for name in names if name == "style" or name.startswith(("on", "hx-on"))]


@EVERY_PAGE
def test_nothing_is_loaded_from_elsewhere(address: str) -> None:
    for tag, attrs in tags_of(address).tags:
        loaded = attrs.get("src") or (attrs.get("href") if tag in ("link", "use", "image") else "")
        assert not loaded or loaded.startswith("/"), (tag, loaded)
    policy = served(address)["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "http" not in policy


@EVERY_PAGE
def test_ids_are_unique_and_references_to_them_hold(address: str) -> None:
    page = tags_of(address)
    ids = page.all("id")
    assert sorted(set(ids)) == sorted(ids)
    for name in ("for", "aria-labelledby", "aria-describedby"):
        for value in page.all(name):
            assert set(value.split()) <= set(ids), (name, value)


@EVERY_PAGE
def test_every_input_has_a_label(address: str) -> None:
    page = tags_of(address)
    labels = set(page.all("for"))
    for tag, attrs in page.tags:
        # A slider that only moves the number box beside it is for pointers: nobody else is told of it.
        is_spoken = attrs.get("type") != "hidden" and attrs.get("aria-hidden") != "true"
        if tag in ("input", "select", "textarea") and is_spoken:
            assert attrs["id"] in labels


@EVERY_PAGE
def test_a_page_says_its_language_title_and_purpose(address: str) -> None:
    html = html_of(address)
    assert '<html lang="en"' in html
    assert re.search(r'<meta name="description" content="[^"]{40,}"', html)
    assert html.count("<h1") == 1
    assert 'class="skip" href="#content"' in html


def test_titles_are_unique() -> None:
    titles = [re.findall(r"<title>(.*?)</title>", html_of(a))[0] for a in ADDRESSES if "?" not in a]
    assert len(set(titles)) == len(titles)


@EVERY_PAGE
def test_static_files_exist_and_stay_within_the_budget(address: str) -> None:
    """Everything that a first visit loads, compressed as it is served: 150 KB in all, 30 KB of script."""
    page = tags_of(address)
    files = {
        path.removeprefix("/static/")
        for path in page.all("src") + page.all("href")
        if path.startswith("/static/")
    }
    fonts = {f"fonts/{path.name}" for path in (ROOT / "static" / "fonts").glob("*.woff2")}
    sizes = {"": len(brotli.compress(served(address).content, quality=5))}
    for name in files | fonts:
        sizes[name] = compressed(name)
    assert sum(sizes.values()) <= 150_000, sizes
    assert sum(size for name, size in sizes.items() if name.endswith(".js")) <= 30_000, sizes


def test_fonts_and_other_files_named_by_the_styles_exist() -> None:
    for sheet in (ROOT / "static" / "css").glob("*.css"):
        text = sheet.read_text()
        assert "@import" not in text
        for name in re.findall(r'url\("([^"]+)"\)', text):
            assert (sheet.parent / name).resolve().is_file(), (sheet.name, name)


def test_the_maths_font_keeps_its_math_table() -> None:
    from fontTools.ttLib import TTFont

    font = TTFont(ROOT / "static" / "fonts" / "stix-two-math.woff2")
    assert "MATH" in font
    covered = font.getBestCmap()
    html = "".join(
        piece for page in book("en").pages.values() for piece in page.pieces if isinstance(piece, str)
    )
    formulas = "".join(re.findall(r"<math.*?</math>", html, re.DOTALL))
    missing = {
        char for char in unescape(re.sub(r"<[^>]+>", "", formulas)) if ord(char) not in covered and char > " "
    }
    assert not missing


def test_the_home_page_lists_every_concept_and_links_the_written_ones(client: Client) -> None:
    html = client.get("/en/").content.decode()
    for part in book("en").parts:
        for entry in part.entries:
            address = reverse("concepts:concept", args=[entry.slug])
            assert (f'href="{address}"' in html) == entry.written
    assert html.count("<li>") >= sum(len(part.entries) for part in book("en").parts)


def test_the_root_leads_to_the_language_of_the_reader(client: Client) -> None:
    assert client.get("/")["Location"] == "/en/"
    assert client.get("/", headers={"Accept-Language": "xx"})["Location"] == "/en/"


@pytest.mark.parametrize(
    "query", ["angle=nan", "angle=1e999", "length=-5", "length=abc", "angle=&length=", "angle=" + "9" * 4000]
)
def test_the_home_figure_survives_any_query(client: Client, query: str) -> None:
    assert client.get(f"/en/?{query}").status_code == 200
    data = client.get(f"/en/figure/compass.json?{query}").json()
    assert sum(data["weights"]) == pytest.approx(1)
    assert client.get(f"/en/figure/compass.html?{query}", headers={"HX-Request": "true"}).status_code == 200
    assert client.get(f"/en/figure/compass.svg?{query}").status_code == 200


def test_missing_pages_answer_in_the_form_that_was_asked_for(client: Client) -> None:
    page = client.get("/en/concepts/no-such-concept/")
    assert page.status_code == 404
    assert "There is no such page" in page.content.decode()
    assert client.get("/en/concepts/by-hand/figure/compass.json").status_code == 404
    unwritten = [entry for part in book("en").parts for entry in part.entries if not entry.written]
    assert all(client.get(f"/en/concepts/{entry.slug}/").status_code == 404 for entry in unwritten)
    problem = client.get("/api/no-such-thing")
    assert problem.status_code == 404
    assert problem["Content-Type"].startswith("application/problem+json")


def test_other_methods_are_refused(client: Client) -> None:
    assert client.post("/en/").status_code == 405


def test_an_error_of_ours_gets_a_page_that_needs_nothing(rf) -> None:
    from config import errors

    answer = errors.server_error(rf.get("/en/"))
    assert answer.status_code == 500
    assert b"Something broke on our side" in answer.content


def test_a_form_without_its_cookie_gets_our_own_page() -> None:
    answer = Client(enforce_csrf_checks=True).post("/en/lab/", {})
    assert answer.status_code == 403
    assert "The form has grown stale" in answer.content.decode()


def test_robots_may_read_everything_but_runs(client: Client) -> None:
    text = client.get("/robots.txt").content.decode()
    assert "Disallow: /en/lab/runs/" in text


SERVE_ONE_PAGE = """
import sys
import django
from django.conf import settings
settings.STORAGES["staticfiles"] = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
django.setup()
from django.http import HttpResponse
from django.test import Client
assert Client(SERVER_NAME="localhost").get("/en/concepts/by-hand/").status_code == 200
print(*sorted({"torch", "triton"} & sys.modules.keys()))
"""


def test_serving_a_concept_loads_no_torch() -> None:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "site")])
    done = subprocess.run(
        [sys.executable, "-c", SERVE_ONE_PAGE],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
