"""FlashAttention forward in Triton, written to be read.

What it computes, for each query row i of each head:

    s_ij = scale · q_i·k_j                        scores, −∞ where key j may not be seen
    O_i  = Σ_j exp(s_ij − LSE_i) · v_j            output
    LSE_i = ln Σ_j exp(s_ij)                      natural logarithm, kept for whoever needs the weights again

without ever holding a whole row of scores. One program owns one tile of BLOCK_M queries. Tiles of BLOCK_N
keys and values stream past it, and three running values per row say all that must be remembered of the keys
seen so far:

    m   the largest score            l   Σ exp(s − m)            O   Σ exp(s − m) · v

When a new tile raises the maximum from m to m′, what was summed before is multiplied by exp(m − m′): this is
the online softmax. Dividing O by l at the end is the only normalisation.

Names: ``i_`` a program's index, ``o_`` offsets along an axis, ``p_`` a pointer, ``b_`` a tile held on chip,
``m`` and ``l`` as above. Shapes stand above values: BM, BN are the tile sizes, D and DV the widths of keys
and values, BD and BDV the same padded to powers of two. Arrays are contiguous ``[batch, heads, len, dim]``.
"""

# mypy: ignore-errors
# ruff: noqa: N803, E741, PLR0917
# A kernel's body is Triton's language in Python's clothes; Python's types do not describe it.

import triton
import triton.language as tl


@triton.jit
def load_rows(p_array, o_row, n_rows, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr):
    """Rows of a [n_rows, WIDTH] array as a tile, zero outside it.

    The zeros matter: a padded column adds nothing to q·k, and a V row that was never written may hold NaN,
    which not even a weight of 0 would silence, since 0 · NaN = NaN.
    """
    # [BLOCK_WIDTH]
    o_col = tl.arange(0, BLOCK_WIDTH)
    # [rows, BLOCK_WIDTH]; 64-bit, because row · WIDTH passes 2³¹ in long sequences
    o_element = o_row[:, None].to(tl.int64) * WIDTH + o_col[None, :]
    b_inside = (o_row[:, None] < n_rows) & (o_col[None, :] < WIDTH)
    return tl.load(p_array + o_element, mask=b_inside, other=0.0)


@triton.jit
def key_bounds(
    i_m, offset, q_len, kv_len, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr
):
    """How far a tile of queries sees: ``(n_full, n_seen)``.

    Keys before n_full (a multiple of BLOCK_N) are seen by every query of the tile and need no mask; keys
    from n_full to n_seen by some; keys from n_seen on by none, and their tiles are never loaded. Query i
    sees key j when j ≤ i + offset.
    """
    n_seen = kv_len
    n_full = kv_len // BLOCK_N * BLOCK_N
    if CAUSAL:
        first = i_m * BLOCK_M
        last = tl.minimum(first + BLOCK_M, q_len) - 1
        # Clamped at 0 before dividing: inside a kernel, // rounds towards zero as in C.
        n_seen = tl.minimum(tl.maximum(last + offset + 1, 0), kv_len)
        n_full = tl.minimum(tl.maximum(first + offset + 1, 0), kv_len) // BLOCK_N * BLOCK_N
    return n_full, n_seen


@triton.jit
def may_see(o_m, o_n, offset, kv_len, CAUSAL: tl.constexpr):
    """Which queries see which keys: [BM, BN] booleans ([1, BN] where all queries see the same)."""
    b_see = o_n[None, :] < kv_len
    if CAUSAL:
        # [BM] the last key of each query: one comparison per score covers both limits
        o_last = tl.minimum(o_m + offset, kv_len - 1)
        b_see = o_n[None, :] <= o_last[:, None]
    return b_see


@triton.jit
def tile_scores(b_q, b_k, scale):
    """scale · QKᵀ for one tile, [BM, BN], in float32 whatever the inputs: q·k overflows float16.

    Scaled before the maximum is taken, so that a negative or zero scale is as good as any. ``ieee`` keeps
    float32 products out of TF32.
    """
    return tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale


