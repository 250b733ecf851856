"""A cache in few bits: groups of numbers, each with a step and a least number of its own.

    step = (max − min) / (2^b − 1)        code = round((x − min) / step)        x ≈ min + step · code

A group runs along one axis of a matrix [tokens, channels]: along the tokens, which is *per channel*, or along
the channels, *per token*. Codes are whole numbers from 0 to 2^b − 1; step and least number are float16, and
codes are made with what is left of them after rounding. (Liu et al. 2024, *KIVI*, ICML, arXiv 2402.02750:
keys per channel, values per token. Formats of 8 bits with a symmetric scale are in ``kernels/quantise.py``.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from kernels.arrays import Array
from kernels.quantise import CannotQuantiseError

Axis = Literal["channel", "token"]
AXES: dict[Axis, int] = {"channel": 0, "token": 1}  # along which a group runs
BITS = range(1, 9)
GROUP_BITS = 32  # float16 each: a step and a least number


@dataclass(frozen=True)
class Grouped:
    """Of a matrix [n, d]: ``codes`` of that shape, uint8; ``step`` and ``least``, float16, of each group:
    [n / group, d] per channel, [n, d / group] per token."""

    codes: Array
    step: Array
    least: Array
    group: int
    axis: Axis

    def restored(self) -> Array:
        """What the codes stand for, float64 [n, d]."""
        step, least = (
            np.repeat(x.astype(np.float64), self.group, AXES[self.axis]) for x in (self.step, self.least)
        )
        return np.asarray(least + step * self.codes)


def quantise_groups(x: Array, bits: int, group: int, axis: Axis) -> Grouped:
    """x [n, d]; a group of equal numbers has step 0. Raises ValueError where groups do not fill the axis or
    ``bits`` is not 1 to 8; CannotQuantiseError where a step or a number is no float16."""
    along = AXES[axis]
    if bits not in BITS:
        raise ValueError(f"bits must be 1 to 8, not {bits}")
    if group < 1 or x.shape[along] % group:
        raise ValueError(f"groups of {group} do not fill {x.shape[along]} numbers: take a divisor")
    x = np.asarray(x, dtype=np.float64)
    largest_code = 2**bits - 1
    groups, within = _in_groups(x, group, along)
    low, high = groups.min(axis=within), groups.max(axis=within)
    with np.errstate(over="ignore", invalid="ignore"):
        step, least = ((high - low) / largest_code).astype(np.float16), low.astype(np.float16)
    if not (np.all(np.isfinite(step)) and np.all(np.isfinite(least))):
        raise CannotQuantiseError(
            "the step or the least number of a group is no finite float16: send numbers of at most 30000"
        )
    wide, floor = (np.repeat(part.astype(np.float64), group, along) for part in (step, least))
    codes = np.rint((x - floor) / np.where(wide == 0.0, 1.0, wide))
    return Grouped(np.clip(codes, 0, largest_code).astype(np.uint8), step, least, group, axis)


def _in_groups(x: Array, group: int, along: int) -> tuple[Array, int]:
    """x with an axis more, that of the numbers of a group, and which one it is."""
    rows, columns = x.shape
    shape = (rows // group, group, columns) if along == 0 else (rows, columns // group, group)
    return x.reshape(shape), along + 1


def bits_a_number(bits: int, group: int) -> float:
    """With its part of what the group stores."""
    return bits + GROUP_BITS / group
