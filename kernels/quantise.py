"""A quantised cache: keys and values as 8-bit codes and a scale, x ≈ scale · number(code).

Symmetric (0 is code 0) with scale = max|x| / largest code, so that the largest element of a block uses the
largest code:

    int8      integers −127 … 127, one step everywhere; −128 is not used, so that −x is stored as well as x
    fp8_e4m3  1 sign, 4 exponent and 3 mantissa bits, bias 7: up to 448, no infinity, NaN at 0x7F and 0xFF
    fp8_e5m2  1, 5 and 2 bits, bias 15: up to 57344, infinity at 0x7C, NaN above; the upper half of a float16

(Micikevicius et al. 2022, *FP8 formats for deep learning*; Open Compute Project, *OCP 8-bit floating point
specification*.) A block is what shares a scale: a whole array (``per_tensor``), or the vector of one token in
one head (``per_token_head``), where a token of unusual size spoils no other.

Rounding is to nearest, ties to even, and then clamps: a code never wraps around, and an fp8 code is never an
infinity. numpy only; nothing here depends on how a processor converts to fp8.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from kernels.arrays import Array, round_to_dtype
from kernels.limits import SMALLEST_NORMAL
from kernels.operands import Operands, zero_beyond
from kernels.spec.attention import KV_DTYPES, KV_SCALES
from kernels.spec.model import RunSpec

SMALLEST_SCALE = SMALLEST_NORMAL  # below it a scale has few digits, or none


class CannotQuantiseError(ValueError):
    """Numbers are too large for any scale, or not finite."""


@dataclass(frozen=True)
class Float8:
    """An 8-bit floating-point format: its numbers are ± n · 2^(e − mantissa_bits) with e ≥ min_exponent."""

    mantissa_bits: int
    min_exponent: int
    largest: float


FLOAT8 = {"fp8_e4m3": Float8(3, -6, 448.0), "fp8_e5m2": Float8(2, -14, 57344.0)}
LARGEST_CODE = {"int8": 127.0, **{name: kind.largest for name, kind in FLOAT8.items()}}


@dataclass(frozen=True)
class Quantised:
    """An array [b, h, m, d] as ``codes`` of that shape, int8 or (fp8) uint8 bit patterns, and float32 scales:
    ``scale`` has shape [] for per_tensor, [b, h, m] for per_token_head."""

    codes: Array
    scale: Array
    kv_dtype: str


@dataclass(frozen=True)
class QuantisedCache:
    """What a run with a kv_dtype keeps of its keys and values."""

    k: Quantised
    v: Quantised


def quantised_cache(spec: RunSpec, given: Operands) -> QuantisedCache | None:
    """The whole k (past and fresh, rotated) and v of a run, each quantised once; None without a kv_dtype."""
    kv_dtype, kv_scale = spec.options.kv_dtype, spec.options.kv_scale
    if kv_dtype is None:
        return None
    return QuantisedCache(*(quantise(x, kv_dtype, kv_scale, given.kv_lens) for x in (given.k, given.v)))


def held(given: Operands, cache: QuantisedCache | None) -> Operands:
    """The operands as the cache has them: k and v as the numbers (float64) that their codes stand for."""
    if cache is None:
        return given
    return replace(given, k=dequantise(cache.k, "float64"), v=dequantise(cache.v, "float64"))


def quantise(array: Array, kv_dtype: str, kv_scale: str, lens: Array | None = None) -> Quantised:
    """Codes and scales of a floating array [b, h, m, d]; every axis may be empty.

    ``lens`` [b]: rows from there on are never read (they may hold NaN), count for no maximum and become code
    0. A block of zeros has scale 1, and no scale is below 2⁻¹²⁶. The scale is rounded to float32 first and
    the codes are made with the rounded one, in float64. That rounds twice, but as if once: a float32 that is
    no tie misses one by 2⁻³³ of itself or more, and a quotient in float64 is off by 2⁻⁵³ at most.

    Raises ValueError for an unknown format or kind of scale; CannotQuantiseError for NaN or infinity, and
    where a scale passes the range of float32 (which takes a float64 array, or a RoPE that stretches).
    """
    if kv_dtype not in KV_DTYPES:
        raise ValueError(f"kv_dtype must be one of {KV_DTYPES}, not {kv_dtype!r}")
    if kv_scale not in KV_SCALES:
        raise ValueError(f"kv_scale must be one of {KV_SCALES}, not {kv_scale!r}")
    x = zero_beyond(np.asarray(array, dtype=np.float64), lens)
    scale = _scale(np.max(np.abs(x), axis=None if kv_scale == "per_tensor" else -1, initial=0.0), kv_dtype)
    scaled = x / scale[..., None].astype(np.float64)
    if kv_dtype == "int8":
        return Quantised(np.clip(np.rint(scaled), -127, 127).astype(np.int8), scale, kv_dtype)
    return Quantised(encode_fp8(scaled, kv_dtype), scale, kv_dtype)


def _scale(largest: Array, kv_dtype: str) -> Array:
    """The float32 scale of blocks whose largest magnitudes are given."""
    exact = np.asarray(largest / LARGEST_CODE[kv_dtype])
    # A comparison with NaN is false, so that NaN fails here too.
    if not np.all(exact <= np.finfo(np.float32).max):
        raise CannotQuantiseError(
            "keys or values leave the range of float32, which the scales of a quantised cache have: leave "
            "kv_dtype out, or send smaller numbers"
        )
    scale = np.maximum(exact, SMALLEST_SCALE).astype(np.float32)
    return np.where(largest == 0.0, np.float32(1.0), scale)


def dequantise(quantised: Quantised, dtype: str) -> Array:
    """scale · number(code), rounded once to ``dtype`` (float64: exact; bfloat16: float32 holding bfloat16
    values)."""
    if quantised.kv_dtype == "int8":
        numbers = quantised.codes.astype(np.float64)
    else:
        numbers = decode_fp8(quantised.codes, quantised.kv_dtype).astype(np.float64)
    return round_to_dtype(numbers * quantised.scale[..., None].astype(np.float64), dtype)


def encode_fp8(x: Array, kv_dtype: str) -> Array:
    """Bit patterns (uint8) of the nearest numbers, ties to even; beyond the largest, infinity included, the
    largest; NaN is 0x7F with its sign.

    Where 2^e ≤ |x| < 2^(e+1) the numbers of the format are 2^(e − mantissa bits) apart, and below the
    smallest normal exponent they stay as far apart as just above it. |x| in these steps, rounded, is the
    mantissa with its leading 1, which falls on the lowest bit of the exponent field and counts it up by one;
    a mantissa that rounds up to the next power of two carries into the exponent by itself.
    """
    kind = FLOAT8[kv_dtype]
    x = np.asarray(x, dtype=np.float64)
    nan = np.isnan(x)
    size = np.where(nan, 0.0, np.minimum(np.abs(x), kind.largest))
    # frexp has size = f · 2^e with ½ ≤ f < 1, hence the −1.
    exponent = np.frexp(np.maximum(size, 2.0**kind.min_exponent))[1] - 1
    steps = np.rint(np.ldexp(size, kind.mantissa_bits - exponent)).astype(np.int32)
    magnitude = ((exponent - kind.min_exponent) << kind.mantissa_bits) + steps
    sign = np.where(np.signbit(x), 0x80, 0)
    return (np.where(nan, 0x7F, magnitude) | sign).astype(np.uint8)


def decode_fp8(codes: Array, kv_dtype: str) -> Array:
    """The numbers (float32) of bit patterns (uint8), exactly."""
    return _numbers(kv_dtype)[codes]


@cache
def _numbers(kv_dtype: str) -> Array:
    """The number of each of the 256 codes, float32."""
    kind = FLOAT8[kv_dtype]
    magnitude = np.arange(128)
    field, mantissa = magnitude >> kind.mantissa_bits, magnitude & ((1 << kind.mantissa_bits) - 1)
    steps = np.where(field == 0, mantissa, mantissa + (1 << kind.mantissa_bits))
    exponent = np.maximum(field, 1) - 1 + kind.min_exponent
    numbers = np.ldexp(steps.astype(np.float32), exponent - kind.mantissa_bits)
    numbers[numbers > kind.largest] = np.nan
    if kv_dtype == "fp8_e5m2":
        numbers[0x7C] = np.inf
    numbers = np.concatenate([numbers, -numbers])
    numbers.flags.writeable = False
    return numbers


def element_errors(array: Array, kv_dtype: str, kv_scale: str, lens: Array | None = None) -> Array:
    """How far each element of an array [b, h, m, d] can be from what its code stands for; 0 beyond ``lens``.

    ``element_error`` of the largest magnitude of its block; and for fp8 no more than half a step of its own,
    which is 1/17 (e4m3) or 1/9 (e5m2) of it: a number halfway between 1 and 1 + 2⁻³ is off by 2⁻⁴, and
    2⁻⁴ / (1 + 2⁻⁴) = 1/17. Among the subnormals all steps are as wide.
    """
    size = zero_beyond(np.abs(np.asarray(array, dtype=np.float64)), lens)
    axis = None if kv_scale == "per_tensor" else 3
    largest = np.max(size, axis=axis, keepdims=True, initial=0.0)
    smallest = LARGEST_CODE[kv_dtype] * SMALLEST_SCALE
    most = np.where(largest > 0.0, np.maximum(largest, smallest), 0.0) * element_error(kv_dtype)
    if kv_dtype == "int8":
        return zero_beyond(np.broadcast_to(most, size.shape), lens)
    kind = FLOAT8[kv_dtype]
    half_step = 2.0 ** (-kind.mantissa_bits - 1)
    subnormal = 2.0**kind.min_exponent * half_step * np.maximum(largest, smallest) / kind.largest
    own = np.maximum(size * half_step / (1.0 + half_step), np.where(largest > 0.0, subnormal, 0.0))
    return zero_beyond(np.minimum(most, own * (1 + 2.0**-22)), lens)


def element_error(kv_dtype: str) -> float:
    """The most that one element can be off, as a fraction of the largest magnitude of its block.

    Rounding to nearest is off by half a step, and the widest step is the one below the largest code c: 1 for
    int8, 2^(8−3) = 32 for e4m3 (448 = 1.75 · 2⁸), 2^(15−2) = 8192 for e5m2 (57344 = 1.75 · 2¹⁵). In units of
    max|x| = c · scale that is half a step / c:

        int8 ½ / 127 = 1/254        e4m3 16 / 448 = 1/28        e5m2 4096 / 57344 = 1/14

    times 1 + 2⁻²⁴, because the scale is itself rounded to float32; where the rounded scale is too small the
    largest element is clamped, by a 2⁻²⁴ of it, far less than half a step. The bound is reached. It is for
    blocks whose max|x| is at least c · 2⁻¹²⁶; below, it holds as a fraction of c · 2⁻¹²⁶.

    An fp8 element much smaller than the largest is off by less: a half step of its own size, at most 1/17 of
    it for e4m3 and 1/9 for e5m2.
    """
    if kv_dtype == "int8":
        half_step = 0.5
    else:
        kind = FLOAT8[kv_dtype]
        half_step = 2.0 ** (np.frexp(kind.largest)[1] - 1 - kind.mantissa_bits - 1)
    return float(half_step / LARGEST_CODE[kv_dtype] * (1 + 2.0**-24))
