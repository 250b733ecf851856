"""Groups of few bits: against loops in Python, against PyTorch, and bounds that hold for any numbers."""

import numpy as np
import pytest
import torch

from kernels.group_quantise import AXES, Axis, bits_a_number, quantise_groups
from kernels.quantise import CannotQuantiseError

RNG = np.random.default_rng()
EVERY_AXIS = pytest.mark.parametrize("axis", list(AXES))


def numbers(rows: int = 24, columns: int = 12) -> np.ndarray:
    """Of many sizes, with a column and a row that stand out."""
    x = RNG.normal(size=(rows, columns)) * np.exp(RNG.normal(size=(rows, columns)))
    x[:, 3] += 40.0
    x[5] *= 30.0
    return x


def looped(x: np.ndarray, bits: int, group: int, axis: Axis) -> tuple[np.ndarray, np.ndarray]:
    """Codes and what they stand for, number by number."""
    codes, back = np.zeros(x.shape, dtype=int), np.zeros(x.shape)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            if axis == "channel":
                start = i // group * group
                mates = [x[row, j] for row in range(start, start + group)]
            else:
                start = j // group * group
                mates = [x[i, column] for column in range(start, start + group)]
            least = float(np.float16(min(mates)))
            step = float(np.float16((max(mates) - min(mates)) / (2**bits - 1)))
            code = min(max(round((x[i, j] - least) / step), 0), 2**bits - 1)
            codes[i, j], back[i, j] = code, least + step * code
    return codes, back


@EVERY_AXIS
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("group", [2, 4, 12])
def test_codes_and_numbers_are_those_of_a_loop(axis: Axis, bits: int, group: int) -> None:
    x = numbers()
    found = quantise_groups(x, bits, group, axis)
    codes, back = looped(x, bits, group, axis)
    np.testing.assert_array_equal(found.codes, codes)
    np.testing.assert_allclose(found.restored(), back, rtol=0, atol=1e-12)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_pytorch_rounds_alike(bits: int) -> None:
    """Its fake quantisation of each channel, given the same scales and with the least number taken off."""
    x = numbers()
    found = quantise_groups(x, bits, len(x), "channel")
    least, step = (torch.tensor(part[0].astype(np.float32)) for part in (found.least, found.step))
    shifted = torch.tensor(x.astype(np.float32)) - least
    theirs = torch.fake_quantize_per_channel_affine(
        shifted, step, torch.zeros(x.shape[1], dtype=torch.int32), 1, 0, 2**bits - 1
    )
    off = np.abs((theirs + least).numpy() - found.restored())
    assert (off < 1e-3 * found.step[0]).mean() > 0.98  # but for ties that float32 breaks otherwise


@EVERY_AXIS
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_no_number_is_off_by_more_than_half_a_step(axis: Axis, bits: int) -> None:
    x = numbers()
    found = quantise_groups(x, bits, 4, axis)
    step = np.repeat(found.step.astype(float), 4, AXES[axis])
    rounding = 2.0**-10 * np.abs(x).max() * 2  # of step and least number to float16
    assert np.all(np.abs(found.restored() - x) <= 0.5 * step + rounding)
    assert found.codes.max() == 2**bits - 1


def test_a_group_of_equal_numbers_comes_back() -> None:
    x = np.full((4, 4), 0.75)
    np.testing.assert_array_equal(quantise_groups(x, 2, 4, "token").restored(), x)
    np.testing.assert_array_equal(
        quantise_groups(np.zeros((4, 4)), 4, 2, "channel").restored(), np.zeros((4, 4))
    )


def test_an_outlier_costs_its_group_and_no_other() -> None:
    x = RNG.normal(size=(8, 8))
    x[:, 2] += 50.0
    off = {axis: np.abs(quantise_groups(x, 4, 8, axis).restored() - x) for axis in AXES}
    others = np.delete(np.arange(8), 2)
    assert off["token"][:, others].mean() > 5 * off["channel"][:, others].mean()


def test_bits_of_a_number() -> None:
    """Codes, and two float16 of a group, counted."""
    for bits, group in ((4, 32), (2, 32), (8, 8), (4, 128)):
        numbers_in_all = 4096
        stored = numbers_in_all * bits + numbers_in_all // group * (16 + 16)
        assert bits_a_number(bits, group) == stored / numbers_in_all


def test_what_cannot_be_done_is_said() -> None:
    x = np.ones((6, 4))
    with pytest.raises(ValueError, match="groups of 4 do not fill 6 numbers"):
        quantise_groups(x, 4, 4, "channel")
    with pytest.raises(ValueError, match="bits must be 1 to 8, not 9"):
        quantise_groups(x, 9, 2, "channel")
    for bad in (np.nan, np.inf, -1e6):
        with pytest.raises(CannotQuantiseError, match="no finite float16"):
            quantise_groups(np.where(np.eye(6, 4) > 0, bad, 1.0), 8, 2, "channel")
