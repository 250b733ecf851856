"""Windows around a centre of each query, in Triton: local attention (``local.py`` says it in numpy).

    key j is seen by query i      |j − p_i| ≤ D
    its weight is multiplied by   exp(−(j − p_i)² / 2σ²),  σ = D/2       where there is a Gaussian

Which keys a window holds must not depend on rounding: near its edge a Gaussian is e⁻², which is much to lose
or to win. So p_i is float64 (there is one for each query, not for each pair), and from it come the first and
the last key, integers; a distance is counted from ⌊p_i⌋, which is an integer too, and the rest.

Names as in ``pairs.py``. X are the Windows of the call, F the Focus of a tile.
"""

# mypy: ignore-errors
# ruff: noqa: N803, PLR0917
# A kernel's body is Triton's language in Python's clothes; Python's types do not describe it.

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kernels.flash.memory import load_rows


class Windows(NamedTuple):
    """Where queries look."""

    p_centre: Any  # [batch, num_heads, q_len] float64; None: query i looks at key i
    half_width: Any  # D
    gaussian: Any = None  # anything, and weights fall off from the centre


class Focus(NamedTuple):
    """Of each row of a tile of queries: all [BM]."""

    first: Any  # the first and the last key of its window
    last: Any
    base: Any  # ⌊p⌋
    rest: Any  # p − ⌊p⌋


@triton.jit
def focus(X, o_row, o_m, b_inside, n_keys):
    """The Focus of queries o_m, rows o_row of all that there are. Rows that are not inside see no key."""
    if X.p_centre is None:
        b_centre = o_m.to(tl.float64)
    else:
        b_centre = tl.load(X.p_centre + o_row, mask=b_inside, other=0.0)
    b_first = tl.maximum(tl.ceil(b_centre - X.half_width).to(tl.int32), 0)
    b_last = tl.minimum(tl.floor(b_centre + X.half_width).to(tl.int32), n_keys - 1)
    b_base = tl.floor(b_centre)
    b_rest = (b_centre - b_base).to(tl.float32)
    return Focus(
        tl.where(b_inside, b_first, n_keys), tl.where(b_inside, b_last, -1), b_base.to(tl.int32), b_rest
    )


@triton.jit
def within(b_s, F, o_n):
    """Logits [BM, BN] of keys o_n, −∞ outside the windows."""
    b_see = (o_n[None, :] >= F.first[:, None]) & (o_n[None, :] <= F.last[:, None])
    return tl.where(b_see, b_s, float("-inf"))


@triton.jit
def fall_off(b_p, X, F, o_n):
    """Weights [BM, BN] of keys o_n times the Gaussian, if there is one."""
    if X.gaussian is not None:
        b_distance = (o_n[None, :] - F.base[:, None]).to(tl.float32) - F.rest[:, None]
        b_of_half = b_distance / X.half_width
        b_p = b_p * tl.exp(-2.0 * b_of_half * b_of_half)
    return b_p


@triton.jit
def predict_centres(
    Q, W, V, p_centre, num_heads, q_len, kv_len, hidden,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """p_i = kv_len · σ(v · tanh(W q_i)) in float64. Grid: (batch · num_heads, ⌈q_len / BLOCK_M⌉).

    Q [batch, num_heads, q_len, D], Matrices W [1, num_heads, hidden, D] and V [1, num_heads, 1, hidden] →
    [batch, num_heads, q_len].
    """
    i_row = tl.program_id(0).to(tl.int64)
    i_batch, i_head = i_row // num_heads, i_row % num_heads
    o_m, o_d = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    b_q = load_rows(Q, i_batch, i_head, o_m, q_len, D, BLOCK_D).to(tl.float64)
    # [BM]
    b_z = tl.full([BLOCK_M], 0.0, tl.float64)
    for c in range(hidden):
        p_w = W.p + i_head * W.stride_head + c * W.stride_row + o_d
        b_x = tl.sum(b_q * tl.load(p_w, mask=o_d < D, other=0.0).to(tl.float64)[None, :], 1)
        v = tl.load(V.p + i_head * V.stride_head + c).to(tl.float64)
        # As wrong near 0 as elsewhere, by 2⁻⁵³: v says how much that is worth
        b_z += v * (1.0 - 2.0 / (tl.exp(2.0 * b_x) + 1.0))
    b_centre = 1.0 / (1.0 + tl.exp(-b_z)) * kv_len
    tl.store(p_centre + i_row * q_len + o_m, b_centre, mask=o_m < q_len)
