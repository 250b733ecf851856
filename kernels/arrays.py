"""Arrays as data: reproducible random inputs, rounding to a dtype, digests, JSON.

The recipe for seeded inputs, complete, so that anyone can write it again
-------------------------------------------------------------------------
``generate(name, seed, shape, distribution, dtype)`` uses nothing but integer arithmetic and the IEEE
operations ``+ − × ÷ √``, which are correctly rounded on every machine; no library logarithm or sine, whose
last bit differs between processors and releases.

1. *Key.* The generator is Philox4x64-10 as in numpy. Its 128-bit key is two 64-bit words: the seed, then the
   first eight bytes (little-endian) of SHA-256 of ``attention-lab/v1/`` + name in UTF-8. The counter starts
   at 0 and, as numpy has it, is incremented before each block of four words.
2. *Words.* Element i (C order) is made from the i-th 64-bit word w of ``Philox(key=[seed, h]).random_raw``.
3. ``uniform`` on [−1, 1):  x = (w >> 11)·2⁻⁵² − 1.
4. ``normal``:  u = ((w >> 12) + ½)·2⁻⁵², x = Φ⁻¹(u), the inverse of the normal distribution function by
   Wichura's algorithm AS 241 (PPND16), which Python has as ``statistics.NormalDist().inv_cdf``; the two agree
   to a few units in the last place. Its logarithm is the series written in ``_log`` below.
5. ``peaked``:  x = 3 · (the normal value). Scaled scores of two peaked arrays then have a standard deviation
   near 9, above √(2 ln n) for every length n a computer holds, where a few keys carry each row of the
   softmax.
6. *Rounding*, once, to the dtype: to nearest, ties to even (bfloat16 by way of float32).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kernels.limits import MAX_SEED

Array = np.ndarray[Any, np.dtype[Any]]

DISTRIBUTIONS = ("normal", "uniform", "peaked")
PEAKED_FACTOR = 3.0
PART = 8192  # numbers that are made at a time

# Wichura (1988), Applied Statistics 37, 477-484, algorithm AS 241, PPND16; highest power first.
_CENTRE_NUM = (
    2.5090809287301226727e3,
    3.3430575583588128105e4,
    6.7265770927008700853e4,
    4.5921953931549871457e4,
    1.3731693765509461125e4,
    1.9715909503065514427e3,
    1.3314166789178437745e2,
    3.3871328727963666080e0,
)
_CENTRE_DEN = (
    5.2264952788528545610e3,
    2.8729085735721942674e4,
    3.9307895800092710610e4,
    2.1213794301586595867e4,
    5.3941960214247511077e3,
    6.8718700749205790830e2,
    4.2313330701600911252e1,
    1.0,
)
_NEAR_NUM = (
    7.74545014278341407640e-4,
    2.27238449892691845833e-2,
    2.41780725177450611770e-1,
    1.27045825245236838258e0,
    3.64784832476320460504e0,
    5.76949722146069140550e0,
    4.63033784615654529590e0,
    1.42343711074968357734e0,
)
_NEAR_DEN = (
    1.05075007164441684324e-9,
    5.47593808499534494600e-4,
    1.51986665636164571966e-2,
    1.48103976427480074590e-1,
    6.89767334985100004550e-1,
    1.67638483018380384940e0,
    2.05319162663775882187e0,
    1.0,
)
_FAR_NUM = (
    2.01033439929228813265e-7,
    2.71155556874348757815e-5,
    1.24266094738807843860e-3,
    2.65321895265761230930e-2,
    2.96560571828504891230e-1,
    1.78482653991729133580e0,
    5.46378491116411436990e0,
    6.65790464350110377720e0,
)
_FAR_DEN = (
    2.04426310338993978564e-15,
    1.42151175831644588870e-7,
    1.84631831751005468180e-5,
    7.86869131145613259100e-4,
    1.48753612908506148525e-2,
    1.36929880922735805310e-1,
    5.99832206555887937690e-1,
    1.0,
)


def generate(name: str, seed: int, shape: tuple[int, ...], distribution: str, dtype: str) -> Array:
    """Random array of ``shape``, the same on every machine; the recipe is at the top of this module.

    Returns the numpy dtype of that name (bfloat16: float32 that holds bfloat16 values). Raises ValueError
    for an unknown distribution or dtype, or a seed outside 0 … 2⁶³−1.
    """
    made = generate_many(name, [seed], shape, distribution, dtype)
    return made.reshape(shape)


def generate_many(
    name: str, seeds: Sequence[int], shape: tuple[int, ...], distribution: str, dtype: str
) -> Array:
    """What ``generate`` gives for each of ``seeds``, one after another: [seeds, *shape]."""
    if distribution not in DISTRIBUTIONS:
        raise ValueError(f"distribution must be one of {DISTRIBUTIONS}, not {distribution!r}")
    if not all(0 <= seed <= MAX_SEED for seed in seeds):
        wrong = next(seed for seed in seeds if not 0 <= seed <= MAX_SEED)
        raise ValueError(f"seed must be between 0 and {MAX_SEED}, not {wrong}")
    digest = hashlib.sha256(b"attention-lab/v1/" + name.encode()).digest()
    key = np.array([0, int.from_bytes(digest[:8], "little")], dtype=np.uint64)
    words = np.empty((len(seeds), math.prod(shape)), dtype=np.uint64)
    for row, seed in enumerate(seeds):
        key[0] = seed
        words[row] = np.random.Philox(key=key, counter=0).random_raw(words.shape[1])
    values = np.empty(words.shape)
    for part in _parts(words.size):
        _draw(words.reshape(-1)[part], distribution, values.reshape(-1)[part])
    return round_to_dtype(values, dtype).reshape(len(seeds), *shape)


def _parts(size: int) -> Iterator[slice]:
    """Slices of so many elements that what is made of one stays in a processor's cache."""
    for start in range(0, size, PART):
        yield slice(start, start + PART)


