"""The table case × engine of ONNX conformance, which docs/onnx.md keeps.

TRITON_INTERPRET=1 python -m tests.kernels.onnx_table      writes it anew
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from kernels.layout import from_canonical
from kernels.spec import FieldProblem, SpecError
from tests.kernels.cases import canonical, compute
from tests.kernels.onnx_cases import ROUNDOFF, OnnxCase, onnx_cases

ENGINES = ("reference", "eager", "sdpa", "flash", "decode", "paged")  # mla has inputs of its own
PAGE = Path(__file__).parents[2] / "docs" / "onnx.md"
PASSED = "passed"
# ONNX's evaluator rounds every intermediate to the dtype of the case, ours and the engines fewer of them.
UNITS = 16

HEADER = """\
# ONNX conformance

Every case that ONNX {version} generates for its `Attention` operator (opsets 23 to 25, no `_expanded` twins),
computed by our engines from a request like any other and compared with ONNX's own outputs: `Y`, the present,
and `qk_matmul_output` in its mode. A difference of up to {units} units of roundoff of the case's dtype is a
pass; where an engine lacks something, the cell names what it refused.

Written by `TRITON_INTERPRET=1 .venv/bin/python -m tests.kernels.onnx_table`; a test compares it with what the
engines do today.

"""


@functools.cache
def verdict(name: str, engine: str) -> str:
    """``passed``, ``refused: …``, or what is wrong."""
    case = onnx_cases()[name]
    try:
        spec, arrays = canonical({**case.body, "engine": engine}, case.uploads)
    except SpecError as error:
        if any(problem.code != "unsupported" for problem in error.problems):
            return f"not parsed: {error}"
        return f"refused: {', '.join(_named(problem, case) for problem in error.problems)}"
    got = compute(spec, arrays)
    return _compared(case, {n: from_canonical(spec, n, got[n]).astype(np.float64) for n in case.expected})


def _named(problem: FieldProblem, case: OnnxCase) -> str:
    """The field of the request that the engine cannot do, or the result that it cannot return."""
    last = problem.pointer.rsplit("/", 1)[-1]
    return str(case.body["return"][int(last)]) if problem.pointer.startswith("/return/") else last


def _compared(case: OnnxCase, got: Mapping[str, np.ndarray]) -> str:
    for name, right in case.expected.items():
        if got[name].shape != right.shape:
            return f"wrong: {name} has shape {got[name].shape}, not {right.shape}"
        with np.errstate(invalid="ignore"):
            error = np.where(got[name] == right, 0.0, np.abs(got[name] - right) / (1 + np.abs(right)))
        # Written so that a NaN is none.
        if not bool((error <= UNITS * ROUNDOFF[case.dtype]).all()):
            return f"wrong: {name} is off by {error.max() / ROUNDOFF[case.dtype]:.3g} units"
    return PASSED


def table() -> str:
    """The page."""
    import onnx

    cells = {name: [verdict(name, engine) for engine in ENGINES] for name in onnx_cases()}
    passed = [sum(row[i] == PASSED for row in cells.values()) for i in range(len(ENGINES))]
    rows = [
        ["case", *ENGINES],
        ["---"] * (len(ENGINES) + 1),
        *([name, *row] for name, row in cells.items()),
        ["**passed**", *(f"**{count} of {len(cells)}**" for count in passed)],
    ]
    version = ".".join(onnx.__version__.split(".")[:2])
    body = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return HEADER.format(version=version, units=UNITS) + body


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(table())
