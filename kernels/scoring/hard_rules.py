"""What contradicts itself in a spec of engine ``hard``. No torch: the web process checks and prices runs."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.registry import option
from kernels.scoring.hard import MAX_DRAWN
from kernels.spec.model import RunSpec
from kernels.spec.problems import TOO_LARGE, FieldProblem


def drawn(spec: RunSpec) -> int:
    """Keys that are drawn, for all queries together."""
    return int(option(spec, "draws")) * spec.batch * spec.num_heads * spec.q_len


def problems(spec: RunSpec) -> Iterator[FieldProblem]:
    """Why a spec of ``hard`` cannot be computed."""
    rows = spec.batch * spec.num_heads * spec.q_len
    if drawn(spec) > MAX_DRAWN:
        fitting = f"send at most {MAX_DRAWN // rows:,} draws, or" if rows <= MAX_DRAWN else "send"
        detail = (
            f"{option(spec, 'draws'):,} draws for each of {rows:,} queries in all heads are {drawn(spec):,}, "
            f"and at most {MAX_DRAWN:,} are made: {fitting} fewer queries, heads or batch rows"
        )
        yield FieldProblem("/options/draws", "too-large", detail, TOO_LARGE)
    if option(spec, "baseline") != "none" and "dout" not in spec.inputs:
        detail = (
            "a baseline is for the gradient that draws estimate, which needs dout, of the shape of out: send "
            "it, or leave baseline out"
        )
        yield FieldProblem("/options/baseline", "needs", detail)
