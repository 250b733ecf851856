"""The page on √d: what its figures draw and its sentences say, held against formulas and sums."""

import math
import re

import numpy as np
import pytest
from django.test import Client

from concepts.facts import FACTS
from concepts.figures import Links, registry
from concepts.figures.sqrt_dk import bell, outline, softened, spreads
from kernels.arrays import generate

PAGE = "/en/concepts/sqrt-dk/"
LINKS = Links("/page/", "/fragment/", "/lab/")


@pytest.mark.parametrize("d", [4, 64, 256])
def test_scores_spread_by_the_root_of_d(d: int) -> None:
    """Of 99 draws together, since one matrix of 64 by 64 scores is a small sample."""
    found = [spreads(d, draw) for draw in range(1, 100)]
    for number, expected in enumerate((math.sqrt(d), 1.0, 1 / math.sqrt(d))):
        assert found[0][number].expected == pytest.approx(expected)
        measured = np.sqrt(np.mean([one[number].scores.var() for one in found]))
        assert measured == pytest.approx(expected, rel=0.03)


def test_the_figure_has_the_numbers_that_the_lab_draws() -> None:
    figure = registry()["spread"]
    values = {"d": 16, "draw": 3}
    asked = dict(figure.lab(values))
    shape = tuple(int(asked[name]) for name in ("batch", "heads", "q_len", "head_dim"))
    q, k = (generate(name, int(asked["seed"]), shape, "normal", "float32")[0, 0] for name in "qk")
    np.testing.assert_allclose(float(asked["scale"]) * q @ k.T, spreads(16, 3)[0].scores, atol=1e-5)


def test_largest_weights_and_slopes_are_those_of_a_plain_softmax() -> None:
    for one in spreads(64, 7):
        powers = np.exp(one.scores)
        weights = powers / powers.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(one.largest, weights.max(axis=1), rtol=1e-12)
        assert one.slope == pytest.approx(np.mean(1 - (weights**2).sum(axis=1)))


def test_a_histogram_has_the_area_of_what_it_shows() -> None:
    scores = spreads(64, 7)[0].scores
    x, y = np.array(outline(scores, 8.0)).T
    inside = np.mean(np.abs(scores) <= 32)
    assert np.trapezoid(y, x) == pytest.approx(inside)
    x, y = np.array(bell(8.0)).T
    assert np.trapezoid(y, x) == pytest.approx(math.erf(4 / math.sqrt(2)), abs=1e-6)


def test_the_slopes_are_differences_of_weights() -> None:
    rows, step = [[12.0], [9.0], [3.0], [-2.0], [-10.0]], 1e-5
    for divisor in (1.0, 8.0):
        _weights, slopes = softened(rows, divisor)
        for j in range(5):
            up, down = ([[row[0] + way * step * divisor * (i == j)] for i, row in enumerate(rows)]
                        for way in (1, -1))  # fmt: skip
            difference = (softened(up, divisor)[0] - softened(down, divisor)[0]) / (2 * step)
            np.testing.assert_allclose(slopes[:, j], difference, atol=1e-9)


def test_the_chosen_cell_says_its_arithmetic_and_no_other_does() -> None:
    figure = registry()["saturation"]
    html = figure.render({"cell": "1,1"}, LINKS)
    shown = re.findall(r'<p data-for="(\d,\d)">(.*?)</p>', html)
    assert [cell for cell, _words in shown] == ["1,1", "1,1"]
    assert "0.9525 (1 − 0.9525) = 0.0453" in shown[0][1]
    assert "0.4445 (1 − 0.4445) = 0.2469" in shown[1][1]
    assert html.count("heat-div-") == 2 * 25


def test_a_cell_that_is_none_is_told_and_the_usual_one_is_lit() -> None:
    problem = registry()["saturation"].data({"cell": "9,9"})["problems"][0]
    assert problem["field"] == "cell"
    assert "“9,9” is no cell from 1,1 to 5,5" in problem["detail"]


@pytest.mark.parametrize(("gap", "keys"), [(0.0, 2), (10.0, 131_072), (25.0, 1_048_576), (3.3, 64)])
def test_a_lead_is_worth_what_a_sum_says(gap: float, keys: int) -> None:
    found = registry()["softness"].data({"gap": str(gap), "keys": str(keys)})
    row = np.zeros(keys)
    row[0] = gap
    weights = np.exp(row - row.max())
    assert found["weight"] == pytest.approx(weights[0] / weights.sum())
    for weight, needed in found["lead_needed"].items():
        assert 1 / (1 + (keys - 1) * math.exp(-needed)) == pytest.approx(float(weight))


@pytest.mark.parametrize("width", [16, 64, 128])
def test_a_stack_multiplies_a_signal_as_theory_says(width: int) -> None:
    found = registry()["stack"].data({"width": str(width)})["deviations"]
    layers = np.arange(13)
    for name, factor in (("1", math.sqrt(width)), ("√d", 1.0), ("d", 1 / math.sqrt(width))):
        drift = np.array(found[name]) / found[name][0] / factor**layers
        assert np.all((drift > 0.3) & (drift < 3)), name


def test_with_layer_norm_no_divisor_matters() -> None:
    found = registry()["stack"].data({"norm": "1"})["deviations"]
    for deviations in found.values():
        np.testing.assert_allclose(deviations[1:], 1.0, rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "text"),
    {
        "d": "64", "by-hand": "0.5035", "pair-ratio": "8,886,111", "pair-weight": "0.99999989",
        "pair-slope": "0.11",
        "lead-4k": "0.843", "lead-131k": "0.144", "needed-4k": "12.9", "needed-131k": "16.4", "ln-32": "3.47",
        "many-largest": "0.79", "many-sure": "19", "matched": "0.979", "stack": "68,719,476,736",
        "coins-0": "6", "coins-2": "8", "coins-4": "2", "coins-variance": "4",
    }.items(),
)  # fmt: skip
def test_facts(name: str, text: str) -> None:
    assert FACTS[f"sqrt-{name}"].text == text


def test_the_quoted_pair_is_what_the_page_says_it_is(client: Client) -> None:
    html = client.get(PAGE).content.decode()
    link = re.search(r'href="(\?s=[^"]*)#saturation">', html)
    assert link
    shown = client.get(PAGE + "figure/saturation.json" + link[1].replace("&amp;", "&")).json()
    assert shown["undivided"]["weights"][0] == pytest.approx(1 / (1 + math.exp(-16)), rel=1e-12)
    assert shown["undivided"]["jacobian"][0][0] == pytest.approx(0.1125e-6, rel=1e-3)
