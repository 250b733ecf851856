"""The page on positions: waves, the table that ends, what a segment remembers, and the text's numbers."""

import math
import re

import numpy as np
import pytest
import torch
from django.test import RequestFactory

from concepts.facts import FACTS
from concepts.figures import Links, heatmap
from concepts.figures.heatmap import HeatMap
from concepts.figures.positions import FIGURES, OUT_OF_RANGE, SHOWN
from kernels.engines.reference import reference
from kernels.spec import parse_run
from lab.form.views import form_of_link

LINKS = Links("/page/", "/fragment/", "/lab/")
WAVES, TABLE, SEGMENTS = FIGURES


def fact(name: str) -> float:
    return float(FACTS[f"positions-{name}"].text.replace(",", "").replace("−", "-"))


def vector(position: int, pairs: int, base: float = 10_000) -> list[float]:
    angles = [position / base ** (i / pairs) for i in range(pairs)]
    return [f(angle) for angle in angles for f in (math.sin, math.cos)]


# -- sines and cosines ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "pairs", "base"), [(20, 16, 10_000), (0, 1, 5), (47, 32, 300)])
def test_a_position_is_a_vector_and_its_products_are_cosines_of_distances(
    p: int, pairs: int, base: int
) -> None:
    found = WAVES.data({"p": str(p), "pairs": str(pairs), "base": str(base)})
    np.testing.assert_allclose(found["vector"], vector(p, pairs, base), atol=1e-12)
    expected = [sum(math.cos((n - p) / base ** (i / pairs)) for i in range(pairs)) for n in range(SHOWN)]
    np.testing.assert_allclose(found["products"], expected, atol=1e-8)


def test_the_drawing_has_a_square_for_every_number_and_frames_the_position() -> None:
    html = WAVES.render({"p": "3", "pairs": "4"}, LINKS)
    drawing = html[html.index('class="heatmap"') :].partition("</svg>")[0]
    assert len(set(re.findall(r"M[\d.]+ [\d.]+h", drawing))) == SHOWN * 8
    assert drawing.count('class="lit-row"') == 1
    moved = WAVES.render({"p": "9", "pairs": "4"}, LINKS)
    assert drawing not in moved


def test_a_square_has_the_colour_of_its_number_and_its_place() -> None:
    """Rows from above, columns from the left; blue below zero, orange above."""
    heat = HeatMap(np.array([[-1.0, 0.0, 1.0], [1.0, 1.0, -1.0]]), 1.0, "", "", (0, 1), (0, 2))
    found = {
        name: [(float(x), float(y)) for x, y in re.findall(r"M([\d.]+) ([\d.]+)h", places)]
        for name, places in re.findall(r'<path class="heat-div-(\d+)" d="([^"]*)"', heatmap.svg(heat, "x"))
    }
    left, middle, right = sorted({x for places in found.values() for x, _y in places})
    upper, lower = sorted({y for places in found.values() for _x, y in places})
    assert found == {
        "0": [(left, upper), (right, lower)],
        "10": [(middle, upper)],
        "20": [(right, upper), (left, lower), (middle, lower)],
    }
    assert 'fill="#' in heatmap.document(heat, "x")


def test_the_table_has_the_same_on_both_sides() -> None:
    html = WAVES.render({"p": "5"}, LINKS)
    assert "16</td>" in html
    products = WAVES.data({"p": "5"})["products"]
    assert products[4] == pytest.approx(products[6])
    assert html.count("–</td>") == 2  # 10 and 20 before position 5


def test_every_diagonal_of_the_scores_in_the_lab_has_one_number(db: None) -> None:
    values = WAVES.data({})["values"]
    form, notes = form_of_link(RequestFactory().get("/en/lab/", WAVES.lab(values)))
    assert not notes
    parsed = parse_run({**form.body(), "engine": "reference"})
    shape = parsed.spec.canonical_shape
    arrays = {key: np.reshape(array, shape(key)) for key, array in parsed.arrays.items() if key in "qkv"}
    scores = reference(parsed.spec, parsed.arrays | arrays, ("scores",))["scores"].reshape(6, 6)
    for distance in range(6):
        assert np.ptp(np.diagonal(scores, distance)) < 1e-3
        assert scores[0, distance] == pytest.approx(scores[distance, 0], abs=1e-3)
    assert scores[0, 0] == pytest.approx(4, abs=1e-3)


