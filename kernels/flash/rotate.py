"""Rotary position embedding: turn each pair (x, y) of a row by the angle of its position.

    x′ = x · cos − y · sin
    y′ = x · sin + y · cos

The pairs are neighbours (interleaved) or a half apart; the rest of the row passes unchanged. Turning by the
negative angle undoes it, which is also what its gradient needs. cos and sin already hold the attention factor
of a scaling that has one. Su et al. 2021, *RoFormer*, eq. 15 and 34.

Names: ``i_`` a program's index, ``o_`` offsets along an axis, ``p_`` a pointer, ``b_`` a tile on chip, its
shape above it in brackets.
"""

# mypy: ignore-errors
# ruff: noqa: N803, PLR0917
# A kernel's body is Triton's language in Python's clothes; Python's types do not describe it.

import triton
import triton.language as tl

from kernels.flash.memory import row_starts


@triton.jit
def rotate_rows(
    X, Y, p_cos, p_sin, stride_batch, num_heads, length,
    DIM: tl.constexpr, DIM_OFFSET: tl.constexpr, PAIRS: tl.constexpr, BLOCK_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """One tile of rows of one head, X → Y [batch, heads, length, DIM].

    Grid: (batch · heads, ⌈length / BLOCK_M⌉).

    cos, sin [batch or 1 (stride_batch 0), length, PAIRS] float32; pairs lie in the 2 · PAIRS columns from
    DIM_OFFSET on.
    """
    i_row = tl.program_id(0).to(tl.int64)
    i_batch, i_head = i_row // num_heads, i_row % num_heads
    o_m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    b_inside = o_m < length
    # [BLOCK_DIM]; which pair each column belongs to, whether it is the pair's second, where its partner is
    o_col = tl.arange(0, BLOCK_DIM)
    o_turned = o_col - DIM_OFFSET
    is_turned = (o_turned >= 0) & (o_turned < 2 * PAIRS)
    o_turned = tl.where(is_turned, o_turned, 0)
    if INTERLEAVED:
        o_pair, is_second = o_turned // 2, o_turned % 2 == 1
        o_partner = tl.where(is_second, o_col - 1, o_col + 1)
    else:
        is_second = o_turned >= PAIRS
        o_pair = tl.where(is_second, o_turned - PAIRS, o_turned)
        o_partner = tl.where(is_second, o_col - PAIRS, o_col + PAIRS)

    o_start = row_starts(X, i_batch, i_head, o_m, b_inside)[:, None]
    b_mask = b_inside[:, None] & (o_col[None, :] < DIM)
    b_turned = b_inside[:, None] & is_turned[None, :]
    b_own = tl.load(X.p + o_start + o_col[None, :], mask=b_mask, other=0.0).to(tl.float32)
    b_partner = tl.load(X.p + o_start + o_partner[None, :], mask=b_turned, other=0.0).to(tl.float32)
    o_angle = i_batch * stride_batch + o_m[:, None].to(tl.int64) * PAIRS + o_pair[None, :]
    b_cos = tl.load(p_cos + o_angle, mask=b_turned, other=1.0)
    b_sin = tl.load(p_sin + o_angle, mask=b_turned, other=0.0)
    b_new = b_own * b_cos + tl.where(is_second[None, :], b_partner, -b_partner) * b_sin
    o_start = row_starts(Y, i_batch, i_head, o_m, b_inside)[:, None]
    tl.store(Y.p + o_start + o_col[None, :], b_new.to(Y.p.dtype.element_ty), mask=b_mask)
