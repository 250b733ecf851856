"""Random numbers that stay the same on every machine and in every release."""

import math

from hypothesis import given
from hypothesis import strategies as st

from kernels.serving.draws import Draws, cumulated


def test_the_generator_is_the_one_that_is_documented():
    """Seed 0 and seed 42 of the Mersenne Twister, as printed wherever Python is taught."""
    assert Draws(0).uniform() == 0.8444218515250481
    assert Draws(42).uniform() == 0.6394267984578837


def test_every_value_is_made_of_one_u():
    u = Draws(7)
    values = [u.uniform() for _ in range(3)]
    draws = Draws(7)
    assert draws.integer(10, 19) == 10 + int(values[0] * 10)
    assert draws.exponential(2.0) == -math.log1p(-values[1]) / 2
    assert draws.index([0.5, 1.0]) == int(values[2] >= 0.5)


def test_integers_reach_both_ends_and_no_further():
    draws = Draws(3)
    assert {draws.integer(2, 4) for _ in range(200)} == {2, 3, 4}


@given(st.lists(st.sampled_from([0.0, 1e-300, 0.1, 3.0]), min_size=1, max_size=6), st.integers(0, 1000))
def test_what_has_no_weight_is_never_drawn(weights, seed):
    if any(weights):
        assert weights[Draws(seed).index(cumulated(weights))] > 0


def test_the_last_u_before_one_draws_the_last_weight():
    draws = Draws(0)
    draws.uniform = lambda: 1 - 2**-53
    assert draws.index(cumulated([0.1] * 10 + [0.0])) == 9
    draws.uniform = lambda: 0.0
    assert draws.index(cumulated([0.0, 1.0])) == 1
