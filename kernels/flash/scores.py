"""The score matrices that FlashAttention never kept, rebuilt tile by tile from Q, K and the LSE.

P = exp(S − LSE) needs no second softmax: the LSE of a row holds its maximum and its sum at once. The
backward pass of FlashAttention rebuilds the weights this way; here it shows them. Names as in ``kernel.py``.
"""

# mypy: ignore-errors
# ruff: noqa: N803, PLR0917

import triton
import triton.language as tl

from kernels.flash.kernel import load_rows, may_see, tile_scores


@triton.jit(do_not_specialize=["offset"])
def flash_scores(
    p_q, p_k, p_lse, p_scores, p_masked, p_weights, scale, offset, group, q_len, kv_len,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, SCORES: tl.constexpr, MASKED: tl.constexpr, WEIGHTS: tl.constexpr,
):  # fmt: skip
    """One tile of one head's matrices. Grid: (batch · heads, ⌈q_len / BLOCK_M⌉, ⌈kv_len / BLOCK_N⌉).

    SCORES, MASKED, WEIGHTS say which of the [batch, heads, q_len, kv_len] float32 results to write.
    """
    i_head = tl.program_id(0).to(tl.int64)
    i_kv_head = i_head // group
    o_m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    o_n = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    b_q = load_rows(p_q + i_head * q_len * D, o_m, q_len, D, BLOCK_D)
    b_k = load_rows(p_k + i_kv_head * kv_len * D, o_n, kv_len, D, BLOCK_D)
    # [BM, BN]
    b_s = tile_scores(b_q, b_k, scale)
    o_element = (i_head * q_len + o_m[:, None]) * kv_len + o_n[None, :]
    b_inside = (o_m[:, None] < q_len) & (o_n[None, :] < kv_len)
    if SCORES:
        tl.store(p_scores + o_element, b_s, mask=b_inside)
    b_s = tl.where(may_see(o_m, o_n, offset, kv_len, CAUSAL), b_s, float("-inf"))
    if MASKED:
        tl.store(p_masked + o_element, b_s, mask=b_inside)
    if WEIGHTS:
        # [BM]; a row that saw no key has LSE −∞: subtract 0 there, and exp(−∞) = 0 is right
        lse = tl.load(p_lse + i_head * q_len + o_m, mask=o_m < q_len, other=0.0)
        lse = tl.where(lse == float("-inf"), 0.0, lse)
        tl.store(p_weights + o_element, tl.exp(b_s - lse[:, None]), mask=b_inside)
