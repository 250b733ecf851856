"""Multi-head latent attention over the latents themselves, written to be read.

A cache of keys and values for every head is large. DeepSeek-V2 keeps one latent vector c_j per token instead,
from which each head h makes its own keys and values, beside one key k_j for all heads that carries the
position (RoPE turns a key by its position, and a turned key could not be made from c_j by one matrix):

    K_hj = [c_j · W^UK_h ; k_j]        V_hj = c_j · W^UV_h        q_hi = [nope_hi ; rope_hi]

    s_hij = scale · q_hi · K_hj        O_hi = Σ_j P_hij · V_hj,   P_hij = exp(s_hij) / Σ_t exp(s_hit)

Written so, all keys and values must first be made: the *expanded* form, ordinary attention. But a product of
three does not care for brackets:

    nope_hi · (c_j W^UK_h) = (nope_hi W^UKᵀ_h) · c_j        Σ_j P_hij (c_j W^UV_h) = (Σ_j P_hij c_j) W^UV_h

so that W^UK can be *absorbed* into the query and W^UV applied once to the sum. What is left between the two
is attention of all heads over one and the same sequence, whose key is [c_j ; k_j] and whose value is c_j
again. ``latent_attention`` computes that: each row of the cache is read once, and serves as key and as value
of every head in the tile. A decoded token has one query per head, too few rows to fill a tile; so a tile
holds (query, head) pairs, all heads of a query next to each other.

``project`` computes the products with W^UK and W^UV on either side; in the expanded form ``share_columns``
brings k_j to the keys of all heads.

DeepSeek-AI 2024, *DeepSeek-V2*, arXiv 2405.04434, §2.1.2 (latents), §2.1.3 (decoupled RoPE) and the remark on
absorbing in §2.1.2. There c_j is c^KV_j, k_j is k^R_j, nope and rope are q^C and q^R, and matrices stand on
the left of what they multiply: our W_h is the transpose of the rows of W that belong to head h. (There W^UV
goes into the output matrix W^O, which is no part of this.) Logits, masks and the online softmax are those of
``kernels/flash``.

Names: ``i_`` a program's index, ``o_`` offsets along an axis, ``p_`` a pointer, ``b_`` a tile on chip, its
shape above it in brackets. A tile has BM rows of queries and BN keys; C and ROPE are the widths of latents
and of rotated keys, BC and BR the same padded to powers of two. T are the Terms of the call, R the Queries of
a tile (``kernels/flash/logits.py``).
"""

# mypy: ignore-errors
# ruff: noqa: N803, N806, E741, PLR0917
# A kernel's body is Triton's language in Python's clothes; Python's types do not describe it.

import triton
import triton.language as tl

from kernels.flash.logits import as_factor, describe_queries, extent, key_bounds, logits, softcapped
from kernels.flash.memory import load_rows, row_starts, store_rows
from kernels.flash.softmax import finish, forget_padding, start, step