def _draw(words: Array, distribution: str, values: Array) -> None:
    """Write what a distribution makes of 64-bit words to ``values`` [n] float64."""
    if distribution == "uniform":
        values[:] = (words >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0
        return
    values[:] = _inverse_normal(((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)
    if distribution == "peaked":
        values *= PEAKED_FACTOR


def _inverse_normal(uniform: Array) -> Array:
    """Φ⁻¹ of values strictly between 0 and 1, by AS 241: a rational function in each of three regions."""
    q = uniform - 0.5
    r = 0.180625 - q * q
    # Nearly all are in the centre: its formula is taken of all of them, and overwritten elsewhere.
    values = q * _polynomial(_CENTRE_NUM, r) / _polynomial(_CENTRE_DEN, r)

    tail = np.flatnonzero(np.abs(q) > 0.425)
    q, uniform = q[tail], uniform[tail]
    r = np.sqrt(-_log(np.where(q < 0.0, uniform, 1.0 - uniform)))
    near = r - 1.6
    size = _polynomial(_NEAR_NUM, near) / _polynomial(_NEAR_DEN, near)
    outside = r > 5.0
    if outside.any():
        far = r[outside] - 5.0
        size[outside] = _polynomial(_FAR_NUM, far) / _polynomial(_FAR_DEN, far)
    values[tail] = np.where(q < 0.0, -size, size)
    return values


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    """Horner's rule, highest power first."""
    total = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total *= x
        total += coefficient
    return total


def _log(x: Array) -> Array:
    """ln x for x > 0: with x = m·2ᵉ, √½ ≤ m < √2 and s = (m−1)/(m+1), ln m = 2(s + s³/3 + … + s²³/23)."""
    mantissa, exponent = np.frexp(x)
    low = mantissa < 0.7071067811865476
    mantissa = np.where(low, mantissa * 2.0, mantissa)
    exponent = np.where(low, exponent - 1, exponent).astype(np.float64)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    series = _polynomial(tuple(1.0 / odd for odd in range(23, 0, -2)), s * s)
    return exponent * 0.6931471805599453 + 2.0 * s * series


def round_to_dtype(array: Array, dtype: str) -> Array:
    """Round to nearest, ties to even. ``bfloat16``: the result is float32 holding bfloat16 values."""
    if dtype == "bfloat16":
        return bfloat16_to_float32(float32_to_bfloat16(array.astype(np.float32)))
    if dtype not in {"float16", "float32", "float64"}:
        raise ValueError(f"cannot round to {dtype!r}")
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def float32_to_bfloat16(array: Array) -> Array:
    """The upper half of each float32 as uint16, rounded to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    tie_to_even = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = ((bits + tie_to_even) >> np.uint32(16)).astype(np.uint16)
    quiet = ((bits >> np.uint32(16)) | np.uint32(0x40)).astype(np.uint16)
    return np.where(np.isnan(array), quiet, rounded)


def bfloat16_to_float32(array: Array) -> Array:
    """uint16 bit patterns of bfloat16 as float32, exactly."""
    return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)


def largest(dtype: str) -> float:
    """The largest finite value of a floating dtype."""
    return 3.3895313892515355e38 if dtype == "bfloat16" else float(np.finfo(dtype).max)


def largest_norm(array: Array) -> float:
    """The largest Euclidean norm along the last axis, where nothing overflows on the way; 0 of nothing."""
    most = float(np.max(np.abs(array), initial=0.0))
    if most == 0.0 or not math.isfinite(most):
        return most
    scaled = array.astype(np.float64) / most
    return most * math.sqrt(float(np.einsum("...i,...i->...", scaled, scaled).max(initial=0.0)))


def sha256(array: Array, dtype: str | None = None) -> str:
    """Hex digest of the elements, little-endian in C order; ``dtype="bfloat16"``: two bytes each."""
    data = float32_to_bfloat16(array) if dtype == "bfloat16" else array
    data = np.ascontiguousarray(data).astype(data.dtype.newbyteorder("<"), copy=False)
    return hashlib.sha256(data.tobytes() if data.size else b"").hexdigest()


def to_jsonable(array: Array) -> Any:
    """Nested lists of numbers; NaN and the infinities become ``"nan"``, ``"inf"``, ``"-inf"``."""
    if array.dtype.kind != "f":
        return array.tolist()
    finite = np.isfinite(array)
    if finite.all():
        return array.tolist()
    values = array.astype(np.float64).astype(object)
    values[np.isnan(array)] = "nan"
    values[np.isposinf(array)] = "inf"
    values[np.isneginf(array)] = "-inf"
    return values.tolist()


def plain(value: Any) -> Any:
    """Figures in dicts and lists as JSON has them: numbers of numpy as Python's, arrays as lists, and what is
    not finite in words."""
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float | np.ndarray | np.generic):
        return to_jsonable(np.asarray(value))
    return value
