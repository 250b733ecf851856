"""Append new tokens to a cache in pages: each key and value row goes to the page and slot of its position.

Token i of row b stands at position first[b] + i, that is, in page table[b, position // page_size] at slot
position % page_size (``row_starts`` in ``kernels/flash/memory.py`` looks it up for loads and stores alike).
Rows append different numbers of tokens, ``count[b]``; what lies beyond is padding: not read, not written, and
the table is not asked for its page. Keys come rotated: a cache keeps what attention multiplies.

A page that several rows name is written by whoever appends to it: sharing ends, by a copy, where sequences
part, and that is for whoever hands out the pages.

Names: ``i_`` a program's index, ``o_`` offsets along an axis, ``p_`` a pointer, ``b_`` a tile on chip, its
shape above it in brackets. A tile has BT tokens; D and DV are the widths of keys and values, BD and BDV the
same padded to powers of two.

Kwon et al. 2023, *Efficient Memory Management for Large Language Model Serving with PagedAttention*.
"""

# mypy: ignore-errors
# ruff: noqa: N803, PLR0917
# A kernel's body is Triton's language in Python's clothes; Python's types do not describe it.

import triton
import triton.language as tl

from kernels.flash.memory import load_rows, store_rows


@triton.jit
def append_rows(
    NewK, NewV, K, V, p_first, p_count, num_kv_heads,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """A tile of BLOCK_T new tokens of one head. Grid: (batch · num_kv_heads, ⌈new / BLOCK_T⌉).

    NewK [batch, num_kv_heads, new, D], NewV [batch, num_kv_heads, new, DV] → K, V in pages.
    """
    i_row = tl.program_id(0).to(tl.int64)
    i_batch, i_head = i_row // num_kv_heads, i_row % num_kv_heads
    first, count = tl.load(p_first + i_batch), tl.load(p_count + i_batch)
    # [BT]
    o_new = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    b_k = load_rows(NewK, i_batch, i_head, o_new, count, D, BLOCK_D)
    store_rows(K, i_batch, i_head, first + o_new, first + count, b_k, D, BLOCK_D)
    b_v = load_rows(NewV, i_batch, i_head, o_new, count, DV, BLOCK_DV)
    store_rows(V, i_batch, i_head, first + o_new, first + count, b_v, DV, BLOCK_DV)
