"""What a program is made from: a spec, what was sent with it, and how its axes lie."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from django.utils.translation import gettext as _

from kernels import positions
from kernels.patterns import query_index
from kernels.registry import ENGINES, SOFTMAX
from kernels.spec import RunSpec
from lab.sharing.program.literals import literal

MOST_TYPED = 256  # numbers of a list in the program; more are read from the file of the run


Lines = list[str]


class Unsayable(Exception):
    """Why there is no short program for a run."""


@dataclass(frozen=True)
class Facts:
    """A run, for whoever writes a program of it.

    sent: the arrays that came with the request, where they are few enough to be typed; lengths: q_lens and
    kv_lens, where there are any; file: the name of the file with the whole run; numerics: as in its result.
    """

    spec: RunSpec
    sent: Mapping[str, np.ndarray]
    lengths: Mapping[str, np.ndarray]
    title: str
    address: str
    file: str
    file_address: str
    numerics: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        engine = ENGINES.get(self.spec.engine)
        if engine is None:
            raise Unsayable(_("Its engine is no longer here."))
        if engine.computes != SOFTMAX:
            raise Unsayable(
                _(
                    "This engine computes {what}, which does not fit into a short program. The commands "
                    "beside this one repeat the run as it was."
                ).format(what=engine.computes)
            )

    # -- axes --------------------------------------------------------------------------------------

    @property
    def by_row(self) -> bool:
        """Whether anything differs between the rows of a batch but the numbers themselves."""
        attention = self.spec.attention
        given = (attention.q_positions, attention.kv_positions, attention.alibi_slopes)
        ids = (attention.pattern or {}).get("ids")
        rope = attention.rope.positions if attention.rope else None
        return bool(self.lengths) or any(is_by_row(one) for one in (*given, ids, rope))

    @property
    def lifts(self) -> bool:
        """Whether axes of 1 for batch and heads have to be added to q, k and v."""
        spec, attention = self.spec, self.spec.attention
        if spec.is_packed or spec.rank == 4:
            return False
        mask = len(spec.inputs["attn_mask"].shape) if "attn_mask" in spec.inputs else 0
        of_heads = attention.alibi_slopes is not None or attention.sinks is not None
        return self.by_row or mask > spec.rank or spec.is_paged or (of_heads and spec.rank == 2)

    @property
    def rank(self) -> int:
        """Of q, k and v as the program computes with them."""
        return 4 if self.lifts or self.spec.is_packed else self.spec.rank

    @property
    def past(self) -> int:
        return self.spec.inputs["past_key"].shape[-2] if "past_key" in self.spec.inputs else 0

    # -- places ------------------------------------------------------------------------------------

    @property
    def needs_positions(self) -> bool:
        attention = self.spec.attention
        sided = attention.sides != (None, None)
        return sided or attention.alibi_slopes is not None or self.rope_needs_positions

    @property
    def rope_needs_positions(self) -> bool:
        rope = self.spec.attention.rope
        return rope is not None and rope.positions is None

    @property
    def is_plain(self) -> bool:
        """Whether positions simply count the tokens on one axis, so that a token's place is its position."""
        attention = self.spec.attention
        return attention.q_positions is None and attention.kv_positions is None

    def query_positions(self) -> np.ndarray:
        """[batch or 1, n]"""
        return positions.query_positions(self.spec, self.lengths.get("q_lens"), self.lengths.get("kv_lens"))

    def key_positions(self) -> np.ndarray:
        """[batch or 1, m]"""
        return positions.key_positions(self.spec)

    def tokens(self) -> np.ndarray:
        """[batch or 1, n], the place of each query on the axis of the keys."""
        found = query_index(self.spec, self.lengths.get("q_lens"), self.lengths.get("kv_lens"))
        return np.asarray(found)


def is_by_row(given: Any) -> bool:
    """Whether a list has one list for each batch row."""
    return isinstance(given, list | tuple) and bool(given) and isinstance(given[0], list | tuple)


def typed(name: str, values: Any, more: str = "") -> Lines:
    """`name = torch.tensor(values)`, refused where nobody would read them."""
    if np.size(values) > MOST_TYPED:
        raise Unsayable(
            _("It is described by a list of {count:,} numbers, too many for a short program.").format(
                count=np.size(values)
            )
        )
    if not np.size(values):
        return [f"{name} = torch.zeros({np.shape(values)}, dtype=torch.long)"]
    values = values.tolist() if isinstance(values, np.ndarray) else values
    start = f"{name} = torch.tensor("
    return f"{start}{literal(values, len(start))}{more})".split("\n")


def counted(values: np.ndarray) -> tuple[int, int] | None:
    """(first, count) of numbers [1, n] that count by one; None for others."""
    if len(values) != 1:
        return None
    row: Sequence[int] = values[0].tolist()
    first = row[0] if row else 0
    return (first, len(row)) if list(row) == list(range(first, first + len(row))) else None
