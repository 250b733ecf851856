"""No kernel touches memory that is none of its arguments, for any spec that is accepted.

Every Triton engine runs random specs in the interpreter, its memory fenced in: ``fences.py`` looks at each
address that is loaded from or stored to. What the kernels are to write holds NaN before. The answers are bit
for bit those of an ordinary run, whatever lies around the arrays.
"""

# ruff: noqa: N803, PLR0917, PLW0108
# A kernel's body is Triton's language in Python's clothes.

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from triton.runtime.errors import InterpreterError

from kernels.refusals import features_asked
from kernels.registry import ENGINES, SOFTMAX
from kernels.spec import RunSpec, SpecError
from kernels.spec.families import MLA_INPUTS
from kernels.spec.results import GRADIENTS
from tests.kernels.cases import Arrays, cases
from tests.kernels.fences import OutOfBoundsError, fences, poisoned_memory
from tests.kernels.ways import KEY_LENGTHS, LENGTHS, REFERENCE, Problem, Way, latent_cases, on_ways

TRITON = [name for name, engine in ENGINES.items() if engine.is_triton and engine.computes == SOFTMAX]
EXAMPLES = 30  # of each engine
SETTINGS = settings(
    deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)
# Padding may hold anything, and the interpreter computes with it before it is masked.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero):RuntimeWarning")


# -- specs ---------------------------------------------------------------------------------------------------


def some_options(engine: str) -> st.SearchStrategy[dict[str, Any]]:
    """Any that the engine declares; tiles of up to 64, for small inputs have few of any other size."""
    found = {}
    for name, schema in ENGINES[engine].options.items():
        if "enum" in schema:
            few = [value for value in schema["enum"] if not isinstance(value, int) or value <= 64]
            found[name] = st.sampled_from(few)
        elif "integer" in schema["type"]:
            found[name] = st.none() | st.integers(schema.get("minimum", 0), 9)
    return st.fixed_dictionaries({}, optional=found)


@st.composite
def accepted(draw: st.DrawFn, engine: str) -> tuple[RunSpec, Arrays]:
    """A spec for the engine with everything it returns, and its canonical arrays. Options that these inputs
    cannot have are left out."""
    declared = ENGINES[engine]
    most, returns = declared.max_q_len, declared.returns
    options, dtype = draw(some_options(engine)), draw(st.sampled_from(declared.dtypes))
    if options.get("kv_dtype") is None:
        options.pop("kv_scale", None)
    else:  # has no gradients
        returns -= set(GRADIENTS)
    if declared.takes == MLA_INPUTS:
        case = draw(latent_cases())
    else:
        case = draw(
            cases(
                engine,
                gradients=bool(returns & set(GRADIENTS)),
                q_lens=LENGTHS.filter(lambda n: most is None or n <= most),
                kv_lens=KEY_LENGTHS,
            )
        )
    fields = {"dtype": dtype, "return": sorted(returns)}
    while True:
        try:
            return case.on(engine, options=options, **fields)
        except SpecError as refused:
            wrong = {problem.pointer.removeprefix("/options/") for problem in refused.problems}
            if not wrong & options.keys():
                raise
            options = {name: value for name, value in options.items() if name not in wrong}


# -- what they touch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", TRITON)
def test_kernels_stay_within_their_arguments(engine: str) -> None:
    """Fenced in, each spec gives the bits that it gives at large, afterwards: nothing that it reads was
    overwritten. And every number of a result is written."""
    launches = 0

    @settings(SETTINGS, max_examples=EXAMPLES)
    @given(accepted(engine))
    def check(asked: tuple[RunSpec, Arrays]) -> None:
        nonlocal launches
        spec, arrays = asked
        with poisoned_memory(), fences() as watch:
            prepared = importlib.import_module(ENGINES[engine].module).prepare(spec, arrays, "cpu")
            fenced = prepared.collect(prepared.compute())
        at_large = prepared.collect(prepared.compute())
        for name in spec.returns:
            assert not np.isnan(fenced[name]).any(), f"{name} holds what was there before"
            np.testing.assert_array_equal(fenced[name], at_large[name], err_msg=name)
        assert watch.stores >= sum(fenced[name].size for name in ("out", "lse")), "not every store was seen"
        launches += watch.launches

    check()
    assert launches > EXAMPLES / 2


