"""The judge: answers of many attempts against what is right for each, and what was done where they are wrong.

Cases are graded one after another, attempts in groups whose matrices fit a processor's cache. Students who
have the same inputs share one computation. Every attempt is judged by itself: the same answers get the same
judgement, alone or among a thousand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kernels.arrays import Array
from kernels.bounds import UNIT_ROUNDOFF
from kernels.grading import trace_mistakes, traces
from kernels.grading.answers import Answer, Answers
from kernels.grading.case import answer_shape
from kernels.grading.cases import drawn_inputs
from kernels.grading.diagnosis import Diagnosis, Suspect
from kernels.grading.fits import Finding, ranked
from kernels.grading.measure import WORST, Measured, measure
from kernels.grading.model import Case, Problem
from kernels.grading.pipeline import Results, Setting, allowed, as_answers, attend, resolve
from kernels.grading.report import Judgement, PartResult, judgement
from kernels.grading.shapes import as_mask, fitted, is_reshaped, misshapen, sent_shape
from kernels.grading.tolerance import allowed_errors, held_to, reference_errors
from kernels.spec.results import GRADIENTS

GROUP = 2**17  # pairs, or numbers of an answer, that are computed at a time
LOW = ("float16", "bfloat16")
COMPARABLE = ("numeric_mismatch", "shape_mismatch")  # of integers, with what mistakes give
SENTINEL = -1e4  # what programs write in the place of −inf, or less


@dataclass(frozen=True)
class Attempt:
    """One submission: the seed of every case, and what was handed in."""

    seeds: Mapping[str, int]
    answers: Answers


def judge(
    problem: Problem, attempts: Sequence[Attempt], checkpoint: Callable[[], None] = lambda: None
) -> list[Judgement]:
    """The judgement of each attempt. ``checkpoint`` is called every few milliseconds; it may raise."""
    ledger = [_Ledger() for _ in attempts]
    for case in problem.cases:
        checkpoint()
        if case.trace is not None:
            _grade_trace(problem, case, attempts, ledger, checkpoint)
        else:
            _grade_attention(problem, case, attempts, ledger, checkpoint)
    for attempt, own in zip(attempts, ledger, strict=True):
        _compare_futures(problem, attempt, own)
    return [
        judgement(problem, own.parts, [*attempt.answers.notes, *own.notes])
        for attempt, own in zip(attempts, ledger, strict=True)
    ]


@dataclass
class _Ledger:
    """What is known of one attempt so far."""

    parts: dict[tuple[str, str], PartResult] = field(default_factory=dict)
    suspected: dict[str, None] = field(default_factory=dict)  # readings that fitted, in order
    in_vain: int = 0  # cases that are wrong as nothing that is known
    notes: list[str] = field(default_factory=list)
    fitted: dict[tuple[str, str], Array] = field(default_factory=dict)  # for properties across cases


# -- attention -----------------------------------------------------------------------------------------------


def _grade_attention(
    problem: Problem,
    case: Case,
    attempts: Sequence[Attempt],
    ledger: Sequence[_Ledger],
    checkpoint: Callable[[], None],
) -> None:
    if case.spec is None:
        return
    for numbers, seeds in _groups(problem, case, attempts):
        checkpoint()
        arrays = {name: array[None] for name, array in case.canonical.items()} | drawn_inputs(case, seeds)
        _Group(problem, case, resolve(case.spec, arrays), seeds, checkpoint).grade(
            [attempts[number] for number in numbers], [ledger[number] for number in numbers]
        )


def _groups(
    problem: Problem, case: Case, attempts: Sequence[Attempt]
) -> Iterator[tuple[list[int], list[int]]]:
    """Attempts by number, and the different seeds among them."""
    if case.spec is None:
        return
    size = max(math.prod(answer_shape(case.spec, name)) for name in ("scores", "out", "dk"))
    most = max(1, GROUP // size)
    wanted = [attempt.seeds[case.name] if case.is_drawn else 0 for attempt in attempts]
    order = sorted(range(len(attempts)), key=lambda number: wanted[number])
    for start in range(0, len(order), most):
        numbers = order[start : start + most]
        yield numbers, list(dict.fromkeys(wanted[number] for number in numbers))


class _Group:
    """Some attempts at one case, of students with these seeds."""

    def __init__(
        self,
        problem: Problem,
        case: Case,
        setting: Setting,
        seeds: Sequence[int],
        checkpoint: Callable[[], None],
    ) -> None:
        self.problem, self.case, self.setting, self.checkpoint = problem, case, setting, checkpoint
        self.place = {seed: place for place, seed in enumerate(seeds)}
        self.asked = [part.name for part in problem.answers]
        self.results = attend(setting, gradients=bool(GRADIENTS.keys() & set(self.asked)))
        self.expected = as_answers(setting, self.results)
        self.shapes = {name: answer_shape(setting.spec, name) for name in self.asked}
        self._allowed: dict[tuple[str, bool], dict[str, Array]] = {}
        self._reference: dict[str, dict[str, Array]] = {}

    def grade(self, attempts: Sequence[Attempt], ledger: Sequence[_Ledger]) -> None:
        """Write what was found to the ledger of each."""
        students = [self.place[a.seeds[self.case.name] if self.case.is_drawn else 0] for a in attempts]
        suspects: dict[int, Suspect] = {}
        for name in self.asked:
            read: dict[str, list[tuple[int, Array]]] = {}
            for number, attempt in enumerate(attempts):
                answer = attempt.answers.get(self.case.name, name)
                found = self._fitted(name, answer)
                if isinstance(found, PartResult):
                    ledger[number].parts[self.case.name, name] = found
                    self._shape(name, answer, found, students[number])
                elif answer is not None:
                    dtype = held_to(answer.dtype, self.problem.dtype, self.problem.tolerance.least_dtype)
                    read.setdefault(dtype, []).append((number, found))
            for dtype, answers in read.items():
                numbers = [number for number, _ in answers]
                whole = np.stack([array for _, array in answers])
                results = self._compared(name, dtype, whole, [students[number] for number in numbers])
                for number, array, result in zip(numbers, whole, results, strict=True):
                    own = attempts[number].answers.get(self.case.name, name)
                    ledger[number].parts[self.case.name, name] = result
                    result.is_low = result.passed and dtype in LOW and dtype != self.problem.dtype
                    if self.problem.properties:
                        ledger[number].fitted[self.case.name, name] = array
                    if result.passed and not result.is_doubtful:
                        continue
                    suspect = suspects.setdefault(number, Suspect(number, students[number], {}, {}))
                    suspect.answers[name] = array
                    suspect.is_wrong |= not result.passed
                    suspect.dtypes[name] = dtype if own is None else held_to(own.dtype, dtype, None)
        if suspects:
            self._diagnose(suspects, ledger)

    # -- from what was sent to numbers ---------------------------------------------------------------------

    def _fitted(self, name: str, answer: Answer | None) -> Array | PartResult:
        """The numbers, canonical; or why there are none."""
        if answer is None:
            return PartResult.unread("missing", f"No {name} was handed in for case {self.case.name}.")
        if answer.reason is not None:
            return PartResult.unread(answer.reason, f"{name} could not be read: {answer.detail}.")
        array, spec, run = answer.array, self.setting.spec, self.case.run or self.setting.spec
        if name == "mask":
            mask = as_mask(array, spec)
            return PartResult.unread(*mask) if isinstance(mask, tuple) else mask
        if array.dtype == np.bool_:
            return PartResult.unread("dtype_mismatch", f"{name} holds booleans; it is made of numbers.")
        shaped = array if array.shape == self.shapes[name] else fitted(array, name, run, spec)
        if shaped is None:
            wanted = list(sent_shape(name, run, spec))
            sentence = f"{name} has shape {list(array.shape)}; it should have shape {wanted}."
            return PartResult.unread("shape_mismatch", sentence)
        return shaped.astype(np.float64, copy=False)

    # -- comparison ------------------------------------------------------------------------------------------

    def allowed(self, dtype: str, *, tight: bool = False) -> dict[str, Array]:
        """What each number may be off; ``tight``: where everything but the result is in float32."""
        key = (dtype, tight)
        if key not in self._allowed:
            self.checkpoint()
            if tight:
                kept = allowed_errors(self.setting, self.results, "float32", self.asked)
                self._allowed[key] = {
                    name: 2 * bound + _own_rounding(self.expected[name], dtype)
                    for name, bound in kept.items()
                }
            else:
                tolerance = self.problem.tolerance
                self._allowed[key] = allowed_errors(self.setting, self.results, dtype, self.asked, tolerance)
        return self._allowed[key]

    def reference_err(self, name: str, dtype: str) -> Array:
        """[students]: the error of a right computation in this dtype."""
        if dtype not in self._reference:
            self.checkpoint()
            self._reference[dtype] = reference_errors(self.setting, self.expected, dtype, self.asked)
        return self._reference[dtype][name]

    def _compared(
        self, name: str, dtype: str, actual: Array, students: Sequence[int]
    ) -> Iterator[PartResult]:
        index = np.array(students)
        expected = _of(self.expected[name], index)
        if name == "mask":
            for got, wanted in zip(actual, expected, strict=True):
                yield PartResult.of_mask(got, wanted)
            return
        bound = _of(self.allowed(dtype)[name], index)
        found = measure(actual, expected, bound, dtype)
        passes = found.passes(self.problem.tolerance.max_mismatch_ratio)
        doubtful = np.zeros(len(actual), dtype=np.bool_)
        if dtype in LOW and self.problem.tolerance.policy == "error_bound":
            # Most are within the first part of the tight bound, which alone is cheap.
            doubtful = passes & _beyond(found, _own_rounding(expected, dtype), actual.shape)
            if doubtful.any():
                tight = _of(self.allowed(dtype, tight=True)[name], index)
                doubtful &= _beyond(found, tight, actual.shape)
        reference = _of(self.reference_err(name, dtype), index)
        leaks = self._leaks(name, found, index)
        sums = _row_sums(actual, expected) if name == "weights" else None
        shape = actual.shape[1:]
        for row in range(len(actual)):
            passed = bool(passes[row])
            property_broken = None
            if passed and sums is not None and "rows_sum_to_one" in self.problem.properties:
                property_broken = self._row_sum_broken(sums[row], dtype)
            yield PartResult.measured(
                name, found, row, shape,
                passed=passed and property_broken is None,
                reason=_reason(found, row, leaks=bool(leaks[row])),
                dtype=dtype,
                tolerance=self.problem.tolerance,
                own=self.problem.dtype,
                reference_err=float(reference[row]),
                row_sum_err=None if sums is None else float(sums[row]),
                is_doubtful=bool(doubtful[row]),
                broken=property_broken,
                worst=WORST if not passed else 1,
            )  # fmt: skip

    def _row_sum_broken(self, error: float, dtype: str) -> str | None:
        m = self.setting.given.k.shape[-2]
        most = max(8 * UNIT_ROUNDOFF[dtype] * math.sqrt(max(m, 1)), 1e-12)
        if self.problem.tolerance.policy == "allclose":
            atol, _ = self.problem.tolerance.of(dtype, self.problem.dtype)
            most = max(most, atol)
        if error <= most:
            return None
        return f"The weights of a query sum to 1 with an error of {error:.3g}; at most {most:.2g} is allowed."

    def _leaks(self, name: str, found: Measured, index: Array) -> Array:
        """Which attempts show weights, or scores, where a key is forbidden."""
        rows = len(found.actual)
        if name not in ("weights", "masked_scores"):
            return np.zeros(rows, dtype=np.bool_)
        forbidden = ~_of(self.expected["mask"], index).reshape(rows, -1)
        if name == "weights":
            return np.asarray((forbidden & found.wrong).any(1))
        with np.errstate(invalid="ignore"):
            return np.asarray((forbidden & (found.actual > SENTINEL)).any(1))

    # -- what was done ---------------------------------------------------------------------------------------

    def _shape(self, name: str, answer: Answer | None, result: PartResult, student: int) -> None:
        """Of an answer of another shape: whether it is right but for that."""
        if result.reason == "shape_mismatch" and answer is not None and answer.reason is None:
            expected = self.expected[name]
            right = expected[student if len(expected) > 1 else 0]
            result.findings = misshapen(answer.array, right, name)
            if not result.findings and is_reshaped(answer.array, right):
                result.sentences.append("Its numbers are the right ones: only the shape is another.")

    def _diagnose(self, suspects: Mapping[int, Suspect], ledger: Sequence[_Ledger]) -> None:
        diagnosis = Diagnosis(self.setting, self.results, self.asked, self.checkpoint)
        before = {number: list(ledger[number].suspected) for number in suspects}
        in_vain = {number: ledger[number].in_vain for number in suspects}
        found = diagnosis.find(list(suspects.values()), before, in_vain)
        for number, findings in found.items():
            own = ledger[number]
            own.in_vain += not findings and self._is_wrong(own)
            for finding in findings:
                own.suspected.setdefault(finding.name)
            for name in suspects[number].answers:
                result = own.parts[self.case.name, name]
                result.explain(name, [finding for finding in findings if name in finding.parts])

    def _is_wrong(self, own: _Ledger) -> bool:
        return any(not own.parts[self.case.name, name].passed for name in self.asked)


def _own_rounding(expected: Array, dtype: str) -> Array:
    """How far each number moves where nothing but the result itself is rounded to ``dtype``."""
    return 1.01 * UNIT_ROUNDOFF[dtype] * np.nan_to_num(np.abs(expected), posinf=0.0) + 2.0**-24


def _beyond(found: Measured, bound: Array, shape: tuple[int, ...]) -> Array:
    """[attempts] bool: whether any number is further off than ``bound``, which broadcasts to ``shape``."""
    return np.asarray((found.errors > np.broadcast_to(bound, shape).reshape(len(found.errors), -1)).any(1))


def _of(array: Array, index: Array) -> Array:
    """[students or 1, …] → [attempts or 1, …]."""
    if len(array) == 1 or (len(array) == len(index) and bool((index == np.arange(len(index))).all())):
        return array if len(array) != 1 else np.broadcast_to(array, (len(index), *array.shape[1:]))
    return array[index]


def _row_sums(actual: Array, expected: Array) -> Array:
    """The largest error [attempts] of the sum of a row of weights."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(actual.sum(-1) - expected.sum(-1))
    return np.asarray(np.nan_to_num(apart, nan=np.inf).reshape(len(actual), -1).max(1, initial=0.0))


