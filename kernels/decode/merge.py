"""The algebra of unfinished softmaxes, and the kernel that puts splits together by it.

What the online softmax (``kernels/flash/softmax.py``) remembers of a set of keys is a state (m, l, O), for
each row of queries:

    m   the largest logit           l   Σ exp(s − m)           O   Σ exp(s − m) · v

Two states of disjoint sets of keys merge into the state of their union:

    m = max(m₁, m₂)      l = l₁ · exp(m₁ − m) + l₂ · exp(m₂ − m)      O likewise

Merging is commutative and associative, for the sums are; the state of no key, (−∞, 0, 0), changes nothing. So
keys may be split anywhere, split by anyone, and merged in any order, and only then is O divided by l. A sink
is a key too, in one split and no other.

Dao, Haziza, Massa and Sizov 2023, *Flash-Decoding*; Ye et al. 2024, *Cascade Inference* (FlashInfer), for the
algebra.

Names: ``i_`` a program's index, ``o_`` offsets along an axis, ``p_`` a pointer, ``b_`` a tile on chip, its
shape above it in brackets. A tile has BR rows of queries and BS splits; DV is the width of values, BDV the
same padded to a power of two. S are the States of all splits.
"""

# mypy: ignore-errors
# ruff: noqa: N803, E741, PLR0917
# A kernel's body is Triton's language in Python's clothes; Python's types do not describe it.

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kernels.flash.softmax import empty, finish, shrink


class States(NamedTuple):
    """Float32 states of every split and row. Row r: query r % q_len of head r // q_len % heads, batch by
    batch."""

    p_m: Any  # [splits, rows]
    p_l: Any  # [splits, rows]
    p_o: Any  # [splits, rows, DV]
    rows: Any


@triton.jit
def merge(m_1, l_1, b_o_1, m_2, l_2, b_o_2):
    """The state of all keys of two states. m, l: [BR]; O: [BR, BDV]."""
    m = tl.maximum(m_1, m_2)
    by_1, by_2 = shrink(m_1, m), shrink(m_2, m)
    return m, l_1 * by_1 + l_2 * by_2, b_o_1 * by_1[:, None] + b_o_2 * by_2[:, None]


@triton.jit
def merge_all(b_m, b_l, b_o):
    """The state of all keys of BS states at once. m, l: [BR, BS] → [BR]; O: [BR, BS, BDV] → [BR, BDV]."""
    m = tl.max(b_m, 1)
    # [BR, BS]
    by = shrink(b_m, m[:, None])
    return m, tl.sum(b_l * by, 1), tl.sum(b_o * by[:, :, None], 1)


@triton.jit
def load_states(S, o_row, o_split, num_splits, DV: tl.constexpr, BLOCK_DV: tl.constexpr):
    """States of rows o_row [BR] and splits o_split [BS]; empty ones beyond those that there are."""
    # [BR, BS]; 64-bit before it is multiplied by a width
    o_state = o_split[None, :].to(tl.int64) * S.rows + o_row[:, None]
    b_inside = (o_row[:, None] < S.rows) & (o_split[None, :] < num_splits)
    b_m = tl.load(S.p_m + o_state, mask=b_inside, other=float("-inf"))
    b_l = tl.load(S.p_l + o_state, mask=b_inside, other=0.0)
    # [BR, BS, BDV]
    o_col = tl.arange(0, BLOCK_DV)[None, None, :]
    b_o = tl.load(
        S.p_o + o_state[:, :, None] * DV + o_col, mask=b_inside[:, :, None] & (o_col < DV), other=0.0
    )
    return b_m, b_l, b_o


@triton.jit
def store_states(S, o_state, b_inside, m, l, b_o, DV: tl.constexpr, BLOCK_DV: tl.constexpr):
    """Write the states of BR rows to the places o_state [BR] of S, where b_inside."""
    tl.store(S.p_m + o_state, m, mask=b_inside)
    tl.store(S.p_l + o_state, l, mask=b_inside)
    o_col = tl.arange(0, BLOCK_DV)
    p_o = S.p_o + o_state[:, None] * DV + o_col[None, :]
    tl.store(p_o, b_o, mask=b_inside[:, None] & (o_col[None, :] < DV))


@triton.jit
def merge_splits(
    S, p_out, p_lse, num_splits,
    DV: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Merge the splits of a tile of rows and finish them. Grid: (⌈rows / BLOCK_R⌉,).

    S → out [rows, DV], lse [rows] float32. A row whose every state is empty: out 0, LSE −∞.
    """
    o_row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    m, l, b_o = empty(BLOCK_R, BLOCK_DV)
    for s_start in range(0, num_splits, BLOCK_S):
        o_split = s_start + tl.arange(0, BLOCK_S)
        b_m, b_l, b_os = load_states(S, o_row, o_split, num_splits, DV, BLOCK_DV)
        m_more, l_more, b_o_more = merge_all(b_m, b_l, b_os)
        m, l, b_o = merge(m, l, b_o, m_more, l_more, b_o_more)
    b_o, lse = finish(m, l, b_o)
    o_col = tl.arange(0, BLOCK_DV)
    b_inside = o_row < S.rows
    p_o = p_out + o_row[:, None] * DV + o_col[None, :]
    tl.store(p_o, b_o.to(p_out.dtype.element_ty), mask=b_inside[:, None] & (o_col[None, :] < DV))
    tl.store(p_lse + o_row, lse, mask=b_inside)
