"""A linear recurrence beside softmax attention on the same inputs: how far its outputs are, and of what rank
its weights.

A recurrence makes its outputs by weights too, O = W V (``recurrence.weights``); without decays and delta rule
W = φ(Q) φ(K)ᵀ, whose rank is at most the number of features, where the exponential of softmax has full rank
in general. The *effective rank* says how many dimensions a matrix uses, by how evenly: exp(H), H being the
entropy of its singular values over their sum. It is n for the identity and 1 where all rows are alike.

Roy and Vetterli 2007, *The effective rank: A measure of effective dimensionality*, EUSIPCO.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.arrays import Array
from kernels.engines.reference import attend
from kernels.linear.recurrence import spread


@dataclass(frozen=True)
class Exact:
    """Softmax attention: q [b, h, m, d], k [b, h_kv, n, d], v [b, h_kv, n, e]; causal: query i sees the keys
    up to i."""

    q: Array
    k: Array
    v: Array
    scale: float
    causal: bool = False

    def results(self) -> tuple[Array, Array]:
        """Outputs [b, h, m, e] and weights [b, h, m, n], float64."""
        heads = self.q.shape[1]
        k, v = spread(self.k, heads), spread(self.v, heads)
        q = np.asarray(self.q, np.float64)
        allowed = np.tri(q.shape[2], k.shape[2], dtype=bool) if self.causal else True
        out, matrix = np.zeros((*q.shape[:3], v.shape[3])), np.zeros((*q.shape[:3], k.shape[2]))
        for head in np.ndindex(q.shape[:2]):
            found = attend(q[head], k[head], v[head], scale=self.scale, allowed=allowed)
            out[head], matrix[head] = found["out"], found["weights"]
        return out, matrix

    def out(self) -> Array:
        """Outputs [b, h, m, e], float64."""
        return self.results()[0]


def relative_error(found: Array, wanted: Array) -> float:
    """‖found − wanted‖ / ‖wanted‖, Frobenius; 0 where both are 0."""
    distance, size = float(np.linalg.norm(found - wanted)), float(np.linalg.norm(wanted))
    return distance / size if size else 0.0 if distance == 0.0 else float("inf")


def ranks(matrix: Array) -> tuple[Array, Array]:
    """(rank, effective rank) of matrices [.., m, n], from one decomposition; 0 for one that is all 0.

    The rank counts singular values above the rounding of the largest, as ``numpy.linalg.matrix_rank``.
    """
    values = np.linalg.svd(matrix, compute_uv=False)
    least = values.max(-1, keepdims=True, initial=0.0) * max(matrix.shape[-2:]) * np.finfo(np.float64).eps
    return np.count_nonzero(values > least, axis=-1), _evenness(values)


def _evenness(values: Array) -> Array:
    """exp(−Σ p ln p), p = σ / Σσ."""
    total = values.sum(-1, keepdims=True)
    p = values / np.where(total > 0, total, 1.0)
    entropy = -(p * np.log(np.where(p > 0, p, 1.0))).sum(-1)
    return np.where(total[..., 0] > 0, np.exp(entropy), 0.0)
