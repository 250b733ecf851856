"""State space duality: a selective scan whose heads have one rate and one step each is linear attention.

With A = a·I, and Δ_t shared by the channels of a head,

    h_t = exp(Δ_t a) h_{t−1} + (Δ_t x_t) B_tᵀ,       y_t = h_t C_t

is the recurrence of ``kernels/linear`` on q = C, k = B, v = Δ x and log decay Δ a, with S = hᵀ. So it has
that one's other forms too: masked attention (L ∘ C Bᵀ)(Δ x) with L_ij = exp(Σ_{j < t ≤ i} Δ_t a), and chunks
made of matrix products, which tensor cores multiply; a scan gives them nothing to do. This is what lets
Mamba-2 have states of 64 to 256 where Mamba has 16. B and C are shared over heads as keys and queries would
be if many heads had only values of their own.

Dao and Gu 2024, *Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State
Space Duality*, ICML.
"""

from __future__ import annotations

from typing import Any

from kernels.linear.inputs import Recurrence, Result, State
from kernels.scan.inputs import Scanned, SelectiveScan


def as_linear(given: SelectiveScan) -> Recurrence:
    """The recurrence that a scan is, for arrays and tensors alike. Raises ValueError for one that is none."""
    wide = [f"{name} {list(x.shape)}" for name, x in (("delta", given.delta), ("a", given.a)) if _is_wide(x)]
    if wide:
        raise ValueError(
            f"only a scan with one rate and one step for each head is linear attention; {' and '.join(wide)} "
            "must be 1 wide ([batch, heads, n, 1] and [heads, 1, 1])"
        )
    decay = given.delta * given.a[None]
    return Recurrence(q=given.c, k=given.b, v=given.delta * given.x, log_decay=decay)


def state_as_linear(state: Any) -> State | None:
    """S = hᵀ."""
    return None if state is None else State(state.swapaxes(2, 3))


def as_scanned(given: SelectiveScan, result: Result) -> Scanned:
    """What the scan would have returned; a state of None where the recurrence made none."""
    y = result.out if given.skip is None else result.out + given.skip[:, None] * given.x
    s = result.state.s
    return Scanned(y, None if s is None else s.swapaxes(2, 3))


def _is_wide(array: Any) -> bool:
    return any(width != 1 for width in array.shape[3:] or array.shape[1:])
