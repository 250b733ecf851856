"""A linear recurrence token by token, in Triton: what decoding does.

    S ← a_t S                     u = v_t,  or  β_t (v_t − Sᵀ k_t)
    S ← S + k_t uᵀ                o_t = scale · q_tᵀ S

The state stays on chip from the first token to the last: it is read and written once, however many tokens
there are, and its size is all that a step costs. ``recurrence.py`` has the sources. Names as in ``tiles.py``.
"""

# mypy: ignore-errors
# ruff: noqa: N803, E741, PLR0917
# A kernel's body is Triton's language in Python's clothes; Python's types do not describe it.

import triton
import triton.language as tl

from kernels.linear.tiles import (
    finished,
    load_features,
    load_state,
    load_tile,
    no_state,
    store_state,
    store_tile,
)


@triton.jit
def token_steps(
    Q, K, V, G, BETA, START, LAST, O, scale, num_heads, length, state_group,
    D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
    WIDTH_G: tl.constexpr, BLOCK_G: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """All tokens of one state head, some columns. Grid: (batch · state heads, ⌈E / BLOCK_E⌉).

    K [.., length, D], V [.., length, E], log decays G [.., length, WIDTH_G] (1, or D for one of each row of
    the state) and BETA [.., length, 1] or None → the last state in LAST; with Q [.., length, D] also O
    [batch, state heads · state_group, length, E]. START: the state before, or None.
    """
    i_row = tl.program_id(0).to(tl.int64)
    i_batch, i_head = i_row // num_heads, i_row % num_heads
    o_e = tl.program_id(1) * BLOCK_E + tl.arange(0, BLOCK_E)
    o_d = tl.arange(0, BLOCK_D)
    if START is None:
        before = no_state(LAST, BLOCK_D, BLOCK_E)
    else:
        before = load_state(START, i_batch, i_head, 0, o_e, D, E, BLOCK_D)
    b_s, b_z = before.s, before.z

    for t in range(length):
        # One row, [1, ·]
        o_t = t + tl.arange(0, 1)
        b_k = load_features(K, i_batch, i_head, o_t, length, o_d, D, FEATURES)
        b_u = load_tile(V.rows, i_batch, i_head // V.group, o_t, length, o_e, E)
        b_column = tl.trans(b_k)
        if G is not None:
            o_g = tl.arange(0, BLOCK_G)
            b_a = tl.exp(load_tile(G.rows, i_batch, i_head // G.group, o_t, length, o_g, WIDTH_G))
            b_s *= tl.trans(b_a)
            if b_z is not None:
                b_z *= b_a
        if BETA is not None:
            b_beta = load_tile(BETA.rows, i_batch, i_head // BETA.group, o_t, length, tl.arange(0, 1), 1)
            b_u = b_beta * (b_u - tl.sum(b_column * b_s, 0)[None, :])
        b_s += b_column * b_u
        if b_z is not None:
            b_z += b_k
        if O is not None:
            for i_reader in range(state_group):
                i_out = i_head * state_group + i_reader
                b_q = load_features(Q, i_batch, i_out, o_t, length, o_d, D, FEATURES)
                b_o = tl.sum(tl.trans(b_q) * b_s, 0)[None, :]
                b_total = None if b_z is None else tl.sum(b_q * b_z, 1)
                store_tile(O, i_batch, i_out, o_t, length, o_e, E, finished(b_o, b_total, scale))
    store_state(LAST, i_batch, i_head, 0, o_e, b_s, b_z, D, E, BLOCK_D)
