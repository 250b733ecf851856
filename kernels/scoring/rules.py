"""What a spec of engine ``scoring`` asks for: which parameters its score and its span take, and what
contradicts itself.

No torch: the web process checks and prices runs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kernels.limits import SMALLEST_NORMAL
from kernels.registry import option
from kernels.scoring.inputs import SCORE_INPUTS, SPAN_INPUTS
from kernels.spec.families import PARAMETERS, PLAIN
from kernels.spec.model import RunSpec
from kernels.spec.problems import FieldProblem, join, one_of

BETA, HALF_WIDTH = 1.0, 10.0  # unless a spec says otherwise; 10 is that of Luong et al.
TAKES = {"score": SCORE_INPUTS, "span": SPAN_INPUTS}
OF_WINDOWS = ("centres", "kept_weight")


def half_width(spec: RunSpec) -> float:
    """D of the windows, a number of float32, as kernels get it."""
    asked = option(spec, "half_width")
    return float(np.float32(HALF_WIDTH if asked is None else asked))


def factor(spec: RunSpec) -> float:
    """Of the products: the scale of scaled_dot, β of cosine."""
    score, beta = option(spec, "score"), option(spec, "beta")
    if score == "cosine":
        return BETA if beta is None else float(beta)
    return spec.scale if score == "scaled_dot" else 1.0


def problems(spec: RunSpec) -> Iterator[FieldProblem]:
    """Why a spec of ``scoring`` cannot be computed."""
    if spec.family is not PLAIN:  # refused for what it is
        return
    score, span = option(spec, "score"), option(spec, "span")
    if not spec.num_heads:
        yield FieldProblem("/inputs/q", "heads", "there are no heads, and engine scoring needs one at least")
    yield from _parameter_problems(spec, {"score": score, "span": span})
    if spec.attention.scale is not None and score != "scaled_dot":
        instead = "set beta" if score == "cosine" else "leave it out"
        detail = f"score {score} has no scale: {instead}, or set options.score to scaled_dot, which has one"
        yield FieldProblem("/attention/scale", "unsupported", detail)
    if option(spec, "beta") is not None and score != "cosine":
        detail = f"beta is the factor of score cosine, and the score is {score}: leave it out"
        yield FieldProblem("/options/beta", "unsupported", detail)
    if option(spec, "half_width") is not None and span == "global":
        detail = (
            "half_width is that of a window, and span global looks at all keys: leave it out, or set a span"
        )
        yield FieldProblem("/options/half_width", "unsupported", detail)
    if span == "predictive" and half_width(spec) < SMALLEST_NORMAL:
        detail = "half_width must be more than 0 with span predictive, whose Gaussian has half of it as its σ"
        yield FieldProblem("/options/half_width", "out-of-range", detail)
    for index, name in enumerate(spec.returns):
        if name in OF_WINDOWS and span == "global":
            detail = f"{name} is of windows, and span global has none: set options.span, or leave it out"
            yield FieldProblem(join("/return", index), "unsupported", detail)


def _parameter_problems(spec: RunSpec, chosen: dict[str, str]) -> Iterator[FieldProblem]:
    """Parameters that the chosen score and span miss, and those that they have no use for."""
    used = {name for what, value in chosen.items() for name in TAKES[what][value]}
    for what, value in chosen.items():
        takes = TAKES[what][value]
        for name in takes:
            if name not in spec.inputs:
                detail = (
                    f"{what} {value} takes {', '.join(takes)}, and {name} is missing: send it, of shape "
                    f"{_shape(spec, name)}, or set another options.{what}"
                )
                yield FieldProblem(join("/inputs", name), "required", detail)
        for name in dict.fromkeys(name for takes in TAKES[what].values() for name in takes):
            if name in spec.inputs and name not in used:
                others = one_of(other for other, takes in TAKES[what].items() if name in takes)
                detail = (
                    f"{what} {value} has no use for {name}: leave it out, or set options.{what} to {others}"
                )
                yield FieldProblem(join("/inputs", name), "unsupported", detail)


def _shape(spec: RunSpec, name: str) -> str:
    """The axes of a parameter, and how long they are beside what was sent."""
    rank = 4 if spec.is_packed else spec.rank
    lengths: dict[str, object] = {}
    for other in (name for name in PARAMETERS if name in spec.inputs):
        lengths |= zip(PLAIN.axes_of(other, rank), spec.inputs[other].shape, strict=True)
    heads = f"1 or {spec.num_heads}" if spec.num_heads != 1 else 1
    lengths |= {"heads": heads, "head_dim": spec.head_dim, "2·head_dim": 2 * spec.head_dim}
    axes = PLAIN.axes_of(name, rank)
    return f"[{', '.join(axes)}] = [{', '.join(str(lengths.get(axis, 'any')) for axis in axes)}]"
