"""Feature maps φ: what a query or a key becomes before the product that stands for exp(q·k).

``elu_plus_one``: elu(x) + 1, that is x + 1 above 0 and eˣ below; positive, smooth, and no approximation of
the exponential. Katharopoulos et al. 2020, *Transformers are RNNs*, ICML.
"""

from __future__ import annotations

import numpy as np

from kernels.arrays import Array


def elu_plus_one(x: Array) -> Array:
    """Elementwise."""
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))
