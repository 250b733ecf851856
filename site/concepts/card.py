"""The picture that goes with a shared link: the weights of the example that is worked by hand.

Its words are the title and the summary that the link brings along (Open Graph), so the picture has none, and
needs no library that sets type.
"""

from functools import cache

import numpy as np

from concepts.figures.by_hand import KEYS, QUERIES, VALUES, steps
from concepts.figures.scales import STEPS, sequential
from lab import png

WIDTH, HEIGHT = 1200, 630  # what those who show such pictures ask for
CELL, GAP = 152, 16
PAPER = (253, 252, 250)


@cache
def picture() -> bytes:
    """As PNG."""
    weights = steps(QUERIES, KEYS, VALUES).weights
    pixels = np.zeros((HEIGHT, WIDTH), np.uint8)
    palette = [PAPER]
    side = len(weights) * (CELL + GAP) - GAP
    top, left = (HEIGHT - side) // 2, (WIDTH - side) // 2
    for i, row in enumerate(weights):
        for j, weight in enumerate(row):
            y, x = top + i * (CELL + GAP), left + j * (CELL + GAP)
            pixels[y : y + CELL, x : x + CELL] = len(palette)
            palette.append(sequential((STEPS - 1) * float(weight)).rgb)
    return png.encode(pixels, palette, transparent=len(palette))
