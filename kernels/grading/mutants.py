"""The mutant matrix: would the cases of a problem notice each mistake, and would they pass what is right?

Every reading of the table that can be made on a case is computed on ``SEEDS`` drawn sets of inputs and judged
as an answer is, in every dtype that answers may come in: the less precise, the more is allowed. A case kills
a reading if it fails it on all of them. A reading that gives the right answer, on these inputs and on inputs
of every other distribution, *coincides* with it: nobody could tell. A code survives where a main reading of
it neither coincides nor is killed by any case; that, zeros that pass a case, and a right computation in
float16 or bfloat16 that fails although the tolerance lets that dtype in, keep a problem from being published.

In a less precise dtype a small case may not tell a mistake from rounding. That is no fault of the problem:
its answers are then held to the least precise dtype in which every mistake is told (``Matrix.least_dtype``).

What would kill a survivor is found by trying: other distributions, other shapes, other answers beside those
that are asked for, the other policy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernels.arrays import DISTRIBUTIONS, Array, round_to_dtype
from kernels.bounds import UNIT_ROUNDOFF
from kernels.grading import trace_mistakes
from kernels.grading.cases import drawn_inputs
from kernels.grading.hypotheses import CODES, HINTS, LOW_PRECISION, readings
from kernels.grading.measure import measure
from kernels.grading.model import PRECISION, Case, Problem, coarser, held_to_least
from kernels.grading.pipeline import PRECISIONS, Results, Setting, as_answers, attend, resolve
from kernels.grading.problem import parse_problem
from kernels.grading.readings import Reading, evaluate
from kernels.grading.tolerance import allowed_errors, held_to
from kernels.grading.trace_mistakes import TraceReading
from kernels.spec import SpecError
from kernels.spec.results import GRADIENTS

SEEDS = (101, 202, 303)
COINCIDES = 1e-9  # relative to the largest number
MAX_SUGGESTIONS = 12
LONGEST = 128  # a length that is suggested
INTEGERS = "int64"  # of traces


@dataclass(frozen=True)
class Row:
    """One code. ``survivors`` are the main readings that no case kills; ``unnoticed`` the rarer ones."""

    code: str
    relevant: bool  # whether it changes any answer that is asked for
    coincides: bool  # it can be made, and gives what is right
    killed_by: tuple[str, ...]
    survivors: tuple[str, ...]
    unnoticed: tuple[str, ...]

    @property
    def survives(self) -> bool:
        """Whether the problem lets it pass."""
        return bool(self.survivors)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "code": self.code,
            "hint": HINTS[self.code],
            "relevant": self.relevant,
            "coincides": self.coincides,
            "killed_by": list(self.killed_by),
            "survives": self.survives,
            "survivors": list(self.survivors),
            "unnoticed": list(self.unnoticed),
        }


@dataclass(frozen=True)
class Matrix:
    """The table of a problem. ``precision``: by dtype, whether the right computation in it passes, whether it
    should, and the cases that fail it. ``least_dtype``: answers less precise than this are held to it, since
    mistakes could pass as its rounding; None where those that the tolerance lets in can all be told."""

    rows: tuple[Row, ...]
    precision: Mapping[str, Mapping[str, Any]]
    zeros_pass: tuple[str, ...]  # cases
    suggestions: tuple[Mapping[str, Any], ...]
    least_dtype: str | None = None

    @property
    def killed(self) -> int:
        """How many of the relevant codes."""
        return sum(row.relevant and not row.survives for row in self.rows)

    @property
    def total(self) -> int:
        """How many codes are relevant."""
        return sum(row.relevant for row in self.rows)

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the problem may not be published."""
        found = [
            f"{row.code} passes every case: an answer is accepted where {row.survivors[0]}."
            for row in self.rows
            if row.survives
        ]
        found += [f"An answer of zeros passes case {name}." for name in self.zeros_pass]
        found += [
            f"A right computation in {dtype} fails case {each['failed'][0]}, though {dtype} is let in: allow "
            f"more for it, or set tolerance.least_dtype to a more precise one."
            for dtype, each in self.precision.items()
            if each["should_pass"] and not each["passes"]
        ]
        return tuple(found)

    @property
    def is_publishable(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "publishable": self.is_publishable,
            "killed": self.killed,
            "total": self.total,
            "problems": list(self.problems),
            "rows": [row.to_dict() for row in self.rows],
            "precision": {dtype: dict(each) for dtype, each in self.precision.items()},
            "least_dtype": self.least_dtype,
            "suggestions": [dict(each) for each in self.suggestions],
        }


