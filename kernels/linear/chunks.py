"""A linear recurrence in chunks, in Triton: states from chunk to chunk, then outputs of all chunks at once.

With S the state that a chunk finds, and D the products of decays within the chunk (``recurrence.py`` has the
equations and their sources):

    U = V,  or by the delta rule  (I + L) U = β ∘ (V − (D_·0 ∘ K) S),  L = β ∘ (K Kᵀ ∘ D) below the diagonal
    O = scale · ((Q Kᵀ ∘ D) U + (D_·0 ∘ Q) S)
    S′ = D_n0 S + (D_n· ∘ K)ᵀ U

``chunk_states`` walks from chunk to chunk with S on chip, and leaves each S for ``chunk_outputs``, whose
chunks need nothing of one another. Time is linear in the length; longer chunks make fewer states and more of
the quadratic part.

The triangular system is solved by forward substitution. (I + L)⁻¹ is also the product of I − L, I + L², I +
L⁴ and so on, which tensor cores would do; but where keys repeat, powers of L hold binomial coefficients that
cancel: with chunks of 64 float32 would keep no digit.
"""

# mypy: ignore-errors
# ruff: noqa: N803, E741, PLR0917
# A kernel's body is Triton's language in Python's clothes; Python's types do not describe it.

import triton
import triton.language as tl

from kernels.linear.tiles import (
    decays,
    finished,
    load_features,
    load_series,
    load_state,
    load_tile,
    no_state,
    store_state,
    store_tile,
    times,
)


@triton.jit
def missing(b_k, b_v, b_s, b_beta, decay, BLOCK_T: tl.constexpr, PRECISION: tl.constexpr):
    """U [BT, BE] of the delta rule: of each value what its key does not retrieve yet."""
    o = tl.arange(0, BLOCK_T)
    b_lower = tl.dot(b_k, tl.trans(b_k), input_precision=PRECISION) * decay.within * b_beta[:, None]
    b_lower = tl.where(o[:, None] > o[None, :], b_lower, 0.0)
    b_u = b_v - tl.dot(times(b_k, decay.since), b_s, input_precision=PRECISION)
    b_u *= b_beta[:, None]
    for j in range(BLOCK_T):
        # Row j is known now; what it retrieves is taken from the rows below.
        b_row = tl.sum(tl.where(o[:, None] == j, b_u, 0.0), 0)
        b_column = tl.sum(tl.where(o[None, :] == j, b_lower, 0.0), 1)
        b_u -= b_column[:, None] * b_row[None, :]
    return b_u


@triton.jit
def chunk_states(
    K, V, G, BETA, START, STATES, LAST, U, num_heads, length,
    D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_T: tl.constexpr,
    FEATURES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """All chunks of one state head, some columns. Grid: (batch · state heads, ⌈E / BLOCK_E⌉).

    K [.., length, D], V [.., length, E], log decays G and BETA [.., length, 1] or None → the state that each
    chunk finds in STATES (None: not kept), the last one in LAST; by the delta rule also U [.., length, E].
    START: the state before the first token, or None.
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

    for i_chunk in range(tl.cdiv(length, BLOCK_T)):
        if STATES is not None:
            store_state(STATES, i_batch, i_head, i_chunk, o_e, b_s, b_z, D, E, BLOCK_D)
        o_t = i_chunk * BLOCK_T + tl.arange(0, BLOCK_T)
        b_k = load_features(K, i_batch, i_head, o_t, length, o_d, D, FEATURES)
        b_u = load_tile(V.rows, i_batch, i_head // V.group, o_t, length, o_e, E)
        decay = decays(G, i_batch, i_head, o_t, length, BLOCK_T)
        if BETA is not None:
            b_beta = load_series(BETA, i_batch, i_head, o_t, length)
            b_u = missing(b_k, b_u, b_s, b_beta, decay, BLOCK_T, PRECISION)
            store_tile(U, i_batch, i_head, o_t, length, o_e, E, b_u)
        b_k = times(b_k, decay.until)
        if decay.whole is not None:
            b_s *= decay.whole
        b_s = tl.dot(tl.trans(b_k), b_u, b_s, input_precision=PRECISION)
        if LAST.z is not None:
            if decay.whole is not None:
                b_z *= decay.whole
            b_z += tl.sum(b_k, 0)[None, :]
    store_state(LAST, i_batch, i_head, 0, o_e, b_s, b_z, D, E, BLOCK_D)


@triton.jit
def chunk_outputs(
    Q, K, U, G, STATES, O, scale, num_heads, length, state_group,
    D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_T: tl.constexpr,
    FEATURES: tl.constexpr, PRECISION: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """One chunk of queries of one head, some columns.

    Grid: (batch · heads, ⌈length / BLOCK_T⌉, ⌈E / BLOCK_E⌉).

    Q [.., length, D], K [.., length, D], U [.., length, E] (the values, or what the delta rule makes of them)
    → O [batch, heads, length, E]. STATES: what each chunk finds; without CAUSAL the one state that all
    queries read, and K, U and G are None. ``state_group`` heads share a state.
    """
    i_row = tl.program_id(0).to(tl.int64)
    i_chunk = tl.program_id(1)
    i_batch, i_head = i_row // num_heads, i_row % num_heads
    o_t = i_chunk * BLOCK_T + tl.arange(0, BLOCK_T)
    o_e = tl.program_id(2) * BLOCK_E + tl.arange(0, BLOCK_E)
    o_d = tl.arange(0, BLOCK_D)
    i_state = i_chunk if CAUSAL else 0
    found = load_state(STATES, i_batch, i_head // state_group, i_state, o_e, D, E, BLOCK_D)
    b_s, b_z = found.s, found.z
    b_q = load_features(Q, i_batch, i_head, o_t, length, o_d, D, FEATURES)
    if not CAUSAL:
        b_o = tl.dot(b_q, b_s, input_precision=PRECISION)
        b_total = None if b_z is None else tl.sum(b_q * b_z, 1)
    else:
        b_k = load_features(K, i_batch, i_head, o_t, length, o_d, D, FEATURES)
        b_u = load_tile(U.rows, i_batch, i_head // U.group, o_t, length, o_e, E)
        decay = decays(G, i_batch, i_head, o_t, length, BLOCK_T)
        # [BT, BT]; the weights of the tokens of this chunk, and then what came before
        b_p = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION) * decay.within
        b_q = times(b_q, decay.since)
        b_o = tl.dot(b_p, b_u, input_precision=PRECISION)
        b_o = tl.dot(b_q, b_s, b_o, input_precision=PRECISION)
        b_total = None if b_z is None else tl.sum(b_p, 1) + tl.sum(b_q * b_z, 1)
    store_tile(O, i_batch, i_head, o_t, length, o_e, E, finished(b_o, b_total, scale))
