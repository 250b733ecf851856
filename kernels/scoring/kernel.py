"""Attention by any score, tile by tile: what ``kernels/flash`` does for scaled products, with scores of
``pairs.py`` and windows of ``windows.py``.

    s_ij   the score of query i and key j             −∞ where key j may not be seen
    α_ij = exp(s_ij) / Σ_l exp(s_il)                  over the window of query i
    out_i = Σ_j α_ij g_ij v_j                         g: the Gaussian, if there is one, else 1
    lse_i = ln Σ_j exp(s_ij)
    kept_i = Σ_j exp(s_ij) over the window / the same over all keys that may be seen

The Gaussian multiplies weights and stays out of the denominator, so that they sum to less than 1 (Luong et
al. 2015, eq. 10). Tiles of keys that no window of the tile of queries reaches are not loaded, unless the
share of the window is asked for, which takes the others too.

Names as in ``pairs.py``. T are the Terms of masks, R the Queries of a tile (``kernels/flash/logits.py``).
"""

# mypy: ignore-errors
# ruff: noqa: E741, N803, N806, PLR0917
# A kernel's body is Triton's language in Python's clothes; Python's types do not describe it.

import triton
import triton.language as tl

from kernels.flash.logits import as_factor, describe_queries, extent, key_bounds, logits, wanted
from kernels.flash.memory import load_rows, store_rows
from kernels.flash.softmax import (
    empty,
    finish,
    load_kept,
    positive,
    shrink,
    step,
    store_kept,
    weights_of,
)
from kernels.scoring.pairs import Head, load_side, pair_scores
from kernels.scoring.windows import fall_off, focus, within


