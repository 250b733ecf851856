"""A line plot puts every number where its axes say, and says all of them in words."""

import math
import re
import sys
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concepts.figures import lineplot
from concepts.figures.lineplot import Axis, Series

LINEAR = Axis("x", "{:g}".format)
LOG = Axis("n", "{:g}".format, is_log=True)


def marks(svg):
    """(x, y) of every mark, in pixels."""
    return [
        (float(x), float(y))
        for x, y in re.findall(r'class="mark[^"]*" transform="translate\(([\d.-]+) ([\d.-]+)\)', svg)
    ]


def ticks(svg, anchor, axis):
    found = re.findall(
        rf'<text class="tick" text-anchor="{anchor}" x="([\d.-]+)" y="([\d.-]+)">([^<]+)<', svg
    )
    return [(float(number), float(x) if axis == "x" else float(y) - 4.5) for x, y, number in found]


def test_a_mark_at_a_tick_is_where_the_tick_is():
    svg = lineplot.svg([Series("a", [(0, 0), (10, 40), (20, 100)])], LINEAR, LINEAR, "label")
    across, up = dict(ticks(svg, "middle", "x")), dict(ticks(svg, "end", "y"))
    assert marks(svg)[1] == (across[10.0], pytest.approx(up[40.0], abs=0.11))
    assert marks(svg)[2] == (across[20.0], pytest.approx(up[100.0], abs=0.11))


def test_equal_factors_are_equal_steps_on_a_logarithmic_axis():
    svg = lineplot.svg([Series("a", [(1, 1), (10, 100), (100, 10_000)])], LOG, LOG, "label")
    (a, b), (c, d) = ((q[0] - p[0], q[1] - p[1]) for p, q in pairwise(marks(svg)))
    assert (a, b) == pytest.approx((c, d), abs=0.2)
    assert a > 0 > b
    assert [number for number, _ in ticks(svg, "middle", "x")] == [1, 10, 100]


def test_what_a_logarithm_cannot_show_is_left_out_and_still_in_the_table():
    series = [Series("a", [(1, 0), (2, 5), (4, math.inf)])]
    assert len(marks(lineplot.svg(series, LOG, LOG, "label"))) == 1
    assert [row for row, _ in lineplot.rows(series, LOG, LOG)] == ["1", "2", "4"]


def test_series_that_have_no_number_somewhere_have_a_dash_there():
    series = [Series("a", [(1, 2)]), Series("b", [(1, 3), (2, 4)])]
    assert lineplot.rows(series, LINEAR, LINEAR) == [("1", ["2", "3"]), ("2", ["–", "4"])]


def test_names_are_text_and_never_markup():
    svg = lineplot.svg([Series("<b>", [(1, 1)])], LINEAR, LINEAR, '"><script>')
    assert "<b>" not in svg
    assert "<script>" not in svg
    assert "<b>" not in lineplot.legend([Series("<b>", [(1, 1)])])


numbers = st.floats(-1e9, 1e9, allow_nan=False)


@given(st.lists(st.tuples(numbers, numbers), max_size=8), st.booleans(), st.booleans())
def test_every_mark_is_inside_and_ticks_are_few(points, log, from_zero):
    x = Axis("x", "{:g}".format, is_log=log, from_zero=from_zero)
    svg = lineplot.svg([Series("a", points)], x, Axis("y", "{:g}".format, from_zero=from_zero), "label")
    for a, b in marks(svg):
        assert lineplot.LEFT <= a <= lineplot.WIDTH - lineplot.RIGHT
        assert lineplot.TOP <= b <= lineplot.HEIGHT - lineplot.BOTTOM
    for anchor, axis in (("middle", "x"), ("end", "y")):
        assert len(ticks(svg, anchor, axis)) <= lineplot.MOST_TICKS + 1
    assert "nan" not in svg


def test_a_file_of_its_own_has_the_colours_of_a_light_page_and_no_classes() -> None:
    series = [
        Series(f"series {number}", [(1, number), (2, number + 1)], has_marks=number % 2 == 0)
        for number in range(len(lineplot.SHAPES))
    ]
    axis = Axis("x", "{:g}".format)
    drawn = lineplot.document(series, axis, axis, "What <it> shows")
    ET.fromstring(drawn)
    assert "class=" not in drawn
    assert "What &lt;it&gt; shows" in drawn
    assert all(f"series {number}<" in drawn for number in range(len(series)))
    assert drawn.index('stroke="#5f2d94"') < drawn.index('stroke="#b4560f"')
    css = (Path(__file__).resolve().parents[2] / "static" / "css" / "components.css").read_text()
    for number, color in enumerate(lineplot.COLORS, 1):
        assert f".series-{number} {{ --series: light-dark({color}," in css
        if dashes := lineplot.BARE_DASHES[number - 1]:
            assert f".line.bare.series-{number} {{ stroke-dasharray: {dashes}; }}" in css


@pytest.mark.parametrize(("value", "is_shown"), [(5e-324, 0), (1e-306, 1), (sys.float_info.max, 1)])
def test_a_logarithm_goes_nearly_to_the_ends_of_float64(value, is_shown) -> None:
    assert len(marks(lineplot.svg([Series("s", [(value, 1.0)])], LOG, LINEAR, "label"))) == is_shown
