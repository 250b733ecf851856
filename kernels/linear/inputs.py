"""What a linear recurrence is given, for numpy arrays and for tensors alike.

All arrays are canonical, [batch, heads, len, dim], and each has as many heads as it likes, as long as the
number divides that of the output: output head h of H reads head ⌊h · heads / H⌋ of every array. So query
heads may share keys and values (grouped heads), and heads of values may share queries and keys, as those of
Mamba-2 share B and C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

FEATURES = ("elu",)


class State(NamedTuple):
    """What remains of any number of tokens: a cache whose size does not grow."""

    s: Any  # [batch, state heads, d, e]: Σ decayed k vᵀ
    z: Any = None  # [batch, state heads, d]: Σ decayed k, for a recurrence that is normalised


class Result(NamedTuple):
    """Outputs [batch, heads, q_len, e], and the state after the last token."""

    out: Any
    state: State


class Sizes(NamedTuple):
    """Of a recurrence. A state belongs to a *state head*: all output heads that read the same keys, values,
    decays and rates."""

    batch: int
    heads: int
    state_heads: int
    q_len: int
    kv_len: int
    d: int
    e: int


@dataclass(frozen=True)
class Recurrence:
    """q [b, ·, m, d], k [b, ·, n, d], v [b, ·, n, e], and what makes the recurrence one of its family.

    ``log_decay`` [b, ·, n, 1 or d]: by exp of it the state has shrunk, whole or row by row, when a token
    arrives (−∞ forgets everything). ``beta`` [b, ·, n, 1]: the rate of the delta rule. ``features``: "elu"
    for φ(x) = elu(x) + 1 of queries and keys. ``normalised``: outputs are divided by the sum of their
    weights. ``causal``: token t reads the state after token t (m = n), else all read the last one.

    Raises ValueError, which says what would do, for arrays that do not fit together.
    """

    q: Any
    k: Any
    v: Any
    log_decay: Any = None
    beta: Any = None
    scale: float = 1.0
    features: str | None = None
    normalised: bool = False
    causal: bool = True

    def __post_init__(self) -> None:
        if self.features is not None and self.features not in FEATURES:
            raise ValueError(f"features must be None or one of {', '.join(FEATURES)}, not {self.features!r}")
        if self.normalised and self.beta is not None:
            raise ValueError(
                "normalised cannot be combined with beta: what the delta rule writes has no sum of weights; "
                "leave one of the two out"
            )
        if not self.causal and (self.log_decay is not None or self.beta is not None):
            raise ValueError(
                "causal=False cannot be combined with log_decay or beta, which order the tokens; leave them "
                "out, or set causal=True"
            )
        present = {name: getattr(self, name) for name in ("q", "k", "v", "log_decay", "beta")}
        shapes = {name: tuple(array.shape) for name, array in present.items() if array is not None}
        for name, shape in shapes.items():
            if len(shape) != 4:
                raise ValueError(f"{name} must be [batch, heads, len, dim], not of shape {list(shape)}")
        self._check_lengths(shapes)
        self._check_heads({name: shape[1] for name, shape in shapes.items()})

    def _check_lengths(self, shapes: dict[str, tuple[int, ...]]) -> None:
        (batch, _, q_len, d), kv_len = shapes["q"], shapes["k"][2]
        if self.causal and q_len != kv_len:
            raise ValueError(f"q has length {q_len} and k {kv_len}: equal where causal; or set causal=False")
        for name, widths in {"k": (d,), "v": None, "log_decay": (1, d), "beta": (1,)}.items():
            if name not in shapes:
                continue
            got_batch, _, length, width = shapes[name]
            if got_batch != batch or length != kv_len:
                raise ValueError(
                    f"{name} has batch {got_batch} and length {length}; q and k have {batch} and {kv_len}"
                )
            if widths and width not in widths:
                raise ValueError(f"{name} is {width} wide; it must be {' or '.join(map(str, widths))}")

    def _check_heads(self, heads: dict[str, int]) -> None:
        most, states = max(heads.values()), max(count for name, count in heads.items() if name != "q")
        for name, count in heads.items():
            # What the states of the most heads are made of must divide them too.
            whole = most if name == "q" else states
            if not count or whole % count or most % states:
                raise ValueError(
                    f"{name} has {count} heads, which must divide {whole}, the most that an array has"
                )

    @property
    def sizes(self) -> Sizes:
        """Heads of the output are the most that an array has; of the state, that any but q has."""
        state_heads = max(x.shape[1] for x in (self.k, self.v, self.log_decay, self.beta) if x is not None)
        batch, q_heads, q_len, d = self.q.shape
        return Sizes(
            batch, max(q_heads, state_heads), state_heads, q_len, self.k.shape[2], d, self.v.shape[3]
        )

    def check_state(self, state: State | None) -> None:
        """Raises ValueError for a state that is none of this recurrence."""
        if state is None:
            return
        if (state.z is not None) != self.normalised:
            has, needs = ("has" if state.z is not None else "lacks"), "with" if self.normalised else "without"
            raise ValueError(
                f"the state {has} z: a recurrence that is normalised has one, and others have none; send it "
                f"{needs} z"
            )
        sizes = self.sizes
        shape = (sizes.batch, sizes.state_heads, sizes.d, sizes.e)
        for name, array, wanted in (("s", state.s, shape), ("z", state.z, shape[:3])):
            if array is not None and tuple(array.shape) != wanted:
                raise ValueError(f"state.{name} has shape {list(array.shape)}; it must be {list(wanted)}")
