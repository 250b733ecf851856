"""A penalty for distance: shares against sums over long rows, biases against loops and PyTorch's bfloat16."""

import math

import numpy as np
import pytest
import torch

from kernels.alibi import FORMS, beyond, biases, distinct_in_bfloat16, nearest, reach, remains

SLOPES = [2.0**-power for power in range(1, 9)]
LONG = 20_000  # keys: to the mildest of these slopes as good as endless


def published_slopes(n: int) -> list[float]:
    """The rule as the authors state it: a geometric series whose start is its ratio; else two of them."""
    power = 2 ** math.floor(math.log2(n))
    start = 2 ** (-(2 ** -(math.log2(power) - 3)))
    series = [start * start**i for i in range(power)]
    return series if power == n else series + published_slopes(2 * power)[0::2][: n - power]


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


@pytest.mark.parametrize("slope", SLOPES)
def test_shares_are_those_of_a_long_row(slope: float) -> None:
    weights = softmax(-slope * np.arange(LONG))
    assert remains(slope, 7) == pytest.approx(weights[7] / weights[0])
    for near in (1, 10, 512):
        assert beyond(slope, near) == pytest.approx(weights[near:].sum(), abs=1e-12)
        row = softmax(-slope * np.arange(600))
        assert beyond(slope, near, 600) == pytest.approx(row[near:].sum(), abs=1e-12)
    assert beyond(slope, 600, 600) == beyond(slope, 700, 600) == 0


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("slope", SLOPES)
def test_a_window_is_the_least_number_of_keys_that_has_its_share(slope: float, share: float) -> None:
    held = np.cumsum(softmax(-slope * np.arange(LONG)))
    assert nearest(slope, share) == int(np.argmax(held >= share - 1e-12)) + 1


@pytest.mark.parametrize(("slope", "share"), [(0.0, 0.5), (-1.0, 0.5), (0.5, 0.0), (0.5, 1.0)])
def test_what_has_no_window_is_refused(slope: float, share: float) -> None:
    with pytest.raises(ValueError, match="have a window"):
        nearest(slope, share)


def test_a_lead_is_used_up_at_its_reach() -> None:
    slope, lead = 2**-6, 5.0
    at = reach(slope, lead)
    assert at == 320
    scores = np.where(np.arange(1000) == at, lead, 0.0) - slope * np.arange(1000)
    weights = softmax(scores)
    assert weights[320] == pytest.approx(weights[0])


def test_bounded_scores_change_the_far_share_by_a_factor_at_most() -> None:
    rng = np.random.default_rng(1)
    for slope in SLOPES:
        for bound in (0.5, 2.0):
            scores = rng.uniform(-bound, bound, LONG)
            weights = softmax(scores - slope * np.arange(LONG))
            assert weights[300:].sum() <= math.exp(2 * bound) * beyond(slope, 300)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("heads", [2, 6, 8, 12])
def test_biases_are_those_of_a_loop(heads: int, form: str) -> None:
    half = published_slopes(heads // 2)
    slopes = half + half if form == "halves" else published_slopes(heads)
    found = biases(heads, 3, 7, form)
    assert found.shape == (heads, 7)
    for h, slope in enumerate(slopes):
        for j in range(7):
            back, ahead = 3 - j, j - 3
            is_ahead = form == "halves" and h >= heads // 2
            hidden = form in ("causal", "halves") and (back > 0 if is_ahead else ahead > 0)
            expected = slope * ahead if form == "signed" else -slope * abs(back)
            assert found[h, j] == pytest.approx(-math.inf if hidden else expected)


def test_an_unknown_form_is_named() -> None:
    with pytest.raises(ValueError, match="'both'"):
        biases(8, 0, 4, "both")


@pytest.mark.parametrize(("slope", "first", "last"), [(0.5, 1984, 2048), (0.5, 0, 64), (2**-8, 1984, 2048)])
def test_bfloat16_is_that_of_pytorch(slope: float, first: int, last: int) -> None:
    theirs = (slope * torch.arange(first, last, dtype=torch.float32)).to(torch.bfloat16)
    assert distinct_in_bfloat16(slope, np.arange(first, last)) == len(theirs.unique())
