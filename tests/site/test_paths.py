"""Paths through the book: what they hold, and that whoever is on one stays on it."""

import re
from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse

from concepts import paths
from concepts.errors import ContentError
from concepts.pages import book

BOOK = book("en")
TRAILS = paths.trails("en")
EVERY_TRAIL = pytest.mark.parametrize("trail", TRAILS.values(), ids=TRAILS)
GOOD = """first:
  title: A path
  summary: For a test.
  pages:
    by-hand: All of it.
    transformer: Where it goes.
"""


def get(client: Client, address: str) -> str:
    response = client.get(address)
    assert response.status_code == 200
    return response.content.decode()


def links(html: str) -> list[str]:
    return [address.replace("&amp;", "&") for address in re.findall(r'href="([^"]*)"', html)]


def test_the_paths_that_were_promised() -> None:
    assert [trail.title for trail in TRAILS.values()] == [
        "Attention in an hour",
        "From attention to FlashAttention",
        "Serving an LLM",
        "For instructors",
    ]


@EVERY_TRAIL
def test_a_path_begins_with_what_its_pages_build_on(trail: paths.Trail) -> None:
    """No page comes before one that it builds on, where both are on the path."""
    slugs = [entry.slug for entry in trail.written]
    for slug in slugs:
        for needed in BOOK.pages[slug].prerequisites:
            assert needed.slug not in slugs or slugs.index(needed.slug) < slugs.index(slug), (slug, needed)


def test_an_hour_is_an_hour() -> None:
    """At 200 words a minute, with a quarter of the time for the figures."""
    words = sum(BOOK.pages[entry.slug].words for entry in TRAILS["in-an-hour"].written)
    assert words / 200 <= 45


@EVERY_TRAIL
def test_the_page_of_a_path_lists_its_stops_and_what_is_being_written(
    client: Client, trail: paths.Trail
) -> None:
    html = get(client, f"/en/paths/{trail.slug}/")
    found = links(html)
    for stop in trail.stops:
        address = f"/en/concepts/{stop.entry.slug}/?path={trail.slug}"
        assert (address in found) == stop.entry.written
        assert stop.why in html
    assert html.count("This page is being written.") == len(trail.stops) - len(trail.written)
    for name, _words in trail.places:
        assert reverse(name) in found


def test_home_and_the_list_of_paths_lead_to_each(client: Client) -> None:
    for address in ("/en/", "/en/paths/"):
        assert {f"/en/paths/{slug}/" for slug in TRAILS} <= set(links(get(client, address)))
    assert client.get("/en/paths/no-such-path/").status_code == 404


@EVERY_TRAIL
def test_one_can_go_from_page_to_page_to_the_end_and_back(client: Client, trail: paths.Trail) -> None:
    def follow(rel: str, address: str) -> list[str]:
        seen = []
        while address:
            seen.append(address.split("/")[-2])
            tags = re.findall(rf'<a [^>]*rel="{rel}"[^>]*>', get(client, address))
            found = {href for tag in tags for href in links(tag)}
            assert len(found) <= 1  # at the beginning and at the end of a page it is the same
            address = next(iter(found), "")
        return seen

    slugs = [entry.slug for entry in trail.written]
    assert follow("next", f"/en/concepts/{slugs[0]}/?path={trail.slug}") == slugs
    assert follow("prev", f"/en/concepts/{slugs[-1]}/?path={trail.slug}") == slugs[::-1]


@EVERY_TRAIL
def test_links_and_forms_of_its_pages_stay_on_the_path(client: Client, trail: paths.Trail) -> None:
    for entry in trail.written:
        home = f"/en/concepts/{entry.slug}/"
        html = get(client, f"{home}?path={trail.slug}")
        main = html.partition("<main")[2].partition("</main>")[0]
        for address in links(main):
            place, _, rest = address.partition("#")[0].partition("?")
            slug = re.fullmatch(r"(?:\.\.|/en/concepts)/([a-z0-9-]+)/", place)
            is_on = (slug and slug[1] in trail.slugs) or (not place and rest) or (place == home and rest)
            assert not is_on or f"path={trail.slug}" in rest.split("&"), address
        for form in re.findall(r"<form .*?</form>", main, re.DOTALL):
            if re.search(rf'action="{home}#', form) or "action=" not in form:
                assert f'name="path" value="{trail.slug}"' in form, form[:200]
        assert f'<link rel="canonical" href="{home}">' in html


def test_a_figure_that_changes_keeps_the_path_in_the_address(client: Client) -> None:
    htmx = {"HX-Request": "true"}
    place = "/en/concepts/weighted-average/figure/average.html?query=1&path=in-an-hour"
    assert client.get(place, headers=htmx)["HX-Replace-Url"].endswith("?query=1&path=in-an-hour")
    place = "/en/concepts/by-hand/figure/by-hand.html?cell=2,2&path=in-an-hour"
    answer = client.get(place, headers=htmx)
    assert answer["HX-Replace-Url"] == "/en/concepts/by-hand/?cell=2,2&path=in-an-hour"
    assert "path=in-an-hour&amp;cell=1,1#by-hand" in answer.content.decode()


@pytest.mark.parametrize("asked", ["no-such-path", "serving-an-llm", "", '"><b>', "x" * 4000])
def test_a_path_that_is_none_of_this_page_means_nothing(client: Client, asked: str) -> None:
    plain = get(client, "/en/concepts/masks/")
    assert 'class="way' not in plain
    assert client.get("/en/concepts/masks/", {"path": asked}).content.decode() == plain


@pytest.mark.parametrize(
    ("mend", "line", "says"),
    [
        (("transformer:", "transfomer:"), 6, "transfomer is not in the table of contents"),
        (("  summary: For a test.\n", ""), 1, "it lacks summary"),
        (("  pages:", "  colour: red\n  pages:"), 4, "unknown key colour"),
        (("transformer:", "by-hand:"), 6, "by-hand is there twice"),
    ],
)
def test_mistakes_are_told_with_their_line(
    tmp_path: Path, mend: tuple[str, str], line: int, says: str
) -> None:
    file = tmp_path / "paths.yaml"
    file.write_text(GOOD)
    assert [stop.entry.slug for stop in paths.load(file, BOOK)["first"].stops] == ["by-hand", "transformer"]
    file.write_text(GOOD.replace(*mend))
    with pytest.raises(ContentError) as error:
        paths.load(file, BOOK)
    assert f":{line}" in str(error.value)
    assert says in str(error.value)
