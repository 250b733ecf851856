"""FlashAttention forward in Triton, written to be read.

What it computes, for each query row i of each head:

    s_ij = logit of query i and key j             −∞ where key j may not be seen (``logits.py``)
    O_i  = Σ_j exp(s_ij − LSE_i) · v_j            output
    LSE_i = ln Σ_j exp(s_ij)                      log-sum-exp, natural logarithm

without ever holding a whole row of logits. One program owns one tile of BLOCK_M queries. Tiles of BLOCK_N
keys and values stream past it, and three running values per row say all that must be remembered of the keys
seen so far: the online softmax (``softmax.py``). Each array comes with its strides (``memory.py``).

Names: ``i_`` a program's index, ``o_`` offsets along an axis, ``p_`` a pointer, ``b_`` a tile on chip, its
shape above it in brackets. BM and BN are the tile sizes, D and DV the widths of keys and values, BD and BDV
the same padded to powers of two. T are the Terms of the call, R the Queries of a tile (``logits.py``).

Dao et al. 2022, *FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness*; Dao 2023,
*FlashAttention-2* (queries outside, one division at the end).
"""

# mypy: ignore-errors
# ruff: noqa: N803, N806, E741, PLR0917
# A kernel's body is Triton's language in Python's clothes; Python's types do not describe it.

import triton
import triton.language as tl

from kernels.flash.codes import load_keys, load_values, times_scales
from kernels.flash.logits import (
    as_factor,
    describe_queries,
    extent,
    key_bounds,
    logits,
    scores,
    softcapped,
    wanted,
)
from kernels.flash.memory import load_rows, store_rows
from kernels.flash.softmax import finish, forget_padding, start, step, store_kept


@triton.jit
def attend_tile(
    b_q, K, V, T, R, m, l, b_o, i_kv_head, n_start, n_keys,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Take the keys from n_start on into (m, l, O) of the queries R; MASKED: some may not be seen."""
    o_n = n_start + tl.arange(0, BLOCK_N)
    b_k = load_keys(K, R.i_batch, i_kv_head, o_n, n_keys, D, BLOCK_D, b_q.dtype)
    # [BM, BN]
    b_s = times_scales(scores(b_q, b_k, T.scale), K, R.i_batch, i_kv_head, o_n, n_keys)
    b_s = logits(softcapped(b_s, T), R, T, o_n, n_keys, MASKED)
    b_p, m, l, by = step(b_s, m, l)
    b_v = load_values(V, R.i_batch, i_kv_head, o_n, n_keys, DV, BLOCK_DV, b_q.dtype)
    # [BM, BDV]; the weights take V's dtype for the tensor cores, the sum stays float32
    b_o = tl.dot(as_factor(b_p, T, b_v.dtype), b_v, b_o * by[:, None], input_precision="ieee")
    return m, l, b_o


@triton.jit
def flash_forward(
    Q, K, V, O, p_lse, T, num_heads, group, q_len, kv_len,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, kept=None,
):  # fmt: skip
    """One tile of queries of one head. Grid: (batch · num_heads, ⌈q_len / BLOCK_M⌉).

    Q [batch, num_heads, q_len, D], K [batch, num_heads / group, kv_len, D], V [batch, num_heads / group,
    kv_len, DV] → O [batch, num_heads, q_len, DV], lse [batch, num_heads, q_len] float32, and ``kept`` for
    whoever needs the weights again.
    """
    i_row = tl.program_id(0).to(tl.int64)
    i_m = tl.program_id(1)
    i_batch, i_head = i_row // num_heads, i_row % num_heads
    # Consecutive query heads share a key head.
    i_kv_head = i_head // group
    n_queries, n_keys, offset = extent(T, i_batch, q_len, kv_len)

    # [BM]
    o_m = i_m * BLOCK_M + tl.arange(0, BLOCK_M)
    o_head = tl.full([BLOCK_M], i_head, tl.int32)
    R = describe_queries(T, i_batch, o_head, o_m, n_queries, n_keys, offset)
    # [BM, BD]; loaded once, stays on chip
    b_q = load_rows(Q, i_batch, i_head, o_m, n_queries, D, BLOCK_D)
    m, l, b_o = start(T, o_head, BLOCK_M, BLOCK_DV)

    first = i_m * BLOCK_M
    last = tl.minimum(first + BLOCK_M, n_queries) - 1
    n_from, n_full, n_to = key_bounds(T, first, last, n_keys, offset, BLOCK_N)
    for n_start in range(n_from, n_full, BLOCK_N):
        m, l, b_o = attend_tile(
            b_q, K, V, T, R, m, l, b_o, i_kv_head, n_start, n_keys,
            D, DV, BLOCK_D, BLOCK_DV, BLOCK_N, MASKED=False,
        )  # fmt: skip
    for n_start in range(n_full, n_to, BLOCK_N):
        if wanted(T, i_batch, i_head, i_m, n_start, BLOCK_N):
            m, l, b_o = attend_tile(
                b_q, K, V, T, R, m, l, b_o, i_kv_head, n_start, n_keys,
                D, DV, BLOCK_D, BLOCK_DV, BLOCK_N, MASKED=True,
            )  # fmt: skip

    m, l, b_o = forget_padding(m, l, b_o, R, T)
    b_o, lse = finish(m, l, b_o)
    store_rows(O, i_batch, i_head, o_m, q_len, b_o, DV, BLOCK_DV)
    tl.store(p_lse + i_row * q_len + o_m, lse, mask=o_m < q_len)
    store_kept(kept, i_row * q_len + o_m, m, l, o_m < q_len)
