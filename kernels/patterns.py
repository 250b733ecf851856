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

The random blocks, so that anyone can draw them again. For query block r, numpy's Philox4x64-10 with the key
(seed, the first eight bytes, little-endian, of SHA-256 of ``attention-lab/v1/bigbird``) and the counter (0,
r, 0, 0) gives one 64-bit word for each key block in order (``random_raw``; numpy increments the counter
before each four words). Of the key blocks that r does not see by window or globally, the ``random`` ones with
the smallest words are seen too, or all where there are fewer; a query off the key axis has none. The word of
(r, c) does not depend on the lengths.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

import numpy as np

from kernels import positions
from kernels.arrays import Array
from kernels.spec.model import RunSpec
from kernels.spec.problems import MALFORMED, FieldProblem, join, show

Pattern = Mapping[str, Any]

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


def density(mask: Array) -> float:
    """The share of pairs that a mask lets through; 0 where there are none."""
    return int(np.count_nonzero(mask)) / mask.size if mask.size else 0.0


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
    layout = _bigbird_layout(pattern, rows, _blocks(spec.kv_len, block))
    return _spread(layout, which.reshape(tokens.shape), spec.kv_len, block)


def _bigbird_layout(pattern: Pattern, rows: Array, blocks: int) -> Array:
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
    size, columns = pattern["size"], _blocks(spec.kv_len, pattern["size"])
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


