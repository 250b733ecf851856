"""How far a stack of layers sees: through what it sees, a token hears of tokens that it does not see.

With M_l the mask of layer l and the residual connection, by which a token always keeps what it has, the
output of layer L at token i depends on the input at token j where

    R_L[i, j],    R_l = (M_l ∪ I) R_{l−1},    R_0 = I             a product of boolean matrices

In closed form, for tokens far from both ends, after L layers:

* a window of w tokens on a side reaches L·w of them: an upper bound on what is there to be heard, not what a
  trained model makes of it;
* strides s_1 … s_L with w strides on a side reach w·Σ s_l. They hear of every token as far as that where
  s_1 = 1 and no stride is larger than what the layers below cover without a gap, s_{l+1} ≤ 1 + 2w·Σ_{i≤l} s_i
  (causal: 1 + w·Σ), as with s_l = (2w + 1)^(l−1) (causal: (w + 1)^(l−1)), the largest that do: then n tokens
  take about log n layers (van den Oord et al. 2016, *WaveNet*, arXiv 1609.03499, with w = 1, doubling). With
  the same stride s in every layer only one token in s is ever heard, and the reach grows with L as a
  window's;
* one global token is heard by all and hears all: two layers reach everything.

Rows of R are kept as bits, 64 tokens to a word: a layer ORs one row of R_{l−1} for each pair of M_l, of which
a sparse mask has few.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernels.arrays import Array
from kernels.integers import ceil_div
from kernels.sparse.density import Sides

MAX_TOKENS = 4096


def receptive_fields(masks: Iterable[Array]) -> Iterator[Array]:
    """R_1, R_2, … of masks [n, n], the first layer first: bool [n, n] each.

    ValueError for masks that are not square, of different sizes, or of more than ``MAX_TOKENS``.
    """
    heard: Array | None = None
    for mask in masks:
        if heard is None:
            _check(mask, mask)
            heard = _with_itself(mask)
        else:
            _check(mask, heard)
            heard = _product(_with_itself(mask), heard)
        yield heard


def steps(mask: Array) -> int:
    """What a layer of this mask costs :func:`receptive_fields` after the first, in words read: a row of bits
    for each pair, and as much again as 4,096 words take for each token."""
    return (int(np.count_nonzero(mask)) + len(mask)) * _words(len(mask)) + 4096 * len(mask)


def cone(masks: Sequence[Array], token: int) -> list[Array]:
    """From one token of the last output downwards: which tokens it depends on in the output of each layer,
    last layer first, and in the input: bool [n] each, one more than there are layers."""
    found = [np.arange(len(masks[0])) == token]
    packed = {id(mask): _packed(_with_itself(mask)) for mask in masks}
    for mask in reversed(masks):
        _check(mask, masks[0])
        row = np.bitwise_or.reduce(packed[id(mask)][found[-1]], axis=0)
        found.append(_unpacked(row[None], len(mask))[0])
    return found


def _product(layer: Array, heard: Array) -> Array:
    """The boolean matrix product of two masks [n, n], of which the first has its diagonal."""
    packed = _packed(heard)
    rows = [np.bitwise_or.reduce(packed[np.flatnonzero(row)], axis=0) for row in layer]
    return _unpacked(np.stack(rows), len(heard)) if rows else heard


def _packed(mask: Array) -> Array:
    """Bits of rows [·, n] in words [·, ⌈n/64⌉]."""
    padded = np.pad(mask, ((0, 0), (0, -mask.shape[1] % 64)))
    return np.packbits(padded, axis=1, bitorder="little").view(np.uint64)


def _unpacked(words: Array, length: int) -> Array:
    bits = np.unpackbits(words.view(np.uint8), axis=1, count=length, bitorder="little")
    return bits.view(np.bool_)


def _words(length: int) -> int:
    return ceil_div(length, 64)


def _with_itself(mask: Array) -> Array:
    if np.diagonal(mask).all():
        return mask
    copy = mask.copy()
    np.fill_diagonal(copy, True)
    return copy


def _check(mask: Array, other: Array) -> None:
    if mask.ndim != 2 or mask.shape[0] != mask.shape[1] or mask.shape != other.shape:
        raise ValueError(f"masks must be square and of one size, not {mask.shape} beside {other.shape}")
    if len(mask) > MAX_TOKENS:
        raise ValueError(
            f"{len(mask)} tokens are more than the {MAX_TOKENS} whose masks are multiplied: use the closed "
            "forms, or fewer tokens"
        )


# -- closed forms --------------------------------------------------------------------------------------------


class Comb(NamedTuple):
    """What a token sees in a layer: itself, and tokens whole strides away, so many before and so many after;
    None: all of them."""

    before: int | None
    after: int | None
    stride: int = 1


def comb_of(pattern: Mapping[str, Any] | None, sides: Sides) -> Comb | None:
    """The comb of a pattern within ``sides``, tokens before and after; None where it is of another form."""
    kind = pattern["type"] if pattern else None
    if pattern is None:
        return Comb(*sides)
    if kind == "dilated":
        window, stride = pattern["window"], pattern["stride"]
    elif kind == "longformer" and not pattern["global"]:
        window, stride = pattern["window"] // 2, 1
    else:
        return None
    before, after = (window if side is None else min(window, side // stride) for side in sides)
    return Comb(before, after, stride)


def stack_reach(combs: Sequence[Comb]) -> Sides:
    """How far layers of these combs hear before and after a token; None: to the end."""
    before = [comb.before and comb.before * comb.stride for comb in combs]
    after = [comb.after and comb.after * comb.stride for comb in combs]
    return _sum(before), _sum(after)


def _sum(reaches: Sequence[int | None]) -> int | None:
    known = [reach for reach in reaches if reach is not None]
    return sum(known) if len(known) == len(reaches) else None


def combs_have_gaps(combs: Sequence[Comb]) -> bool:
    """Whether layers of these combs, in any order, pass over tokens nearer than they reach."""
    covered = 0
    for before, after, stride in sorted(combs, key=lambda comb: comb.stride):
        if before is None or after is None:
            return False
        if before + after and stride > 1 + covered:
            return True
        covered += (before + after) * stride
    return False


def growing_strides(layers: int, window: int, *, is_causal: bool = False) -> list[int]:
    """The largest strides without gaps: powers of 2w + 1, or of w + 1 where causal."""
    base = window + 1 if is_causal else 2 * window + 1
    return [base**layer for layer in range(layers)]