@triton.jit
def window_bounds(F, n_from, n_to, BLOCK_N: tl.constexpr):
    """Which keys from n_from to n_to some window reaches: the first a multiple of BLOCK_N, as n_from is."""
    n_from = tl.maximum(n_from, tl.min(F.first, 0) // BLOCK_N * BLOCK_N)
    return n_from, tl.minimum(n_to, tl.max(F.last, 0) + 1)


@triton.jit
def attend_tile(
    queries, S, V, T, X, R, F, H, m, l, b_o, m_all, l_all, o_m, q_len, n_start, n_keys, p_share,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Take the keys from n_start on into (m, l, O) of the queries R, and where the share of their windows is
    asked for into (m, l) of all keys."""
    o_n = n_start + tl.arange(0, BLOCK_N)
    # [BM, BN]
    b_s = pair_scores(queries, S, H, o_m, q_len, o_n, n_keys, D, BLOCK_D)
    b_s = logits(b_s, R, T, o_n, n_keys, MASKED)
    if p_share is not None:
        _, m_all, l_all, _ = step(b_s, m_all, l_all)
    if X is not None:
        b_s = within(b_s, F, o_n)
    b_p, m, l, by = step(b_s, m, l)
    if X is not None:
        b_p = fall_off(b_p, X, F, o_n)
    b_v = load_rows(V, H.i_batch, H.i_head // H.group, o_n, n_keys, DV, BLOCK_DV)
    b_o = tl.dot(as_factor(b_p, T, b_v.dtype), b_v, b_o * by[:, None], input_precision="ieee")
    return m, l, b_o, m_all, l_all


@triton.jit
def scored_forward(
    S, V, O, p_lse, T, X, p_share, num_heads, group, q_len, kv_len,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, kept=None,
):  # fmt: skip
    """One tile of queries of one head. Grid: (batch · num_heads, ⌈q_len / BLOCK_M⌉).

    The Score S and values V [batch, num_heads / group, kv_len, DV] → O [batch, num_heads, q_len, DV], and lse
    [batch, num_heads, q_len] float32; ``kept`` for whoever needs the weights again; with Windows X, where
    ``p_share`` is not None, the share of all weights that they hold, of the shape of lse.
    """
    i_row = tl.program_id(0).to(tl.int64)
    i_m = tl.program_id(1)
    i_batch, i_head = i_row // num_heads, i_row % num_heads
    H = Head(i_batch, i_head, group)
    n_queries, n_keys, offset = extent(T, i_batch, q_len, kv_len)

    # [BM]
    o_m = i_m * BLOCK_M + tl.arange(0, BLOCK_M)
    o_row, b_inside = i_row * q_len + o_m, o_m < q_len
    R = describe_queries(T, i_batch, tl.full([BLOCK_M], i_head, tl.int32), o_m, n_queries, n_keys, offset)
    queries = load_side(S, S.Q, i_batch, i_head, o_m, q_len, D, BLOCK_D)
    m, l, b_o = empty(BLOCK_M, BLOCK_DV)
    # Those of all keys, whatever the window
    m_all, l_all = m, l

    first = i_m * BLOCK_M
    last = tl.minimum(first + BLOCK_M, q_len) - 1
    n_from, n_full, n_to = key_bounds(T, first, last, n_keys, offset, BLOCK_N)
    F = None
    if X is not None:
        F = focus(X, o_row, o_m, b_inside, n_keys)
        if p_share is None:
            n_from, n_to = window_bounds(F, n_from, n_to, BLOCK_N)
        n_full = n_from
    for n_start in range(n_from, n_full, BLOCK_N):
        m, l, b_o, m_all, l_all = attend_tile(
            queries, S, V, T, X, R, F, H, m, l, b_o, m_all, l_all, o_m, q_len, n_start, n_keys, p_share,
            D, DV, BLOCK_D, BLOCK_DV, BLOCK_N, MASKED=False,
        )  # fmt: skip
    for n_start in range(n_full, n_to, BLOCK_N):
        if wanted(T, i_batch, i_head, i_m, n_start, BLOCK_N):
            m, l, b_o, m_all, l_all = attend_tile(
                queries, S, V, T, X, R, F, H, m, l, b_o, m_all, l_all, o_m, q_len, n_start, n_keys, p_share,
                D, DV, BLOCK_D, BLOCK_DV, BLOCK_N, MASKED=True,
            )  # fmt: skip

    b_o, lse = finish(m, l, b_o)
    store_rows(O, i_batch, i_head, o_m, q_len, b_o, DV, BLOCK_DV)
    tl.store(p_lse + o_row, lse, mask=b_inside)
    store_kept(kept, o_row, m, l, b_inside)
    if p_share is not None:
        # m ≤ m_all, and both sums were taken with their own maximum
        tl.store(p_share + o_row, l / positive(l_all) * shrink(m, m_all), mask=b_inside)


@triton.jit
def scored_matrices(
    S, T, X, kept, p_scores, p_weights, num_heads, group, q_len, kv_len,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One tile of one head's matrices. Grid: (batch · num_heads, ⌈q_len / BLOCK_M⌉, ⌈kv_len / BLOCK_N⌉).

    Those of the [batch, num_heads, q_len, kv_len] float32 results that are not None are written: scores, of
    all pairs; weights, which take what ``scored_forward`` ``kept``.
    """
    i_row = tl.program_id(0).to(tl.int64)
    i_batch, i_head = i_row // num_heads, i_row % num_heads
    H = Head(i_batch, i_head, group)
    n_queries, n_keys, offset = extent(T, i_batch, q_len, kv_len)
    o_m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    o_n = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    o_row, b_in_m = i_row * q_len + o_m, o_m < q_len
    R = describe_queries(T, i_batch, tl.full([BLOCK_M], i_head, tl.int32), o_m, n_queries, n_keys, offset)
    queries = load_side(S, S.Q, i_batch, i_head, o_m, q_len, D, BLOCK_D)

    o_element = o_row[:, None] * kv_len + o_n[None, :]
    b_inside = b_in_m[:, None] & (o_n[None, :] < kv_len)
    # [BM, BN]
    b_s = pair_scores(queries, S, H, o_m, q_len, o_n, n_keys, D, BLOCK_D)
    if p_scores is not None:
        tl.store(p_scores + o_element, b_s, mask=b_inside)
    if p_weights is not None:
        m, l = load_kept(kept, o_row, b_in_m)
        b_s = logits(b_s, R, T, o_n, n_keys, MASKED=True)
        if X is not None:
            F = focus(X, o_row, o_m, b_in_m, n_keys)
            b_s = within(b_s, F, o_n)
        b_p = weights_of(b_s, m, l)
        if X is not None:
            b_p = fall_off(b_p, X, F, o_n)
        tl.store(p_weights + o_element, b_p, mask=b_inside)
