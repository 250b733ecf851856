"""A linear recurrence as masked attention, in Triton: O = scale · ((Q Kᵀ ∘ D) V + (D_·0 ∘ Q) S_0).

One program owns a tile of queries, and walks over the tiles of keys from its own back to the first. So D_ij
for a key of an earlier tile is a product of three: from the end of the key's tile back to it, over the tiles
passed since, and from the start of the query's tile; none of them is ever divided by. Time is quadratic in
the length, as in FlashAttention, whose loop this is; without a maximum and a sum to keep. The delta rule has
no such form: its matrix is the inverse of a triangular one (``chunks.py`` inverts one chunk at a time).

``recurrence.py`` has the sources. Names as in ``tiles.py``; tiles of queries and of keys are BT long.
"""

# mypy: ignore-errors
# ruff: noqa: N803, E741, PLR0917
# A kernel's body is Triton's language in Python's clothes; Python's types do not describe it.

import triton
import triton.language as tl

from kernels.linear.tiles import decays, finished, load_features, load_state, load_tile, store_tile, times


@triton.jit
def add_keys(
    b_q, K, V, b_factors, b_o, b_total, i_batch, i_head, o_t, length, o_e,
    D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr,
    FEATURES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Take keys o_t [BT] into (O [BT, BE], total [BT]); their weights are Q Kᵀ times b_factors, if given."""
    b_k = load_features(K, i_batch, i_head, o_t, length, tl.arange(0, BLOCK_D), D, FEATURES)
    b_v = load_tile(V.rows, i_batch, i_head // V.group, o_t, length, o_e, E)
    b_p = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
    if b_factors is not None:
        b_p *= b_factors
    return tl.dot(b_p, b_v, b_o, input_precision=PRECISION), b_total + tl.sum(b_p, 1)


@triton.jit
def quadratic(
    Q, K, V, G, START, O, scale, num_heads, q_len, kv_len, state_group,
    D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_T: tl.constexpr,
    FEATURES: tl.constexpr, PRECISION: tl.constexpr, CAUSAL: tl.constexpr, NORMALISED: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head, some columns.

    Grid: (batch · heads, ⌈q_len / BLOCK_T⌉, ⌈E / BLOCK_E⌉).

    Q [.., q_len, D], K [.., kv_len, D], V [.., kv_len, E], log decays G [.., kv_len, 1] or None → O [batch,
    heads, q_len, E]. START: the state before the first token, or None; ``state_group`` heads share one.
    """
    i_row = tl.program_id(0).to(tl.int64)
    i_tile = tl.program_id(1)
    i_batch, i_head = i_row // num_heads, i_row % num_heads
    o_q = i_tile * BLOCK_T + tl.arange(0, BLOCK_T)
    o_e = tl.program_id(2) * BLOCK_E + tl.arange(0, BLOCK_E)
    b_q = load_features(Q, i_batch, i_head, o_q, q_len, tl.arange(0, BLOCK_D), D, FEATURES)
    b_o = tl.full([BLOCK_T, BLOCK_E], 0.0, tl.float32)
    b_total = tl.full([BLOCK_T], 0.0, tl.float32)

    n_before = i_tile
    if CAUSAL:
        decay = decays(G, i_batch, i_head, o_q, kv_len, BLOCK_T)
        b_o, b_total = add_keys(
            b_q, K, V, decay.within, b_o, b_total, i_batch, i_head, o_q, kv_len, o_e,
            D, E, BLOCK_D, FEATURES, PRECISION,
        )  # fmt: skip
        b_q = times(b_q, decay.since)
    else:
        n_before = tl.cdiv(kv_len, BLOCK_T)
    # From here on b_q holds the decays of all tokens between it and the keys that are next.
    for i_passed in range(n_before):
        o_n = (n_before - 1 - i_passed) * BLOCK_T + tl.arange(0, BLOCK_T)
        b_factors = None
        if G is not None:
            earlier = decays(G, i_batch, i_head, o_n, kv_len, BLOCK_T)
            b_factors = earlier.until[None, :]
        b_o, b_total = add_keys(
            b_q, K, V, b_factors, b_o, b_total, i_batch, i_head, o_n, kv_len, o_e,
            D, E, BLOCK_D, FEATURES, PRECISION,
        )  # fmt: skip
        if G is not None:
            b_q *= earlier.whole
    if START is not None:
        before = load_state(START, i_batch, i_head // state_group, 0, o_e, D, E, BLOCK_D)
        b_o = tl.dot(b_q, before.s, b_o, input_precision=PRECISION)
        if NORMALISED:
            b_total += tl.sum(b_q * before.z, 1)
    store_tile(O, i_batch, i_head, o_q, q_len, o_e, E, finished(b_o, b_total if NORMALISED else None, scale))
