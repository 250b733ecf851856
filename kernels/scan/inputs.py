"""What a selective scan is given, for numpy arrays and for tensors alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class Scanned(NamedTuple):
    """Outputs [batch, heads, len, p], and the state [batch, heads, p, states] after the last token."""

    y: Any
    state: Any


class Sizes(NamedTuple):
    """``p`` channels to a head, ``states`` numbers to a channel."""

    batch: int
    heads: int
    length: int
    p: int
    states: int


@dataclass(frozen=True)
class SelectiveScan:
    """x [batch, heads, n, p], the rest as wide as x or shared.

    ``delta`` [batch, heads, n, p or 1]: step sizes, positive, after their softplus. ``a`` [heads, p or 1,
    states or 1]: rates, negative. ``b``, ``c`` [batch, groups, n, states]: what goes into the state and what
    is read of it; consecutive heads share a group. ``skip`` [heads, p]: how much of x is added to y, or None.

    Mamba has one head of all its channels. Mamba-2 has heads of 64, each with one delta and one rate. Raises
    ValueError, which says what would do, for arrays that do not fit together.
    """

    x: Any
    delta: Any
    a: Any
    b: Any
    c: Any
    skip: Any = None

    def __post_init__(self) -> None:
        for name, axes in {"x": 4, "delta": 4, "a": 3, "b": 4, "c": 4, "skip": 2}.items():
            array = getattr(self, name)
            if array is not None and len(array.shape) != axes:
                raise ValueError(f"{name} must have {axes} axes, not the shape {list(array.shape)}")
        batch, heads, n, p, states = self.sizes
        groups = self.b.shape[1]
        if not groups or heads % groups:
            raise ValueError(f"b has {groups} groups, which must divide the {heads} heads of x")
        for name, allowed in {
            "delta": ([batch, heads, n, p], [batch, heads, n, 1]),
            "a": ([heads, p, states], [heads, p, 1], [heads, 1, states], [heads, 1, 1]),
            "b": ([batch, groups, n, states],),
            "c": ([batch, groups, n, states],),
            "skip": ([heads, p],),
        }.items():
            array = getattr(self, name)
            if array is not None and list(array.shape) not in allowed:
                wanted = " or ".join(map(str, allowed))
                raise ValueError(
                    f"{name} has shape {list(array.shape)}; beside this x and b it must be {wanted}"
                )

    @property
    def sizes(self) -> Sizes:
        """Those of x, and of what b writes to."""
        batch, heads, length, p = self.x.shape
        return Sizes(batch, heads, length, p, self.b.shape[3])

    def check_state(self, state: Any) -> None:
        """Raises ValueError for a state that is none of this scan."""
        batch, heads, _, p, states = self.sizes
        if state is not None and list(state.shape) != [batch, heads, p, states]:
            raise ValueError(
                f"the state has shape {list(state.shape)}; it must be {[batch, heads, p, states]}"
            )
