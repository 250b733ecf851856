"""The online softmax: three running values per row say all that must be remembered of the keys seen so far.

    m   the largest logit            l   Σ exp(s − m)            O   Σ exp(s − m) · v

When new keys raise the maximum from m to m′, what was summed before is multiplied by exp(m − m′) (Milakov and
Gimelshein 2018, *Online normalizer calculation for softmax*). Dividing O by l at the end is the only
normalisation, and m + ln l is the log-sum-exp, LSE.

From m and l every weight of a row can be made again, P = exp(s − m) / l. From the LSE too, as exp(s − LSE);
but not when logits are large: beside m = 2²² a float32 counts in halves, and ln l is rounded away. So whoever
needs weights again keeps both (as FlashAttention did, before FlashAttention-2 kept the LSE alone).

Before a row has seen a key, m = −∞, l = 0 and O = 0.

Names: ``i_`` a program's index, ``o_`` offsets along an axis, ``p_`` a pointer, ``b_`` a tile on chip, its
shape above it in brackets. A tile has BM queries, BN keys and BDV columns of values. T are the Terms of the
call, R the Queries of a tile (``logits.py``).
"""

# mypy: ignore-errors
# ruff: noqa: N803, E741
# A kernel's body is Triton's language in Python's clothes; Python's types do not describe it.

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Kept(NamedTuple):
    """What makes the weights of a row again: m and l of every row, [batch, num_heads, q_len] float32."""

    p_m: Any
    p_l: Any


@triton.jit
def empty(BLOCK_M: tl.constexpr, BLOCK_DV: tl.constexpr):
    """(m [BM], l [BM], O [BM, BDV]) of no key."""
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    return m, tl.full([BLOCK_M], 0.0, tl.float32), tl.full([BLOCK_M, BLOCK_DV], 0.0, tl.float32)


@triton.jit
def start(T, o_head, BLOCK_M: tl.constexpr, BLOCK_DV: tl.constexpr):
    """(m, l, O) before any key: of none, or of the head's sink, a key already seen whose value is 0."""
    m, l, b_o = empty(BLOCK_M, BLOCK_DV)
    if T.p_sinks is not None:
        m = tl.load(T.p_sinks + o_head)
        l = tl.where(m == float("-inf"), 0.0, 1.0)
    return m, l, b_o


@triton.jit
def finite(m):
    """What to subtract from logits up to m: m, but 0 for a row that has seen no key, where −∞ − (−∞) would be
    NaN and exp(−∞ − 0) is 0. To be subtracted only: carried on as the maximum, that 0 would drown a row whose
    first logit is very negative."""
    return tl.where(m == float("-inf"), 0.0, m)


@triton.jit
def positive(l):
    """What to divide by: l, but 1 for a row that has seen no key, where all that is divided is 0. Any other
    row has l ≥ 1."""
    return tl.where(l == 0.0, 1.0, l)


@triton.jit
def shrink(m, m_all):
    """exp(m − m_all): by what a sum taken with the maximum m is multiplied when m_all ≥ m is the maximum."""
    return tl.exp(m - finite(m_all))


@triton.jit
def step(b_s, m, l):
    """Take one tile of logits [BM, BN] into the running maximum and sum.

    Returns the unnormalised weights [BM, BN], the new m and l [BM], and the factor [BM] by which everything
    summed before must shrink.
    """
    m_new = tl.maximum(m, tl.max(b_s, 1))
    b_p, by = tl.exp(b_s - finite(m_new)[:, None]), shrink(m, m_new)
    return b_p, m_new, l * by + tl.sum(b_p, 1), by


@triton.jit
def forget_padding(m, l, b_o, R, T):
    """(m, l, O) in which the padding of a ragged batch has seen nothing, not even the sink."""
    if T.p_q_lens is not None:
        m, l = tl.where(R.inside, m, float("-inf")), tl.where(R.inside, l, 0.0)
        b_o = tl.where(R.inside[:, None], b_o, 0.0)
    return m, l, b_o


@triton.jit
def finish(m, l, b_o):
    """(out [BM, BDV], LSE [BM]): 0 and −∞ for a row that saw no key."""
    l_positive = positive(l)
    return b_o / l_positive[:, None], tl.where(l == 0.0, float("-inf"), m + tl.log(l_positive))


@triton.jit
def weights_of(b_s, m, l):
    """P [BM, BN] from logits [BM, BN] and what their rows ended with."""
    return tl.exp(b_s - finite(m)[:, None]) * (1 / positive(l))[:, None]


@triton.jit
def store_kept(X, o_row, m, l, b_inside):
    """Write m and l [BM] of the rows o_row [BM] to Kept, or nothing for a caller that asked for neither."""
    if X is not None:
        tl.store(X.p_m + o_row, m, mask=b_inside)
        tl.store(X.p_l + o_row, l, mask=b_inside)


@triton.jit
def load_kept(X, o_row, b_inside):
    """(m, l) [BM] of the rows o_row [BM]. Padding gets m = +∞: whatever its logits, its weights are 0."""
    m = tl.load(X.p_m + o_row, mask=b_inside, other=float("inf"))
    return m, tl.load(X.p_l + o_row, mask=b_inside, other=1.0)
