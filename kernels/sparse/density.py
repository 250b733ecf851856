"""How many pairs a pattern lets through in self-attention over n tokens: counted, without making the mask.

A band |i − j| ∈ {0, s, 2s, … ws} has n + 2Kn − sK(K + 1) pairs, K = min(w, ⌊n/s⌋): n on the diagonal,
n − ks on each side of it at each distance ks. With s = 1 it is the window of w tokens on either side.

    prefix        n(n + 1)/2 + p(p − 1)/2         p = min(len, n): below the diagonal all, above it the prefix
    document      Σ (tokens of a document)²
    chunked       ⌊n/c⌋ c² + (n mod c)²
    dilated       the band with s = stride
    longformer    the band with s = 1, w = ⌊window/2⌋, and what touches a global token and is not in the band
    neighborhood  n k²
    bigbird, block  Σ over blocks that are seen of rows · columns

With ``is_causal``, pairs j ≤ i of them. Where j sees i whenever i sees j, and everyone themselves, that is
half of all pairs and half of the diagonal; so it is for neighborhoods, which are not symmetric at the edges,
but are as often displaced to one side as to the other: n (k² + 1)/2.

A window alone, l tokens before and r after, has n + l(2n − l − 1)/2 + r(2n − r − 1)/2 pairs, with l and r at
most n − 1, and r = 0 where causal. A window on a pattern has no such form: its pairs are counted in the mask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernels.arrays import Array
from kernels.patterns import bigbird_layout
from kernels.spec.patterns import blocks_of

Pattern = Mapping[str, Any]
Sides = tuple[int | None, int | None]
MAX_BLOCKS = 4096  # of bigbird: its random blocks are drawn row by row, and there are so many squared


def visible_pairs(pattern: Pattern | None, length: int, *, is_causal: bool = False) -> int:
    """Pairs that a pattern (valid for so many keys; None: all) and causality let through, in one batch row.

    ValueError for documents that differ by batch row, for a layout that is not square, and for a bigbird
    of more than ``MAX_BLOCKS`` blocks.
    """
    if pattern is None:
        return window_pairs((None, None), length, is_causal=is_causal)
    return _COUNTS[pattern["type"]](pattern, length, is_causal)


def window_pairs(window: Sides, length: int, *, is_causal: bool = False) -> int:
    """Pairs that a window of (left, right) tokens, None for all of them, and causality let through."""
    left, right = (length - 1 if side is None else min(side, length - 1) for side in window)
    sides = (left, 0 if is_causal else right)
    return length + sum(side * (2 * length - side - 1) // 2 for side in sides) if length else 0


def closed_form(pattern: Pattern | None, window: Sides, *, is_causal: bool = False) -> str | None:
    """The formula by which pairs are counted, n being the tokens; None for a window on a pattern."""
    if pattern is not None and window != (None, None):
        return None
    kind = pattern["type"] if pattern else "all" if window == (None, None) else "window"
    if kind in SYMMETRIC_FORMS:
        form, letters = SYMMETRIC_FORMS[kind]
        return f"({form} + n)/2{letters}" if is_causal else form + letters
    return FORMS[kind][is_causal]


_OF_BLOCKS = (
    "Σ rows · columns over the blocks seen",
    "Σ rows · columns below the diagonal, on it a triangle",
)
FORMS = {  # both ways, causal
    "all": ("n²", "n(n + 1)/2"),
    "window": (
        "n + l(2n − l − 1)/2 + r(2n − r − 1)/2, l and r at most n − 1",
        "n + l(2n − l − 1)/2, l at most n − 1",
    ),
    "prefix": ("n(n + 1)/2 + p(p − 1)/2, p = len", "n(n + 1)/2"),
    "bigbird": _OF_BLOCKS,
    "block": _OF_BLOCKS,
}
SYMMETRIC_FORMS = {  # formula, what its letters are
    "document": ("Σ m²", " over documents of m tokens"),
    "chunked": ("⌊n/c⌋c² + (n mod c)²", ", c = size"),
    "dilated": ("n + 2Kn − sK(K + 1)", ", s = stride, K = min(window, ⌊n/s⌋)"),
    "longformer": (
        "n + 2wn − w(w + 1) + 2gn − g² − both",
        ", w = ⌊window/2⌋, g global tokens, both: the pairs of these that are in the window too",
    ),
    "neighborhood": ("nk²", ", k = kernel_size"),
}


# -- counts: (pattern, length, is_causal) -> pairs; formulas at the top --------------------------------------


def _band(length: int, window: int, stride: int) -> int:
    steps = min(window, length // stride)
    return length + 2 * steps * length - stride * steps * (steps + 1)


def _symmetric(pairs: int, length: int, is_causal: bool) -> int:
    return (pairs + length) // 2 if is_causal else pairs


def _prefix(pattern: Pattern, length: int, is_causal: bool) -> int:
    prefix = 0 if is_causal else min(pattern["len"], length)
    return length * (length + 1) // 2 + prefix * (prefix - 1) // 2


def _document(pattern: Pattern, length: int, is_causal: bool) -> int:
    ids = pattern["ids"]
    if length and isinstance(ids[0], list | tuple):
        if len(ids) != 1:
            raise ValueError(f"ids has {len(ids)} lists, which differ by batch row: count one at a time")
        ids = ids[0]
    pairs = sum(count * count for count in Counter(ids).values())
    return _symmetric(pairs, length, is_causal)


def _chunked(pattern: Pattern, length: int, is_causal: bool) -> int:
    chunks, rest = divmod(length, pattern["size"])
    return _symmetric(chunks * pattern["size"] ** 2 + rest * rest, length, is_causal)


def _dilated(pattern: Pattern, length: int, is_causal: bool) -> int:
    return _symmetric(_band(length, pattern["window"], pattern["stride"]), length, is_causal)


def _longformer(pattern: Pattern, length: int, is_causal: bool) -> int:
    window, chosen = pattern["window"] // 2, sorted(set(pattern["global"]))
    g = len(chosen)
    touching = 2 * g * length - g * g
    # Of these, what the band has already: all that a global token sees in it, those of two global ones once.
    tokens = np.array(chosen, dtype=np.int64)
    window = min(window, length)
    near = int((np.minimum(tokens + window, length - 1) - np.maximum(tokens - window, 0) + 1).sum())
    upto, below = np.searchsorted(tokens, tokens + window, "right"), np.searchsorted(tokens, tokens - window)
    both = int((upto - below).sum())
    pairs = _band(length, window, 1) + touching - (2 * near - both)
    return _symmetric(pairs, length, is_causal)


def _neighborhood(pattern: Pattern, length: int, is_causal: bool) -> int:
    return _symmetric(length * pattern["kernel_size"] ** 2, length, is_causal)


def _bigbird(pattern: Pattern, length: int, is_causal: bool) -> int:
    blocks = blocks_of(length, pattern["block"])
    if blocks > MAX_BLOCKS:
        raise ValueError(
            f"{length} tokens are {blocks} blocks of {pattern['block']}, and at most {MAX_BLOCKS} can be "
            "counted: make block larger"
        )
    return _of_blocks(bigbird_layout(pattern, np.arange(blocks), blocks), pattern["block"], length, is_causal)


def _block(pattern: Pattern, length: int, is_causal: bool) -> int:
    blocks = blocks_of(length, pattern["size"])
    if len(pattern["layout"]) != blocks:
        raise ValueError(
            f"the layout has {len(pattern['layout'])} rows for {blocks} blocks of keys: it is not of "
            "self-attention"
        )
    layout = np.array(pattern["layout"], dtype=np.bool_).reshape(blocks, blocks)
    return _of_blocks(layout, pattern["size"], length, is_causal)


def _of_blocks(layout: Array, size: int, length: int, is_causal: bool) -> int:
    """Σ of rows · columns; a causal mask leaves those before the diagonal, and on it a triangle."""
    sizes = np.minimum(size, length - size * np.arange(len(layout))).astype(np.int64)
    if not is_causal:
        return int(sizes @ layout @ sizes)
    own = np.diagonal(layout) @ (sizes * (sizes + 1) // 2)
    return int(sizes @ np.tril(layout, -1) @ sizes + own)


_COUNTS: dict[str, Callable[[Pattern, int, bool], int]] = {
    "prefix": _prefix,
    "document": _document,
    "chunked": _chunked,
    "dilated": _dilated,
    "longformer": _longformer,
    "bigbird": _bigbird,
    "block": _block,
    "neighborhood": _neighborhood,
}
