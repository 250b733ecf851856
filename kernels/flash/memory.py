"""Where arrays lie in memory, and how a kernel reads and writes tiles of them.

A kernel takes each array as a small named tuple: a pointer and the distances, in elements, from one batch
row, head, token to the next. A field that is None is known to be absent when the kernel is compiled, and the
code that would use it is never generated.

Names: ``i_`` a program's index, ``o_`` offsets along an axis, ``p_`` a pointer, ``b_`` a tile on chip, its
shape above it in brackets. Capitals (Q, K, V) are arrays as they are defined here.
"""

# mypy: ignore-errors
# ruff: noqa: N803, PLR0917
# A kernel's body is Triton's language in Python's clothes; Python's types do not describe it.

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Pages(NamedTuple):
    """A cache kept in pages: token j of batch row b lies in page ``table[b, j // size]``, at row j % size."""

    p_table: Any  # [batch, max_blocks] int32
    stride_batch: Any
    size: Any


class Rows(NamedTuple):
    """An array [batch, heads, len, dim] whose last axis is contiguous; a stride of 0 shares, as when
    all heads read the same.

    With ``pages`` the first axis counts pages: [num_blocks, heads, page_size, dim] in any order of strides.
    With ``codes`` it holds bytes, which ``codes.py`` reads.
    """

    p: Any
    stride_batch: Any
    stride_head: Any
    stride_row: Any
    pages: Any = None
    codes: Any = None  # kernels.flash.codes.Codes


class Matrix(NamedTuple):
    """An array that broadcasts to [batch, heads, q_len, kv_len]: a stride of 0 repeats."""

    p: Any
    stride_batch: Any
    stride_head: Any
    stride_row: Any
    stride_col: Any


class Vector(NamedTuple):
    """An array [batch or 1, len]: a stride of 0 repeats."""

    p: Any
    stride_batch: Any


@triton.jit
def row_starts(X, i_batch, i_head, o_row, b_inside):
    """Where each row starts, in elements from ``X.p``: [rows] int64.

    64-bit before anything is multiplied: row · stride passes 2³¹ in long sequences.
    """
    if X.pages is None:
        o_start = i_batch * X.stride_batch + o_row.to(tl.int64) * X.stride_row
    else:
        # No row is negative: inside a kernel, // and % round towards zero as in C. Divided while it has 32
        # bits, for dividing 64 takes a GPU many instructions.
        p_page = X.pages.p_table + i_batch * X.pages.stride_batch + o_row // X.pages.size
        o_page = tl.load(p_page, mask=b_inside, other=0).to(tl.int64)
        o_start = o_page * X.stride_batch + (o_row % X.pages.size).to(tl.int64) * X.stride_row
    return o_start + i_head * X.stride_head


@triton.jit
def load_rows(X, i_batch, i_head, o_row, n_rows, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr):
    """Rows of one head, [rows, BLOCK_WIDTH]; zero from row ``n_rows`` and from column WIDTH on.

    The zeros matter: a padded column adds nothing to q·k, and a V row that was never written may hold NaN,
    which not even a weight of 0 would silence, since 0 · NaN = NaN.
    """
    b_inside = o_row < n_rows
    # [BLOCK_WIDTH]
    o_col = tl.arange(0, BLOCK_WIDTH)
    o_element = row_starts(X, i_batch, i_head, o_row, b_inside)[:, None] + o_col[None, :]
    return tl.load(X.p + o_element, mask=b_inside[:, None] & (o_col[None, :] < WIDTH), other=0.0)


@triton.jit
def store_rows(X, i_batch, i_head, o_row, n_rows, b_tile, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr):
    """Write a tile [rows, BLOCK_WIDTH] to the rows of one head, leaving out what ``load_rows`` pads."""
    b_inside = o_row < n_rows
    o_col = tl.arange(0, BLOCK_WIDTH)
    o_element = row_starts(X, i_batch, i_head, o_row, b_inside)[:, None] + o_col[None, :]
    b_tile = b_tile.to(X.p.dtype.element_ty)
    tl.store(X.p + o_element, b_tile, mask=b_inside[:, None] & (o_col[None, :] < WIDTH))
