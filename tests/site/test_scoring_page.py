"""The page on scores: what its figures compute, held against formulas written out here."""

import math
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from django.test import Client

from concepts.facts import FACTS
from concepts.figures import registry
from concepts.figures.fields import SQUARES, Field, Mark, document, svg
from concepts.figures.scoring import KEYS, NAMES, QUERY, scored

PAGE = "/en/concepts/scoring/"
OTHER = {"q": "[[-1.5,0.25]]", "k": "[[2,-3],[0.5,0.1],[-4,1],[1,6]]", "w": "[[2,-1],[0.5,3]]"}


def by_formula(q: np.ndarray, k: np.ndarray, w: np.ndarray, beta: float) -> dict[str, float]:
    """Scores of one pair, number by number."""
    dot = sum(a * b for a, b in zip(q, k, strict=True))
    hidden = (math.tanh(q[0] + k[0] + k[1]), math.tanh(q[1] + k[0] - k[1]))
    additive = 3 * hidden[0] - 2 * hidden[1]
    return {
        "dot": dot,
        "scaled_dot": dot / math.sqrt(2),
        "cosine": beta * dot / (math.hypot(*q) * math.hypot(*k)),
        "general": sum(q[i] * w[i][j] * k[j] for i in range(2) for j in range(2)),
        "additive": additive,
        "concat": additive,
    }


@pytest.mark.parametrize("given", [{}, OTHER, {**OTHER, "stretch": "2.5", "beta": "7"}])
def test_every_score_is_its_formula(given: dict[str, str]) -> None:
    found = registry()["matches"].data(given)
    values = found["values"]
    keys = np.array(values["k"])
    keys[0] *= values["stretch"]
    for j, key in enumerate(keys):
        wanted = by_formula(np.array(values["q"])[0], key, np.array(values["w"]), values["beta"])
        assert {name: found["scores"][name][j] for name in NAMES} == pytest.approx(wanted)
    assert found["additive_and_concat_apart"] < 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_the_weights_are_those_of_the_chosen_score(name: str) -> None:
    found = registry()["matches"].data({"score": name})
    powers = np.exp(found["scores"][name])
    np.testing.assert_allclose(found["weights"], powers / powers.sum())


def test_a_longer_key_matters_to_the_dot_product_and_not_to_the_cosine() -> None:
    plainly, longer = (registry()["matches"].data({"stretch": by})["scores"] for by in ("1", "3"))
    assert longer["dot"][0] == pytest.approx(3 * plainly["dot"][0])
    assert longer["general"][0] == pytest.approx(3 * plainly["general"][0])
    assert longer["cosine"] == pytest.approx(plainly["cosine"])


@pytest.mark.parametrize("name", NAMES)
def test_the_picture_has_the_score_of_each_point_where_the_point_is(name: str) -> None:
    figure = registry()["matches"]
    values = {one.name: one.usual for one in figure.controls} | {"score": name}
    field = figure.field(values)
    found = field.squares()
    assert found.shape == (SQUARES, SQUARES)
    step = 2 * field.reach / SQUARES
    for row, column in ((0, 0), (3, 17), (20, 10)):
        point = np.array([-field.reach + (column + 0.5) * step, field.reach - (row + 0.5) * step])
        wanted = by_formula(np.array(QUERY[0]), point, np.array(values["w"]), 1.0)[name]
        assert found[row, column] == pytest.approx(wanted)
    for mark, key in zip(field.marks, KEYS, strict=True):
        x, y = (float(value) for value in field.at(mark))
        across, down = (x - float(field.at(Mark(0, 0, ""))[0])), (y - float(field.at(Mark(0, 0, ""))[1]))
        assert (across > 0, down < 0) == (key[0] > 0, key[1] > 0)


def test_a_field_that_is_0_everywhere_or_far_away_can_be_drawn() -> None:
    for reach in (4.0, 1150.0):
        flat = Field(
            lambda points: np.zeros(len(points)), reach, Mark(0, 0, "query"), [Mark(reach, -reach, "<k>")]
        )
        for picture in (svg(flat, "<label>"), document(flat, "<label>")):
            ET.fromstring(picture)
            assert picture.count("heat-div-10") in (0, SQUARES)
    assert np.isfinite(scored("cosine", np.zeros((3, 2)), {"q": [[0.0, 0.0]], "w": [], "beta": 1.0})).all()


@pytest.mark.parametrize(("n", "d", "a"), [(1, 1, 1), (7, 3, 5), (1024, 64, 64)])
def test_costs_are_those_of_loops_written_out(n: int, d: int, a: int) -> None:
    found = registry()["costs"].data({"tokens": str(n), "width": str(d), "hidden": str(a)})["costs"]
    assert found["dot"]["multiply_adds"] == n * n * d
    assert found["scaled_dot"]["multiply_adds"] == n * n * (d + 1)
    assert found["general"]["multiply_adds"] == n * d * d + n * n * d
    assert found["additive"]["multiply_adds"] == 2 * n * a * d + 2 * n * n * a
    assert found["concat"]["multiply_adds"] == n * n * (2 * a * d + a)
    assert found["additive"]["functions"] == found["concat"]["functions"] == n * n * a


@pytest.mark.parametrize(
    ("name", "text"),
    {
        "dot-1": "4", "dot-2": "5", "stretched": "8", "scaled-1": "2.828", "cosine-1": "0.992",
        "cosine-2": "0.707", "general-1": "3.5", "additive-1": "1.189", "hidden": "(4.5, 1.5)",
        "tanh": "(0.9998, 0.9051)", "length-q": "2.236", "length-k": "1.803", "length-k2": "3.162",
        "cosine-most": "0.105", "beta": "3.17", "thin": "98,304", "square": "589,824", "times": "2.12",
        "share": "5.9", "tanh-count": "67,108,864", "concat-times": "129",
    }.items(),
)  # fmt: skip
def test_facts(name: str, text: str) -> None:
    assert FACTS[f"scoring-{name}"].text == text


def test_what_the_page_says_of_the_best_keys_is_so(client: Client) -> None:
    best = {
        name: client.get(f"{PAGE}figure/matches.json?score={name}").json()["scores"][name] for name in NAMES
    }
    assert {name: int(np.argmax(scores)) + 1 for name, scores in best.items()} == {
        "dot": 2, "scaled_dot": 2, "cosine": 1, "general": 1, "additive": 3, "concat": 3,
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_lab_takes_the_score_with_its_numbers(client: Client, db: None, name: str) -> None:
    figure = registry()["matches"]
    values = {one.name: one.usual for one in figure.controls} | {"score": name, "beta": 2.0}
    shown = client.get("/en/lab/", dict(figure.lab(values)))
    assert shown.status_code == 200
    html = shown.content.decode()
    assert f'<option value="{name}" selected>' in html
    assert "1.5" in html.partition('id="lab-k"')[2].partition("</textarea>")[0]