@pytest.mark.parametrize(("n", "m", "past"), [(16, 32, 0), (7, 32, 25), (1, 16, 15), (5, 30, 20)])
@on_ways("causal", triton=True)
def test_tiles_and_pages_that_are_full_to_the_last_row(way: Way, n: int, m: int, past: int) -> None:
    """The next row would be another sequence's, or nobody's."""
    if not way.can(["causal"], q_len=n):
        return
    rng = np.random.default_rng(m)
    q, k, v = (rng.standard_normal((2, 2, length, 16)) for length in (n, m, m))
    problem = Problem(q, k, v, {"is_causal": True}, past=past)
    with poisoned_memory(), fences() as watch:
        fenced = way.compute(problem, ("out", "lse"))
    assert watch.launches
    at_large = way.compute(problem, ("out", "lse"))
    expected = REFERENCE.compute(problem, ("out", "lse"))
    for name, result in fenced.items():
        np.testing.assert_array_equal(result, at_large[name])
        np.testing.assert_allclose(result, expected[name], atol=1e-5)


# -- the fences themselves -----------------------------------------------------------------------------------


@triton.jit
def copy_some(p_x, p_y, first, many, to, BLOCK: tl.constexpr):
    """y[to + i] = x[first + i] for i < many."""
    o = tl.arange(0, BLOCK)
    tl.store(p_y + to + o, tl.load(p_x + first + o, mask=o < many, other=0.0), mask=o < many)


@triton.jit
def copy_one(p_x, p_y, i):
    """y[i] = x[i], without a mask."""
    tl.store(p_y + i, tl.load(p_x + i))


@triton.jit
def all_write_to_one(p_x):
    """Each program its number."""
    tl.store(p_x, tl.program_id(0).to(tl.float32))


@triton.jit
def add_together(p_x):
    """A sum over programs."""
    tl.atomic_add(p_x, 1.0)


X = torch.arange(8.0)


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (lambda y: copy_some[(1,)](X, y, 0, 9, 0, 16), "a load of 1 elements outside"),
        (lambda y: copy_some[(1,)](X, y, -1, 4, 0, 16), "a load of 1 elements outside"),
        (lambda y: copy_some[(1,)](X, y, 0, 8, 1, 16), "a store of 1 elements outside"),
        (lambda y: copy_some[(1,)](X, y, 4096, 1, 0, 16), "a load of 1 elements outside"),
        (lambda y: copy_one[(1,)](X, y, 8), "a load of 1 elements outside"),
        (lambda y: copy_some[(1,)](X[2:6], y, 0, 5, 0, 16), "a load of 1 elements outside"),
        (lambda y: copy_some[(1,)](X[2:6], y, -1, 2, 0, 16), "a load of 1 elements outside"),
        (lambda y: copy_some[(1,)](X[:0], y, 0, 1, 0, 16), "a load of 1 elements outside"),
        (lambda y: all_write_to_one[(2,)](y), "twice in one launch"),
        (lambda y: add_together[(1,)](y), "atomic"),
    ],
)
def test_a_fence_notices(launch: Callable[[torch.Tensor], None], message: str) -> None:
    """One element too many, before, behind, or far away; beside a part of an array; a race."""
    with fences(), pytest.raises((InterpreterError, OutOfBoundsError), match=message):
        launch(torch.zeros(8))


def test_a_fence_changes_nothing_else() -> None:
    y = torch.zeros(12)
    with fences() as watch:
        copy_some[(1,)](X, y[2:10], 0, 8, 0, 16)
        copy_some[(1,)](X, X, 0, 8, 0, 16)
        assert y.tolist() == [0, 0, *range(8), 0, 0]
    assert (watch.launches, watch.loads, watch.stores) == (2, 16, 16)
    copy_some[(1,)](X, y, 3, 1, 0, 16)
    assert y[0] == 3


def test_memory_is_poisoned_for_the_block_alone() -> None:
    with poisoned_memory():
        assert torch.empty((2, 3)).isnan().all()
        assert torch.empty_like(X).isnan().all()
        assert (torch.empty(3, dtype=torch.int32) == -1).all()
    torch.manual_seed(0)
    assert not torch.zeros(3).isnan().any()


@pytest.mark.parametrize("engine", TRITON)
def test_the_specs_ask_for_everything_that_the_engine_declares(engine: str) -> None:
    """What is never drawn is never watched."""
    drawn: set[str] = set()
    options: dict[str, set[Any]] = {name: set() for name in ENGINES[engine].options}

    @settings(SETTINGS, max_examples=120)
    @given(accepted(engine))
    def look(asked: tuple[RunSpec, Arrays]) -> None:
        spec, _ = asked
        drawn.update(feature for feature, _, _ in features_asked(spec))
        for name, values in options.items():
            values.add(spec.to_dict()["options"][name])

    look()
    assert ENGINES[engine].features <= drawn
    assert all(len(values) > 1 for values in options.values())
