"""The page on hard and local attention: draws counted, slopes as differences, windows key by key."""

import math
import re

import numpy as np
import pytest
from django.test import Client

from concepts.facts import FACTS
from concepts.figures import registry
from concepts.figures.soft_hard_local import (
    BASELINE_NAMES,
    LENGTH,
    SCORES,
    SOURCE_SCORES,
    SOURCE_VALUES,
    VALUES,
    views,
)

PAGE = "/en/concepts/soft-hard-local/"


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores)
    return powers / powers.sum()


def data(name: str, **asked: object) -> dict:
    return registry()[name].data({key: str(value) for key, value in asked.items()})


def test_many_draws_come_to_the_soft_output() -> None:
    found = data("hard", draws=2000)
    alpha = softmax(SCORES)
    assert found["soft_output"] == pytest.approx(float(alpha @ VALUES))
    spread = math.sqrt(alpha @ (VALUES - alpha @ VALUES) ** 2 / 2000)
    assert abs(found["mean_output"] - found["soft_output"]) < 4 * spread
    assert np.dot(found["shares"], VALUES) == pytest.approx(found["mean_output"])
    assert sum(found["shares"]) == pytest.approx(1)


def test_the_exact_slope_is_the_difference_of_mean_rewards() -> None:
    found = data("hard", constant=10)
    step = 1e-6
    for j in range(5):
        up, down = (softmax(SCORES + way * step * np.eye(5)[j]) @ (VALUES + 10) for way in (1, -1))
        assert found["gradient"][j] == pytest.approx((up - down) / (2 * step), abs=1e-8)


@pytest.mark.parametrize("constant", [-50, 0, 10])
@pytest.mark.parametrize("baseline", ["none", "expected"])
def test_the_variance_of_one_draw_is_that_of_every_draw_by_its_weight(baseline: str, constant: int) -> None:
    alpha, rewards = softmax(SCORES), VALUES + constant
    b = alpha @ rewards if baseline == "expected" else 0.0
    estimates = (rewards - b)[:, None] * (np.eye(5) - alpha)
    variance = (alpha @ estimates**2 - (alpha @ estimates) ** 2).sum()
    assert data("hard", constant=constant)["variance"][baseline] == pytest.approx(variance)


def test_no_constant_baseline_does_better_than_the_least() -> None:
    alpha, rewards = softmax(SCORES), VALUES + 10
    least = data("hard")["variance"]["optimal"]
    for b in np.linspace(0, 20, 401):
        estimates = (rewards - b)[:, None] * (np.eye(5) - alpha)
        assert (alpha @ estimates**2 - (alpha @ estimates) ** 2).sum() >= least - 1e-9


def test_estimates_scatter_as_the_table_says() -> None:
    """Over the seeds, around the exact slope, within what 100 of them allow."""
    for baseline in BASELINE_NAMES:
        errors = []
        for seed in range(100):
            found = data("hard", seed=seed, draws=40, baseline=baseline)
            errors.append(np.sum(np.square(np.subtract(found["estimate"], found["gradient"]))))
        expected = found["variance"][baseline] / 40
        assert 0.6 * expected < np.mean(errors) < 1.6 * expected, baseline


@pytest.mark.parametrize(
    ("centre", "reach"), [(21.0, 4.0), (0.0, 4.0), (12.4, 2.5), (31.0, 32.0), (7.5, 0.5)]
)
def test_a_window_is_what_lies_within_reach(centre: float, reach: float) -> None:
    found = data("window", centre=centre, reach=reach)
    inside = [s for s in range(LENGTH) if abs(s - centre) <= reach]
    powers = {s: math.exp(SOURCE_SCORES[s]) for s in inside}
    plain = [powers.get(s, 0.0) / sum(powers.values()) for s in range(LENGTH)]
    faded = [
        weight * math.exp(-((s - centre) ** 2) / (2 * (reach / 2) ** 2)) for s, weight in enumerate(plain)
    ]
    assert found["keys_scored"] == len(inside)
    np.testing.assert_allclose(found["window"], plain, atol=1e-14)
    np.testing.assert_allclose(found["gaussian"], faded, atol=1e-14)
    everywhere = softmax(SOURCE_SCORES)
    assert found["global_weight_inside"] == pytest.approx(everywhere[inside].sum())
    np.testing.assert_allclose(
        found["outputs"], [w @ SOURCE_VALUES for w in (everywhere, *map(np.array, (plain, faded)))]
    )


def test_the_slope_by_the_centre_is_a_difference_and_that_of_a_bare_window_is_0() -> None:
    step = 1e-5
    up, down = (views(21.2 + way * step, 4.0) for way in (1, -1))
    slope = (up.faded.out - down.faded.out).item() / (2 * step)
    assert views(21.2, 4.0).slope == pytest.approx(slope, rel=1e-6)
    assert (up.plain.out == down.plain.out).all()


@pytest.mark.parametrize(
    ("name", "text"),
    {
        "hard-soft": "2.302", "hard-none": "99.9", "hard-expected": "1.32", "hard-optimal": "1.25",
        "hard-times": "76", "hard-coin-exact": "0.5", "hard-coin-first": "5.5", "hard-coin-second": "−4.5",
        "hard-coin-variance": "25", "hard-coin-with": "0", "window-keys": "9", "window-share": "0.54",
        "window-sum": "0.69", "window-paper": "21", "window-pairs": "85,906", "window-all": "16,777,216",
    }.items(),
)  # fmt: skip
def test_facts(name: str, text: str) -> None:
    assert FACTS[name].text == text


def test_fifty_draws_without_a_baseline_are_off_by_more_than_the_slope(client: Client) -> None:
    html = client.get(PAGE).content.decode()
    link = re.search(r'href="(\?baseline=none)#hard">50 draws', html)
    assert link
    found = client.get(PAGE + "figure/hard.json" + link[1]).json()
    assert found["values"]["draws"] == 50
    off = np.linalg.norm(np.subtract(found["estimate"], found["gradient"]))
    assert off > np.linalg.norm(found["gradient"])


def test_the_lab_draws_the_same_keys() -> None:
    """The mean that the page shows is the output of the engine on the lab's numbers."""
    from kernels.scoring.hard import drawn_keys, uniform_numbers

    asked = dict(registry()["hard"].lab({"draws": 50, "seed": 1, "constant": 10.0, "baseline": "none"}))
    uniform = uniform_numbers(int(asked["option_draws"]), (1, 1, 1), int(asked["option_draws_seed"]))
    chosen = drawn_keys(softmax(SCORES)[None], uniform[:, 0, 0])
    assert VALUES[chosen].mean() == pytest.approx(data("hard")["mean_output"])
