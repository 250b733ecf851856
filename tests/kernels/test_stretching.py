"""New angles in longer texts, against angles that are counted one by one; a fit against that of numpy."""

import math

import numpy as np
import pytest

from kernels.arrays import generate
from kernels.spec.model import Rope
from kernels.stretching import fit, new_angles, reach, unturned, waves

PLAIN = Rope("half")
PI = Rope("half", scaling={"type": "linear", "factor": 4.0})
NTK = Rope("half", scaling={"type": "ntk", "factor": 4.0})
DYNAMIC = Rope("half", scaling={"type": "dynamic", "factor": 1.2, "original_max_position_embeddings": 100})


def slower(way: str, pair: int, dim: int) -> float:
    return {"plain": 1.0, "pi": 4.0, "ntk": 4.0 ** (2 * pair / (dim - 2))}[way]


@pytest.mark.parametrize(("way", "rope"), [("plain", PLAIN), ("pi", PI), ("ntk", NTK)])
@pytest.mark.parametrize("length", [90, 150, 399, 400, 401])
def test_an_angle_is_new_if_training_did_not_turn_as_far(way: str, rope: Rope, length: int) -> None:
    dim, trained = 16, 100
    for pair, found in enumerate(new_angles(PLAIN, rope, dim, trained, length)):
        omega = 10_000 ** (-2 * pair / dim)
        seen = trained * omega
        needed = length * omega / slower(way, pair, dim)
        assert found == (seen < 2 * math.pi and needed > seen * (1 + 1e-9))


def test_pairs_that_do_not_turn_once() -> None:
    waves_of = [2 * math.pi * 10_000 ** (i / 64) for i in range(64)]
    np.testing.assert_array_equal(unturned(PLAIN, 128, 4096), [wave > 4096 for wave in waves_of])


@pytest.mark.parametrize("rope", [PLAIN, PI, NTK, DYNAMIC])
def test_the_reach_is_the_last_text_without_a_new_angle(rope: Rope) -> None:
    found = reach(PLAIN, rope, 16, 100)
    assert found is not None
    assert not new_angles(PLAIN, rope, 16, 100, found).any()
    assert new_angles(PLAIN, rope, 16, 100, found + 1).any()


def test_where_all_pairs_have_been_round_no_text_is_too_long() -> None:
    assert reach(PLAIN, PLAIN, 16, 1_000_000) is None


def test_a_fit_is_that_of_least_squares_with_a_price_as_rows_of_its_own() -> None:
    dim, length, price = 8, 50, 0.3
    basis = waves(np.arange(length), PLAIN, dim)
    np.testing.assert_allclose(basis[7, [1, 5]], [math.sin(0.7), math.cos(0.7)], atol=1e-12)
    wanted = generate("scores", 5, (length,), "normal", "float64")
    rows = np.vstack([basis, math.sqrt(price) * np.eye(dim)])
    expected = np.linalg.lstsq(rows, np.concatenate([wanted, np.zeros(dim)]), rcond=None)[0]
    np.testing.assert_allclose(fit(5, price, dim, 10_000.0, length), expected, rtol=1e-8)
