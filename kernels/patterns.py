"""Compact masks: which key a query may see, from a few numbers instead of a matrix (numpy).

Every pattern is about tokens on one axis, that of the keys: key j is token j, whatever its position, and
query i is token t, its place on the same axis (:func:`query_index`). A query that is decoded over a past
therefore sees what its row of the full computation sees. Causality is not part of a pattern (but for
``prefix``): it is combined with ``is_causal``, windows and ``attn_mask`` by AND. Key j is visible to t where

* ``prefix`` (``len``): j < len or j ≤ t. The prefix sees all of itself, what follows is causal; leave
  ``is_causal`` false. (The prefix LM of Raffel et al. 2020, *T5*, arXiv 1910.10683, §3.2.1.)
* ``document`` (``ids``): j and t have the same id, for texts packed into one row. One id for each key, or one
  such list for each batch row. A query beyond the keys belongs to no document.
* ``chunked`` (``size``): ⌊j/size⌋ = ⌊t/size⌋ (the local layers of Llama 4).
* ``dilated`` (``window``, ``stride``): j − t is a multiple of the stride, at most ``window`` strides on
  either side: a window with gaps (Beltagy et al. 2020, §3.1). With a stride near √n it is one of the two
  heads of the strided pattern of Child et al. 2019, *Sparse Transformers*, arXiv 1904.10509, §4.3.
* ``longformer`` (``window``, ``global``): |j − t| ≤ ⌊window/2⌋, or j or t is one of the tokens in ``global``,
  which see all and are seen by all. As in the paper, the window counts both sides: half of it on each
  (Beltagy et al. 2020, *Longformer*, arXiv 2004.05150, §3.1).
* ``bigbird`` (``window``, ``global``, ``random``, ``seed``, ``block``): by blocks of ``block`` tokens. With c
  and r the blocks of j and t: |c − r| ≤ ⌊window/2⌋ (3: the own block and one on each side), or c or r is one
  of the first ``global`` blocks, or c is one of the ``random`` blocks drawn for r, the same for every head
  and batch row (Zaheer et al. 2020, *Big Bird*, arXiv 2007.14062, §2; global tokens are of the text itself).
* ``block`` (``size``, ``layout``): layout[r][c] is 1. Rows and columns are the blocks of the key axis. A
  layout that is not square has a row for each block of queries instead, counted from query 0, whichever place
  they have (cross-attention). (Gray et al. 2017, *GPU Kernels for Block-Sparse Weights*; Child et al. 2019.)
* ``neighborhood`` (``width``, ``kernel_size``, ``dilation``): for an image whose pixels follow one another in
  rows of ``width``. Of the rows, and of the columns, that are a multiple of the dilation away (1 unless
  given), the ``kernel_size`` nearest; both coordinates of j must be among those of t. At the edges the square
  is moved inwards, not cut off, so that every pixel sees kernel_size² (Hassani et al. 2023, *Neighborhood
  Attention Transformer*, arXiv 2204.07143, §3; dilated: Hassani & Shi 2022, arXiv 2209.15001). A query that
  is no pixel sees none.

The random blocks, so that anyone can draw them again. For query block r, numpy's Philox4x64-10 with the key
(seed, the first eight bytes, little-endian, of SHA-256 of ``attention-lab/v1/bigbird``) and the counter (0,
r, 0, 0) gives one 64-bit word for each key block in order (``random_raw``; numpy increments the counter
before each four words). Of the key blocks that r does not see by window or globally, the ``random`` ones with
the smallest words are seen too, or all where there are fewer; a query off the key axis has none. The word of
(r, c) does not depend on the lengths.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from kernels import positions
from kernels.arrays import Array
from kernels.spec.model import RunSpec
from kernels.spec.patterns import Pattern, blocks_of

_TAG = int.from_bytes(hashlib.sha256(b"attention-lab/v1/bigbird").digest()[:8], "little")


# -- masks ---------------------------------------------------------------------------------------------------


def pattern_mask(spec: RunSpec, q_lens: Array | None = None, kv_lens: Array | None = None) -> Array | None:
    """True where a key may be seen: bool [b or 1, 1, q_len, kv_len], or None without a pattern.

    ``q_lens`` and ``kv_lens`` [b], where the batch is ragged, only place the queries; what lies beyond the
    lengths is not masked here.
    """
    pattern = spec.attention.pattern
    if pattern is None:
        return None
    tokens = query_index(spec, q_lens, kv_lens)
    return _PATTERNS[pattern["type"]](pattern, tokens, spec)[:, None]


def query_index(spec: RunSpec, q_lens: Array | None = None, kv_lens: Array | None = None) -> Array:
    """The place t of each query on the axis of the keys: [b or 1, q_len] int64; outside it too.

    Without ``q_positions``, by ``causal_alignment``: the last query is the last key (``bottom_right``; of the
    lengths in a ragged batch) or the first query is the first key. With ``q_positions``, the key that has the
    position of the query: exactly so where key positions count by one; the last key not after it where they
    ascend with gaps; and again by alignment where they do not ascend (packed documents that each start at 0),
    since then no position tells a key.
    """
    aligned = _aligned(spec, q_lens, kv_lens)
    if spec.attention.q_positions is None or not len(aligned):
        return aligned
    queries, given = positions.query_positions(spec), spec.attention.kv_positions
    if not isinstance(given, tuple):
        return queries - (given or 0)
    keys = positions.key_positions(spec)
    rows = max(len(aligned), len(queries), len(keys))
    lens = np.full(rows, spec.kv_len) if kv_lens is None else kv_lens
    return np.stack(
        [
            _located(queries[b % len(queries)], keys[b % len(keys)][: lens[b]], aligned[b % len(aligned)])
            for b in range(rows)
        ]
    )


def _aligned(spec: RunSpec, q_lens: Array | None, kv_lens: Array | None) -> Array:
    tokens = np.arange(spec.q_len, dtype=np.int64)[None]
    if spec.attention.causal_alignment == "top_left":
        return tokens
    ends = np.asarray(spec.kv_len if kv_lens is None else kv_lens, dtype=np.int64)
    starts = ends - np.asarray(spec.q_len if q_lens is None else q_lens, dtype=np.int64)
    return tokens + starts.reshape(-1, 1)


def _located(queries: Array, keys: Array, aligned: Array) -> Array:
    """Of one batch row: where on ascending ``keys`` [m] the positions ``queries`` [n] fall."""
    if not keys.size or (np.diff(keys) <= 0).any():
        return aligned
    inside = np.searchsorted(keys, queries, side="right") - 1
    after = np.maximum(queries - keys[-1], 0)
    before = np.minimum(queries - keys[0], 0)
    return np.asarray(np.where(before < 0, before, inside + after))


# -- patterns: (pattern, tokens [b or 1, n], spec) -> bool [b or 1, n, m]; definitions at the top ------------


def _prefix(pattern: Pattern, tokens: Array, spec: RunSpec) -> Array:
    keys = np.arange(spec.kv_len)
    return np.asarray((keys < pattern["len"]) | (keys <= tokens[:, :, None]))


def _document(pattern: Pattern, tokens: Array, spec: RunSpec) -> Array:
    m = spec.kv_len
    ids = np.array(pattern["ids"], dtype=np.int64).reshape(-1, m) if m else np.zeros((1, 0), dtype=np.int64)
    (rows,) = np.broadcast_shapes(ids.shape[:1], tokens.shape[:1])  # none, where the batch has none
    ids, tokens = np.broadcast_to(ids, (rows, m)), np.broadcast_to(tokens, (rows, tokens.shape[1]))
    if not m:
        return np.zeros((*tokens.shape, 0), dtype=np.bool_)
    own = np.take_along_axis(ids, np.clip(tokens, 0, m - 1), axis=1)
    on_axis = (tokens >= 0) & (tokens < m)
    return np.asarray((own[:, :, None] == ids[:, None, :]) & on_axis[:, :, None])


def _chunked(pattern: Pattern, tokens: Array, spec: RunSpec) -> Array:
    size = pattern["size"]
    return np.asarray(np.arange(spec.kv_len) // size == (tokens // size)[:, :, None])


def _dilated(pattern: Pattern, tokens: Array, spec: RunSpec) -> Array:
    stride = pattern["stride"]
    reach = min(pattern["window"] * stride, 2**62)
    aligned = np.arange(spec.kv_len) % stride == (tokens % stride)[:, :, None]
    return np.asarray(aligned & _within(reach, tokens, spec.kv_len))


def _longformer(pattern: Pattern, tokens: Array, spec: RunSpec) -> Array:
    chosen = np.array(pattern["global"], dtype=np.int64)
    keys = np.isin(np.arange(spec.kv_len), chosen)
    queries = np.isin(tokens, chosen)
    near = _within(pattern["window"] // 2, tokens, spec.kv_len)
    return np.asarray(near | keys | queries[:, :, None])


def _within(reach: int, tokens: Array, length: int) -> Array:
    """|j − t| ≤ reach, from two comparisons: no matrix of distances."""
    keys, tokens = np.arange(length), tokens[:, :, None]
    return np.asarray((keys >= tokens - reach) & (keys <= tokens + reach))


def _bigbird(pattern: Pattern, tokens: Array, spec: RunSpec) -> Array:
    block = pattern["block"]
    rows, which = np.unique(tokens // block, return_inverse=True)
    layout = bigbird_layout(pattern, rows, blocks_of(spec.kv_len, block))
    return _spread(layout, which.reshape(tokens.shape), spec.kv_len, block)


def bigbird_layout(pattern: Pattern, rows: Array, blocks: int) -> Array:
    """What the query blocks ``rows`` [R] see of the ``blocks`` key blocks: bool [R, blocks]."""
    columns, r = np.arange(blocks), rows[:, None]
    seen = (columns < pattern["global"]) | ((r >= 0) & (r < pattern["global"]))
    seen |= _within(pattern["window"] // 2, rows[None], blocks)[0]
    for row, sees in zip(rows.tolist(), seen, strict=True):
        if pattern["random"] and 0 <= row < blocks:
            unseen = np.flatnonzero(~sees)
            order = np.argsort(_words(pattern["seed"], row, blocks)[unseen], kind="stable")
            sees[unseen[order[: pattern["random"]]]] = True
    return np.asarray(seen)


def _words(seed: int, row: int, count: int) -> Array:
    key = np.array([seed, _TAG], dtype=np.uint64)
    counter = np.array([0, row, 0, 0], dtype=np.uint64)
    return np.asarray(np.random.Philox(key=key, counter=counter).random_raw(count))


def _block(pattern: Pattern, tokens: Array, spec: RunSpec) -> Array:
    size, columns = pattern["size"], blocks_of(spec.kv_len, pattern["size"])
    layout = np.array(pattern["layout"], dtype=np.bool_).reshape(len(pattern["layout"]), columns)
    if len(layout) != columns:
        tokens = np.arange(spec.q_len)[None]
    # A last row that is empty, for what is not on the axis.
    layout = np.concatenate([layout, np.zeros((1, columns), dtype=np.bool_)])
    rows = tokens // size
    rows = np.where((rows >= 0) & (rows < len(layout) - 1), rows, len(layout) - 1)
    return _spread(layout, rows, spec.kv_len, size)


def _spread(layout: Array, rows: Array, length: int, size: int) -> Array:
    """A mask of blocks [R, blocks] as one of tokens [b, n, m]: query (b, i) has row ``rows[b, i]``."""
    return np.asarray(layout[rows][:, :, np.arange(length) // size])


def _neighborhood(pattern: Pattern, tokens: Array, spec: RunSpec) -> Array:
    m, width, size = spec.kv_len, pattern["width"], pattern["kernel_size"]
    dilation = pattern.get("dilation") or 1
    keys = np.arange(m)
    rows = _nearest(tokens // width, m // width, size, dilation)[:, :, keys // width]
    columns = _nearest(tokens % width, min(width, m), size, dilation)[:, :, keys % width]
    on_axis = (tokens >= 0) & (tokens < m)
    return np.asarray(rows & columns & on_axis[:, :, None])


def _nearest(at: Array, length: int, size: int, dilation: int) -> Array:
    """Of 0 … length − 1, the ``size`` nearest to each of ``at`` [b, n] that are multiples of ``dilation``
    away: bool [b, n, length]. That there are as many, the checks of the pattern have seen to."""
    others, offset = np.arange(length), (at % dilation)[:, :, None]
    alike = (length - 1 - offset) // dilation + 1
    first = np.clip(at[:, :, None] // dilation - size // 2, 0, alike - size)
    step = others // dilation - first
    return np.asarray((others % dilation == offset) & (step >= 0) & (step < size))


_PATTERNS: dict[str, Callable[[Pattern, Array, RunSpec], Array]] = {
    "prefix": _prefix,
    "document": _document,
    "chunked": _chunked,
    "dilated": _dilated,
    "longformer": _longformer,
    "bigbird": _bigbird,
    "block": _block,
    "neighborhood": _neighborhood,
}
