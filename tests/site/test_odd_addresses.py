"""Whatever the address of a figure holds: pages that can be sent, pictures that open, JSON that is read."""

import json
import xml.etree.ElementTree as ET

import pytest
from django.test import Client

from concepts.figures import registry
from concepts.figures.controls import Matrix
from concepts.figures.explorable import Explorable
from concepts.pages import book

FORMS = ("html", "json", "svg")
FIGURES = registry()
PLACES = [(page.slug, name) for page in book("en").pages.values() for name in sorted(page.figures)]
HTMX = {"HX-Request": "true"}
UNSHOWABLE = "\0\x01\x0b\x1b\x7f\ufffe\uffff\u202e\u2066"


def names_of(figure: str) -> list[str]:
    found = FIGURES[figure]
    return [one.name for one in found.controls] if isinstance(found, Explorable) else ["q", "cell", "angle"]


def half_a_character(figure: str) -> dict[str, str]:
    """Matrices of strings that JSON can hold and no text can."""
    found = FIGURES[figure]
    if not isinstance(found, Explorable):
        return dict.fromkeys("qkv", '[["\\ud800", 1]]')
    shapes = {one.name: one.usual for one in found.controls if isinstance(one, Matrix)}
    return {name: json.dumps([["\ud800"] * len(row) for row in usual]) for name, usual in shapes.items()}


@pytest.mark.parametrize(("page", "figure"), PLACES)
def test_what_cannot_be_shown_is_left_out(client: Client, page: str, figure: str) -> None:
    state = dict.fromkeys(names_of(figure), f"a{UNSHOWABLE} b")
    for form in FORMS:
        answer = client.get(f"/en/concepts/{page}/figure/{figure}.{form}", state, headers=HTMX)
        assert answer.status_code in (200, 422)
        said = answer.content.decode()
        said = str(json.loads(said)) if form == "json" else said
        assert not set(said) & set(UNSHOWABLE)
        if form == "svg":
            ET.fromstring(said)


@pytest.mark.parametrize(("page", "figure"), [place for place in PLACES if half_a_character(place[1])])
def test_half_a_character_is_no_number(client: Client, page: str, figure: str) -> None:
    state = half_a_character(figure)
    assert client.get(f"/en/concepts/{page}/", state).status_code == 200
    for form in FORMS:
        answer = client.get(f"/en/concepts/{page}/figure/{figure}.{form}", state, headers=HTMX)
        assert answer.status_code == (422 if form == "json" else 200)