def _reason(found: Measured, row: int, *, leaks: bool) -> str:
    if found.nan_count[row] or found.infinite[row]:
        return "mask_leak" if leaks and not found.nan_count[row] else "non_finite"
    return "mask_leak" if leaks else "numeric_mismatch"


# -- traces --------------------------------------------------------------------------------------------------


def _grade_trace(
    problem: Problem,
    case: Case,
    attempts: Sequence[Attempt],
    ledger: Sequence[_Ledger],
    checkpoint: Callable[[], None],
) -> None:
    """Integers, compared exactly."""
    if case.trace is None:
        return
    known: dict[int, tuple[Results, Results]] = {}
    for attempt, own in zip(attempts, ledger, strict=True):
        seed = attempt.seeds[case.name] if case.is_drawn else 0
        if seed not in known:
            checkpoint()
            inputs = case.trace.inputs(seed)
            known[seed] = inputs, case.trace.expected(inputs)
        inputs, expected = known[seed]
        wrong, given = {}, {}
        for part in problem.answers:
            answer = attempt.answers.get(case.name, part.name)
            result = own.parts[case.name, part.name] = _trace_part(
                case, part.name, answer, expected[part.name]
            )
            if answer is None or answer.reason is not None:
                continue
            if result.passed or result.reason in COMPARABLE:
                given[part.name] = answer.array.astype(np.float64)
                if not result.passed:
                    wrong[part.name] = result
        if wrong:
            checkpoint()
            findings = _explained(problem.kind, case.trace, inputs, given, list(wrong))
            for name, result in wrong.items():
                result.explain(name, [finding for finding in findings if name in finding.parts])


