"""From the codes of a quantised cache to numbers, inside a kernel.

A cache holds bytes: integers, or the bit patterns of 8-bit floating-point numbers (``kernels/quantise.py``
makes them). What a kernel multiplies is ``decode(codes, FORMAT) · scale``.

Bytes and integer arithmetic rather than Triton's own fp8 types, for two reasons. fp8e4nv exists only from
sm_89 on, so that a kernel that loads it does not compile for an A100. And Triton's interpreter decodes the
infinities and NaNs of both formats as numbers, and loses the subnormals of e5m2 on the way to float16.

Everything is decoded to float16, which holds every value of the three formats exactly: integers up to 2¹¹,
and both 8-bit formats with their subnormals, whose smallest are 2⁻⁹ and 2⁻¹⁶ where float16 has 2⁻²⁴. To
float32, and to bfloat16 (8 significant bits, a wider exponent), it is exact again.

    float16   s eeeee mmmmmmmmmm  (−1)ˢ · 2ᵉ⁻¹⁵ · 1.m;  e = 0: 2⁻¹⁴ · 0.m;  e all ones: ∞, or NaN if m ≠ 0
    fp8_e5m2  s eeeee mm          the same with a shorter m: the upper half of a float16
    fp8_e4m3  s eeee mmm          (−1)ˢ · 2ᵉ⁻⁷ · 1.m;  e = 0: 2⁻⁶ · 0.m;  no ∞; e and m all ones: NaN

Where the scales go, with one for each token, k_j = a_j · decode(k codes) and v_j = b_j · decode(v codes):

    s_ij = scale · (q_i · decode(k_j)) · a_j      on the score, in float32: codes are exact in every dtype,
                                                  scaled keys are not. Before the softcap, which bends it.
    O_i += p_ij · (decode(v_j) · b_j)             on the values, rounded to their dtype: the float16 weight
                                                  p · b underflows where b is 10⁻⁴, max|v| over 57344.

Names: ``i_`` a program's index, ``o_`` offsets along an axis, ``p_`` a pointer, ``b_`` a tile on chip, its
shape above it in brackets.
"""

# mypy: ignore-errors
# ruff: noqa: N803, PLR0917, PLR1714
# A kernel's body is Triton's language in Python's clothes; Python's types do not describe it.

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kernels.flash.memory import load_rows, row_starts


class Codes(NamedTuple):
    """What the bytes of a ``Rows`` mean. Either ``scale`` or ``scales`` is there."""

    format: Any  # constexpr: "int8", "fp8_e4m3" or "fp8_e5m2"
    scale: Any = None  # of the whole array
    scales: Any = None  # of each row: Rows [batch, heads, len, 1] of float32, in pages where the codes are


@triton.jit
def decode(b_codes, FORMAT: tl.constexpr):
    """The numbers of a tile of codes, float16, exact for each of the 256 codes; the scale is not applied.

    FORMAT: "int8" (codes int8), "fp8_e4m3" or "fp8_e5m2" (codes uint8, the bit patterns). Code 0 is 0 in
    each, so that a masked load of codes may say ``other=0``.
    """
    tl.static_assert(FORMAT == "int8" or FORMAT == "fp8_e4m3" or FORMAT == "fp8_e5m2")
    if FORMAT == "int8":
        return b_codes.to(tl.float16)
    b_bits = b_codes.to(tl.uint16)
    if FORMAT == "fp8_e5m2":
        return (b_bits << 8).to(tl.float16, bitcast=True)
    # e4m3: exponent and mantissa keep their places beside each other, seven bits higher, in the low four
    # bits of the wider exponent. Read as a float16 its bias is then 15 instead of 7, which makes every
    # number, subnormals included, 2⁸ times too small; multiplying by 2⁸ only changes exponents, exactly.
    b_size = b_bits & 0x7F
    b_half = tl.where(b_size == 0x7F, 0x7E00, b_size << 7) | ((b_bits & 0x80) << 8)
    return b_half.to(tl.uint16).to(tl.float16, bitcast=True) * 256.0


@triton.jit
def decode_as(b_codes, FORMAT: tl.constexpr, DTYPE: tl.constexpr):
    """A [rows, columns] tile of codes as an operand of tl.dot beside a tile of type DTYPE: float16, bfloat16
    or float32, as exact as ``decode``.

    tl.dot looks back along the elementwise operations that made a float32 operand. If it finds fewer than 32
    bits there, Triton 3.7 compiles tiles of 64 rows and more to TF32 on sm_100, although ``ieee`` was asked
    for (triton-lang/triton issue 10176): the other operand then loses 13 bits. A sum over an axis of length 1
    is no elementwise operation, changes no number and costs no instruction.
    """
    return as_operand(decode(b_codes, FORMAT).to(DTYPE))


@triton.jit
def as_operand(b_numbers):
    """The same tile; of float32, such that its past is hidden from tl.dot (see ``decode_as``)."""
    if b_numbers.dtype == tl.float32:
        b_numbers = tl.sum(b_numbers[:, :, None], 2)
    return b_numbers


@triton.jit
def load_keys(
    K, i_batch, i_head, o_row, n_rows,
    WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """``load_rows``; codes as numbers of type DTYPE without their scale, which ``times_scales`` gives to the
    scores."""
    b_k = load_rows(K, i_batch, i_head, o_row, n_rows, WIDTH, BLOCK_WIDTH)
    if K.codes is not None:
        b_k = decode_as(b_k, K.codes.format, DTYPE)
    return b_k


@triton.jit
def times_scales(b_s, K, i_batch, i_head, o_row, n_rows):
    """Scores [BM, BN] of the keys that ``load_keys`` gave, each times the scale of its key."""
    if K.codes is not None:
        b_s *= load_scales(K, i_batch, i_head, o_row, n_rows)[None, :]
    return b_s


@triton.jit
def load_values(
    V, i_batch, i_head, o_row, n_rows,
    WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """``load_rows``; codes as the numbers that they stand for, rounded to DTYPE."""
    b_v = load_rows(V, i_batch, i_head, o_row, n_rows, WIDTH, BLOCK_WIDTH)
    if V.codes is not None:
        b_scale = load_scales(V, i_batch, i_head, o_row, n_rows)
        b_v = as_operand((decode(b_v, V.codes.format).to(tl.float32) * b_scale[:, None]).to(DTYPE))
    return b_v


@triton.jit
def load_scales(X, i_batch, i_head, o_row, n_rows):
    """The scale of each row: [rows] float32, 0 from ``n_rows`` on where rows have their own."""
    if X.codes.scales is None:
        b_scale = tl.full([o_row.shape[0]], X.codes.scale, tl.float32)
    else:
        b_inside = o_row < n_rows
        o_scale = row_starts(X.codes.scales, i_batch, i_head, o_row, b_inside)
        b_scale = tl.load(X.codes.scales.p + o_scale, mask=b_inside, other=0.0)
    return b_scale