def matrix(problem: Problem, checkpoint: Callable[[], None] = lambda: None) -> Matrix:
    """The mutant matrix of a problem. ``checkpoint`` is called between computations; it may raise to stop."""
    if problem.kind != "attention":
        return _of_traces(problem, checkpoint)
    trials = [_Trial(problem, case) for case in problem.cases]
    fates: dict[tuple[str, str], _Fate] = {}
    for trial in trials:
        for reading in trial.readings:
            checkpoint()
            for dtype, outcome in trial.outcomes(reading).items():
                fate = fates.setdefault((reading.name, dtype), _Fate(reading, dtype))
                fate.add(trial.case.name, outcome)
    structural: dict[str, bool] = {}
    for fate in fates.values():
        name = fate.reading.name
        if fate.always_coincides and name not in structural:
            checkpoint()
            structural[name] = _coincides_everywhere(problem, name)
        fate.is_structural = structural.get(name, True)
    own, least = problem.dtype, _least_dtype(problem, fates.values())
    if least is not None:
        problem = held_to_least(problem, least)
        for trial in trials:
            trial.problem = problem
    told = [fate for fate in fates.values() if fate.dtype in answer_dtypes(problem)]
    rows = tuple(_row(code, [f for f in told if f.reading.code == code], own) for code in CODES[:-1])
    zeros = [name for name, outcome in fates["zeros", own].outcomes.items() if outcome != "killed"]
    precision = _precision(problem, trials, checkpoint)
    low = Row(LOW_PRECISION, False, False, (), (), ())
    suggestions = _suggestions(problem, rows, checkpoint)
    return Matrix((*rows, low), precision, tuple(zeros), tuple(suggestions), least)


def _least_dtype(problem: Problem, fates: Collection[_Fate]) -> str | None:
    """The last dtype before one in which a mistake passes that is told in the problem's own."""
    blind = {fate.dtype for fate in fates if fate.reading.is_main and fate.survives}
    told = problem.dtype
    for dtype in answer_dtypes(problem)[1:]:
        if dtype in blind:
            return told
        told = dtype
    return None


# -- one case ------------------------------------------------------------------------------------------------


class _Trial:
    """A case on some drawn inputs, as if each set were a student's."""

    def __init__(self, problem: Problem, case: Case, seeds: Sequence[int] = SEEDS) -> None:
        if case.spec is None:
            raise ValueError("a trace has no trial")
        self.problem, self.case = problem, case
        seeds = seeds if case.is_drawn else seeds[:1]
        arrays = {name: array[None] for name, array in case.canonical.items()} | drawn_inputs(case, seeds)
        self.setting: Setting = resolve(case.spec, arrays)
        self.asked = [part.name for part in problem.answers]
        self.gradients = bool(GRADIENTS.keys() & set(self.asked))
        self.results = attend(self.setting, gradients=self.gradients)
        self.right = as_answers(self.setting, self.results)
        self.readings = readings(self.setting)
        self.dtypes = answer_dtypes(problem)
        self._allowed: dict[str, dict[str, Array]] = {}

    def outcomes(self, reading: Reading) -> dict[str, str]:
        """By dtype of the answer: "killed", "survives" or "coincides"."""
        given = evaluate(reading, self.setting, self.results, gradients=self.gradients)
        if all(self._same(given, name) for name in self.asked):
            return dict.fromkeys(self.dtypes, "coincides")
        return {dtype: "survives" if self._any_passes(given, dtype) else "killed" for dtype in self.dtypes}

    def _any_passes(self, given: Results, dtype: str) -> bool:
        """Whether an answer is accepted on some inputs."""
        passes = np.ones(self.setting.students, dtype=np.bool_)
        for name in self.asked:
            if name in given and passes.any():
                passes &= self._passes(given[name], name, dtype)
        return bool(passes.any())

    def passes_in(self, dtype: str) -> bool:
        """Whether the right computation in a dtype is accepted, on all inputs."""
        with np.errstate(over="ignore", invalid="ignore"):
            computed = attend(self.setting, PRECISIONS[dtype], gradients=self.gradients)
            answers = as_answers(self.setting, computed)
        return all(bool(self._passes(answers[name], name, dtype).all()) for name in self.asked)

    def _same(self, given: Results, name: str) -> bool:
        """Whether an answer is the right one, or nothing is said of it."""
        if name not in given:
            return True
        ours, right = given[name], self.right[name]
        if ours.shape[1:] != right.shape[1:]:
            return False
        if name == "mask":
            return bool((ours == right).all())
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.where(ours == right, 0.0, np.abs(ours - right))
        largest = float(np.abs(right[np.isfinite(right)]).max(initial=0.0))
        return bool((apart <= COINCIDES * max(largest, 1e-300)).all())

    def _passes(self, given: Array, name: str, dtype: str) -> Array:
        """[students]: whether an answer handed in as ``dtype`` passes."""
        expected = self.right[name]
        if given.shape[1:] != expected.shape[1:]:
            return np.zeros(self.setting.students, dtype=np.bool_)
        shape = (self.setting.students, *expected.shape[1:])
        given, expected = np.broadcast_to(given, shape), np.broadcast_to(expected, shape)
        if name == "mask":
            return np.asarray((given == expected).reshape(len(given), -1).all(1))
        tolerance = self.problem.tolerance
        held = held_to(dtype, self.problem.dtype, tolerance.least_dtype)
        if held not in self._allowed:
            self._allowed[held] = allowed_errors(self.setting, self.results, held, self.asked, tolerance)
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = round_to_dtype(given, dtype).astype(np.float64)
        found = measure(rounded, expected, self._allowed[held][name], held)
        return found.passes(tolerance.max_mismatch_ratio)


