"""Pictures with a palette of 256 colours, a byte for each pixel: PNG, as far as heat maps need it.

W3C, Portable Network Graphics (PNG) Specification, third edition.
"""

import struct
import zlib
from collections.abc import Sequence

import numpy as np

SIGNATURE = b"\x89PNG\r\n\x1a\n"
PALETTE_OF_BYTES = (8, 3, 0, 0, 0)  # bits, colour type, compression, filter, interlace
LEVEL = 3  # of compression: a megapixel in some 20 ms


def encode(pixels: np.ndarray, palette: Sequence[tuple[int, int, int]], transparent: int) -> bytes:
    """pixels: [height, width] uint8, each the number of a colour of the palette; one is seen through.

    Raises ValueError for an empty picture: there is no such PNG.
    """
    height, width = pixels.shape
    if not pixels.size:
        raise ValueError(f"a picture of {width} × {height} has no pixels")
    lines = np.zeros((height, width + 1), np.uint8)  # each begins with its filter: 0, none
    lines[:, 1:] = pixels
    alpha = bytes(0 if number == transparent else 255 for number in range(len(palette)))
    return SIGNATURE + b"".join(
        (
            chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, *PALETTE_OF_BYTES)),
            chunk(b"PLTE", bytes(part for color in palette for part in color)),
            chunk(b"tRNS", alpha),
            chunk(b"IDAT", zlib.compress(lines.tobytes(), LEVEL)),
            chunk(b"IEND", b""),
        )
    )


def chunk(kind: bytes, content: bytes) -> bytes:
    """Length, kind, content, and a check of the latter two."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
