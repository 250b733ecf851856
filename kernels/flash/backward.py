"""FlashAttention backward in Triton, written to be read: from dO, the gradient of a loss with respect to the
output, to the gradients dQ, dK and dV.

Forward, for query i and key j, each weight is a key's share of its row:

    s_ij = scale · q_i·k_j → softcap → + ALiBi + bias → −∞ where forbidden        (``logits.py``)
    P_ij = exp(s_ij − m_i) / l_i             m_i = max_j s_ij,  l_i = Σ_j exp(s_ij − m_i)
    O_i  = Σ_j P_ij v_j

The chain rule, from the end to the beginning:

    dV_j  = Σ_i P_ij dO_i
    dP_ij = dO_i · v_j
    ds_ij = P_ij (dP_ij − Σ_t P_it dP_it)    the weights of a row share one denominator: what one key gains
                                             the others lose, ∂P_it / ∂s_ij = P_it (δ_jt − P_ij)
    ds_ij ← ds_ij (1 − (s_ij / c)²)          softcap c: the derivative of c · tanh(x / c) is 1 − tanh²
    dQ_i  = scale · Σ_j ds_ij k_j
    dK_j  = scale · Σ_i ds_ij q_i

ALiBi and bias are constants and let ds pass unchanged. A sink is in m and l, and so in P; it has no value,
and asks for nothing more. A forbidden pair has P = 0, and so ds = 0.

Two ideas make this a matter of tiles. P is never stored: two numbers per row, m and l, rebuild any tile of it
(``softmax.py``). And the sum in ds, over all keys of a row, needs no pass over them, for it is

    Δ_i = Σ_t P_it (dO_i · v_t) = dO_i · Σ_t P_it v_t = dO_i · O_i

which ``row_deltas`` computes beforehand. What is left are sums over queries (dK, dV) and over keys (dQ). Each
has a kernel whose programs own the tile that is summed into, so that a sum stays on chip and in one order: no
two programs add to one place, and equal inputs give equal bits. The price is that P is rebuilt twice.

* ``flash_backward_keys``: a program owns a tile of keys of one key head. The queries of all heads that share
  it, and that can see the tile, stream past.
* ``flash_backward_queries``: a program owns a tile of queries; keys stream past as in the forward pass.

Names: ``i_`` a program's index, ``o_`` offsets along an axis, ``p_`` a pointer, ``b_`` a tile on chip, its
shape above it in brackets. BM and BN are the tile sizes; the widths are D of keys and E of values, for dV is
a gradient here, padded BD and BE. T are the Terms of the call, R the Queries of a tile (``logits.py``), B
what rebuilds their weights.

Dao et al. 2022, *FlashAttention*, appendix B; Dao 2023, *FlashAttention-2*, algorithm 2 (there one kernel
makes all three, and adds to dQ atomically; and P comes from the LSE alone, but see ``softmax.py``).
"""

# mypy: ignore-errors
# ruff: noqa: E741, N803, N806, N815, PLR0917
# A kernel's body is Triton's language in Python's clothes; Python's types do not describe it.

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kernels.flash.logits import (
    as_factor,
    describe_queries,
    extent,
    key_bounds,
    logits,
    query_bounds,
    scores,
    softcapped,
    wanted,
)
from kernels.flash.memory import load_rows, store_rows
from kernels.flash.softmax import load_kept, weights_of


class Rebuild(NamedTuple):
    """What rebuilds a row of P and of ds beside the keys: arrays of queries, [batch, num_heads, q_len]."""

    Q: Any  # Rows, D wide
    dO: Any  # Rows, E wide
    kept: Any  # kernels.flash.softmax.Kept
    p_delta: Any  # float32, Δ