class _Fate:
    """What became of a reading in every case, as an answer of this dtype."""

    def __init__(self, reading: Reading | TraceReading, dtype: str) -> None:
        self.reading, self.dtype = reading, dtype
        self.outcomes: dict[str, str] = {}
        self.is_structural = True

    def add(self, case: str, outcome: str) -> None:
        self.outcomes[case] = outcome

    @property
    def always_coincides(self) -> bool:
        return all(outcome == "coincides" for outcome in self.outcomes.values())

    @property
    def coincides(self) -> bool:
        return self.always_coincides and self.is_structural

    @property
    def killed_by(self) -> list[str]:
        return [case for case, outcome in self.outcomes.items() if outcome == "killed"]

    @property
    def survives(self) -> bool:
        return not self.coincides and not self.killed_by


def _row(code: str, fates: Sequence[_Fate], own: str) -> Row:
    """Of the fates of a code in every dtype, the most precise first; ``own``: the problem's."""
    main = [fate for fate in fates if fate.reading.is_main]
    apart = [fate for fate in main if not fate.coincides]
    killed = [case for fate in apart[:1] for case in fate.killed_by]
    killed = [case for case in killed if all(case in fate.killed_by for fate in apart)] or list(
        dict.fromkeys(case for fate in apart for case in fate.killed_by)
    )
    return Row(
        code,
        relevant=bool(apart),
        coincides=bool(fates) and not apart and all(fate.coincides for fate in fates),
        killed_by=tuple(killed),
        survivors=_told([fate for fate in apart if fate.survives], own),
        unnoticed=_told([fate for fate in fates if fate not in main and fate.survives], own),
    )


def _told(fates: Sequence[_Fate], own: str) -> tuple[str, ...]:
    """What was done, and in which dtype it passes, where it does not in the problem's."""
    first: dict[str, _Fate] = {}
    for fate in fates:
        first.setdefault(fate.reading.name, fate)
    return tuple(
        fate.reading.says if fate.dtype == own else f"{fate.reading.says}, in {fate.dtype}"
        for fate in first.values()
    )


def _coincides_everywhere(problem: Problem, reading: str) -> bool:
    """Whether a reading gives what is right on inputs of every distribution, in the shapes of all cases."""
    for case in problem.cases:
        for distribution in DISTRIBUTIONS if case.is_drawn else ():
            if distribution == case.distribution:
                continue
            trial = _Trial(problem, _redrawn(case, distribution), SEEDS[:1])
            same = next((each for each in trial.readings if each.name == reading), None)
            if same is not None and set(trial.outcomes(same).values()) != {"coincides"}:
                return False
    return True


def _redrawn(case: Case, distribution: str) -> Case:
    """The same case, its inputs drawn from another distribution."""
    if case.run is None or case.spec is None:
        return case

    def changed(spec: Any) -> Any:
        inputs = {
            name: replace(given, distribution=distribution) if given.source == "seed" else given
            for name, given in spec.inputs.items()
        }
        return replace(spec, inputs=inputs)

    return replace(case, distribution=distribution, run=changed(case.run), spec=changed(case.spec))


