"""Triton's interpreter, made to scan whole tiles.

``tl.associative_scan`` takes the interpreter a call of the combining function for every number of a tile.
That function works on numbers one by one, so that slices of the tile may as well go through it at once: as
many calls as there are tokens. This reaches into ``triton.runtime.interpreter`` of the pinned Triton version.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from triton.runtime import interpreter


@contextmanager
def whole_slices() -> Iterator[None]:
    """Let scans of the block combine slices."""
    original = interpreter.ScanOps.generic_scan
    interpreter.ScanOps.generic_scan = _scan
    try:
        yield
    finally:
        interpreter.ScanOps.generic_scan = original


def _scan(self: Any, given: Any) -> list[Any]:
    """``ScanOps.generic_scan``."""
    dtypes = [array.dtype for array in given]
    slices = [np.moveaxis(array.handle.data, self.axis, 0) for array in given]
    done = [tuple(array[0] for array in slices)]
    for i in range(1, len(slices[0])):
        parts = [*done[-1], *(array[i] for array in slices)]
        made = self.combine_fn.fn(*map(self.to_tensor, parts, [*dtypes, *dtypes]))
        done.append(tuple(tensor.handle.data for tensor in (made if isinstance(made, tuple) else (made,))))
    stacked = (np.stack(arrays, self.axis) for arrays in zip(*done, strict=True))
    return [self.to_tensor(array, dtype) for array, dtype in zip(stacked, dtypes, strict=True)]
