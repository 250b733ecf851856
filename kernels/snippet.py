"""A dozen lines of attention as they circulate, with nine mistakes, each of which can be repaired by itself:
to be run on inputs that find the mistakes out, and on those that do not.

It is what the lines do when they are written with PyTorch tensors, down to where they stop with an error.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from kernels.arrays import Array

#: What can be repaired; see `attention`.
REPAIRS = ("keep", "once", "boolean", "shape", "corner", "empty", "precise", "groups", "training")


@dataclass(frozen=True)
class Call:
    """q [h, n, d], k [g, m, d], v [g, m, e] of one dtype, h a multiple of g; ``mask`` [n, m] has booleans
    (True: may be seen) or numbers to be added. ``kept`` [h, n, m] is what a draw of dropout leaves, where
    ``dropout`` is its probability; nothing is being trained."""

    q: Array
    k: Array
    v: Array
    mask: Array | None = None
    is_causal: bool = False
    dropout: float = 0.0
    kept: Array | None = None


class Stopped(RuntimeError):
    """An operation that PyTorch refuses, in its words."""


def attention(call: Call, repaired: Collection[str] = ()) -> tuple[Array, Array]:
    """Output [h, n, e] and weights [h, n, m]. Not ``repaired``,

    * ``keep``: the mask that came along is lost where the call is causal;
    * ``once``: where it is causal, what is then the mask is added twice;
    * ``boolean``: booleans are added to the scores as 1 and 0;
    * ``shape``: the causal mask is n × n;
    * ``corner``: it starts in the corner at the top left;
    * ``empty``: a row that sees nothing is NaN;
    * ``precise``: scores and weights have the dtype of the inputs, unless a mask of float32 promotes them;
    * ``groups``: keys are handed out to query heads in turn, not to neighbours;
    * ``training``: dropout knows nothing of evaluation.

    Raises Stopped, and ValueError for a repair that there is not.
    """
    if unknown := set(repaired) - {*REPAIRS}:
        raise ValueError(f"repairs are {', '.join(REPAIRS)}, not {min(unknown)!r}")
    k, v = _for_heads(call, "groups" in repaired)
    scores = _scores(call.q, k, "precise" in repaired)
    mask = call.mask
    if mask is not None and mask.dtype == bool and "boolean" in repaired:
        mask = np.where(mask, np.float32(0), np.float32(-np.inf))
    if call.is_causal:
        later = _later(call, "shape" in repaired, "corner" in repaired)
        mask = later if mask is None or "keep" not in repaired else _added(mask, later)
        if "once" not in repaired:
            scores = _added(scores, mask)
    if mask is not None:
        scores = _added(scores, mask)
    weights = _softmax(scores)
    if "empty" in repaired:
        weights[scores.max(axis=-1) == -np.inf] = 0
    if call.kept is not None and "training" not in repaired:
        weights = (weights * call.kept / (1 - call.dropout)).astype(weights.dtype)
    if "precise" in repaired:
        weights = weights.astype(v.dtype)
    if weights.dtype != v.dtype:
        raise Stopped("expected scalar type Float but found Half")
    return _product(weights, v), weights


def _for_heads(call: Call, in_groups: bool) -> tuple[Array, Array]:
    share = len(call.q) // len(call.k)
    if in_groups:
        return np.repeat(call.k, share, axis=0), np.repeat(call.v, share, axis=0)
    return np.tile(call.k, (share, 1, 1)), np.tile(call.v, (share, 1, 1))


def _scores(q: Array, k: Array, is_precise: bool) -> Array:
    if is_precise:
        q, k = q.astype(np.float32), k.astype(np.float32)
    return np.asarray(_product(q, k.swapaxes(-1, -2)) / float(q.shape[-1]) ** 0.5)


def _product(left: Array, right: Array) -> Array:
    """Float16 is summed in float32 and rounded in the end, as matrix units do it."""
    if left.dtype != np.float16:
        return np.asarray(left @ right)
    with np.errstate(over="ignore"):
        return np.asarray((left.astype(np.float32) @ right.astype(np.float32)).astype(np.float16))


def _later(call: Call, is_wide: bool, is_aligned: bool) -> Array:
    """−∞ where a key is later than the query, else 0."""
    n, m = call.q.shape[1], call.k.shape[1]
    seen = np.tri(n, m if is_wide else n, m - n if is_aligned else 0, dtype=bool)
    return np.where(seen, np.float32(0), np.float32(-np.inf))


def _added(one: Array, mask: Array) -> Array:
    """One axis at a time from the last, as shapes are matched."""
    sizes = zip(range(one.ndim)[::-1], one.shape[::-1], mask.shape[::-1], strict=False)
    for axis, mine, theirs in sizes:
        if mine != theirs and 1 not in (mine, theirs):
            raise Stopped(
                f"The size of tensor a ({mine}) must match the size of tensor b ({theirs}) at non-singleton"
                f" dimension {axis}"
            )
    return np.asarray(one + mask)


def _softmax(scores: Array) -> Array:
    """Of each row; NaN where it holds nothing but −∞, or ∞."""
    wide = scores.astype(np.float32) if scores.dtype == np.float16 else scores
    with np.errstate(invalid="ignore"):
        exponentials = np.exp(wide - wide.max(axis=-1, keepdims=True))
        return np.asarray((exponentials / exponentials.sum(axis=-1, keepdims=True)).astype(scores.dtype))
