"""What the site says of itself to programs: search engines, feed readers, those who show a shared link."""

import json
import re
import struct
import xml.etree.ElementTree as ET
import zlib
from pathlib import Path

import numpy as np
import pytest
from django.conf import settings
from django.test import Client

from concepts import changes, described
from concepts.errors import ContentError
from concepts.pages import book
from concepts.paths import trails

BOOK = book("en")
ATOM = {"a": "http://www.w3.org/2005/Atom"}
SITEMAP = {
    "s": "http://www.sitemaps.org/schemas/sitemap/0.9",
    "x": "http://www.w3.org/1999/xhtml",
}
HOST = "http://testserver"
EVERY_PAGE = pytest.mark.parametrize("slug", BOOK.pages)


def sitemap(client: Client) -> ET.Element:
    answer = client.get("/sitemap.xml")
    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("application/xml")
    return ET.fromstring(answer.content)


def test_the_sitemap_has_every_page_in_each_language_and_all_can_be_opened(client: Client, db: None) -> None:
    found = [place.text or "" for place in sitemap(client).findall("s:url/s:loc", SITEMAP)]
    assert len(set(found)) == len(found)
    for code, _name in settings.LANGUAGES:
        for slug in BOOK.pages:
            assert f"{HOST}/{code}/concepts/{slug}/" in found
        for slug in trails(code):
            assert f"{HOST}/{code}/paths/{slug}/" in found
        assert f"{HOST}/{code}/problems/by-hand/" in found
    for address in found:
        if "/concepts/" not in address:  # those are opened by tests of their own
            assert client.get(address.removeprefix(HOST)).status_code == 200, address


def test_the_sitemap_names_the_other_languages_of_a_page(client: Client) -> None:
    for url in sitemap(client).findall("s:url", SITEMAP):
        links = url.findall("x:link[@rel='alternate']", SITEMAP)
        assert {link.get("hreflang") for link in links} == {code for code, _name in settings.LANGUAGES}


def test_robots_find_the_sitemap_and_what_is_private_is_in_it_nowhere(client: Client) -> None:
    robots = client.get("/robots.txt").content.decode()
    assert f"Sitemap: {HOST}/sitemap.xml" in robots.split("\n")
    refused = re.findall(r"Disallow: (\S+)", robots)
    places = [(place.text or "").removeprefix(HOST) for place in sitemap(client).iter() if place.text]
    assert refused
    assert not [place for place in places if place.startswith(tuple(refused))]


def test_the_feed_has_the_changes_newest_first(client: Client) -> None:
    answer = client.get("/en/changes.atom")
    assert answer["Content-Type"].startswith("application/atom+xml")
    feed = ET.fromstring(answer.content)
    entries = feed.findall("a:entry", ATOM)
    assert [entry.findtext("a:title", "", ATOM) for entry in entries] == [
        change.title for change in changes.changes("en")
    ]
    dates = [entry.findtext("a:updated", "", ATOM) for entry in entries]
    assert dates == sorted(dates, reverse=True)
    ids = [entry.findtext("a:id", "", ATOM) for entry in entries]
    assert len(set(ids)) == len(ids)
    page = client.get("/en/changes/").content.decode()
    for entry in entries:
        link = entry.find("a:link", ATOM)
        assert link is not None
        place, _, anchor = link.get("href", "").partition("#")
        assert place == f"{HOST}/en/changes/"
        assert f'id="{anchor}"' in page


def test_every_page_says_where_the_feed_is(client: Client) -> None:
    for address in ("/en/", "/en/concepts/masks/", "/en/lab/"):
        html = client.get(address).content.decode()
        assert '<link rel="alternate" type="application/atom+xml" href="/en/changes.atom"' in html


@pytest.mark.parametrize(
    ("mend", "says"),
    [
        (("[by-hand]", "[by-hnad]"), "changes.yaml:6: two: there is no page by-hnad"),
        (("2026-01-01", "2026-01-03"), "changes.yaml:6: two is newer than the one above it"),
        (("name: two", "name: one"), "one is there twice"),
        (
            ("text: Words.", "words: Words."),
            "changes.yaml:2: one: Change.__init__() got an unexpected keyword argument 'words'",
        ),
    ],
)
def test_mistakes_in_the_list_of_changes_are_told(tmp_path: Path, mend: tuple[str, str], says: str) -> None:
    written = """- date: 2026-01-02
  name: one
  title: One
  text: Words.
- date: 2026-01-01
  name: two
  title: Two
  text: Words.
  pages: [by-hand]
"""
    file = tmp_path / "changes.yaml"
    file.write_text(written)
    assert [change.name for change in changes.load(file, BOOK)] == ["one", "two"]
    file.write_text(written.replace(*mend))
    with pytest.raises(ContentError, match=re.escape(says)):
        changes.load(file, BOOK)


@EVERY_PAGE
def test_a_page_describes_itself(client: Client, slug: str) -> None:
    page = BOOK.pages[slug]
    html = client.get(f"/en/concepts/{slug}/").content.decode()
    found = re.findall(r'<script type="application/ld\+json">(.*?)</script>', html)
    assert len(found) == 1
    assert not set("<>&") & set(found[0])
    data = json.loads(found[0])
    assert data["@type"] == "LearningResource"
    assert data["name"] == page.title
    assert data["url"] == f"{HOST}/en/concepts/{slug}/"
    assert [work["url"] for work in data["citation"]] == [source.url for source in page.sources]
    assert not re.search(r"<|annotation|\\", " ".join(data["teaches"]))
    tags = dict(re.findall(r'<meta property="(og:[a-z:_]+)" content="([^"]*)"', html))
    assert tags["og:url"] == data["url"]
    assert tags["og:title"]
    assert tags["og:image"] == f"{HOST}/card.png"


def test_nothing_in_a_description_ends_its_element() -> None:
    from dataclasses import replace

    page = replace(BOOK.pages["masks"], title="</script><b>&")
    script = described.script(page, BOOK, "https://lab.example")
    assert "<" not in script
    assert json.loads(script)["name"] == "</script><b>&"


def test_the_card_is_the_weights_of_the_example(client: Client) -> None:
    """Read back by hand: nine squares, each as dark as its weight is large."""
    answer = client.get("/card.png")
    assert answer["Content-Type"] == "image/png"
    data, chunks, at = answer.content, {}, 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        chunks[data[at + 4 : at + 8]] = data[at + 8 : at + 8 + length]
        at += length + 12
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    assert (width, height) == (1200, 630)
    pixels = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)[:, 1:]
    palette = np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)
    middle = [[palette[pixels[315 + 168 * i, 600 + 168 * j]].sum() for j in (-1, 0, 1)] for i in (-1, 0, 1)]
    q = k = np.array([[1, 0], [0, 1], [1, 1]])
    scores = np.exp(q @ k.T / np.sqrt(2))
    weights = scores / scores.sum(1, keepdims=True)
    order = np.argsort(-weights.round(9), axis=None, kind="stable")
    assert (np.diff(np.array(middle, int).ravel()[order]) >= 0).all()
