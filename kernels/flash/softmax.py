"""The online softmax: three running values per row say all that must be remembered of the keys seen so far.

    m   the largest logit            l   Σ exp(s − m)            O   Σ exp(s − m) · v

When new keys raise the maximum from m to m′, what was summed before is multiplied by exp(m − m′) (Milakov and
Gimelshein 2018). Dividing O by l at the end is the only normalisation, and m + ln l is the log-sum-exp.
"""

# mypy: ignore-errors
# ruff: noqa: N803, E741

import triton
import triton.language as tl


@triton.jit
def start(T, o_head, BLOCK_M: tl.constexpr, BLOCK_DV: tl.constexpr, SINKS: tl.constexpr):
    """(m, l, O) before any key: nothing, or the head's sink, a key already seen whose value is 0."""
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.full([BLOCK_M], 0.0, tl.float32)
    if SINKS and (T.p_sinks is not None):
        m = tl.load(T.p_sinks + o_head)
        l = tl.where(m == float("-inf"), 0.0, 1.0)
    return m, l, tl.full([BLOCK_M, BLOCK_DV], 0.0, tl.float32)


@triton.jit
def step(b_s, m, l):
    """Take one tile of logits into the running maximum and sum.

    Returns the unnormalised weights [BM, BN], the new m and l [BM], and the factor [BM] by which everything
    summed before must shrink.
    """
    m_new = tl.maximum(m, tl.max(b_s, 1))
    # While a row has seen no key its maximum is −∞, and −∞ − (−∞) is NaN. Subtract 0 there; but carry the
    # true maximum on, for a carried 0 would drown a row whose first real logit is very negative.
    m_finite = tl.where(m_new == float("-inf"), 0.0, m_new)
    b_p = tl.exp(b_s - m_finite[:, None])
    shrink = tl.exp(m - m_finite)
    return b_p, m_new, l * shrink + tl.sum(b_p, 1), shrink


@triton.jit
def finish(m, l, b_o):
    """(out [BM, BDV], lse [BM]). A row that saw no key has l = 0: its output is 0 and its LSE −∞. Any other
    row has l ≥ 1."""
    l_safe = tl.where(l == 0.0, 1.0, l)
    return b_o / l_safe[:, None], tl.where(l == 0.0, float("-inf"), m + tl.log(l_safe))
