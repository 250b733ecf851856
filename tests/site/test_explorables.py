"""Every figure of controls is drawn whatever its address holds, says what is wrong, reads back the same."""

import json
import re
import xml.etree.ElementTree as ET
from urllib.parse import parse_qsl

import numpy as np
import pytest
from django.test import Client

from concepts.figures import Links, registry
from concepts.figures.average import KEYS, VALUES, averages
from concepts.figures.controls import Cell, Cells, Choice, Control, Find, Matrix, Number, Switch, Words
from concepts.figures.explorable import Explorable
from concepts.pages import book

FIGURES = [figure for figure in registry().values() if isinstance(figure, Explorable)]
EVERY_FIGURE = pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
LINKS = Links("/page/", "/fragment/", "/lab/")
JUNK = (
    "",
    " ",
    "x",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "1_0",
    "<blink>",
    "🙂",
    "-1",
    "9" * 400,
    "[[1",
    "[[1,2],[3]]",
    "null",
)


def other_value(control: Control) -> object:
    """A value that is not the usual one."""
    if isinstance(control, Number):
        value = control.low if control.usual != control.low else control.high
        return control.kind(value)
    if isinstance(control, Choice):
        return next(value for value, _words in control.options if value != control.usual)
    if isinstance(control, Switch):
        return not control.usual
    if isinstance(control, Words | Find):
        return ("one", "other")[: control.most] if isinstance(control, Words) else "some words"
    if isinstance(control, Cells | Cell):
        return ((1, 2), (3, 1)) if isinstance(control, Cells) else (control.rows, control.columns)
    assert isinstance(control, Matrix)
    return [[value + 1.5 for value in row] for row in control.usual]


@EVERY_FIGURE
def test_the_page_opens_with_the_shortest_address(figure: Explorable) -> None:
    assert figure.query({}) == ""
    usual = {one.name: one.read({}) for one in figure.controls}
    assert all(not reading.problems for reading in usual.values())
    assert {name: reading.value for name, reading in usual.items()} == {
        one.name: one.usual for one in figure.controls
    }


@EVERY_FIGURE
def test_an_address_reads_back_the_same(figure: Explorable) -> None:
    changed = {one.name: other_value(one) for one in figure.controls}
    address = figure.address(LINKS, changed)
    state = dict(parse_qsl(address.partition("?")[2].partition("#")[0]))
    assert {one.name: one.read(state).value for one in figure.controls} == changed
    assert dict(parse_qsl(figure.query(state))) == state
    assert json.loads(json.dumps(figure.data(state)["values"])) == json.loads(json.dumps(changed))


@EVERY_FIGURE
@pytest.mark.parametrize("text", JUNK)
def test_junk_is_named_and_stops_nothing(figure: Explorable, text: str) -> None:
    """In all controls at once: each is read alone, and what cannot be read is as if it were not there."""
    state = {one.name: text for one in figure.controls}
    readings = [one.read({one.name: text}) for one in figure.controls]
    html = figure.render(state, LINKS)
    assert f'id="{figure.name}-view"' in html
    assert "<blink>" not in html
    assert figure.fragment(state, LINKS)
    assert figure.svg(state)
    told = [problem["detail"] for problem in figure.data(state).get("problems", [])]
    assert told == [message for reading in readings for message in reading.problems.values()]
    assert all(len(message) < 400 for message in told)


@EVERY_FIGURE
def test_a_fragment_brings_everything_that_may_have_changed(figure: Explorable) -> None:
    html = figure.fragment({}, LINKS)
    for place in (
        "view",
        "status",
        "run",
        *(one.name + "-problems" for one in figure.controls if one.template != "switch"),
    ):
        assert f'id="{figure.name}-{place}"' in html


@EVERY_FIGURE
def test_a_fragment_brings_nothing_that_has_no_place_on_the_page(figure: Explorable) -> None:
    page = figure.render({}, LINKS) + figure.render({}, LINKS, "run")
    brought = re.findall(r'id="([^"]+)"[^>]*hx-swap-oob', figure.fragment({}, LINKS))
    assert brought
    assert [place for place in brought if f'id="{place}"' not in page] == []


@EVERY_FIGURE
def test_the_picture_stands_alone_and_says_what_it_shows(figure: Explorable) -> None:
    picture = figure.svg({})
    ET.fromstring(picture)
    assert "http://www.w3.org/2000/svg" in picture


@EVERY_FIGURE
def test_the_lab_can_run_what_is_shown(figure: Explorable, client: Client, db: None) -> None:
    from urllib.parse import urlencode

    for values in (
        {one.name: one.usual for one in figure.controls},
        {one.name: other_value(one) for one in figure.controls},
    ):
        query = urlencode(figure.lab(values))
        response = client.get(f"/en/lab/?{query}")
        assert response.status_code == 200, query


@pytest.mark.parametrize("page", book("en").pages.values(), ids=lambda page: page.slug)
def test_figures_of_a_page_do_not_share_parameters(page) -> None:
    names = [
        one.name
        for name in page.figures
        if isinstance(registry()[name], Explorable)
        for one in registry()[name].controls
    ]
    assert len(set(names)) == len(names)


# -- what single figures compute -----------------------------------------------------------------------------


@pytest.mark.parametrize("sharpness", [0.0, 0.5, 2.0, 50.0])
@pytest.mark.parametrize("query", [-3.0, -0.4, 0.5, 3.0])
def test_the_average_is_kernel_regression(query: float, sharpness: float) -> None:
    """Nadaraya and Watson: a normal kernel of the distance, normalised."""
    kernel = np.exp(-sharpness * (query - KEYS) ** 2 / 2)
    found = averages(np.array([query]), sharpness)
    np.testing.assert_allclose(found.weights[0], kernel / kernel.sum(), atol=1e-14)
    np.testing.assert_allclose(found.out[0], kernel @ VALUES / kernel.sum(), rtol=1e-13)
