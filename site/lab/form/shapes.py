"""What the form says of the shapes that it understood, before anything runs."""

from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from kernels.sparse.share import Share
from kernels.spec import RunSpec
from lab import matrices, units

# The axes of what a run is about, by its family's names or those of q, k and v.
AXES = {
    4: ("batch", "heads", "length", "dimension"),
    3: ("heads", "length", "dimension"),
    2: ("length", "dimension"),
}


@dataclass(frozen=True)
class Line:
    """An array: its letter, its shape, and what the axes are."""

    name: str
    shape: str
    axes: str


def lines(spec: RunSpec) -> list[Line]:
    """The inputs as they were understood, and the output."""
    found = [
        Line(name, matrices.times(given.shape), axes_of(spec, name)) for name, given in spec.inputs.items()
    ]
    return [*found, Line("out", matrices.times(out_shape(spec)), axes_of(spec, "out"))]


def out_shape(spec: RunSpec) -> tuple[int, ...]:
    """Of the output, which has the rank of the input."""
    if spec.is_packed:
        return spec.batch, spec.q_len, spec.num_heads * spec.v_head_dim
    return (spec.batch, spec.num_heads, spec.q_len, spec.v_head_dim)[4 - spec.rank :]


def axes_of(spec: RunSpec, name: str) -> str:
    """What the axes of an array mean, in the words of the contract."""
    if name == "out" or (name in ("q", "k", "v") and not (spec.is_paged and name != "q")):
        if spec.is_packed:
            return _("[batch, length, heads · dimension]")
        words = {"batch": _("batch"), "heads": _("heads"), "length": _("length"), "dimension": _("dimension")}
        return f"[{', '.join(words[axis] for axis in AXES[spec.rank])}]"
    if name in ("k", "v"):
        return _("[pages, tokens of a page, heads, dimension]")
    if name in spec.family.axes:
        return f"[{', '.join(spec.family.axes_of(name, 4 if spec.is_packed else spec.rank))}]"
    return ""


def share(found: Share) -> dict[str, Any]:
    """The part of all pairs that is looked at, in words."""
    part = found.pairs / found.total if found.total else 0.0
    return {
        "percent": units.percent(part),
        "pairs": units.whole(found.pairs),
        "total": units.whole(found.total),
        "is_exact": found.is_exact,
    }
