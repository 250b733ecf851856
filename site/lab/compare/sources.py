"""Where the errors of two outputs come from, in words: `kernels.error_sources`, shown."""

import math
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from kernels import error_sources
from kernels.arrays import largest
from kernels.error_sources import CANCELS, LARGE_LOGIT, OUTLIER, PARTS, Cell, Split
from lab import heatmap, units
from lab.compare.configurations import LETTERS

NAMES = {
    "qk": gettext_lazy("rounding of q and k"),
    "v": gettext_lazy("rounding of v"),
    "stored": gettext_lazy("rounding of the stored output"),
    "computation": gettext_lazy("the computation"),
}


def section(splits: tuple[Split, Split], second_letter: str) -> dict[str, Any]:
    """Both, part by part; and the cells of whichever errs more."""
    letters = (LETTERS[0], second_letter)
    worse = max(range(2), key=lambda side: splits[side].total.largest)
    cells = [cell(one, splits[worse].dtype) for one in splits[worse].worst if any(one.parts.values())]
    special = [one["special"] for one in cells]
    shared = [text for text in special[0] if all(text in each for each in special)] if special else []
    return {
        "dtypes": [split.dtype for split in splits],
        "are_apart": splits[0].dtype != splits[1].dtype,
        "rows": [row(str(NAMES[name]), [split.parts[name] for split in splits]) for name in PARTS]
        + [row(_("all together"), [split.total for split in splits])],
        "says": says(splits[worse], letters[worse]),
        "letter": letters[worse],
        "shared": shared,
        "cells": [
            one | {"special": [text for text in one["special"] if text not in shared]} for one in cells
        ],
        "is_special": any(len(each) > len(shared) for each in special),
    }


def row(name: str, parts: list[error_sources.Part]) -> dict[str, Any]:
    return {
        "name": name,
        "sides": [
            {
                "largest": written(part.largest),
                "where": _("query {row}, dimension {column}").format(row=part.row, column=part.column),
                "bound": written(part.bound),
                "mean": written(part.root_mean_square),
            }
            for part in parts
        ],
    }


def says(split: Split, letter: str) -> str:
    """Where the output is off most, and of what that is the sum."""
    if not split.total.largest:
        return _("Neither output is off by anything here.")
    if split.overflowed:
        return ngettext(
            "In {letter}, {count} number of the output is beyond {dtype}, whose largest number is {most}.",
            "In {letter}, {count} numbers of the output are beyond {dtype}, whose largest number is {most}.",
            split.overflowed,
        ).format(
            letter=letter,
            count=split.overflowed,
            dtype=split.dtype,
            most=units.significant(largest(split.dtype)),
        )
    worst = split.worst[0]
    by_size = sorted(PARTS, key=lambda name: -abs(worst.parts[name]))
    return _("{letter} is off most at query {row}, dimension {column}, by {error}: {parts}.").format(
        letter=letter,
        row=worst.row,
        column=worst.column,
        error=written(sum(worst.parts.values())),
        parts=", ".join(f"{NAMES[name]} {written(worst.parts[name])}" for name in by_size),
    )


def cell(one: Cell, dtype: str) -> dict[str, Any]:
    return {
        "row": one.row,
        "column": one.column,
        "exact": heatmap.number(one.exact),
        "returned": heatmap.number(one.returned),
        "parts": [written(one.parts[name]) for name in PARTS],
        "special": special(one, dtype),
    }


def special(one: Cell, dtype: str) -> list[str]:
    """What is special about the cell, as far as it explains its error."""
    found = []
    if not math.isfinite(one.returned):
        found.append(
            _("The number is beyond {dtype}, whose largest number is {most}.").format(
                dtype=dtype, most=units.significant(largest(dtype))
            )
        )
    if one.outlier >= OUTLIER:
        found.append(outlier(one, dtype))
    if one.largest_logit >= LARGE_LOGIT:
        found.append(
            _(
                "A large logit, {logit}: rounding q and k may move the logits of this query by {moved}, and "
                "each weight by the factor e^{moved}."
            ).format(logit=heatmap.number(one.largest_logit, 1), moved=written(one.moved))
        )
    if math.isinf(one.cancellation):
        found.append(_("The output is 0 exactly, so that every error is larger than it."))
    elif one.cancellation >= CANCELS:
        found.append(
            _(
                "Cancellation: the terms of Σ p·v are {times} times as large as their sum, and their errors "
                "stay."
            ).format(times=units.significant(one.cancellation))
        )
    if error_sources.overflows(one, dtype):
        found.append(
            _(
                "q·k reaches {score}, beyond the largest number of {dtype}, {most}: a kernel that kept it in "
                "{dtype} would overflow. Ours keeps it in float32."
            ).format(
                score=units.significant(one.largest_score),
                dtype=dtype,
                most=units.significant(largest(dtype)),
            )
        )
    if one.vanished:
        found.append(
            ngettext(
                "{count} weight is so small that {dtype} has 0 in its place.",
                "{count} weights are so small that {dtype} has 0 in their place.",
                one.vanished,
            ).format(count=one.vanished, dtype=dtype)
        )
    if one.subnormal:
        found.append(
            ngettext(
                "{count} input is below the normal numbers of {dtype}, and keeps fewer bits.",
                "{count} inputs are below the normal numbers of {dtype}, and keep fewer bits.",
                one.subnormal,
            ).format(count=one.subnormal, dtype=dtype)
        )
    return found or [
        _("Nothing unusual: at this size, numbers of {dtype} are {gap} apart.").format(
            dtype=dtype, gap=step(error_sources.spacing(one.exact, dtype))
        )
    ]


def outlier(one: Cell, dtype: str) -> str:
    """A dimension whose values are larger than those of the others, and how coarse the dtype is there."""
    gap = error_sources.spacing(one.largest_value, dtype)
    if math.isfinite(one.outlier):
        reach = _("Values reach {value} in this dimension, {times} times as much as in a typical one.")
    else:
        reach = _("Values reach {value} in this dimension, and are 0 in most others.")
    coarse = _("There, numbers of {dtype} are {gap} apart, and rounding moves each by up to {half}.")
    return (
        reach.format(value=units.significant(one.largest_value), times=units.significant(one.outlier, 2))
        + " "
        + coarse.format(dtype=dtype, gap=step(gap), half=step(gap / 2))
    )


def step(power: float) -> str:
    """A power of two: 0.125, 32, 1.19e−7."""
    return f"{power:.3g}".replace("e-0", "e-").replace("-", "−")


def written(value: float) -> str:
    """An error: few digits, or 0."""
    return "0" if value == 0 else units.significant(value, 2)
