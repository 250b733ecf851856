"""Tiles of tokens, of states and of decays, as the kernels of linear recurrences share them.

A chunk has BT tokens. D is the width of keys, E that of values; BD and BE are the columns of a tile of them.
Sums without a softmax have no bound, and float16 ends at 65504: so tiles are float32 once they are loaded,
and what a tensor core multiplies is rounded to TF32 ("tf32", which holds every float16 and bfloat16 exactly)
where inputs have 16 bits, and not at all ("ieee") where they have 32: PRECISION.

Names as in ``kernels/flash/memory.py``.
"""

# mypy: ignore-errors
# ruff: noqa: N803, PLR0917
# A kernel's body is Triton's language in Python's clothes; Python's types do not describe it.

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kernels.flash.memory import row_starts


class Tokens(NamedTuple):
    """An array [batch, heads, len, width]; each head serves ``group`` consecutive heads of the grid."""

    rows: Any  # kernels.flash.memory.Rows
    group: Any


class States(NamedTuple):
    """States, float32, one or more for each head: number i of a head has rows i · D to (i + 1) · D − 1 of s,
    and row i of z."""

    s: Any  # Rows [batch, state heads, states · D, E]
    z: Any = None  # Rows [batch, state heads, states, D]; None where nothing is normalised


class State(NamedTuple):
    """A state on chip."""

    s: Any  # [BD, BE]: all rows, some columns
    z: Any  # [1, BD], or None


class Decays(NamedTuple):
    """Products of decays in a chunk; None where nothing decays."""

    within: Any  # [BT, BT]: of the tokens after j up to i, 0 above the diagonal; without decays 1 below it
    since: Any  # [BT]: of the tokens up to i
    until: Any  # [BT]: of the tokens after j
    whole: Any  # of all


@triton.jit
def load_tile(X, i_batch, i_head, o_row, n_rows, o_col, n_cols):
    """[rows, cols] float32 of one head; zero from row ``n_rows`` and column ``n_cols`` on."""
    b_inside = o_row < n_rows
    o_element = row_starts(X, i_batch, i_head, o_row, b_inside)[:, None] + o_col[None, :]
    b_mask = b_inside[:, None] & (o_col[None, :] < n_cols)
    return tl.load(X.p + o_element, mask=b_mask, other=0.0).to(tl.float32)


@triton.jit
def store_tile(X, i_batch, i_head, o_row, n_rows, o_col, n_cols, b_tile):
    """Write what ``load_tile`` would read."""
    b_inside = o_row < n_rows
    o_element = row_starts(X, i_batch, i_head, o_row, b_inside)[:, None] + o_col[None, :]
    b_mask = b_inside[:, None] & (o_col[None, :] < n_cols)
    tl.store(X.p + o_element, b_tile.to(X.p.dtype.element_ty), mask=b_mask)


@triton.jit
def load_features(X, i_batch, i_head, o_row, n_rows, o_col, n_cols, FEATURES: tl.constexpr):
    """φ of queries or keys [rows, cols]: they themselves, or elu + 1 (1 for a 0, so that padding must be
    made 0 after it)."""
    b_x = load_tile(X.rows, i_batch, i_head // X.group, o_row, n_rows, o_col, n_cols)
    if FEATURES == "elu":
        b_x = tl.where(b_x > 0, b_x + 1, tl.exp(tl.minimum(b_x, 0.0)))
        b_x = tl.where((o_row[:, None] < n_rows) & (o_col[None, :] < n_cols), b_x, 0.0)
    return b_x


@triton.jit
def load_series(X, i_batch, i_head, o_row, n_rows):
    """[rows] float32 of an array that is one number wide."""
    b_inside = o_row < n_rows
    o_element = row_starts(X.rows, i_batch, i_head // X.group, o_row, b_inside)
    return tl.load(X.rows.p + o_element, mask=b_inside, other=0.0).to(tl.float32)


@triton.jit
def decays(G, i_batch, i_head, o_t, length, BLOCK_T: tl.constexpr):
    """The Decays of tokens o_t [BT], from their logarithms G. Padding does not decay.

    Each exponent is a sum of its own tokens: a difference of two running sums would have their rounding
    errors, and be NaN after a decay of 0, whose logarithm is −∞.
    """
    o = tl.arange(0, BLOCK_T)
    b_within = tl.where(o[:, None] >= o[None, :], 1.0, 0.0)
    b_since, b_until, whole = None, None, None
    if G is not None:
        b_g = load_series(G, i_batch, i_head, o_t, length)
        # [BT, BT]; summed downwards from below the diagonal
        b_sums = tl.cumsum(tl.where(o[:, None] > o[None, :], b_g[:, None], 0.0), 0)
        b_within *= tl.exp(b_sums)
        b_since = tl.exp(tl.cumsum(b_g, 0))
        b_until = tl.sum(tl.where(o[:, None] == BLOCK_T - 1, b_within, 0.0), 0)
        whole = tl.exp(tl.sum(b_g, 0))
    return Decays(b_within, b_since, b_until, whole)


@triton.jit
def times(b_tile, b_by):
    """Rows [rows, cols] times their factors [rows], if there are any."""
    if b_by is not None:
        b_tile = b_tile * b_by[:, None]
    return b_tile


@triton.jit
def no_state(X, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr):
    """The State before any token; X, whichever States, says if there is a z."""
    b_z = None
    if X.z is not None:
        b_z = tl.full([1, BLOCK_D], 0.0, tl.float32)
    return State(tl.full([BLOCK_D, BLOCK_E], 0.0, tl.float32), b_z)


@triton.jit
def load_state(X, i_batch, i_head, i_state, o_e, D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr):
    """State number i_state of a head, columns o_e."""
    o_d = tl.arange(0, BLOCK_D)
    first = i_state * D
    b_s = load_tile(X.s, i_batch, i_head, first + o_d, first + D, o_e, E)
    b_z = None
    if X.z is not None:
        b_z = load_tile(X.z, i_batch, i_head, i_state + tl.arange(0, 1), i_state + 1, o_d, D)
    return State(b_s, b_z)


@triton.jit
def store_state(
    X, i_batch, i_head, i_state, o_e, b_s, b_z,
    D: tl.constexpr, E: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Write what ``load_state`` would read; the program with the first columns writes z."""
    o_d = tl.arange(0, BLOCK_D)
    first = i_state * D
    store_tile(X.s, i_batch, i_head, first + o_d, first + D, o_e, E, b_s)
    if X.z is not None:
        n_mine = tl.where(tl.min(o_e, 0) == 0, D, 0)
        store_tile(X.z, i_batch, i_head, i_state + tl.arange(0, 1), i_state + 1, o_d, n_mine, b_z)


@triton.jit
def finished(b_o, b_total, scale):
    """Outputs [rows, BE], scaled, or divided by the sums of their weights [rows] where those are given: 0
    where a row has no weight."""
    if b_total is None:
        b_o = b_o * scale
    else:
        b_some = b_total != 0.0
        b_o = tl.where(b_some[:, None], b_o / tl.where(b_some, b_total, 1.0)[:, None], 0.0)
    return b_o
