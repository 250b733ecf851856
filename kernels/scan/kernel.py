"""The selective scan in Triton: chunk by chunk, or token by token.

    h_t = exp(Δ_t A) h_{t−1} + Δ_t B_t x_t            y_t = C_t·h_t + D x_t

The state h [channels, N] is larger than any input or output, and is never in memory but before the first
token and after the last: that, and not the order of the sums, is what makes it fast (as with the n × n matrix
of attention). ``scan_chunks`` composes the steps of a chunk as a parallel prefix, (a₂, b₂) after (a₁, b₁) =
(a₂ a₁, a₂ b₁ + b₂), and carries the state to the next; ``scan_steps`` is what decoding does. Everything is
float32, and none of it a matrix product.

A tile has BT tokens, BP channels of one head, and all N numbers of a state, padded to BN. ``recurrence.py``
has the derivation and sources. Names as in ``kernels/linear/tiles.py``.
"""

# mypy: ignore-errors
# ruff: noqa: N803, PLR0917
# A kernel's body is Triton's language in Python's clothes; Python's types do not describe it.

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kernels.linear.tiles import load_tile, store_tile


class Rates(NamedTuple):
    """A [heads, P, N]: a stride of 0 repeats."""

    p: Any
    stride_head: Any
    stride_channel: Any
    stride_state: Any


@triton.jit
def after(a_1, b_1, a_2, b_2):
    """The step (a₂, b₂) after the step (a₁, b₁)."""
    return a_2 * a_1, a_2 * b_1 + b_2


@triton.jit
def load_rates(A, i_head, o_p, o_n, P: tl.constexpr, N: tl.constexpr):
    """[BP, BN] float32; padding has rate 0, and with it an input of 0."""
    p_rate = A.p + i_head * A.stride_head + o_p[:, None] * A.stride_channel + o_n[None, :] * A.stride_state
    return tl.load(p_rate, mask=(o_p[:, None] < P) & (o_n[None, :] < N), other=0.0).to(tl.float32)


@triton.jit
def load_deltas(DELTA, i_batch, i_head, o_t, length, o_p, P: tl.constexpr, PER_CHANNEL: tl.constexpr):
    """[BT, BP], or [BT, 1] where channels share them. Padding has Δ = 0: it neither decays nor writes."""
    if PER_CHANNEL:
        b_delta = load_tile(DELTA, i_batch, i_head, o_t, length, o_p, P)
    else:
        b_delta = load_tile(DELTA, i_batch, i_head, o_t, length, tl.arange(0, 1), 1)
    return b_delta


@triton.jit
def load_start(START, i_batch, i_head, o_p, o_n, P: tl.constexpr, N: tl.constexpr):
    """The state [BP, BN] before the first token."""
    if START is None:
        b_h = tl.full([o_p.shape[0], o_n.shape[0]], 0.0, tl.float32)
    else:
        b_h = load_tile(START, i_batch, i_head, o_p, P, o_n, N)
    return b_h


@triton.jit
def skipped(p_skip, b_x, i_head, o_p, P: tl.constexpr):
    """D x [rows, BP], or 0."""
    b_y = tl.zeros_like(b_x)
    if p_skip is not None:
        b_y = tl.load(p_skip + i_head * P + o_p, mask=o_p < P, other=0.0).to(tl.float32)[None, :] * b_x
    return b_y


@triton.jit
def scan_chunks(
    X, DELTA, A, B, C, p_skip, START, LAST, Y, num_heads, group, length,
    P: tl.constexpr, N: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
):  # fmt: skip
    """All tokens of some channels of a head. Grid: (batch · heads, ⌈P / BLOCK_P⌉).

    X [.., length, P], DELTA [.., length, P or 1] (PER_CHANNEL: P), A, B and C [batch, heads / group, length,
    N], D at p_skip [heads, P] or None → Y [.., length, P], and LAST [batch, heads, P, N]. START: the state
    before, or None.
    """
    i_row = tl.program_id(0).to(tl.int64)
    i_batch, i_head = i_row // num_heads, i_row % num_heads
    o_p = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
    o_n = tl.arange(0, BLOCK_N)
    o = tl.arange(0, BLOCK_T)
    b_a = load_rates(A, i_head, o_p, o_n, P, N)
    b_h = load_start(START, i_batch, i_head, o_p, o_n, P, N)

    for t_start in range(0, length, BLOCK_T):
        o_t = t_start + o
        b_x = load_tile(X, i_batch, i_head, o_t, length, o_p, P)
        b_delta = load_deltas(DELTA, i_batch, i_head, o_t, length, o_p, P, PER_CHANNEL)
        b_b = load_tile(B, i_batch, i_head // group, o_t, length, o_n, N)
        b_c = load_tile(C, i_batch, i_head // group, o_t, length, o_n, N)
        # [BT, BP, BN]; each step, then all steps up to it, then the states that they lead to
        b_decay = tl.exp(b_delta[:, :, None] * b_a[None, :, :])
        b_into = (b_delta * b_x)[:, :, None] * b_b[:, None, :]
        b_product, b_total = tl.associative_scan((b_decay, b_into), 0, after)
        b_states = b_product * b_h[None, :, :] + b_total
        b_y = tl.sum(b_states * b_c[:, None, :], 2) + skipped(p_skip, b_x, i_head, o_p, P)
        store_tile(Y, i_batch, i_head, o_t, length, o_p, P, b_y)
        b_h = tl.sum(tl.where(o[:, None, None] == BLOCK_T - 1, b_states, 0.0), 0)
    store_tile(LAST, i_batch, i_head, o_p, P, o_n, N, b_h)


@triton.jit
def scan_steps(
    X, DELTA, A, B, C, p_skip, START, LAST, Y, num_heads, group, length,
    P: tl.constexpr, N: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
    PER_CHANNEL: tl.constexpr,
):  # fmt: skip
    """As ``scan_chunks``, one token after the other."""
    i_row = tl.program_id(0).to(tl.int64)
    i_batch, i_head = i_row // num_heads, i_row % num_heads
    o_p = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
    o_n = tl.arange(0, BLOCK_N)
    b_a = load_rates(A, i_head, o_p, o_n, P, N)
    b_h = load_start(START, i_batch, i_head, o_p, o_n, P, N)

    for t in range(length):
        # One row, [1, ·]
        o_t = t + tl.arange(0, 1)
        b_x = load_tile(X, i_batch, i_head, o_t, length, o_p, P)
        b_delta = load_deltas(DELTA, i_batch, i_head, o_t, length, o_p, P, PER_CHANNEL)
        b_b = load_tile(B, i_batch, i_head // group, o_t, length, o_n, N)
        b_c = load_tile(C, i_batch, i_head // group, o_t, length, o_n, N)
        b_h = tl.exp(tl.trans(b_delta) * b_a) * b_h + tl.trans(b_delta * b_x) * b_b
        b_y = tl.sum(b_h * b_c, 1)[None, :] + skipped(p_skip, b_x, i_head, o_p, P)
        store_tile(Y, i_batch, i_head, o_t, length, o_p, P, b_y)
    store_tile(LAST, i_batch, i_head, o_p, P, o_n, N, b_h)
