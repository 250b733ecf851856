"""The whole book on one page: all of it, nothing to operate, every name and every link in order."""

import re
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise

import brotli
import pytest
from django.test import Client

from concepts import static
from concepts.pages import book

BOOK = book("en")
ADDRESS = "/en/concepts/all/"


@pytest.fixture(scope="module")
def html() -> str:
    response = Client().get(ADDRESS)
    assert response.status_code == 200
    return response.content.decode()


def main(html: str) -> str:
    return html.partition("<main")[2].partition("</main>")[0]


def words(html: str) -> Counter[str]:
    html = re.sub(r"<math.*?</math>", " ", html, flags=re.DOTALL)
    return Counter(re.sub(r"<[^>]+>", " ", html).split())


def test_every_page_is_there_in_the_order_of_the_contents(html: str) -> None:
    titles = re.findall(r'<h3 id="([a-z0-9-]+)">', html)
    assert titles == list(BOOK.pages)


def test_no_word_of_a_page_is_lost(html: str) -> None:
    there = words(main(html))
    for page in BOOK.pages.values():
        text = "".join(piece for piece in page.pieces if isinstance(piece, str))
        text = re.sub(r'<span class="term-means".*?</span>', "", text, flags=re.DOTALL)
        assert not words(text) - there, page.slug


def test_a_name_is_there_once_and_what_is_named_is_there(html: str) -> None:
    ids = re.findall(r' id="([^"]*)"', html)
    assert [name for name, count in Counter(ids).items() if count > 1] == []
    for name in ("for", "aria-labelledby", "headers"):
        for value in re.findall(rf' {name}="([^"]*)"', html):
            assert set(value.split()) <= set(ids), value
    for target in re.findall(r'href="#([^"]*)"', html):
        assert target in ids, target
    for target in re.findall(r"url\(#([^)]*)\)", html):
        assert target in ids, target


def test_links_to_states_and_pages_lead_to_what_exists(client: Client, html: str) -> None:
    found = re.findall(r'href="([^"#?][^"]*)"', main(html))
    places = {re.split(r"[?#]", address)[0] for address in found}
    ours = sorted(place for place in places if place.startswith("/en/concepts/"))
    assert ours
    for place in ours:
        assert place.removeprefix("/en/concepts/").rstrip("/") in BOOK.pages
    assert not [place for place in places if not place.startswith(("/", "https://"))]


def test_there_is_nothing_to_operate_but_what_folds(html: str) -> None:
    assert not re.findall(r"<(?:form|input|button|select|label|textarea|script)\b", main(html))
    assert not re.findall(r"\s(?:hx-[a-z-]+|data-[a-z-]+|role=\"status\"|aria-live)[\s=>]", main(html))


def test_headings_go_down_one_by_one(html: str) -> None:
    levels = [int(level) for level in re.findall(r"<h([1-6])\b", main(html))]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_tags_are_closed_as_they_were_opened(html: str) -> None:
    stack: list[str] = []

    class Balance(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in static.VOID:
                stack.append(tag)

        def handle_endtag(self, tag: str) -> None:
            if tag not in static.VOID:
                assert stack.pop() == tag

    Balance().feed(main(html).partition(">")[2])
    assert stack == []


def test_it_is_of_a_size_that_a_phone_loads(html: str) -> None:
    assert len(brotli.compress(html.encode(), quality=5)) <= 600_000


def test_the_answers_of_questions_are_there(html: str) -> None:
    for page in BOOK.pages.values():
        for ask in page.asks:
            assert f'id="{page.slug}--{ask.field}"' in html
    assert html.count("The answer</summary>") == sum(len(page.asks) for page in BOOK.pages.values())


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ('<h2 id="a">A</h2>', '<h4 id="masks--a">A</h4>'),
        ('<a href="../by-hand/">x</a>', '<a href="#by-hand">x</a>'),
        ('<a href="../by-hand/#a">x</a>', '<a href="#by-hand--a">x</a>'),
        ('<a href="../by-hand/?cell=1,1">x</a>', '<a href="/en/concepts/by-hand/?cell=1,1">x</a>'),
        ('<a href="?a=1&amp;b=2#c">x</a>', '<a href="/en/concepts/masks/?a=1&amp;b=2#c">x</a>'),
        ('<a href="#ref-x">x</a>', '<a href="#references--ref-x">x</a>'),
        (
            '<form hx-get="x"><div class="controls"><p>no<br></p></div><p>yes</p></form>',
            "<div><p>yes</p></div>",
        ),
        ('<td><input type="number" value="3"><input type="hidden" value="4"></td>', "<td>3</td>"),
        ("a &lt; b &amp; c&#x3C;", "a &lt; b &amp; c&#x3C;"),
        # In HTML the case of names does not count, not even of those in SVG.
        ('<svg viewBox="0 0 1 1"><path d="M0"/></svg>', '<svg viewbox="0 0 1 1"><path d="M0"/></svg>'),
        ('<pre tabindex="0">x</pre><a tabindex="-1">y</a>', '<pre tabindex="0">x</pre><a>y</a>'),
    ],
)
def test_what_becomes_of_html(given: str, wanted: str) -> None:
    assert static.still(given, "masks", "/en/concepts/masks/", BOOK.pages) == wanted