@triton.jit
def latent_tile(
    b_q, b_q_rope, LATENT, K_ROPE, T, R, m, l, b_o, n_start, n_keys,
    C: tl.constexpr, ROPE: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_ROPE: tl.constexpr,
    BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Take the keys from n_start on into (m, l, O) of the queries R; MASKED: some may not be seen."""
    o_n = n_start + tl.arange(0, BLOCK_N)
    b_c = load_rows(LATENT, R.i_batch, 0, o_n, n_keys, C, BLOCK_C)
    b_k_rope = load_rows(K_ROPE, R.i_batch, 0, o_n, n_keys, ROPE, BLOCK_ROPE)
    # [BM, BN]; two products, one sum
    b_s = tl.dot(b_q_rope, tl.trans(b_k_rope), input_precision="ieee")
    b_s = tl.dot(b_q, tl.trans(b_c), b_s, input_precision="ieee") * T.scale
    b_s = logits(softcapped(b_s, T), R, T, o_n, n_keys, MASKED)
    b_p, m, l, by = step(b_s, m, l)
    # [BM, BC]; the value is the tile that was the key
    b_o = tl.dot(as_factor(b_p, T, b_c.dtype), b_c, b_o * by[:, None], input_precision="ieee")
    return m, l, b_o


@triton.jit
def wanted_by_any(T, R, o_m, n_start, BLOCK_N: tl.constexpr):
    """Whether any query of the tile sees any key of the tile that starts at n_start; here the block
    mask has one head for all and a row for each query."""
    if T.block_mask is None:
        is_wanted: tl.constexpr = True
    else:
        X = T.block_mask
        p_row = X.p + R.i_batch * X.stride_batch + o_m.to(tl.int64) * X.stride_row
        b_seen = tl.load(p_row + n_start // BLOCK_N * X.stride_col, mask=R.inside, other=0)
        is_wanted = tl.max(b_seen.to(tl.int32), 0) != 0
    return is_wanted


@triton.jit
def latent_attention(
    Q, Q_ROPE, LATENT, K_ROPE, O, p_lse, T, num_heads, q_len, kv_len,
    C: tl.constexpr, ROPE: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_ROPE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One tile of (query, head) pairs. Grid: (batch, ⌈q_len · num_heads / BLOCK_M⌉).

    Q [batch, num_heads, q_len, C] (absorbed), Q_ROPE [batch, num_heads, q_len, ROPE], LATENT [batch, 1,
    kv_len, C], K_ROPE [batch, 1, kv_len, ROPE] → O [batch, num_heads, q_len, C], lse [batch, num_heads,
    q_len] float32.
    """
    i_batch = tl.program_id(0).to(tl.int64)
    i_m = tl.program_id(1)
    n_queries, n_keys, offset = extent(T, i_batch, q_len, kv_len)

    # [BM]; which query and which head each row of the tile is
    o_pair = i_m * BLOCK_M + tl.arange(0, BLOCK_M)
    o_m, o_head = o_pair // num_heads, (o_pair % num_heads).to(tl.int64)
    R = describe_queries(T, i_batch, o_head, o_m, n_queries, n_keys, offset)
    # [BM, BC] and [BM, BR]; loaded once, stay on chip
    b_q = load_rows(Q, i_batch, o_head, o_m, n_queries, C, BLOCK_C)
    b_q_rope = load_rows(Q_ROPE, i_batch, o_head, o_m, n_queries, ROPE, BLOCK_ROPE)
    m, l, b_o = start(T, o_head, BLOCK_M, BLOCK_C)

    first = i_m * BLOCK_M // num_heads
    last = tl.minimum((i_m * BLOCK_M + BLOCK_M - 1) // num_heads, n_queries - 1)
    n_from, n_full, n_to = key_bounds(T, first, last, n_keys, offset, BLOCK_N)
    for n_start in range(n_from, n_full, BLOCK_N):
        m, l, b_o = latent_tile(
            b_q, b_q_rope, LATENT, K_ROPE, T, R, m, l, b_o, n_start, n_keys,
            C, ROPE, BLOCK_C, BLOCK_ROPE, BLOCK_N, MASKED=False,
        )  # fmt: skip
    for n_start in range(n_full, n_to, BLOCK_N):
        if wanted_by_any(T, R, o_m, n_start, BLOCK_N):
            m, l, b_o = latent_tile(
                b_q, b_q_rope, LATENT, K_ROPE, T, R, m, l, b_o, n_start, n_keys,
                C, ROPE, BLOCK_C, BLOCK_ROPE, BLOCK_N, MASKED=True,
            )  # fmt: skip

    m, l, b_o = forget_padding(m, l, b_o, R, T)
    b_o, lse = finish(m, l, b_o)
    store_rows(O, i_batch, o_head, o_m, q_len, b_o, C, BLOCK_C)
    tl.store(p_lse + (i_batch * num_heads + o_head) * q_len + o_m, lse, mask=o_m < q_len)


@triton.jit
def project(
    X, W, Y, num_rows, length, width_in, width_out,
    BLOCK_M: tl.constexpr, BLOCK_IN: tl.constexpr, BLOCK_OUT: tl.constexpr,
):  # fmt: skip
    """Y[b, h, i] = X[b, h, i] · W[h]. Grid: (num_heads, ⌈num_rows / BLOCK_M⌉, ⌈width_out / BLOCK_OUT⌉).

    X [batch, num_heads, length, width_in], with a head stride of 0 where all heads read the same; W a Matrix
    [1, num_heads, width_in, width_out] → Y [batch, num_heads, length, width_out]. A tile takes rows of any
    batch row, ``num_rows`` = batch · length in all: they share W[h], and decoding has one per batch row.
    """
    i_head = tl.program_id(0).to(tl.int64)
    # [BM]
    o_row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    b_inside = o_row < num_rows
    o_batch, o_token = (o_row // length).to(tl.int64), o_row % length
    o_out = tl.program_id(2) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    p_x = X.p + row_starts(X, o_batch, i_head, o_token, b_inside)[:, None]
    p_w = W.p + i_head * W.stride_head + o_out[None, :] * W.stride_col
    b_y = tl.full([BLOCK_M, BLOCK_OUT], 0.0, tl.float32)
    for start_in in range(0, width_in, BLOCK_IN):
        o_in = start_in + tl.arange(0, BLOCK_IN)
        b_x = tl.load(p_x + o_in[None, :], mask=b_inside[:, None] & (o_in[None, :] < width_in), other=0.0)
        b_w = tl.load(
            p_w + o_in[:, None] * W.stride_row,
            mask=(o_in[:, None] < width_in) & (o_out[None, :] < width_out),
            other=0.0,
        )
        b_y = tl.dot(b_x, b_w, b_y, input_precision="ieee")
    p_y = Y.p + row_starts(Y, o_batch, i_head, o_token, b_inside)[:, None] + o_out[None, :]
    b_mask = b_inside[:, None] & (o_out[None, :] < width_out)
    tl.store(p_y, b_y.to(Y.p.dtype.element_ty), mask=b_mask)


@triton.jit
def share_columns(
    X, Y, num_heads, length,
    FIRST: tl.constexpr, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """X as the columns FIRST to FIRST + WIDTH of every head of Y.

    Grid: (batch · num_heads, ⌈length / BLOCK_M⌉). X [batch, 1, length, WIDTH] → Y [batch, num_heads, length,
    FIRST + WIDTH or more].
    """
    i_row = tl.program_id(0).to(tl.int64)
    i_batch, i_head = i_row // num_heads, i_row % num_heads
    o_m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    # [BM, BLOCK_WIDTH]
    b_x = load_rows(X, i_batch, 0, o_m, length, WIDTH, BLOCK_WIDTH)
    b_inside, o_col = o_m < length, tl.arange(0, BLOCK_WIDTH)
    p_y = Y.p + row_starts(Y, i_batch, i_head, o_m, b_inside)[:, None] + FIRST + o_col[None, :]
    tl.store(p_y, b_x, mask=b_inside[:, None] & (o_col[None, :] < WIDTH))
