"""One validated description of an attention computation; see :func:`parse_run` and :class:`RunSpec`."""

from kernels.spec.model import Attention, InputSpec, Options, ParsedRun, Rope, RunSpec, Timing
from kernels.spec.problems import FieldProblem, SpecError
from kernels.spec.run import MAX_ELEMENTS, parse_run

__all__ = [
    "MAX_ELEMENTS",
    "Attention",
    "FieldProblem",
    "InputSpec",
    "Options",
    "ParsedRun",
    "Rope",
    "RunSpec",
    "SpecError",
    "Timing",
    "parse_run",
]