# -- precision -----------------------------------------------------------------------------------------------


def _precision(
    problem: Problem, trials: Sequence[_Trial], checkpoint: Callable[[], None]
) -> dict[str, dict[str, Any]]:
    found = {}
    for dtype in PRECISION:
        failed = []
        for trial in trials:
            checkpoint()
            if not trial.passes_in(dtype):
                failed.append(trial.case.name)
        should = is_let_in(problem, dtype)
        found[dtype] = {"passes": not failed, "should_pass": should, "failed": failed}
    return found


def is_let_in(problem: Problem, dtype: str) -> bool:
    """Whether the tolerance is about answers in this dtype: no less precise than it demands, and, of
    ``allclose``, named there or no less precise than the problem's."""
    least = problem.tolerance.least_dtype
    if least is not None and coarser(least, dtype) != least:
        return False
    if problem.tolerance.policy == "error_bound" or dtype in problem.tolerance.per_dtype:
        return True
    return UNIT_ROUNDOFF[dtype] <= UNIT_ROUNDOFF[problem.dtype]


def answer_dtypes(problem: Problem) -> list[str]:
    """Those in which different errors are allowed: the problem's, and the less precise that are let in."""
    own = problem.dtype
    return [own, *(x for x in PRECISION if x != own and coarser(own, x) == x and is_let_in(problem, x))]


# -- suggestions ---------------------------------------------------------------------------------------------


def _suggestions(
    problem: Problem, rows: Sequence[Row], checkpoint: Callable[[], None]
) -> Iterator[dict[str, Any]]:
    """For each survivor the first change that would kill it."""
    count = 0
    for row in rows:
        if not row.survives or count == MAX_SUGGESTIONS:
            continue
        count += 1
        for change, detail, changed in _changes(problem):
            checkpoint()
            if _kills(changed, row.code):
                yield {"code": row.code, "change": change, "detail": f"{detail} would kill {row.code}."}
                break
        else:
            detail = "Nothing that was tried kills it; ask for another answer, or leave out what it is about."
            yield {"code": row.code, "change": None, "detail": detail}


def _changes(problem: Problem) -> Iterator[tuple[dict[str, Any], str, Problem]]:
    """Problems a little different from this one, with one case each where a case is what differs."""
    for change, words, body in _changed_bodies(problem):
        try:
            yield change, words, parse_problem(body)
        except SpecError:
            continue


def _changed_bodies(problem: Problem) -> Iterator[tuple[dict[str, Any], str, dict[str, Any]]]:
    body = problem.to_dict() | {"properties": []}
    cases = [case for case in body["cases"] if "shape" in case]
    change: dict[str, Any]
    for case in cases[:3]:
        for other in DISTRIBUTIONS[::-1]:
            if other != case["distribution"]:
                change = {"case": case["name"], "distribution": other}
                words = f"Distribution {other} in case {case['name']}"
                yield change, words, {**body, "cases": [{**case, "distribution": other}]}
    if problem.tolerance.policy != "error_bound":
        change = {"tolerance": {"policy": "error_bound"}}
        yield change, "The tolerance of policy error_bound", {**body, **change}
    for case in cases[:2]:
        for shape in _shapes(case["shape"]):
            for other in dict.fromkeys((case["distribution"], "peaked", "normal")):
                change = {"shape": shape, "distribution": other}
                lengths = f"q_len {shape['q_len']}, kv_len {shape['kv_len']}, {shape['num_heads']} heads"
                words = f"A case of {lengths} and distribution {other}"
                yield change, words, {**body, "cases": [{**case, **change}]}
    asked = {part["name"] for part in body["answer"]}
    for name in ("weights", "lse", "masked_scores"):
        if name not in asked:
            answer = [*body["answer"], {"name": name, "points": 1.0}]
            yield {"answer": name}, f"Asking for {name} too", {**body, "answer": answer}


