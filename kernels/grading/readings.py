"""A reading: one wrong computation that students do, as it is compared with what they handed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from kernels.arrays import Array
from kernels.grading.pipeline import Results, Setting, allowed, as_answers, attend, by_v, softmax
from kernels.spec.results import GRADIENTS

Edit = Callable[[Setting], Setting]
Finish = Callable[[Setting, Results], Results]


@dataclass(frozen=True)
class Reading:
    """One way to make one mistake.

    ``edit`` changes what is computed on; ``finish`` replaces results of the computation by others: those that
    it does not give are as they were, but for gradients, of which it then says nothing unless it gives them.
    """

    code: str
    key: str  # tells the readings of a code apart
    says: str  # what was done, to complete "Your answer is what one gets if …"
    edit: Edit | None = None
    finish: Finish | None = None
    by_rows: bool = True  # whether some queries can be computed without the others
    is_main: bool = True  # whether the mutants of a problem are to include it
    silent: tuple[str, ...] = ()  # answers of which it says nothing

    @property
    def name(self) -> str:
        """Unique among all readings."""
        return f"{self.code}/{self.key}" if self.key else self.code


def evaluate(
    reading: Reading, setting: Setting, right: Results | None = None, *, gradients: bool = False
) -> Results:
    """What a reading gives, as answers. ``right``: the results of ``attend`` on this very setting."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        changed = reading.edit(setting) if reading.edit is not None else setting
        if reading.edit is not None or right is None:
            right = attend(changed, gradients=gradients)
        answers = as_answers(changed, right)
        if reading.finish is not None:
            given = reading.finish(changed, right)
            answers = {name: x for name, x in answers.items() if name not in GRADIENTS} | given
    return {name: array for name, array in answers.items() if name not in reading.silent}


def compose(first: Reading, second: Reading) -> Reading:
    """Both mistakes at once; the first is an edit."""
    edit = first.edit
    if first.edit is not None and second.edit is not None:
        one, other = first.edit, second.edit

        def both(setting: Setting) -> Setting:
            return other(one(setting))

        edit = both
    return replace(
        second,
        code=f"{first.code}+{second.code}",
        key=f"{first.key}+{second.key}".strip("+"),
        says=f"{first.says}, and {second.says}",
        edit=edit,
        by_rows=first.by_rows and second.by_rows,
        silent=(*first.silent, *second.silent),
    )


# -- what several readings need ------------------------------------------------------------------------------


def is_masked(setting: Setting) -> bool:
    """Whether anything but lengths forbids a key."""
    given = setting.given
    return (
        given.left is not None
        or given.right is not None
        or setting.attn_mask is not None
        or setting.pattern is not None
        or (given.bias is not None and bool(np.isneginf(given.bias).any()))
    )


def unmasked(setting: Setting) -> Setting:
    """Where every key within the lengths is seen; what is added to the scores stays."""
    bias = setting.given.bias
    if bias is not None:
        bias = np.where(np.isneginf(bias), 0.0, bias)
    return replace(setting.changed(left=None, right=None, bias=bias), attn_mask=None, pattern=None)


def seen_of(setting: Setting) -> Array:
    """Which keys are seen, as an array that broadcasts."""
    seen = allowed(setting)
    return np.ones((1, 1, 1, 1, 1), dtype=np.bool_) if seen is None else seen


def within_lengths(setting: Setting) -> Array | None:
    """Pairs within the lengths; None: all."""
    return allowed(unmasked(setting))


def with_mask(setting: Setting, seen: Array) -> Setting:
    """Where ``seen`` alone, and the lengths, say which keys are seen."""
    return replace(unmasked(setting), attn_mask=seen if seen.ndim == 5 else seen[None])


def from_logits(setting: Setting, logits: Array) -> Results:
    """Weights, LSE and out of other logits [students, b, h, n, m] than the right ones."""
    weights, lse = softmax(setting, logits)
    return {"masked_scores": logits, "lse": lse, **from_weights(setting, weights)}


def from_weights(setting: Setting, weights: Array) -> Results:
    """Out of other weights."""
    return {"weights": weights, "out": by_v(weights, setting.given.v, setting.kv_of)}


def every(results: Mapping[str, Array], change: Callable[[Array], Array]) -> Results:
    """All results, changed alike."""
    return {name: change(array) for name, array in results.items()}
