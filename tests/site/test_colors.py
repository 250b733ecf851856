"""Colors: heat maps that can be read in both themes and by color-blind readers, text with enough contrast."""

import re
from pathlib import Path

import pytest

from concepts.figures import scales
from concepts.figures.scales import Color, contrast

CSS = Path(__file__).resolve().parents[2] / "static" / "css"
SCALES = pytest.mark.parametrize("scale", [scales.sequential, scales.diverging])
THEMES = pytest.mark.parametrize("dark", [False, True])


def color(text: str) -> Color:
    return Color(*(int(text[n : n + 2], 16) / 255 for n in (1, 3, 5)))


def tokens(dark: bool) -> dict[str, Color]:
    pairs = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", (CSS / "tokens.css").read_text())
    return {name: color(pair[dark]) for name, *pair in pairs}


def test_the_style_sheet_is_the_one_that_the_scales_make() -> None:
    assert (CSS / "heat.css").read_text() == scales.stylesheet()


@SCALES
@THEMES
def test_numbers_can_be_read_on_every_step(scale, dark: bool) -> None:
    for step in range(scales.STEPS):
        paper = scale(step, dark)
        assert contrast(paper, scales.ink(paper)) >= 4.5


@THEMES
def test_more_weight_is_always_further_from_the_paper(dark: bool) -> None:
    light = [scales.sequential(step, dark).luminance for step in range(scales.STEPS)]
    assert light == sorted(light, reverse=not dark)


@THEMES
def test_signs_differ_to_a_color_blind_reader(dark: bool) -> None:
    """Blue against orange: the blue channel alone tells them apart, whatever red and green look like."""
    for step in range(1, 11):
        low, high = scales.diverging(10 - step, dark), scales.diverging(10 + step, dark)
        assert low.blue - high.blue > 0.035 * step


def test_classes_stay_on_the_scale() -> None:
    assert scales.weight_class(-1) == "heat-seq-0"
    assert scales.weight_class(2) == "heat-seq-20"
    assert scales.score_class(0, 0) == scales.score_class(0, 5) == "heat-div-10"
    assert scales.score_class(-9, 3) == "heat-div-0"
    assert scales.score_class(3, 3) == "heat-div-20"


@THEMES
def test_text_has_contrast_on_what_it_is_set_on(dark: bool) -> None:
    have = tokens(dark)
    for ink in ("ink", "ink-soft", "accent", "q", "k", "v", "w", "good", "warn", "bad"):
        for paper in ("paper", "surface", "raised"):
            assert contrast(have[ink], have[paper]) >= 4.5, (ink, paper)
    for name in ("good", "warn", "bad", "accent"):
        assert contrast(have[name], have[f"{name}-wash"]) >= 4.5, name
        assert contrast(have["ink"], have[f"{name}-wash"]) >= 4.5, name
    assert contrast(have["accent"], have["accent-ink"]) >= 4.5
    for line in ("rule-strong", "focus", "lit-edge"):
        assert contrast(have[line], have["paper"]) >= 3, line
