"""The score matrices that FlashAttention never kept, made tile by tile from Q and K for whoever asks to see
them.

    scores = scale · QKᵀ  →  softcapped  →  masked: + ALiBi + bias, −∞ where forbidden       (``logits.py``)
    weights = exp(masked − m) / l

The weights need no second softmax: m and l of each row, the maximum and the sum, are what the forward pass
ended with (``softmax.py``). The backward pass rebuilds them in the same way.

Names: ``i_`` a program's index, ``o_`` offsets along an axis, ``p_`` a pointer, ``b_`` a tile on chip, its
shape above it in brackets. BM and BN are the tile sizes, D is the width of keys, BD the same padded to a
power of two. T are the Terms of the call, R the Queries of a tile (``logits.py``).
"""

# mypy: ignore-errors
# ruff: noqa: E741, N803, N806, PLR0917
# A kernel's body is Triton's language in Python's clothes; Python's types do not describe it.

import triton
import triton.language as tl

from kernels.flash.codes import load_keys, times_scales
from kernels.flash.logits import describe_queries, extent, logits, scores, softcapped
from kernels.flash.memory import load_rows
from kernels.flash.softmax import load_kept, weights_of


@triton.jit
def flash_scores(
    Q, K, T, kept, p_scores, p_softcapped, p_masked, p_weights, num_heads, group, q_len, kv_len,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One tile of one head's matrices. Grid: (batch · num_heads, ⌈q_len / BLOCK_M⌉, ⌈kv_len / BLOCK_N⌉).

    Those of the [batch, num_heads, q_len, kv_len] float32 results that are not None are written; the weights
    take what ``flash_forward`` ``kept``.
    """
    i_row = tl.program_id(0).to(tl.int64)
    i_batch, i_head = i_row // num_heads, i_row % num_heads
    n_queries, n_keys, offset = extent(T, i_batch, q_len, kv_len)
    o_m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    o_n = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    o_head = tl.full([BLOCK_M], i_head, tl.int32)
    R = describe_queries(T, i_batch, o_head, o_m, n_queries, n_keys, offset)
    # [BM, BD], [BN, BD]
    b_q = load_rows(Q, i_batch, i_head, o_m, n_queries, D, BLOCK_D)
    b_k = load_keys(K, i_batch, i_head // group, o_n, n_keys, D, BLOCK_D, b_q.dtype)

    o_element = (i_row * q_len + o_m[:, None]) * kv_len + o_n[None, :]
    b_inside = (o_m[:, None] < q_len) & (o_n[None, :] < kv_len)
    # [BM, BN]
    b_s = times_scales(scores(b_q, b_k, T.scale), K, i_batch, i_head // group, o_n, n_keys)
    if p_scores is not None:
        tl.store(p_scores + o_element, b_s, mask=b_inside)
    b_s = softcapped(b_s, T)
    if p_softcapped is not None:
        tl.store(p_softcapped + o_element, b_s, mask=b_inside)
    b_s = tl.where(R.inside[:, None], logits(b_s, R, T, o_n, n_keys, MASKED=True), float("-inf"))
    if p_masked is not None:
        tl.store(p_masked + o_element, b_s, mask=b_inside)
    if p_weights is not None:
        m, l = load_kept(kept, i_row * q_len + o_m, o_m < q_len)
        tl.store(p_weights + o_element, weights_of(b_s, m, l), mask=b_inside)
