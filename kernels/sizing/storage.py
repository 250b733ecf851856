"""How numbers are stored: bits to a number, and the scales that quantised ones come with.

Bytes are exact integers. GB is 10⁹ bytes and GiB is 2³⁰; both are written out, never one for the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernels.integers import ceil_div

GB = 10**9
GIB = 2**30


@dataclass(frozen=True)
class CacheFormat:
    """How keys and values are kept; ``scale_bytes`` with each vector of a token and head."""

    name: str
    bits: int
    scale_bytes: int = 0

    def vector(self, width: int) -> int:
        """Bytes of one vector of one head and token: whole bytes, then its scale."""
        return ceil_div(width * self.bits, 8) + (self.scale_bytes if width else 0)


@dataclass(frozen=True)
class WeightFormat:
    """How a matrix is kept: blocks of ``rows`` × ``columns`` (0: all of them) share ``scale_bits`` bits.

    Rows are outputs and columns inputs. ``parts`` are the parts of a model that are kept so; all others, and
    every vector, are in 16 bits.
    """

    name: str
    bits: int
    scale_bits: int = 0
    rows: int = 1
    columns: int = 0
    parts: frozenset[str] = frozenset()

    def matrix(self, outputs: int, inputs: int) -> int:
        """Bytes of one matrix with its scales."""
        if not outputs * inputs:
            return 0
        blocks = ceil_div(outputs, self.rows or outputs) * ceil_div(inputs, self.columns or inputs)
        return ceil_div(outputs * inputs * self.bits, 8) + ceil_div(blocks * self.scale_bits, 8)

    def keeps(self, part: str) -> bool:
        """Whether the matrices of ``part`` are in this format."""
        return not self.scale_bits or part in self.parts


CACHE_BITS = {
    "float32": 32,
    "float16": 16,
    "bfloat16": 16,
    "fp8_e4m3": 8,
    "fp8_e5m2": 8,
    "int8": 8,
    "int4": 4,
}
CACHE_DTYPES = tuple(CACHE_BITS)
QUANTISED = ("fp8_e4m3", "fp8_e5m2", "int8", "int4")

LINEAR_PARTS = frozenset({"attention", "mlp", "experts", "state"})
SIXTEEN = WeightFormat("bfloat16", 16)
WEIGHT_FORMATS = {
    "float32": WeightFormat("float32", 32),
    "float16": WeightFormat("float16", 16),
    "bfloat16": SIXTEEN,
    # One float32 scale to an output, as the simplest 8-bit checkpoints have it.
    "fp8_e4m3": WeightFormat("fp8_e4m3", 8, 32, parts=LINEAR_PARTS),
    "int8": WeightFormat("int8", 8, 32, parts=LINEAR_PARTS),
    # GPTQ and AWQ: a 16-bit scale and a 4-bit zero point for every 128 inputs.
    "int4": WeightFormat("int4", 4, 20, columns=128, parts=LINEAR_PARTS),
    # bitsandbytes: a float32 for every 64 numbers.
    "nf4": WeightFormat("nf4", 4, 32, columns=64, parts=LINEAR_PARTS),
    # OCP microscaling: an 8-bit exponent for every 32 inputs.
    "mxfp4": WeightFormat("mxfp4", 4, 8, columns=32, parts=LINEAR_PARTS),
    # NVIDIA's: an fp8 scale for every 16 inputs.
    "nvfp4": WeightFormat("nvfp4", 4, 8, columns=16, parts=LINEAR_PARTS),
}
WEIGHT_DTYPES = tuple(WEIGHT_FORMATS)


def cache_format(dtype: str, kv_scale: str = "per_token_head") -> CacheFormat:
    """The format of a cache in ``dtype``; quantised ones keep a float32 scale per token and head, or one."""
    scaled = dtype in QUANTISED and kv_scale == "per_token_head"
    return CacheFormat(dtype, CACHE_BITS[dtype], 4 if scaled else 0)


def weight_format(dtype: str, group_size: int | None = None) -> WeightFormat:
    """The format of weights in ``dtype``, with other groups than its usual ones if asked for."""
    known = WEIGHT_FORMATS[dtype]
    return known if group_size is None else replace(known, columns=group_size)


def readable(count: int) -> str:
    """Bytes for people, in both systems from a mebibyte on: ``1.25 GiB (1.34 GB)``."""
    for power, prefix in ((4, "T"), (3, "G"), (2, "M")):
        if count >= 1024**power:
            binary, decimal = count / 1024**power, count / 1000**power
            return f"{_three(binary)} {prefix}iB ({_three(decimal)} {prefix}B)"
    return f"{_three(count / 1024)} KiB" if count >= 1024 else f"{count} bytes"


def _three(number: float) -> str:
    """Three digits that count, more where there are more before the point."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.3g}"