def _explained(
    kind: str,
    trace: traces.Trace,
    inputs: Mapping[str, Array],
    given: Mapping[str, Array],
    wrong: Sequence[str],
) -> list[Finding]:
    """The readings that give exactly what was handed in, right and wrong."""
    found = []
    for reading in trace_mistakes.READINGS[kind]:
        answers = reading.answers(trace, inputs) or {}
        told = [name for name in given if name in answers]
        parts = tuple(name for name in told if name in wrong)
        if parts and all(trace_mistakes.same(name, given[name], answers[name]) for name in told):
            found.append(Finding(reading.code, reading.name, reading.says, 0.0, parts))
    return ranked(found)


def _trace_part(case: Case, name: str, answer: Answer | None, expected: Array) -> PartResult:
    if answer is None:
        return PartResult.unread("missing", f"No {name} was handed in for case {case.name}.")
    if answer.reason is not None:
        return PartResult.unread(answer.reason, f"{name} could not be read: {answer.detail}.")
    array = answer.array
    if array.dtype.kind == "f":
        if not bool(np.isfinite(array).all()):
            sentence = f"{name} holds numbers that are not finite; it is made of integers."
            return PartResult.unread("non_finite", sentence)
        if not bool((array == np.floor(array)).all()):
            return PartResult.unread("dtype_mismatch", f"{name} holds fractions; it is made of integers.")
    if not array.size and not expected.size:
        array = array.reshape(expected.shape)
    array = traces.padded(name, array.astype(np.float64), expected)
    if array.shape != expected.shape:
        return PartResult.unread(
            "shape_mismatch",
            f"{name} has shape {list(answer.array.shape)}; it should have shape {list(expected.shape)}.",
        )
    return PartResult.of_integers(name, array, expected.astype(np.float64), traces.AXES[name])


