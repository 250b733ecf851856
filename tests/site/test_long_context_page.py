"""The page on longer texts: its figures against formulas written out, the lab, the numbers that it says."""

import math
from typing import Any

import numpy as np
import pytest
from django.test import RequestFactory

from concepts.facts import FACTS
from concepts.figures import Links
from concepts.figures.long_context import FIGURES, WAYS
from kernels.engines.reference import reference
from kernels.spec import parse_run
from lab.form.views import form_of_link

LINKS = Links("/page/", "/fragment/", "/lab/")
STRETCH, WILD = FIGURES
LLAMA31 = {"b": "500000", "length": "8192", "n": "131072"}


def fact(name: str) -> float:
    return float(FACTS[f"long-{name}"].text.replace(",", ""))


def slowed(way: str, *, length: int, n: int, s: float, d: int, b: float, other: float = 5e5) -> np.ndarray:
    """By how much each pair is slowed down, by the formulas of the papers and of Transformers."""
    i = np.arange(d // 2)
    if way == "pi":
        return np.full(d // 2, float(s))
    if way in ("ntk", "dynamic"):
        factor = s if way == "ntk" else s * max(n, length) / length - (s - 1)
        return np.asarray(factor ** (2 * i / (d - 2)))
    if way == "base":
        return np.asarray((other / b) ** (2 * i / d))
    turns = length / (2 * np.pi * b ** (2 * i / d))
    if way == "llama3":
        kept = np.clip((turns - 1) / 3, 0, 1)
    elif way == "yarn":
        low, high = (d * math.log(length / (2 * math.pi * beta)) / (2 * math.log(b)) for beta in (32, 1))
        low, high = max(math.floor(low), 0), min(math.ceil(high), d - 1)
        kept = 1 - np.clip((i - low) / (high - low), 0, 1)
    else:
        kept = np.ones(d // 2)
    return np.asarray(1 / ((1 - kept) / s + kept))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "state",
    [
        {"length": 4096, "n": 32_768, "s": 8, "d": 128, "b": 10_000},
        {"length": 8192, "n": 131_072, "s": 8, "d": 128, "b": 500_000},
        {"length": 512, "n": 700, "s": 3, "d": 64, "b": 10_000},
    ],
)
def test_wavelengths_are_those_of_the_formulas(way: str, state: dict[str, Any]) -> None:
    found = STRETCH.data({name: str(value) for name, value in state.items()})["ways"][way]
    own = 2 * np.pi * state["b"] ** (2 * np.arange(state["d"] // 2) / state["d"])
    expected = own * slowed(way, **state)
    np.testing.assert_allclose(found["tokens_per_turn"], expected, rtol=1e-9)
    new = (own > state["length"]) & (state["n"] / expected > state["length"] / own * (1 + 1e-9))
    assert found["pairs_with_new_angles"] == np.flatnonzero(new).tolist()


def test_the_sentence_says_who_meets_new_angles() -> None:
    said = STRETCH.sentence(STRETCH.data({})["values"])
    assert said.startswith("18 of 64 pairs do not turn once within 4,096 tokens.")
    assert said.endswith("18 meet new angles; with PI 0, with NTK-aware scaling 17, with YaRN 0.")
    all_round = STRETCH.sentence(STRETCH.data({"length": "1000000"})["values"])
    assert all_round.startswith("All 64 pairs turn at least once")


def test_an_odd_width_is_refused_and_a_pair_that_is_not_there_is_the_last() -> None:
    told = STRETCH.data({"d": "7"})["problems"]
    assert told == [{"field": "d", "detail": "7 is not one of 4, 6 and so on to 256. The figure shows 8."}]
    assert "Pair 3, as trained" in STRETCH.render({"d": "8"}, LINKS)


@pytest.mark.parametrize("way", WAYS)
def test_the_lab_gives_the_cosine_of_the_angle_and_the_temperature(way: str, db: None) -> None:
    state = {"n": "8192", "way": way, "d": "128", "pair": "60"}
    values = STRETCH.data(state)["values"]
    form, notes = form_of_link(RequestFactory().get("/en/lab/", STRETCH.lab(values)))
    assert not notes
    parsed = parse_run({**form.body(), "engine": "reference"})
    shape = parsed.spec.canonical_shape
    arrays = {key: np.reshape(array, shape(key)) for key, array in parsed.arrays.items() if key in "qkv"}
    found = reference(parsed.spec, parsed.arrays | arrays, ("scores",))["scores"].ravel()
    down = slowed(way, length=4096, n=8192, s=8, d=128, b=10_000)[60]
    factor = (0.1 * math.log(8) + 1) ** 2 if way == "yarn" else 1.0
    expected = [factor * math.cos(8191 * 10_000 ** (-120 / 128) / down), factor]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_lab_takes_the_widest_head() -> None:
    address = STRETCH.run_link(STRETCH.read({"d": "256", "way": "llama3"}), LINKS)
    assert len(address) < 2200


def test_a_score_is_tame_in_training_and_wild_beyond() -> None:
    found = WILD.data({})["largest"]
    assert found["pi"] < 1
    assert found["training"] < 1
    assert found["beyond"] > 1000
    tamed = WILD.data({"price": "1"})["largest"]
    assert tamed["beyond"] < 10
    assert "up to 4,095 one is 1.09" in WILD.render({}, LINKS)


def test_what_is_said_of_one_pair() -> None:
    theta = 10_000 ** (-120 / 128)
    for name, angle in (("training", 4095), ("far", 8191), ("pi", 8191 / 8)):
        assert fact(f"hand-{name}") == pytest.approx(math.degrees(angle * theta), abs=0.05)
        assert fact(f"hand-{name}-score") == pytest.approx(math.cos(angle * theta), abs=5e-4)
    assert fact("near") == pytest.approx(math.cos(1), abs=5e-4)
    assert fact("near-pi") == pytest.approx(math.cos(1 / 8), abs=5e-4)
    assert fact("slowest-degrees") == round(math.degrees(4096 * 10_000 ** (-126 / 128)))


def test_what_is_said_of_another_base() -> None:
    assert fact("ntk-base") == round(10_000 * 8 ** (128 / 126)) == 82_685
    assert fact("first-slow") == 46
    assert fact("ntk-first") == pytest.approx(8 ** (92 / 126), abs=5e-3)
    assert fact("ntk-reach") == math.floor(4096 * 8 ** (92 / 126))
    assert fact("ntk-needed") == pytest.approx(8 ** (126 / 92), abs=5e-3)
    assert STRETCH.data({"s": "17.3"})["ways"]["ntk"]["pairs_with_new_angles"] == []


def test_what_is_said_of_yarn() -> None:
    assert fact("ramp-start") == pytest.approx(
        128 * math.log(4096 / (64 * math.pi)) / math.log(1e8), abs=0.05
    )
    assert fact("ramp-end") == pytest.approx(128 * math.log(4096 / (2 * math.pi)) / math.log(1e8), abs=0.05)
    assert (fact("yarn-kept"), fact("yarn-divided")) == (21, 18)
    turns = 4096 / (2 * math.pi * 10_000 ** (66 / 128))
    assert fact("middle-turns") == pytest.approx(turns, abs=0.05)
    assert fact("middle-paper") == pytest.approx((turns - 1) / 31, abs=5e-3)
    assert fact("middle-programs") == pytest.approx(1 - (33 - 20) / (46 - 20), abs=5e-3)
    assert fact("yarn-root") == pytest.approx(0.1 * math.log(8) + 1, abs=5e-4)
    assert fact("yarn-scores") == pytest.approx((0.1 * math.log(8) + 1) ** 2, abs=5e-4)


def test_what_is_said_of_other_ways() -> None:
    assert fact("dynamic-factor") == 8 * 8 - 7
    assert fact("llama-unturned") == sum(2 * math.pi * 5e5 ** (i / 64) > 8192 for i in range(64))
    assert (fact("llama-longer"), fact("llama-beyond")) == (16, 2)
    assert len(STRETCH.data(LLAMA31)["ways"]["llama3"]["pairs_with_new_angles"]) == fact("llama-unturned")
