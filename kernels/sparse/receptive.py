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
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from kernels.arrays import Array

MAX_TOKENS = 4096


def receptive_fields(masks: Iterable[Array]) -> Iterator[Array]:
    """R_1, R_2, … of masks [n, n], the first layer first: bool [n, n] each.

    ValueError for masks that are not square, of different sizes, or of more than ``MAX_TOKENS``.
    """
    heard: Array | None = None
    for mask in masks:
        _check(mask, mask if heard is None else heard)
        layer = _with_itself(mask)
        # Counts of paths stay below 2²⁴, up to which float32 has every integer.
        paths = layer if heard is None else layer.astype(np.float32) @ heard.astype(np.float32)
        heard = paths > 0
        yield heard


def cone(masks: Sequence[Array], token: int) -> list[Array]:
    """From one token of the last output downwards: which tokens it depends on in the output of each layer,
    last layer first, and in the input: bool [n] each, one more than there are layers."""
    found = [np.arange(len(masks[0])) == token]
    for mask in reversed(masks):
        _check(mask, masks[0])
        found.append(_with_itself(mask)[found[-1]].any(axis=0))
    return found


def layers_to_hear_all(mask: Array, limit: int) -> int | None:
    """After how many equal layers every token depends on every other; None: not after ``limit``."""
    for number, heard in enumerate(receptive_fields([mask] * limit), start=1):
        if heard.all():
            return number
    return None


def _with_itself(mask: Array) -> Array:
    return np.asarray(mask | np.eye(len(mask), dtype=np.bool_))


def _check(mask: Array, other: Array) -> None:
    if mask.ndim != 2 or mask.shape[0] != mask.shape[1] or mask.shape != other.shape:
        raise ValueError(f"masks must be square and of one size, not {mask.shape} beside {other.shape}")
    if len(mask) > MAX_TOKENS:
        raise ValueError(
            f"{len(mask)} tokens are more than the {MAX_TOKENS} whose masks are multiplied: use the closed "
            "forms, or fewer tokens"
        )


# -- closed forms --------------------------------------------------------------------------------------------


def window_reach(layers: int, window: int) -> int:
    """How far L layers hear on one side where each sees ``window`` tokens on it: L·w."""
    return layers * window


def dilated_reach(window: int, strides: Sequence[int]) -> int:
    """How far layers with these strides hear on one side: w·Σ s."""
    return window * sum(strides)


def has_gaps(window: int, strides: Sequence[int], *, is_causal: bool = False) -> bool:
    """Whether layers with these strides, in any order, pass over tokens nearer than they reach."""
    covered, sides = 0, 1 if is_causal else 2
    for stride in sorted(strides):
        if stride > 1 + sides * window * covered:
            return True
        covered += stride
    return False


def growing_strides(layers: int, window: int, *, is_causal: bool = False) -> list[int]:
    """The largest strides without gaps: powers of 2w + 1, or of w + 1 where causal."""
    base = window + 1 if is_causal else 2 * window + 1
    return [base**layer for layer in range(layers)]
