"""How a cache keeps the key and the value of a token, and in how many bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.arrays import Array
from kernels.counts import ITEM_BYTES, SCALE_BYTES
from kernels.quantise import dequantise, quantise

TENSOR_SCALE_BYTES = 4  # of all keys together, and of all values


@dataclass(frozen=True)
class Storage:
    """Numbers of ``dtype``, which inputs are taken to be rounded to; or codes (``kernels/quantise.py``).

    With ``per_tensor`` the scale is that of the whole stream, as a calibration beforehand would have it.
    """

    dtype: str = "float16"
    kv_dtype: str | None = None
    kv_scale: str = "per_token_head"

    def kept(self, x: Array) -> Array:
        """Keys or values [b, h, m, d] as the cache gives them back, in float64."""
        if self.kv_dtype is None:
            return np.asarray(x, dtype=np.float64)
        return dequantise(quantise(x, self.kv_dtype, self.kv_scale), "float64")

    def token_bytes(self, d: int, e: int) -> int:
        """Of a key of width d and a value of width e."""
        if self.kv_dtype is None:
            return (d + e) * ITEM_BYTES[self.dtype]
        return d + e + 2 * SCALE_BYTES[self.kv_scale]

    @property
    def shared_bytes(self) -> int:
        """Once for all tokens."""
        return 2 * TENSOR_SCALE_BYTES if self.kv_dtype is not None and self.kv_scale == "per_tensor" else 0