@triton.jit
def row_deltas(
    O, dO, p_delta, T, num_heads, q_len, kv_len,
    E: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Δ_i = dO_i · O_i for one tile of queries of one head; 0 for padding, which is not read.

    Grid: (batch · num_heads, ⌈q_len / BLOCK_M⌉). O, dO [batch, num_heads, q_len, E] → Δ [batch, num_heads,
    q_len] float32.
    """
    i_row = tl.program_id(0).to(tl.int64)
    i_batch, i_head = i_row // num_heads, i_row % num_heads
    n_queries, _, _ = extent(T, i_batch, q_len, kv_len)
    o_m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    # [BM, BE]
    b_o = load_rows(O, i_batch, i_head, o_m, n_queries, E, BLOCK_E).to(tl.float32)
    b_do = load_rows(dO, i_batch, i_head, o_m, n_queries, E, BLOCK_E).to(tl.float32)
    tl.store(p_delta + i_row * q_len + o_m, tl.sum(b_o * b_do, 1), mask=o_m < q_len)


@triton.jit
def load_queries(
    B, i_batch, i_head, o_m, num_heads, q_len, n_queries,
    D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """(Q [BM, BD], dO [BM, BE], m, l and Δ [BM] each) of a tile of queries; the weights of padding are 0."""
    o_row = (i_batch * num_heads + i_head) * q_len + o_m
    m, l = load_kept(B.kept, o_row, o_m < n_queries)
    delta = tl.load(B.p_delta + o_row, mask=o_m < n_queries, other=0.0)
    b_q = load_rows(B.Q, i_batch, i_head, o_m, n_queries, D, BLOCK_D)
    return b_q, load_rows(B.dO, i_batch, i_head, o_m, n_queries, E, BLOCK_E), m, l, delta


@triton.jit
def rebuilt(b_q, b_do, m, l, delta, b_k, b_v, R, T, o_n, n_keys, MASKED: tl.constexpr):
    """(P, ds), each [BM, BN] float32, of queries R and keys o_n; ds without the scale."""
    b_s = softcapped(scores(b_q, b_k, T.scale), T)
    b_p = weights_of(logits(b_s, R, T, o_n, n_keys, MASKED), m, l)
    b_dp = tl.dot(b_do, tl.trans(b_v), input_precision="ieee")
    b_ds = b_p * (b_dp - delta[:, None])
    if T.softcap is not None:
        b_tanh = b_s / T.softcap
        b_ds *= 1 - b_tanh * b_tanh
    return b_p, b_ds


@triton.jit
def add_queries(
    B, T, b_k, b_v, b_dk, b_dv, i_batch, i_head, m_start, o_n, num_heads, q_len, n_queries, n_keys, offset,
    D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
    BLOCK_M: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """What the queries of one head from m_start on ask of a tile of keys: added to dK / scale and dV."""
    o_m = m_start + tl.arange(0, BLOCK_M)
    o_head = tl.full([BLOCK_M], i_head, tl.int32)
    R = describe_queries(T, i_batch, o_head, o_m, n_queries, n_keys, offset)
    b_q, b_do, m, l, delta = load_queries(
        B, i_batch, i_head, o_m, num_heads, q_len, n_queries, D, E, BLOCK_D, BLOCK_E
    )
    b_p, b_ds = rebuilt(b_q, b_do, m, l, delta, b_k, b_v, R, T, o_n, n_keys, MASKED)
    # [BN, BE], [BN, BD]; P and ds take the inputs' dtype for the tensor cores, the sums stay float32
    b_dv = tl.dot(tl.trans(as_factor(b_p, T, b_do.dtype)), b_do, b_dv, input_precision="ieee")
    b_dk = tl.dot(tl.trans(as_factor(b_ds, T, b_q.dtype)), b_q, b_dk, input_precision="ieee")
    return b_dk, b_dv


@triton.jit
def flash_backward_keys(
    B, K, V, dK, dV, T, num_heads, num_kv_heads, group, q_len, kv_len,
    D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dK and dV of one tile of keys of one key head. Grid: (batch · num_kv_heads, ⌈kv_len / BLOCK_N⌉).

    K, dK [batch, num_kv_heads, kv_len, D], V, dV likewise, E wide. Keys that no query sees get 0.
    """
    i_row = tl.program_id(0).to(tl.int64)
    i_batch, i_kv_head = i_row // num_kv_heads, i_row % num_kv_heads
    n_queries, n_keys, offset = extent(T, i_batch, q_len, kv_len)

    first = tl.program_id(1) * BLOCK_N
    o_n = first + tl.arange(0, BLOCK_N)
    # [BN, BD], [BN, BE]; loaded once, stay on chip beside the sums
    b_k = load_rows(K, i_batch, i_kv_head, o_n, n_keys, D, BLOCK_D)
    b_v = load_rows(V, i_batch, i_kv_head, o_n, n_keys, E, BLOCK_E)
    b_dk = tl.full([BLOCK_N, BLOCK_D], 0.0, tl.float32)
    b_dv = tl.full([BLOCK_N, BLOCK_E], 0.0, tl.float32)

    m_from, m_full, m_to = query_bounds(T, first, n_queries, n_keys, offset, BLOCK_M, BLOCK_N)
    for i_group in range(group):
        i_head = i_kv_head * group + i_group
        for m_start in range(m_from, m_full, BLOCK_M):
            if wanted(T, i_batch, i_head, m_start // BLOCK_M, first, BLOCK_N):
                b_dk, b_dv = add_queries(
                    B, T, b_k, b_v, b_dk, b_dv, i_batch, i_head, m_start, o_n, num_heads, q_len, n_queries,
                    n_keys, offset, D, E, BLOCK_D, BLOCK_E, BLOCK_M, MASKED=True,
                )  # fmt: skip
        for m_start in range(m_full, m_to, BLOCK_M):
            b_dk, b_dv = add_queries(
                B, T, b_k, b_v, b_dk, b_dv, i_batch, i_head, m_start, o_n, num_heads, q_len, n_queries,
                n_keys, offset, D, E, BLOCK_D, BLOCK_E, BLOCK_M, MASKED=False,
            )  # fmt: skip

    # Keys that are not there were masked in every tile, so that padding gets 0.
    store_rows(dK, i_batch, i_kv_head, o_n, kv_len, b_dk * T.scale, D, BLOCK_D)
    store_rows(dV, i_batch, i_kv_head, o_n, kv_len, b_dv, E, BLOCK_E)


@triton.jit
def add_keys(
    K, V, T, R, b_q, b_do, m, l, delta, b_dq, i_kv_head, n_start, n_keys,
    D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
    BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """What the keys from n_start on ask of the queries R: added to dQ / scale."""
    o_n = n_start + tl.arange(0, BLOCK_N)
    b_k = load_rows(K, R.i_batch, i_kv_head, o_n, n_keys, D, BLOCK_D)
    b_v = load_rows(V, R.i_batch, i_kv_head, o_n, n_keys, E, BLOCK_E)
    _, b_ds = rebuilt(b_q, b_do, m, l, delta, b_k, b_v, R, T, o_n, n_keys, MASKED)
    # [BM, BD]
    return tl.dot(as_factor(b_ds, T, b_k.dtype), b_k, b_dq, input_precision="ieee")


@triton.jit
def flash_backward_queries(
    B, K, V, dQ, T, num_heads, group, q_len, kv_len,
    D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dQ of one tile of queries of one head. Grid: (batch · num_heads, ⌈q_len / BLOCK_M⌉).

    dQ [batch, num_heads, q_len, D]. Queries that see no key get 0.
    """
    i_row = tl.program_id(0).to(tl.int64)
    i_m = tl.program_id(1)
    i_batch, i_head = i_row // num_heads, i_row % num_heads
    i_kv_head = i_head // group
    n_queries, n_keys, offset = extent(T, i_batch, q_len, kv_len)

    o_m = i_m * BLOCK_M + tl.arange(0, BLOCK_M)
    o_head = tl.full([BLOCK_M], i_head, tl.int32)
    R = describe_queries(T, i_batch, o_head, o_m, n_queries, n_keys, offset)
    b_q, b_do, m, l, delta = load_queries(
        B, i_batch, i_head, o_m, num_heads, q_len, n_queries, D, E, BLOCK_D, BLOCK_E
    )
    b_dq = tl.full([BLOCK_M, BLOCK_D], 0.0, tl.float32)

    first = i_m * BLOCK_M
    last = tl.minimum(first + BLOCK_M, n_queries) - 1
    n_from, n_full, n_to = key_bounds(T, first, last, n_keys, offset, BLOCK_N)
    for n_start in range(n_from, n_full, BLOCK_N):
        b_dq = add_keys(
            K, V, T, R, b_q, b_do, m, l, delta, b_dq, i_kv_head, n_start, n_keys,
            D, E, BLOCK_D, BLOCK_E, BLOCK_N, MASKED=False,
        )  # fmt: skip
    for n_start in range(n_full, n_to, BLOCK_N):
        if wanted(T, i_batch, i_head, i_m, n_start, BLOCK_N):
            b_dq = add_keys(
                K, V, T, R, b_q, b_do, m, l, delta, b_dq, i_kv_head, n_start, n_keys,
                D, E, BLOCK_D, BLOCK_E, BLOCK_N, MASKED=True,
            )  # fmt: skip

    store_rows(dQ, i_batch, i_head, o_m, q_len, b_dq * T.scale, D, BLOCK_D)