# -- a table that ends ---------------------------------------------------------------------------------------


def test_what_a_table_says_of_a_row_that_it_has_not() -> None:
    with pytest.raises(IndexError) as error:
        torch.nn.Embedding(1024, 4)(torch.tensor(1024))
    assert f"IndexError: {error.value}" == OUT_OF_RANGE
    html = TABLE.render({}, LINKS)
    assert OUT_OF_RANGE in html
    assert "rows 0 to 1,023 and none for 1,024" in html
    seen = TABLE.render({"at": "1023"}, LINKS)
    assert OUT_OF_RANGE not in seen
    assert "row 1,023" in seen


def test_what_the_others_have_at_a_position() -> None:
    html = TABLE.render({"at": "100"}, LINKS)
    assert f"a vector: −{-math.sin(100):.4f}, {math.cos(100):.4f}" in html
    assert f"after {100 / (2 * math.pi):.1f} turns" in html
    assert TABLE.data({"rows": "512", "width": "64"})["learned"] == 512 * 64


# -- segments ------------------------------------------------------------------------------------------------


def heard_of(layers: int, length: int, tokens: int, *, has_memory: bool) -> list[set[int]]:
    """Layer by layer from the last token, each token followed to what it sees."""
    found = [{tokens - 1}]
    for _layer in range(layers):
        seen = set()
        for token in found[-1]:
            first = token - token % length - (length if has_memory else 0)
            seen |= set(range(max(first, 0), token + 1))
        found.append(seen)
    return found


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize(("layers", "length"), [(1, 2), (3, 4), (4, 6)])
def test_a_layer_reaches_one_segment_farther_with_a_memory_alone(
    layers: int, length: int, memory: bool
) -> None:
    state = {"layers": str(layers), "length": str(length), "memory": str(int(memory))}
    found = SEGMENTS.data(state)
    expected = heard_of(layers, length, 5 * length, has_memory=memory)
    assert [{n for n, told in enumerate(row) if told} for row in found["heard"]] == expected
    assert found["before_its_segment"] == (layers * length if memory else 0)
    html = SEGMENTS.render(state, LINKS)
    assert ("tokens before its own segment" in html) is memory
    assert html.count(">○<") == sum(n < 4 * length for row in expected for n in row)


def test_the_lab_gets_a_segment_and_the_one_before(db: None) -> None:
    for memory, keys in (("1", 6), ("0", 3)):
        values = SEGMENTS.data({"memory": memory})["values"]
        form, _notes = form_of_link(RequestFactory().get("/en/lab/", SEGMENTS.lab(values)))
        spec = parse_run(form.body()).spec
        assert (spec.q_len, spec.kv_len, spec.attention.is_causal) == (3, keys, True)
        assert spec.attention.causal_alignment == "bottom_right"


# -- what the page says --------------------------------------------------------------------------------------


def test_figures_of_the_text() -> None:
    def product(distance: int) -> float:
        return sum(math.cos(distance / 10_000 ** (i / 16)) for i in range(16))

    assert fact("itself") == 16
    assert fact("near") == pytest.approx(product(1), abs=0.05)
    assert fact("far") == pytest.approx(product(10), abs=0.05)
    for position in (1, 3, 11, 13):
        written = ", ".join(f"{x:.4f}" for x in vector(position, 2)).replace("-", "−")
        assert FACTS[f"positions-hand-{position}"].text == f"({written})"
    assert fact("hand-product") == pytest.approx(math.cos(2) + math.cos(0.02), abs=6e-5)
    assert fact("hand-far-product") == fact("hand-product")
    assert fact("length") == math.sqrt(512 / 2)
    assert fact("embedding-factor") == pytest.approx(math.sqrt(512), abs=0.05)
    assert fact("gpt2-rows") == 1024
    assert fact("gpt2-table") == 1024 * 768
    assert fact("reach") == 3 * 3


def test_a_step_is_the_same_matrix_wherever_it_starts() -> None:
    """As the page derives it, of one pair."""
    omega, k = 0.37, 5
    step = np.array([[math.cos(k * omega), math.sin(k * omega)], [-math.sin(k * omega), math.cos(k * omega)]])
    for p in (0, 3, 1000):
        here, there = ([math.sin(at * omega), math.cos(at * omega)] for at in (p, p + k))
        np.testing.assert_allclose(step @ here, there, atol=1e-12)