def _shapes(shape: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Shapes in which more can be told: other lengths for keys, longer ones, more heads."""
    n = shape["q_len"]
    m, heads = shape.get("kv_len", n), shape.get("num_heads", 1)
    kv_heads, longer = shape.get("num_kv_heads", heads), min(max(4 * m, 32), LONGEST)
    sized = {**shape, "num_heads": heads, "num_kv_heads": kv_heads}
    yield {**sized, "q_len": n, "kv_len": m + max(3, m // 2)}
    yield {**sized, "q_len": longer, "kv_len": longer}
    yield {**sized, "q_len": longer, "kv_len": longer + 7}
    if heads < 4:
        yield {**sized, "num_heads": 4, "num_kv_heads": 2, "q_len": n, "kv_len": m}


def _kills(problem: Problem, code: str) -> bool:
    """Whether every main reading of a code that can be made there is killed by some case, and one is made: in
    the problem's dtype, for there are other ways with less precise ones."""
    fates: dict[str, _Fate] = {}
    for case in problem.cases:
        trial = _Trial(problem, case)
        for reading in trial.readings:
            if reading.code == code and reading.is_main:
                fate = fates.setdefault(reading.name, _Fate(reading, problem.dtype))
                fate.add(case.name, trial.outcomes(reading)[problem.dtype])
    return bool(fates) and all(fate.killed_by for fate in fates.values())


# -- traces --------------------------------------------------------------------------------------------------


def _of_traces(problem: Problem, checkpoint: Callable[[], None]) -> Matrix:
    """Integers are compared exactly: a mistake passes where it happens to change nothing."""
    fates = _trace_fates(problem, checkpoint)
    rows = tuple(
        _row(code, [f for f in fates.values() if f.reading.code == code], INTEGERS) for code in CODES
    )
    zeros = [name for name, outcome in fates["zeros"].outcomes.items() if outcome != "killed"]
    precision = {dtype: {"passes": True, "should_pass": True, "failed": []} for dtype in PRECISION}
    return Matrix(rows, precision, tuple(zeros), tuple(_trace_suggestions(problem, rows, checkpoint)))


def _trace_fates(problem: Problem, checkpoint: Callable[[], None]) -> dict[str, _Fate]:
    fates: dict[str, _Fate] = {}
    for case in problem.cases:
        for reading in trace_mistakes.READINGS[problem.kind]:
            checkpoint()
            outcome = _trace_outcome(problem, case, reading)
            if outcome:
                fates.setdefault(reading.name, _Fate(reading, INTEGERS)).add(case.name, outcome)
    return fates


def _trace_outcome(problem: Problem, case: Case, reading: TraceReading) -> str:
    """ "killed", "survives" or "coincides"; "" where it cannot be done with any inputs."""
    if case.trace is None:
        return ""
    right = []
    for seed in SEEDS if case.is_drawn else SEEDS[:1]:
        inputs = case.trace.inputs(seed)
        given, expected = reading.answers(case.trace, inputs), case.trace.expected(inputs)
        asked = [part.name for part in problem.answers if given is not None and part.name in given]
        if given is not None:
            right.append(all(trace_mistakes.same(name, given[name], expected[name]) for name in asked))
    if not any(right):
        return "killed" if right else ""
    return "coincides" if all(right) else "survives"


def _trace_suggestions(
    problem: Problem, rows: Sequence[Row], checkpoint: Callable[[], None]
) -> Iterator[dict[str, Any]]:
    """For all survivors the smallest case that would kill them, of some larger ones."""
    left = [row.code for row in rows if row.survives]
    for words, body in _longer(problem) if left else ():
        larger = parse_problem({**problem.to_dict(), "cases": [body]})
        fates = _trace_fates(larger, checkpoint).values()
        for code in list(left):
            of_code = [fate for fate in fates if fate.reading.code == code and fate.reading.is_main]
            if of_code and all(fate.killed_by for fate in of_code):
                left.remove(code)
                detail = f"A case of {words} would kill {code}."
                yield {"code": code, "change": {"shape": body["shape"]}, "detail": detail}
    for code in left:
        yield {
            "code": code,
            "change": None,
            "detail": "Nothing that was tried kills it; ask for another answer.",
        }


def _longer(problem: Problem) -> Iterator[tuple[str, dict[str, Any]]]:
    """Drawn cases in which more happens."""
    case = {"name": "more", "points": 1}
    for size in (8, 16, 32, 64):
        if problem.kind == "paging":
            shape = {"num_blocks": 4 * size, "block_size": 4, "sequences": size // 2, "steps": 2 * size}
            yield f"{2 * size} operations on {size // 2} sequences", {**case, "shape": shape}
        else:
            shape = {"runs": size, "gamma": 3, "vocabulary": 5}
            yield f"{size} runs of 3 drafted tokens", {**case, "shape": shape}