def _blocks(length: int, size: int) -> int:
    return -(-length // size)


_PATTERNS: dict[str, Callable[[Pattern, Array, RunSpec], Array]] = {
    "prefix": _prefix,
    "document": _document,
    "chunked": _chunked,
    "dilated": _dilated,
    "longformer": _longformer,
    "bigbird": _bigbird,
    "block": _block,
}


# -- what a request may say ----------------------------------------------------------------------------------

MAX_COUNT = 2**53  # as for positions: JavaScript, which draws these, tells no larger neighbours apart
MAX_SEED = 2**63 - 1
POINTER = "/attention/pattern"

_SIZE, _COUNT = (1, MAX_COUNT), (0, MAX_COUNT)
_RANGES: dict[str, dict[str, tuple[int, int]]] = {
    "prefix": {"len": _COUNT},
    "document": {},
    "chunked": {"size": _SIZE},
    "dilated": {"window": _COUNT, "stride": _SIZE},
    "longformer": {"window": _COUNT},
    "bigbird": {"window": _SIZE, "global": _COUNT, "random": _COUNT, "seed": (0, MAX_SEED), "block": _SIZE},
    "block": {"size": _SIZE},
}
_MEANING = {
    ("prefix", "len"): "it counts the tokens that all may see; 0 is plain causal attention",
    ("chunked", "size"): "it counts the tokens of a chunk",
    ("dilated", "window"): "it counts the strides that are seen on either side",
    ("dilated", "stride"): "it is the distance of what is seen; 1 leaves no gaps",
    ("longformer", "window"): "it counts tokens, half of them on each side",
    ("bigbird", "window"): "it counts blocks, the own one among them; 3 is usual",
    ("bigbird", "global"): "it counts the first blocks, seen by all; 0 for none",
    ("bigbird", "random"): "it counts the blocks drawn for each block of queries; 0 for none",
    ("bigbird", "seed"): "any such integer will do",
    ("bigbird", "block"): "it counts the tokens of a block",
    ("block", "size"): "it counts the tokens of a block",
}


def pattern_problems(spec: RunSpec) -> list[FieldProblem]:
    """What is wrong with the values of ``pattern``; the shapes of the inputs are known to fit.

    A field of the wrong type is passed over here.
    """
    pattern = spec.attention.pattern
    if pattern is None or pattern.get("type") not in _RANGES:
        return []
    kind = str(pattern["type"])
    found = [
        problem
        for name, (low, high) in _RANGES[kind].items()
        for problem in _range_problems(pattern, kind, name, low, high)
    ]
    if kind == "document":
        found += _document_problems(pattern.get("ids"), spec)
    if kind == "longformer":
        found += _global_problems(pattern.get("global"), spec.kv_len)
    if kind == "block" and not found and isinstance(pattern.get("size"), int):
        found += _layout_problems(pattern.get("layout"), pattern["size"], spec)
    return found


def _range_problems(pattern: Pattern, kind: str, name: str, low: int, high: int) -> list[FieldProblem]:
    value = pattern.get(name)
    if not _is_integer(value) or low <= value <= high:
        return []
    detail = f"{name} of {kind} must be between {low} and {high:,}, not {show(value)}: {_MEANING[kind, name]}"
    return [FieldProblem(join(POINTER, name), "out-of-range", detail)]


def _document_problems(ids: object, spec: RunSpec) -> list[FieldProblem]:
    """One id for each key, or one such list for each batch row."""
    pointer = join(POINTER, "ids")
    if not isinstance(ids, list | tuple):
        return []
    if not ids or not all(isinstance(row, list | tuple) for row in ids):
        return _ids_problems(ids, pointer, spec.kv_len)
    if len(ids) != spec.batch:
        detail = f"ids has {len(ids)} lists but the batch is {spec.batch}; give one list for all, or one each"
        return [FieldProblem(pointer, "shape-mismatch", detail)]
    rows = (_ids_problems(row, join(pointer, number), spec.kv_len) for number, row in enumerate(ids))
    return next((found for found in rows if found), [])


def _ids_problems(ids: list[Any] | tuple[Any, ...], pointer: str, length: int) -> list[FieldProblem]:
    if len(ids) != length:
        detail = f"ids has {len(ids)} entries for {length} keys; give one document id for each key"
        return [FieldProblem(pointer, "shape-mismatch", detail)]
    for index, item in enumerate(ids):
        if not _is_integer(item):
            detail = f"ids holds one integer for each key, the number of its document, not {show(item)}"
            return [FieldProblem(join(pointer, index), "wrong-type", detail, MALFORMED)]
        if abs(item) > MAX_COUNT:
            detail = f"ids stay within ±2^53, unlike {show(item)}; number the documents from 0"
            return [FieldProblem(join(pointer, index), "out-of-range", detail)]
    return []


def _global_problems(chosen: object, length: int) -> list[FieldProblem]:
    pointer = join(POINTER, "global")
    for index, item in enumerate(chosen if isinstance(chosen, list | tuple) else ()):
        if not _is_integer(item):
            detail = f"global lists tokens by their integer index, not by {show(item)}"
            return [FieldProblem(join(pointer, index), "wrong-type", detail, MALFORMED)]
        if not 0 <= item < length:
            detail = f"global names token {show(item)} of {length}; they count from 0, in order of the keys"
            return [FieldProblem(join(pointer, index), "out-of-range", detail)]
    return []


def _layout_problems(layout: object, size: int, spec: RunSpec) -> list[FieldProblem]:
    """Rows of 0 and 1: one column for each block of keys, one row for each of keys or of queries."""
    pointer = join(POINTER, "layout")
    if not isinstance(layout, list | tuple):
        return []
    columns, query_rows = _blocks(spec.kv_len, size), _blocks(spec.q_len, size)
    for number, row in enumerate(layout):
        found = _layout_row_problems(row, join(pointer, number), size, columns, spec.kv_len)
        if found:
            return found
    if len(layout) not in (columns, query_rows):
        wanted = f"{columns} (the blocks of {spec.kv_len} keys, for self-attention)"
        if query_rows != columns:
            wanted += f" or {query_rows} (the blocks of {spec.q_len} queries)"
        detail = f"layout has {len(layout)} rows; with blocks of {size} it needs {wanted}"
        return [FieldProblem(pointer, "shape-mismatch", detail)]
    return []


def _layout_row_problems(
    row: object, pointer: str, size: int, columns: int, length: int
) -> list[FieldProblem]:
    if not isinstance(row, list | tuple):
        detail = f"layout is a list of rows, each a list of 0 and 1; not {show(row)}"
        return [FieldProblem(pointer, "wrong-type", detail, MALFORMED)]
    if len(row) != columns:
        detail = (
            f"a row of layout has {len(row)} entries; {length} keys in blocks of {size} are {columns} blocks"
        )
        return [FieldProblem(pointer, "shape-mismatch", detail)]
    wrong = next((index for index, item in enumerate(row) if item not in (0, 1)), None)
    if wrong is None:
        return []
    detail = f"layout says 1 where a block is seen and 0 where not, never {show(row[wrong])}"
    return [FieldProblem(join(pointer, wrong), "out-of-range", detail)]


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
