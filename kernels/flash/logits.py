"""From q·k to the logit that enters the softmax: everything that masks or shifts a score, tile by tile.

    s = scale · q·k
    s ← c · tanh(s / c)                                  softcap (Gemma Team 2024, *Gemma 2*)
    s ← s + slope · (key position − query position)      ALiBi (Press et al. 2022, *Train Short, Test Long*)
    s ← s + bias                                         an additive mask
    s ← −∞                                               where the query may not see the key

in this order. A query sees a key when the key is there (j < kv_len), the boolean mask allows it, and its
position lies within the window:

    query position − left  ≤  key position  ≤  query position + right

Causal masking is the window whose right side is 0. Unless lists of positions are given, key j stands at j and
query i at i + offset, which says both alignments, a past, and ragged batches.

Positions that count by one make of the window a band, whose edges are arithmetic: ``key_bounds`` and
``query_bounds`` say which tiles lie outside it and are never loaded, and which lie inside and need no mask.

Names: ``i_`` a program's index, ``o_`` offsets along an axis, ``p_`` a pointer, ``b_`` a tile on chip, its
shape above it in brackets. A tile has BM queries and BN keys. T are the Terms of the call, R the Queries of a
tile.
"""

# mypy: ignore-errors
# ruff: noqa: N803, N806, PLR0917
# A kernel's body is Triton's language in Python's clothes; Python's types do not describe it.

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kernels.flash.codes import as_operand


class Terms(NamedTuple):
    """What turns scores into logits; None: not there. Lengths and sinks are among it: keys that are not
    there, and one that always is (``softmax.start``)."""

    scale: Any
    p_offset: Any = None  # [batch] integers: position of query 0 when key 0 stands at 0
    softcap: Any = None
    left: Any = None  # the sides of the window
    right: Any = None
    slopes: Any = None  # Vector [batch, heads]
    bias: Any = None  # Matrix of float32
    mask: Any = None  # Matrix of int8, 0 forbids
    q_positions: Any = None  # Vector [batch, q_len]; with it kv_positions, instead of the offset
    kv_positions: Any = None  # Vector [batch, kv_len]
    block_mask: Any = None  # Matrix of int8 [batch, heads, query tiles, key tiles], see ``wanted``
    p_sinks: Any = None  # [heads]
    p_q_lens: Any = None  # [batch] int32: rows beyond are padding
    p_kv_lens: Any = None  # [batch] int32


class Queries(NamedTuple):
    """What ``logits`` must know of each row of a tile of queries: all [BM], but for the batch row."""

    i_batch: Any
    position: Any
    first: Any  # the first and last key position that the row sees
    last: Any
    slope: Any
    o_bias: Any  # where the row starts in the matrices
    o_mask: Any
    inside: Any


@triton.jit
def extent(T, i_batch, q_len, kv_len):
    """``(n_queries, n_keys, offset)`` of batch row ``i_batch``; query 0 stands at ``offset``."""
    offset = 0
    if T.p_q_lens is not None:
        q_len = tl.load(T.p_q_lens + i_batch)
    if T.p_kv_lens is not None:
        kv_len = tl.load(T.p_kv_lens + i_batch)
    if T.p_offset is not None:
        offset = tl.load(T.p_offset + i_batch)
    return q_len, kv_len, offset


@triton.jit
def describe_queries(T, i_batch, o_head, o_m, n_queries, n_keys, offset):
    """Row o_m [BM] of head o_head [BM] (the rows of a tile may belong to several heads)."""
    inside = o_m < n_queries
    position, first, last, slope, o_bias, o_mask = o_m + offset, None, None, None, None, None
    if T.q_positions is not None:
        p_position = T.q_positions.p + i_batch * T.q_positions.stride_batch + o_m
        position = tl.load(p_position, mask=inside, other=0)
        if T.left is not None:
            first = position - T.left
        if T.right is not None:
            last = position + T.right
    else:
        # Key positions are indices here: clamped to those that exist, so that 32 bits hold them.
        if T.left is not None:
            first = tl.minimum(tl.maximum(position - T.left, 0), n_keys).to(tl.int32)
        if T.right is not None:
            last = tl.minimum(tl.maximum(position + T.right, -1), n_keys - 1).to(tl.int32)
    if T.slopes is not None:
        slope = tl.load(T.slopes.p + i_batch * T.slopes.stride_batch + o_head)
    if T.bias is not None:
        o_bias = matrix_rows(T.bias, i_batch, o_head, o_m)
    if T.mask is not None:
        o_mask = matrix_rows(T.mask, i_batch, o_head, o_m)
    return Queries(i_batch, position, first, last, slope, o_bias, o_mask, inside)


