"""Heat maps: the right colour in the right place, and nothing hidden by making a large one small."""

import gzip
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from lab import heatmap

WEIGHTS = np.array([[0.0, 0.25], [0.5, 1.0]])


def rects(svg):
    """[(class, title)] of every cell, row by row."""
    return re.findall(r'<rect class="([^"]+)"[^>]*><title>([^<]+)</title>', svg)


def test_every_cell_has_its_class_and_its_value():
    found = rects(heatmap.svg(heatmap.figure(WEIGHTS, "seq"), "weights"))
    assert found == [
        ("heat-seq-0", "query 0, key 0: 0"),
        ("heat-seq-5", "query 0, key 1: 0.2500"),
        ("heat-seq-10", "query 1, key 0: 0.5000"),
        ("heat-seq-20", "query 1, key 1: 1.0000"),
    ]


def test_zero_is_in_the_middle_of_a_diverging_scale():
    found = heatmap.figure(np.array([[-2.0, 0.0, 1.0]]), "div")
    assert found.levels.tolist() == [[0, 10, 15]]
    assert (found.lowest, found.largest) == (-2.0, 2.0)


def test_masked_and_nan_cells_are_told_apart_from_numbers():
    found = heatmap.figure(np.array([[-np.inf, np.nan, 3.0, np.inf]]), "div")
    svg = heatmap.svg(found, "scores")
    assert [name for name, _ in rects(svg)] == ["cell-masked", "cell-nan", "heat-div-20", "heat-div-20"]
    assert [title.rpartition(": ")[2] for _, title in rects(svg)] == ["−∞", "NaN", "3.0000", "∞"]
    assert found.has_masked


@pytest.mark.parametrize("values", [np.zeros((2, 2)), np.full((1, 3), -np.inf), np.full((2, 1), np.nan)])
def test_without_a_finite_number_there_is_still_a_picture(values):
    for kind in ("seq", "div"):
        ElementTree.fromstring(heatmap.svg(heatmap.figure(values, kind), "x"))


def test_up_to_64_nothing_is_reduced():
    values = np.random.default_rng().normal(size=(64, 64))
    found = heatmap.figure(values, "div")
    assert not found.is_reduced
    assert np.array_equal(found.values, values)


@pytest.mark.parametrize("shape", [(65, 64), (200, 130), (1000, 7), (4096, 4096)])
def test_block_maxima_keep_every_peak(shape):
    rng = np.random.default_rng()
    values = rng.uniform(0, 0.1, size=shape)
    peak = tuple(int(rng.integers(size)) for size in shape)
    values[peak] = 0.9
    found = heatmap.figure(values, "seq")
    assert found.rows <= 64
    assert found.columns <= 64
    row, column = peak[0] // found.row_block, peak[1] // found.column_block
    assert found.values[row, column] == 0.9
    assert found.levels[row, column] == 20
    blocks = [
        [
            values[i : i + found.row_block, j : j + found.column_block].max()
            for j in range(0, shape[1], found.column_block)
        ]
        for i in range(0, shape[0], found.row_block)
    ]
    assert np.array_equal(found.values, blocks)


def test_a_reduced_cell_says_which_rows_and_columns_it_stands_for():
    found = heatmap.figure(np.zeros((130, 65)), "seq")
    assert (found.row_name(0), found.row_name(43)) == ("0–2", "129")
    assert (found.column_name(0), found.column_name(32)) == ("0–1", "64")
    names = [title for _, title in rects(heatmap.svg(found, "x"))]
    assert names[0] == "query 0–2, key 0–1: 0"


def test_a_block_is_masked_only_when_all_of_it_is_and_shows_every_nan():
    values = np.full((128, 128), -np.inf)
    values[0, 1], values[2, 2] = -5.0, np.nan
    found = heatmap.figure(values, "div")
    assert found.values[0, 0] == -5.0
    assert np.isnan(found.values[1, 1])
    assert np.isneginf(found.values[5, 5])


def test_the_table_is_the_picture_in_words():
    found = heatmap.figure(np.array([[0.5, -0.25]]), "div")
    assert found.table() == [("0", ["0.5000", "−0.2500"])]
    assert found.column_names() == ["0", "1"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (1.20326, "1.2033"),
        (-1.5, "−1.5000"),
        (1e-7, "1.00e−07"),
        (-3e8, "−3.00e+08"),
        (5e-5, "0.0001"),
        (np.inf, "∞"),
        (-np.inf, "−∞"),
        (np.nan, "NaN"),
    ],
)
def test_numbers_for_people(value, text):
    assert heatmap.number(value) == text


def test_the_file_needs_no_stylesheet_and_is_valid_xml():
    text = heatmap.document(heatmap.figure(WEIGHTS, "seq"), "a <label>")
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.get("aria-label") == "a <label>"
    fills = [rect.get("fill") for rect in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert len(set(fills)) == 4
    assert all(re.fullmatch("#[0-9a-f]{6}", fill) for fill in fills)


def test_the_largest_picture_is_light():
    values = np.random.default_rng().random((1024, 1024))
    svg = heatmap.svg(heatmap.figure(values, "seq"), "weights")
    assert len(rects(svg)) == 64 * 64
    assert len(gzip.compress(svg.encode())) < 60_000


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (-26.7831, "−26.8"), (2.0698, "2.07"), (0.0142, "0.01"), (-0.5, "−0.50"),
        (1234.5, "1234"), (4.11e-11, "4e−11"), (-0.0013, "−1e−3"), (3e8, "3e8"), (-np.inf, "−∞"),
        (np.nan, "NaN"),
    ],
)  # fmt: skip
def test_numbers_where_there_is_little_room(value, text):
    assert heatmap.brief(value) == text
