"""Split-KV decoding in Triton: attention of a few queries to many keys.

When one token is generated there is one query per head, and all the work is to read the keys and values once.
Two things make that fast, and both are here:

* The keys of a sequence are cut into splits, a program to each, for otherwise a few long sequences would
  leave most of a GPU idle. A program takes its tiles in as the flash kernel does (``attend_tile``) and writes
  an unfinished state (m, l, O); a second kernel merges the states (``merge.py``).
* The query heads that share a key head are rows of one tile, so that each key and value is read once for all
  of them:

      row r of the tile:   head  i_kv_head · group + r // q_len,   query  r % q_len

Which keys anyone sees is decided before they are split: the splits share what lies between the first and the
last visible key evenly, in whole tiles, so that a window over a long cache occupies them all.

Names: ``i_`` a program's index, ``o_`` offsets along an axis, ``p_`` a pointer, ``b_`` a tile on chip, its
shape above it in brackets. A tile has BM rows and BN keys; D and DV are the widths of keys and values, BD and
BDV the same padded to powers of two. T are the Terms of the call, R the Queries of a tile
(``kernels/flash/logits.py``), S the States of all splits (``merge.py``).

Dao, Haziza, Massa and Sizov 2023, *Flash-Decoding for long-context inference*.
"""

# mypy: ignore-errors
# ruff: noqa: N803, N806, E741, PLR0917
# A kernel's body is Triton's language in Python's clothes; Python's types do not describe it.

import triton
import triton.language as tl

from kernels.decode.merge import store_states
from kernels.flash.kernel import attend_tile
from kernels.flash.logits import describe_queries, extent, key_bounds, wanted
from kernels.flash.memory import load_rows
from kernels.flash.softmax import forget_padding, start


@triton.jit
def pack_rows(i_kv_head, i_tile, group, q_len, BLOCK_M: tl.constexpr):
    """``(o_head, o_m)`` [BM]: the head and the query of each row; beyond the last row a head that exists and
    the query q_len, which does not."""
    o_row = i_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    o_head = i_kv_head * group + tl.minimum(o_row // q_len, group - 1)
    return o_head, tl.where(o_row < group * q_len, o_row % q_len, q_len)


@triton.jit
def split_bounds(n_from, n_to, i_split, num_splits, BLOCK_N: tl.constexpr):
    """``(s_from, s_to)``: the keys of one split of those from n_from on and before n_to.

    The tiles are dealt out evenly, in order; with fewer tiles than splits some get none. No product
    overflows: there are at most 2²⁰ tiles and 2¹⁰ splits.
    """
    n_tiles = tl.cdiv(tl.maximum(n_to - n_from, 0), BLOCK_N)
    s_from = n_from + i_split * n_tiles // num_splits * BLOCK_N
    s_to = n_from + (i_split + 1) * n_tiles // num_splits * BLOCK_N
    return s_from, tl.minimum(s_to, n_to)


@triton.jit
def decode_split(
    Q, K, V, S, T, num_heads, group, q_len, kv_len, num_splits,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One split of the keys, for the queries of one key head.

    Grid: (batch · num_heads / group, num_splits, ⌈group · q_len / BLOCK_M⌉). Q [batch, num_heads, q_len, D],
    K [batch, num_heads / group, kv_len, D], V [batch, num_heads / group, kv_len, DV] → states S.
    """
    num_kv_heads = num_heads // group
    i_batch = tl.program_id(0).to(tl.int64) // num_kv_heads
    i_kv_head = tl.program_id(0).to(tl.int64) % num_kv_heads
    i_split = tl.program_id(1)
    n_queries, n_keys, offset = extent(T, i_batch, q_len, kv_len)
    # [BM]
    o_head, o_m = pack_rows(i_kv_head, tl.program_id(2), group, q_len, BLOCK_M)
    R = describe_queries(T, i_batch, o_head, o_m, n_queries, n_keys, offset)
    # [BM, BD]
    b_q = load_rows(Q, i_batch, o_head, o_m, n_queries, D, BLOCK_D)
    m, l, b_o = start(T, o_head, BLOCK_M, BLOCK_DV)
    # The sink is a key of the first split, and of no other.
    m, l = tl.where(i_split == 0, m, float("-inf")), tl.where(i_split == 0, l, 0.0)

    n_from, n_full, n_to = key_bounds(T, 0, n_queries - 1, n_keys, offset, BLOCK_N)
    s_from, s_to = split_bounds(n_from, n_to, i_split, num_splits, BLOCK_N)
    s_full = tl.minimum(tl.maximum(n_full, s_from), s_to)
    for n_start in range(s_from, s_full, BLOCK_N):
        m, l, b_o = attend_tile(
            b_q, K, V, T, R, m, l, b_o, i_kv_head, n_start, n_keys,
            D, DV, BLOCK_D, BLOCK_DV, BLOCK_N, MASKED=False,
        )  # fmt: skip
    for n_start in range(s_full, s_to, BLOCK_N):
        if wanted(T, i_batch, i_kv_head, 0, n_start, BLOCK_N):
            m, l, b_o = attend_tile(
                b_q, K, V, T, R, m, l, b_o, i_kv_head, n_start, n_keys,
                D, DV, BLOCK_D, BLOCK_DV, BLOCK_N, MASKED=True,
            )  # fmt: skip

    m, l, b_o = forget_padding(m, l, b_o, R, T)
    o_state = i_split.to(tl.int64) * S.rows + (i_batch * num_heads + o_head) * q_len + o_m
    store_states(S, o_state, o_m < q_len, m, l, b_o, DV, BLOCK_DV)
