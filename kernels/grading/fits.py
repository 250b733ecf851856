"""How near a reading is to an answer, whether it fits, and which of several that do is named.

A reading *fits* where it gives the answer within ``FIT``, relative to the largest number of each row, and is
at least ``BETTER`` times nearer than the right computation is, the rounding of the answer itself left aside.
Answers in float16 and bfloat16 are noise in rows whose weights hang in the balance: of those, ``MOST`` of the
numbers have to fit; and what is beyond their range is infinite in them.

Where a reading sees no key at all a program may have written anything (NaN, 0, a mean), so such rows are left
out. Of several readings that fit, the nearest wins; those that are as near, within ``ALIKE``, in the order of
the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernels.arrays import Array, largest
from kernels.bounds import UNIT_ROUNDOFF
from kernels.grading.hypotheses import rank
from kernels.grading.pipeline import Results

FIT = {"float64": 2e-4, "float32": 2e-3, "float16": 5e-2, "bfloat16": 2e-1}
MOST = {"float64": 1.0, "float32": 1.0, "float16": 0.9, "bfloat16": 0.8}
BETTER, ALIKE = 4.0, 8.0
SAME = 1e-6  # a residual below which none is nearer than another
FLOOR = {"float64": 1e-9, "float32": 1e-9, "float16": 1e-3, "bfloat16": 1e-3}  # of a row beside the largest
DISTINCT, EVIDENCE = 4.0, 4  # roundings that are no accident, and rows that show them
LOST = 2.0**-25  # half the smallest float16
MAX_FOUND = 3


@dataclass(frozen=True)
class Finding:
    """A reading that fits, ``parts`` of an attempt's wrong answers, with its largest residual: the largest
    difference over the largest number."""

    code: str
    name: str
    says: str
    residual: float
    parts: tuple[str, ...]
    leaks: bool = False
    exact: tuple[str, ...] = ()  # answers that are this to the last bit, in rows enough to be no accident


# -- how near ------------------------------------------------------------------------------------------------


def fit(
    answer: Array, given: Array, right: Array, *, part: str, dtype: str, blind: Array | None
) -> float | None:
    """The residual of a reading of one answer, or None where it does not fit; ``blind``: rows left out."""
    if part == "mask":
        return 0.0 if bool((answer == given).all()) else None
    given = in_range(given[None], part, np.array([largest(dtype)]))[0]
    floor = np.array([FLOOR[dtype]])
    apart = distances(answer[None], given[None], part, floor, None if blind is None else blind[None])[0]
    kept = ~np.isnan(apart)
    if not kept.any() or float(np.mean(apart[kept] <= FIT[dtype])) < MOST[dtype]:
        return None
    ours, theirs = (beyond_rounding(answer, x, dtype)[kept] for x in (given, right))
    near, far = (ours.max(), theirs.max()) if MOST[dtype] == 1.0 else (ours.mean(), theirs.mean())
    if not far > 0.0 or near * BETTER > far:
        return None
    with np.errstate(invalid="ignore"):
        error = np.where(answer == given, 0.0, np.abs(answer - given))
    return residual_of(error[kept], given[kept])


def is_exact(answer: Array, given: Array, right: Array, part: str, dtype: str) -> bool:
    """Whether an answer is a reading, rounded to its dtype, and in some rows surely not what is right. An LSE
    is one number to a row, which a few roundings take anywhere: of those nothing is said."""
    if part in ("lse", "mask"):
        return False
    if float(beyond_rounding(answer, given, dtype).max(initial=0.0)) > 0.0:
        return False
    with np.errstate(invalid="ignore"):
        apart = np.abs(answer - right) > DISTINCT * UNIT_ROUNDOFF[dtype] * np.abs(right)
    return bool(np.count_nonzero(apart.any(-1)) >= EVIDENCE)


def beyond_rounding(answer: Array, given: Array, dtype: str) -> Array:
    """|answer − given|, less what rounding to the dtype makes of it; 1e300 where one is infinite."""
    with np.errstate(invalid="ignore"):
        error = np.where(answer == given, 0.0, np.abs(answer - given))
    own = 1.01 * UNIT_ROUNDOFF[dtype] * np.where(np.isfinite(given), np.abs(given), 0.0) + LOST
    return np.where(np.isfinite(error), np.maximum(error - own, 0.0), 1e300)


def in_range(given: Array, part: str, ranges: Array) -> Array:
    """What is beyond the largest number [students] of a dtype as an infinity."""
    if part == "mask":
        return given
    most = ranges.reshape(-1, *(1,) * (given.ndim - 1))
    if float(np.max(np.where(np.isfinite(given), np.abs(given), 0.0), initial=0.0)) <= float(most.min()):
        return given
    return np.where(np.abs(given) > most, np.copysign(np.inf, given), given)


def residual_of(errors: Array, given: Array) -> float:
    """The largest error over the largest number."""
    size = float(np.abs(given[np.isfinite(given)]).max(initial=0.0))
    error = float(errors[np.isfinite(errors)].max(initial=0.0))
    return error / size if size else error


def distances(answers: Array, given: Array, part: str, floor: Array, blind: Array | None) -> Array:
    """|answer − given| of each number relative to the largest of its row, [students, …], or to ``floor``
    [students] times the largest of all; NaN where it does not count. Of an LSE relative to itself, or to 1
    where it is less; of a mask 0 or inf."""
    if part == "mask":
        return np.where(answers == given, 0.0, np.inf)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = np.where(answers == given, 0.0, np.abs(answers - given))
        sizes = np.where(np.isfinite(given), np.abs(given), 0.0)
        if part == "lse":
            scale = np.maximum(sizes, 1.0)
        else:
            scale = sizes.max(-1, keepdims=True)
            overall = sizes.reshape(len(sizes), -1).max(1).reshape(-1, *(1,) * (sizes.ndim - 1))
            floors = floor.reshape(-1, *(1,) * (sizes.ndim - 1))
            scale = np.maximum(scale, np.maximum(floors * overall, 1e-12))
        apart = np.where(error == 0.0, 0.0, error / scale)
    apart = np.where(np.isnan(apart), np.inf, apart)
    if blind is not None:
        apart = np.where(blind if part == "lse" else blind[..., None], np.nan, apart)
    return np.asarray(apart)


def within_share(apart: Array, shares: Array) -> Array:
    """[students]: what so large a share of the numbers is not beyond; inf where none counts."""
    flat = apart.reshape(len(apart), -1)
    nan = np.isnan(flat)
    most = np.where(nan, -1.0, flat).max(1, initial=-1.0)
    most = np.where(most < 0.0, np.inf, most)
    if bool((shares == 1.0).all()):
        return most
    flat = np.sort(flat, axis=1)  # NaN last
    count = (~nan).sum(1)
    place = np.clip(np.ceil(shares * count).astype(int) - 1, 0, flat.shape[1] - 1)
    return np.where(np.isinf(most) | (shares == 1.0), most, flat[np.arange(len(flat)), place])


def blind_rows(given: Mapping[str, Array], right: Array | Results | None, part: str) -> Array | None:
    """Rows in which a reading sees no key where the right computation sees one: [students, b, h, n] bool."""
    lse = right["lse"] if isinstance(right, dict) else right
    if "lse" not in given or lse is None or part in ("dk", "dv", "mask"):
        return None
    blind = np.isneginf(given["lse"]) & ~np.isneginf(lse)
    return blind if bool(blind.any()) else None


# -- which first ---------------------------------------------------------------------------------------------


def ranked(found: Sequence[Finding]) -> list[Finding]:
    """The best of each code: what explains most, then the nearest, then the simplest."""
    if not found:
        return []
    best: dict[str, Finding] = {}
    for finding in sorted(found, key=lambda each: (-len(each.parts), each.residual)):
        best.setdefault(finding.code, finding)
    most = max(len(finding.parts) for finding in best.values())
    nearest = min(finding.residual for finding in best.values() if len(finding.parts) == most)
    limit = max(ALIKE * nearest, SAME)
    ties = [f for f in best.values() if len(f.parts) == most and f.residual <= limit]
    rest = [f for f in best.values() if f not in ties]
    ties.sort(key=lambda each: rank(each.code))
    rest.sort(key=lambda each: (-len(each.parts), each.residual, rank(each.code)))
    return (ties + rest)[:MAX_FOUND]