# -- properties across cases ---------------------------------------------------------------------------------


def _compare_futures(problem: Problem, attempt: Attempt, own: _Ledger) -> None:
    """Whether an output changed although only a key changed that its query may not see."""
    for case in problem.cases:
        if case.made_by != "future_keys_do_not_matter" or case.base is None or case.spec is None:
            continue
        one, other = own.fitted.get((case.base, "out")), own.fitted.get((case.name, "out"))
        result = own.parts.get((case.name, "out"))
        if one is None or other is None or result is None or result.passed:
            continue
        seed = attempt.seeds[case.name]
        arrays = {name: array[None] for name, array in case.canonical.items()} | drawn_inputs(case, [seed])
        seen = allowed(resolve(case.spec, arrays))
        if seen is None:
            continue
        blind = ~np.broadcast_to(seen, (1, *answer_shape(case.spec, "mask")))[0, ..., -1]
        with np.errstate(invalid="ignore", over="ignore"):
            moved = np.nan_to_num(np.abs(one - other), nan=np.inf).max(-1)
        largest = float(np.abs(one[np.isfinite(one)]).max(initial=0.0)) or 1.0
        if blind.any() and float(moved[blind].max()) > 1e-2 * largest:
            where = np.unravel_index(int(np.where(blind, moved, -1.0).argmax()), moved.shape)
            b, h, i = (int(x) for x in where)
            result.reason = "mask_leak"
            result.sentences.append(
                f"The last key, which query {i} (batch {b}, head {h}) may not see, was changed between cases "
                f"{case.base} and {case.name}, and your output there moved by {moved[where]:.3g}."
            )