@triton.jit
def matrix_rows(X, i_batch, o_head, o_m):
    """Where the rows start in a Matrix: [BM] int64."""
    return i_batch * X.stride_batch + o_head.to(tl.int64) * X.stride_head + o_m.to(tl.int64) * X.stride_row


@triton.jit
def key_positions(T, i_batch, o_n, n_keys):
    """Positions of keys: [BN]."""
    position = o_n
    if T.kv_positions is not None:
        p_position = T.kv_positions.p + i_batch * T.kv_positions.stride_batch + o_n
        position = tl.load(p_position, mask=o_n < n_keys, other=0)
    return position


@triton.jit
def tanh(x):
    """Hyperbolic tangent without its pitfalls: (eˣ − e⁻ˣ) / (eˣ + e⁻ˣ) is ∞/∞ beyond |x| = 88, and near 0 it
    loses every digit to 1 − 1, where its Taylor series to x⁹ loses none.

    Wrong by at most 3.2 · 2⁻²⁴, and by 10 · 2⁻²⁴ of its size (measured in the interpreter; the most of its
    size beside −0.3, where the series ends).
    """
    square = x * x
    series = x * (1 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835)))))
    return tl.where(tl.abs(x) < 0.3, series, 1 - 2 / (tl.exp(2 * x) + 1))


@triton.jit
def scores(b_q, b_k, scale):
    """scale · QKᵀ for one tile, [BM, BN], in float32 whatever the inputs: q·k overflows float16.

    Scaled before the maximum is taken, so that a negative or zero scale is as good as any. ``ieee`` keeps
    float32 products out of TF32.
    """
    return tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale


@triton.jit
def softcapped(b_s, T):
    """Scores pressed into (−c, c)."""
    if T.softcap is not None:
        b_s = T.softcap * tanh(b_s / T.softcap)
    return b_s


@triton.jit
def logits(b_s, R, T, o_n, n_keys, MASKED: tl.constexpr):
    """Softcapped scores [BM, BN] of queries R and keys o_n as the softmax takes them; without MASKED every
    query is known to see every key of the tile."""
    if T.slopes is not None:
        # [BM, BN]; anchored at the query: slope · key position alone gives the same output, another LSE
        distance = key_positions(T, R.i_batch, o_n, n_keys)[None, :] - R.position[:, None]
        b_s += R.slope[:, None] * distance.to(tl.float32)
    if T.bias is not None:
        p_bias = T.bias.p + R.o_bias[:, None] + o_n[None, :] * T.bias.stride_col
        b_s += tl.load(p_bias, mask=R.inside[:, None] & (o_n[None, :] < n_keys), other=0.0)
    if MASKED:
        b_s = tl.where(visible(R, T, o_n, n_keys), b_s, float("-inf"))
    return b_s


@triton.jit
def as_factor(b_p, T, DTYPE: tl.constexpr):
    """Weights, or the gradients of logits, as an operand of tl.dot beside a tile of type DTYPE. The 8-bit
    numbers of a mask are in their past, which must not make TF32 of float32 (``codes.decode_as``)."""
    b_p = b_p.to(DTYPE)
    if T.mask is not None:
        b_p = as_operand(b_p)
    return b_p


@triton.jit
def visible(R, T, o_n, n_keys):
    """Which queries see which keys: booleans, [BM, BN] or [1, BN] where all queries see the same."""
    position = key_positions(T, R.i_batch, o_n, n_keys)
    if (T.right is not None) and (T.q_positions is None):
        b_see = position[None, :] <= R.last[:, None]  # which is a key that there is
    else:
        b_see = o_n[None, :] < n_keys
        if T.right is not None:
            b_see = b_see & (position[None, :] <= R.last[:, None])
    if T.left is not None:
        b_see = b_see & (position[None, :] >= R.first[:, None])
    if T.mask is not None:
        p_mask = T.mask.p + R.o_mask[:, None] + o_n[None, :] * T.mask.stride_col
        b_see = b_see & (tl.load(p_mask, mask=R.inside[:, None] & b_see, other=0) != 0)
    return b_see