@triton.jit
def softmax_step(b_s, m, l):
    """Take one tile of scores into the running maximum and sum.

    Returns the unnormalised weights [BM, BN], the new m and l [BM], and the factor [BM] by which everything
    summed before must shrink.
    """
    m_new = tl.maximum(m, tl.max(b_s, 1))
    # While a row has seen no key its maximum is −∞, and −∞ − (−∞) is NaN. Subtract 0 there; but carry the
    # true maximum on, for a carried 0 would drown a row whose first real score is very negative.
    m_finite = tl.where(m_new == float("-inf"), 0.0, m_new)
    b_p = tl.exp(b_s - m_finite[:, None])
    shrink = tl.exp(m - m_finite)
    return b_p, m_new, l * shrink + tl.sum(b_p, 1), shrink


@triton.jit
def attend_keys(
    b_q, p_k, p_v, m, l, b_o, o_m, n_from, n_to, scale, offset, kv_len,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Stream the keys n_from … n_to past a tile of queries; MASKED: some of them may not be seen."""
    for n_start in range(n_from, n_to, BLOCK_N):
        o_n = n_start + tl.arange(0, BLOCK_N)
        b_k = load_rows(p_k, o_n, kv_len, D, BLOCK_D)
        # [BM, BN]
        b_s = tile_scores(b_q, b_k, scale)
        if MASKED:
            b_s = tl.where(may_see(o_m, o_n, offset, kv_len, CAUSAL), b_s, float("-inf"))
        b_p, m, l, shrink = softmax_step(b_s, m, l)
        b_v = load_rows(p_v, o_n, kv_len, DV, BLOCK_DV)
        # [BM, BDV]; the weights take V's dtype for the tensor cores, the sum stays float32
        b_o = tl.dot(b_p.to(b_v.dtype), b_v, b_o * shrink[:, None], input_precision="ieee")
    return m, l, b_o


@triton.jit(do_not_specialize=["offset"])
def flash_forward(
    p_q, p_k, p_v, p_o, p_lse, scale, offset, group, q_len, kv_len,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head. Grid: (batch · heads, ⌈q_len / BLOCK_M⌉).

    q [batch, heads, q_len, D], k [batch, heads / group, kv_len, D], v [batch, heads / group, kv_len, DV] →
    o [batch, heads, q_len, DV], lse [batch, heads, q_len] float32.
    """
    i_head = tl.program_id(0).to(tl.int64)
    i_m = tl.program_id(1)
    # ``group`` consecutive query heads share a key head: (b·H + h) // group = b·H_kv + h // group.
    i_kv_head = i_head // group
    p_q += i_head * q_len * D
    p_k += i_kv_head * kv_len * D
    p_v += i_kv_head * kv_len * DV
    p_o += i_head * q_len * DV
    p_lse += i_head * q_len

    # [BM]
    o_m = i_m * BLOCK_M + tl.arange(0, BLOCK_M)
    # [BM, BD]; loaded once, stays on chip
    b_q = load_rows(p_q, o_m, q_len, D, BLOCK_D)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.full([BLOCK_M], 0.0, tl.float32)
    b_o = tl.full([BLOCK_M, BLOCK_DV], 0.0, tl.float32)

    n_full, n_seen = key_bounds(i_m, offset, q_len, kv_len, BLOCK_M, BLOCK_N, CAUSAL)
    m, l, b_o = attend_keys(
        b_q, p_k, p_v, m, l, b_o, o_m, 0, n_full, scale, offset, kv_len,
        D, DV, BLOCK_D, BLOCK_DV, BLOCK_N, CAUSAL, MASKED=False,
    )  # fmt: skip
    m, l, b_o = attend_keys(
        b_q, p_k, p_v, m, l, b_o, o_m, n_full, n_seen, scale, offset, kv_len,
        D, DV, BLOCK_D, BLOCK_DV, BLOCK_N, CAUSAL, MASKED=True,
    )  # fmt: skip

    # A row that saw no key has l = 0: its output is 0 and its LSE −∞. Any other row has l ≥ 1.
    l_safe = tl.where(l == 0.0, 1.0, l)
    b_o = b_o / l_safe[:, None]
    lse = tl.where(l == 0.0, float("-inf"), m + tl.log(l_safe))

    o_col = tl.arange(0, BLOCK_DV)
    o_element = o_m[:, None].to(tl.int64) * DV + o_col[None, :]
    b_inside = (o_m[:, None] < q_len) & (o_col[None, :] < DV)
    tl.store(p_o + o_element, b_o.to(p_o.dtype.element_ty), mask=b_inside)
    tl.store(p_lse + o_m, lse, mask=o_m < q_len)
