"""From a tile of queries and a tile of keys to their scores, in Triton.

    products    s_ij = factor · q_i·k_j          dot, scaled dot; general, whose queries were multiplied by W
    cosines     s_ij = β · q_i·k_j / ‖q_i‖‖k_j‖
    additive    s_ij = Σ_c v_c tanh(x_ic + y_jc)         x = W_q q and y = W_k k were made before, once
    concat      s_ij = Σ_c v_c tanh(W_c · [q_i; k_j])    made again for each tile

Products of two tiles are what a tensor core does. A sum of tanh is none: the tile is gone through once for
each hidden number c, which gives each pair one sum, one tanh and one multiply-add. That is why additive
attention is slow on hardware on which dot products are fast, though it takes about as many operations.

Names: ``i_`` a program's index, ``o_`` offsets along an axis, ``p_`` a pointer, ``b_`` a tile on chip, its
shape above it in brackets. A tile has BM queries and BN keys; D is the width of keys, BD the same padded to a
power of two. S is the Score of the call.
"""

# mypy: ignore-errors
# ruff: noqa: N803, PLR0917
# A kernel's body is Triton's language in Python's clothes; Python's types do not describe it.

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kernels.flash.logits import tanh
from kernels.flash.memory import load_rows, row_starts


class Score(NamedTuple):
    """What scores are made of; None: not there. With V they are sums of tanh, concat where there is a W and
    else additive; without, products."""

    Q: Any  # Rows [batch, num_heads, q_len, D]; additive: x [batch, num_heads, q_len, hidden] float32
    K: Any  # Rows [batch, kv heads, kv_len, D]; additive: y [batch, kv heads, kv_len, hidden or more] float32
    factor: Any = None
    normed: Any = None  # anything, and products are those of directions
    V: Any = None  # Matrix [1, num_heads, 1, hidden]
    W: Any = None  # Matrix [1, num_heads, hidden, 2 · D]
    hidden: Any = None
    # Additive: columns of y from one head to the next that shares its keys; 0 where they share W_k too.
    step: Any = None


class Side(NamedTuple):
    """A tile of queries, or of keys, as far as it stays on chip."""

    rows: Any  # [rows, BD]; None of additive scores, which are read column by column
    by: Any  # [rows], by which products are multiplied: of a cosine


class Head(NamedTuple):
    """Which head of queries, and of keys."""

    i_batch: Any
    i_head: Any
    group: Any  # consecutive heads that share a key head


@triton.jit
def directions(b_x):
    """Rows [rows, BD] times powers of two, so that no square overflows or vanishes, and 1/‖·‖ [rows] of them,
    1 for a row of zeros."""
    b_full = b_x.to(tl.float32)
    # [rows]: the exponent of the largest number, from the bits of float32; 0 below the smallest normal one
    b_exponent = tl.max(tl.abs(b_full), 1).to(tl.int32, bitcast=True) >> 23
    b_by = (tl.maximum(254 - b_exponent, 1) << 23).to(tl.float32, bitcast=True)
    b_full = b_full * b_by[:, None]
    b_norm = tl.sqrt(tl.sum(b_full * b_full, 1))
    return b_full.to(b_x.dtype), 1 / tl.where(b_norm == 0.0, 1.0, b_norm)


@triton.jit
def load_side(S, X, i_batch, i_head, o_row, n_rows, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """The Side of rows o_row of X, which are S.Q or S.K."""
    b_rows, b_by = None, None
    if (S.V is None) or (S.W is not None):
        b_rows = load_rows(X, i_batch, i_head, o_row, n_rows, D, BLOCK_D)
    if S.normed is not None:
        b_rows, b_by = directions(b_rows)
    return Side(b_rows, b_by)


@triton.jit
def pair_scores(queries, S, H, o_m, n_queries, o_n, n_keys, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Scores [BM, BN] of the queries o_m, whose Side is ``queries``, and the keys o_n; float32."""
    keys = load_side(S, S.K, H.i_batch, H.i_head // H.group, o_n, n_keys, D, BLOCK_D)
    if S.V is None:
        b_s = products(queries, keys, S)
    elif S.W is None:
        b_s = additive(S, H, o_m, n_queries, o_n, n_keys)
    else:
        b_s = concat(queries, keys, S, H, o_m, o_n, D, BLOCK_D)
    return b_s


@triton.jit
def products(queries, keys, S):
    """Factor times products of rows, or of directions. Queries in float32 beside keys in 16 bits (those that
    were multiplied by W) are rounded to TF32, which holds the keys exactly; float32 never is."""
    if queries.rows.dtype == keys.rows.dtype:
        b_s = tl.dot(queries.rows, tl.trans(keys.rows), input_precision="ieee")
    else:
        b_s = tl.dot(queries.rows, tl.trans(keys.rows.to(tl.float32)), input_precision="tf32")
    if S.normed is not None:
        b_s = b_s * queries.by[:, None] * keys.by[None, :]
    return b_s * S.factor


@triton.jit
def additive(S, H, o_m, n_queries, o_n, n_keys):
    """Σ_c v_c tanh(x_ic + y_jc)."""
    b_in_m, b_in_n = o_m < n_queries, o_n < n_keys
    i_kv_head, i_member = H.i_head // H.group, H.i_head % H.group
    p_x = S.Q.p + row_starts(S.Q, H.i_batch, H.i_head, o_m, b_in_m)
    p_y = S.K.p + row_starts(S.K, H.i_batch, i_kv_head, o_n, b_in_n) + i_member * S.step
    p_v = S.V.p + H.i_head * S.V.stride_head
    # [BM, BN]
    b_s = tl.full((o_m.shape[0], o_n.shape[0]), 0.0, tl.float32)
    for c in range(S.hidden):
        b_x = tl.load(p_x + c, mask=b_in_m, other=0.0)
        b_y = tl.load(p_y + c, mask=b_in_n, other=0.0)
        b_s += tl.load(p_v + c).to(tl.float32) * tanh(b_x[:, None] + b_y[None, :])
    return b_s


@triton.jit
def concat(queries, keys, S, H, o_m, o_n, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Σ_c v_c tanh(W_c · [q_i; k_j]). A product with a row of W is a sum over the columns of a tile, all of
    which is in registers."""
    o_d = tl.arange(0, BLOCK_D)
    p_w = S.W.p + H.i_head * S.W.stride_head + o_d
    p_v = S.V.p + H.i_head * S.V.stride_head
    b_q, b_k = queries.rows.to(tl.float32), keys.rows.to(tl.float32)
    # [BM, BN]
    b_s = tl.full((o_m.shape[0], o_n.shape[0]), 0.0, tl.float32)
    for c in range(S.hidden):
        # [BD]: what row c of W has for a query, and for a key
        p_row = p_w + c * S.W.stride_row
        b_of_q = tl.load(p_row, mask=o_d < D, other=0.0).to(tl.float32)
        b_of_k = tl.load(p_row + D, mask=o_d < D, other=0.0).to(tl.float32)
        b_x, b_y = tl.sum(b_q * b_of_q[None, :], 1), tl.sum(b_k * b_of_k[None, :], 1)
        b_s += tl.load(p_v + c).to(tl.float32) * tanh(b_x[:, None] + b_y[None, :])
    return b_s