@triton.jit
def may_forbid_anywhere(T):
    """Whether no tile is known to be free of forbidden pairs: there are matrices, or a window whose positions
    are listed; or a left edge, for which a third loop over the tiles inside is not worth its code."""
    listed: tl.constexpr = (T.q_positions is not None) and (T.right is not None)
    looks: tl.constexpr = (T.left is not None) or (T.mask is not None) or (T.block_mask is not None) or listed
    return looks


@triton.jit
def key_bounds(T, first, last, n_keys, offset, BLOCK_N: tl.constexpr):
    """Which keys the queries ``first`` to ``last`` need: ``(n_from, n_full, n_to)``, the first two multiples
    of BLOCK_N.

    No query sees a key before n_from or from n_to on, and those tiles are never loaded; every query sees
    every key from n_from to n_full, which need no mask. Under a causal mask the first query sees the fewest
    keys, so it decides n_full, and the last sees the most, so it decides n_to.
    """
    n_from, n_full, n_to = 0, n_keys // BLOCK_N * BLOCK_N, n_keys
    if T.p_q_lens is not None:
        n_to = tl.where(first <= last, n_keys, 0)
        n_full = tl.minimum(n_full, n_to)
    if T.q_positions is None:
        # Clamped at 0 before dividing: inside a kernel, // rounds towards zero as in C.
        if T.right is not None:
            n_to = tl.minimum(tl.maximum(last + offset + T.right + 1, 0), n_to).to(tl.int32)
            n_full = tl.minimum(tl.maximum(first + offset + T.right + 1, 0), n_to).to(tl.int32)
            n_full = n_full // BLOCK_N * BLOCK_N
        if T.left is not None:
            n_from = tl.minimum(tl.maximum(first + offset - T.left, 0), n_keys).to(tl.int32)
            n_to = tl.where(n_from < n_to, n_to, 0)
            n_from = n_from // BLOCK_N * BLOCK_N
    if may_forbid_anywhere(T):
        n_full = n_from
    return n_from, n_full, n_to


@triton.jit
def query_bounds(T, first, n_queries, n_keys, offset, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Which queries need the tile of keys that starts at ``first``: ``(m_from, m_full, m_to)``, the mirror
    image of ``key_bounds``, m_from a multiple of BLOCK_M.

    No query before m_from or from m_to on sees any of the keys. A causal mask forbids early queries, not late
    ones, so that here the tiles that need a mask come first: from m_full on every query sees every key.
    """
    last = tl.minimum(first + BLOCK_N, n_keys) - 1
    # Beyond the end of a ragged row there are no keys.
    m_from, m_full, m_to = 0, 0, tl.where(first < n_keys, n_queries, 0)
    if T.q_positions is None:
        # Query i sees key j where j − right ≤ i + offset ≤ j + left.
        if T.right is not None:
            m_from = tl.minimum(tl.maximum(first - T.right - offset, 0), n_queries).to(tl.int32)
            m_to = tl.where(m_from < m_to, m_to, 0)
            m_from = m_from // BLOCK_M * BLOCK_M
            m_full = tl.minimum(tl.maximum(last - T.right - offset, 0), n_queries).to(tl.int32)
            m_full = tl.cdiv(m_full, BLOCK_M) * BLOCK_M
        if T.left is not None:
            m_to = tl.minimum(tl.maximum(last + T.left + 1 - offset, 0), m_to).to(tl.int32)
    if may_forbid_anywhere(T):
        m_full = m_to
    # A last tile that is not full holds keys that are not there.
    m_full = tl.where(first + BLOCK_N <= n_keys, tl.minimum(m_full, m_to), m_to)
    return m_from, m_full, m_to


@triton.jit
def wanted(T, i_batch, i_head, i_m, n_start, BLOCK_N: tl.constexpr):
    """Whether any query of the tile i_m sees any key of the tile that starts at n_start. Where a tile holds
    all heads that share a key head, as in decoding, i_head is that key head."""
    if T.block_mask is None:
        is_wanted: tl.constexpr = True
    else:
        X = T.block_mask
        o_tile = i_batch * X.stride_batch + i_head * X.stride_head + i_m * X.stride_row
        is_wanted = tl.load(X.p + o_tile + n_start // BLOCK_N * X.stride_col) != 0
    return is_wanted
