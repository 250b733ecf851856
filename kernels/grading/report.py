"""What a judgement says: verdict, score, figures, sentences from which a student learns, and one test for
each answer of each case in Gradescope's names.

A *part* is one answer of one case. The figures at the top are those of the part that decides: the first of
the most basic kind that is wrong, or else the one that is furthest off in terms of what it may be.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kernels.arrays import Array
from kernels.grading.fits import MAX_FOUND, Finding, ranked
from kernels.grading.hypotheses import HINTS, LOW_PRECISION
from kernels.grading.measure import WORST, Measured, figure
from kernels.grading.model import Case, Problem, Tolerance
from kernels.spec.problems import all_of

# The most basic first: what is wrong in such a way says nothing of the rest.
REASONS = ("dtype_mismatch", "shape_mismatch", "non_finite", "mask_leak", "numeric_mismatch")
MISSING = "missing"
MAX_NAMED = 8  # answers, in one note
AXES = {
    "out": ("batch", "head", "query", "dim"),
    "lse": ("batch", "head", "query"),
    "dq": ("batch", "head", "query", "dim"),
    "dk": ("batch", "head", "key", "dim"),
    "dv": ("batch", "head", "key", "dim"),
}
PAIRS = ("batch", "head", "query", "key")  # of everything else
DISTINCT = 1e-3  # how near a finite number is to a round one that stands for −inf


@dataclass
class PartResult:
    """One answer of one case, judged. ``reason`` is None where it passed."""

    passed: bool
    reason: str | None
    numerics: dict[str, Any] | None
    sentences: list[str]
    severity: float = 0.0  # the largest error in terms of what is allowed
    findings: list[Finding] = field(default_factory=list)
    is_low: bool = False  # right, and less precise than the problem's dtype
    is_doubtful: bool = False  # right as far as so low a precision tells
    dtype: str = "float32"

    @classmethod
    def unread(cls, reason: str, sentence: str) -> PartResult:
        """Nothing to compare."""
        return cls(False, reason, None, [sentence], math.inf)

    @classmethod
    def measured(
        cls,
        name: str,
        found: Measured,
        row: int,
        shape: tuple[int, ...],
        *,
        passed: bool,
        reason: str,
        dtype: str,
        tolerance: Tolerance,
        own: str,
        reference_err: float,
        row_sum_err: float | None,
        is_doubtful: bool,
        broken: str | None,
        worst: int,
    ) -> PartResult:
        """Numbers compared with what is expected."""
        cells = [_cell(found, row, i, shape, AXES.get(name, PAIRS)) for i in found.worst(row, worst)]
        atol, rtol = float(found.atol[row]), 0.0
        if tolerance.policy == "allclose":
            atol, rtol = tolerance.of(dtype, own)
        total = found.actual.shape[1]
        numerics = {
            "max_abs_err": figure(found.max_abs[row]),
            "max_rel_err": figure(found.max_rel[row]),
            "max_ulp": figure(found.max_ulp[row]),
            "rmse": figure(found.rmse[row]),
            "mismatched": int(found.mismatched[row]),
            "total": total,
            "mismatch_ratio": float(found.mismatched[row]) / total,
            "atol": figure(atol),
            "rtol": rtol,
            "dtype": dtype,
            "reference_err": figure(reference_err),
            "nan_count": int(found.nan_count[row]),
            "row_sum_err": None if row_sum_err is None else figure(row_sum_err),
            "worst": cells,
        }
        sentences = [] if passed else _what_is_wrong(name, found, row, cells, numerics)
        if broken is not None:
            sentences = [broken]
        return cls(
            passed,
            None if passed else reason,
            numerics,
            sentences,
            float(found.severity[row]),
            is_doubtful=is_doubtful,
            dtype=dtype,
        )

    @classmethod
    def of_mask(cls, got: Array, expected: Array) -> PartResult:
        """A mask, compared exactly."""
        differ, leaks = got != expected, bool((got & ~expected).any())
        found = cls._exact(got.astype(np.float64), expected.astype(np.float64), PAIRS)
        if not found.passed:
            said = f"{int(differ.sum()):,} of {differ.size:,} places of the mask are wrong"
            found.sentences = [said + (": a query may see a key that is forbidden." if leaks else ".")]
            found.reason = "mask_leak" if leaks else "numeric_mismatch"
        return found

    @classmethod
    def of_integers(cls, name: str, got: Array, expected: Array, axes: tuple[str, ...]) -> PartResult:
        """Integers, compared exactly."""
        found = cls._exact(got, expected, axes)
        if not found.passed:
            differ = got != expected
            where = np.unravel_index(int(differ.argmax()), got.shape)
            place = ", ".join(f"{axis} {int(i)}" for axis, i in zip(axes, where, strict=True))
            found.sentences = [
                f"{int(differ.sum()):,} of {got.size:,} numbers of {name} are wrong; the first is at "
                f"{place}: yours is {got[where]:.0f}, right is {expected[where]:.0f}."
            ]
        return found

    @classmethod
    def _exact(cls, got: Array, expected: Array, axes: tuple[str, ...]) -> PartResult:
        error = np.abs(got - expected)
        wrong, most = int(np.count_nonzero(error)), float(error.max(initial=0.0))
        cells = []
        for index in np.argwhere(error)[:WORST]:
            at = tuple(index)
            cells.append(
                {
                    "index": {axis: int(i) for axis, i in zip(axes, index, strict=True)},
                    "actual": figure(got[at]),
                    "expected": figure(expected[at]),
                    "abs_err": figure(error[at]),
                    "allowed": 0.0,
                }
            )
        largest = float(np.abs(expected).max(initial=0.0))
        numerics = {
            "max_abs_err": figure(most),
            "max_rel_err": figure(most / largest if largest else most),
            "max_ulp": figure(most),
            "rmse": figure(math.sqrt(float(np.mean(np.square(error)))) if error.size else 0.0),
            "mismatched": wrong,
            "total": int(got.size),
            "mismatch_ratio": wrong / max(got.size, 1),
            "atol": 0.0,
            "rtol": 0.0,
            "dtype": "int64",
            "reference_err": 0.0,
            "nan_count": 0,
            "row_sum_err": None,
            "worst": cells,
        }
        return cls(not wrong, "numeric_mismatch" if wrong else None, numerics, [], float(wrong))

    def explain(self, name: str, findings: Sequence[Finding]) -> None:
        """Keep what was found of answer ``name``. What passed, but only for want of precision, is wrong where
        a mistake gives its very numbers, rounded."""
        if self.passed:
            findings = [finding for finding in findings if name in finding.exact]
            if not findings:
                return
            self.passed, self.reason, self.is_low = False, "numeric_mismatch", False
            self.sentences.append(
                f"In {self.dtype} these numbers could be right, but they are exactly those of a mistake."
            )
        self.findings = list(findings)
        if findings and findings[0].leaks and self.reason == "numeric_mismatch":
            self.reason = "mask_leak"

    def output(self) -> str:
        """The sentences for a student."""
        if self.passed:
            return _praise(self)
        said = list(self.sentences)
        if self.findings:
            best = self.findings[0]
            intro = "Your answer is what one gets if" if best.code != LOW_PRECISION else "Your answer:"
            said.append(f"{intro} {best.says} (residual {best.residual:.1g}).")
            said += [HINTS[code] for code in best.code.split("+")]
        return " ".join(said)


def _praise(part: PartResult) -> str:
    if part.numerics is None:
        return "Right."
    figures = part.numerics
    if figures["dtype"] == "int64":
        return f"Right: all {figures['total']:,} numbers."
    error, atol, own = (_short(figures[name]) for name in ("max_abs_err", "atol", "reference_err"))
    said = (
        f"Right: the largest error is {error}, where up to {atol} is allowed; a right computation in "
        f"{figures['dtype']} itself errs by {own} here."
    )
    if part.is_low:
        said += " It is less precise than the problem's dtype (low_precision)."
    return said


def _cell(
    found: Measured, row: int, number: int, shape: tuple[int, ...], axes: tuple[str, ...]
) -> dict[str, Any]:
    index = np.unravel_index(number, shape)
    return {
        "index": {axis: int(i) for axis, i in zip(axes, index, strict=True)},
        "actual": figure(found.actual[row, number]),
        "expected": figure(found.expected[row, number]),
        "abs_err": figure(found.errors[row, number]),
        "allowed": figure(found.allowed[row, number]),
    }


def _what_is_wrong(
    name: str, found: Measured, row: int, cells: Sequence[Mapping[str, Any]], numerics: Mapping[str, Any]
) -> list[str]:
    said, actual, expected = [], found.actual[row], found.expected[row]
    if found.nan_count[row]:
        empty = (expected == 0) | np.isneginf(expected)
        is_masked = bool((np.isnan(actual) & empty).any())
        said.append(
            f"{int(found.nan_count[row]):,} of {numerics['total']:,} numbers of {name} are NaN."
            + (" A query that sees no key has output and weights 0 and LSE −inf." if is_masked else "")
        )
    elif found.infinite[row]:
        said.append(_about_infinities(name, found, row))
    if found.is_constant[row]:
        said.append(f"All numbers of {name} are {actual[0]:.4g}; the right ones differ.")
    if cells and not found.nan_count[row]:
        cell = cells[0]
        place = ", ".join(f"{axis} {i}" for axis, i in cell["index"].items())
        yours, right, most = (_short(cell[each]) for each in ("actual", "expected", "allowed"))
        said.append(
            f"{numerics['mismatched']:,} of {numerics['total']:,} numbers of {name} are further from the "
            f"right ones than {numerics['dtype']} explains. The worst is at {place}: yours is {yours}, right "
            f"is {right}, and {most} is allowed."
        )
    return said


def _about_infinities(name: str, found: Measured, row: int) -> str:
    actual, expected = found.actual[row], found.expected[row]
    sentinels = np.isneginf(expected) & np.isfinite(actual) & (actual < -1e4)
    if sentinels.any():
        value = float(actual[sentinels][0])
        return f"{name} holds {value:.4g} where −inf is right: a finite number in its place loses rows."
    missing = np.isneginf(expected) & ~np.isneginf(actual)
    if missing.any():
        return f"{int(missing.sum()):,} numbers of {name} should be −inf: no key is seen there."
    return f"{int(np.isinf(actual).sum()):,} numbers of {name} are infinite; none of those should be."


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else str(value)


# -- the whole -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judgement:
    """One attempt, judged."""

    verdict: str  # "accepted" | "wrong_answer" | "rejected"
    reason: str | None
    score: float
    max_score: float
    tests: tuple[dict[str, Any], ...]
    numerics: dict[str, Any] | None
    hypotheses: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, by the names of the contract."""
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "score": self.score,
            "max_score": self.max_score,
            "tests": [dict(test) for test in self.tests],
            "numerics": self.numerics,
            "hypotheses": [dict(each) for each in self.hypotheses],
            "notes": list(self.notes),
        }

    def seen_by(self, visibilities: Collection[str]) -> Judgement:
        """As those see it to whom only tests of these visibilities are shown: the figures, the reason and the
        hypotheses are those of the tests that they see. The verdict and the score are of all."""
        kept = tuple(test for test in self.tests if test["visibility"] in visibilities)
        if len(kept) == len(self.tests):
            return self
        deciding = _deciding(kept)
        return replace(
            self,
            tests=kept,
            reason=_overall_reason(kept) if self.verdict == "wrong_answer" else self.reason,
            numerics=deciding["extra_data"]["numerics"] if deciding else None,
            hypotheses=tuple(_summed(kept)),
        )


def judgement(
    problem: Problem, parts: Mapping[tuple[str, str], PartResult], notes: Iterable[str]
) -> Judgement:
    """Everything put together."""
    tests, scores = [], []
    for number, case in enumerate(problem.cases, 1):
        for place, part in enumerate(problem.answers, 1):
            result = parts[case.name, part.name]
            most = case.points * problem.share(part)
            scores.append(most if result.passed else 0.0)
            where = str(number) if len(problem.answers) == 1 else f"{number}.{place}"
            tests.append(_test(case, part.name, where, most, result))
    is_right = bool(tests) and all(test["status"] == "passed" for test in tests)
    max_score = problem.max_score
    score = max_score if is_right else min(max(math.fsum(scores), 0.0), max_score)
    verdict, reason = "accepted", None
    if not is_right:
        is_empty = all(test["extra_data"]["reason"] == MISSING for test in tests)
        verdict = "rejected" if is_empty else "wrong_answer"
        reason = "no_answers" if is_empty else _overall_reason(tests)
    deciding = _deciding(tests)
    said = [*notes, *_missing(parts)]
    if any(result.is_low and result.passed for result in parts.values()):
        said.insert(0, LOW_PRECISION)
    return Judgement(
        verdict,
        reason,
        score,
        max_score,
        tuple(tests),
        deciding["extra_data"]["numerics"] if deciding else None,
        tuple(_summed(tests)),
        tuple(said),
    )


def _missing(parts: Mapping[tuple[str, str], PartResult]) -> list[str]:
    """The note on what is asked for and was not handed in, in the names that it has in a file."""
    found = [f"{case}/{name}" for (case, name), result in parts.items() if result.reason == MISSING]
    if not found:
        return []
    more = len(found) - MAX_NAMED
    return [f"Not handed in: {all_of(found[:MAX_NAMED])}{f' and {more} more' if more > 0 else ''}."]


def _test(case: Case, name: str, number: str, most: float, result: PartResult) -> dict[str, Any]:
    hypotheses = _as_codes(result.findings)
    tags = [name, *([result.reason] if result.reason else []), *(each["code"] for each in hypotheses[:1])]
    numerics = None
    if result.numerics is not None:
        numerics = {"case": case.name, "answer": name, **result.numerics}
    return {
        "name": f"{case.name}: {name}",
        "number": number,
        "score": most if result.passed else 0.0,
        "max_score": most,
        "status": "passed" if result.passed else "failed",
        "output": result.output(),
        "output_format": "text",
        "tags": tags,
        "visibility": case.visibility,
        "extra_data": {
            "case": case.name,
            "answer": name,
            "reason": result.reason,
            "severity": figure(result.severity),
            "numerics": numerics,
            "hypotheses": hypotheses,
        },
    }


def _as_codes(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Each code once; two mistakes at once are both named."""
    found: dict[str, dict[str, Any]] = {}
    for finding in findings:
        for code in finding.code.split("+"):
            found.setdefault(code, {"code": code, "residual": finding.residual})
    return list(found.values())[:MAX_FOUND]


def _summed(tests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The hypotheses of all tests: what explains most of them first."""
    merged: dict[str, list[tuple[str, float]]] = {}
    for test in tests:
        for each in test["extra_data"]["hypotheses"]:
            merged.setdefault(each["code"], []).append((test["name"], each["residual"]))
    findings = [
        Finding(code, code, "", max(residual for _, residual in where), tuple(name for name, _ in where))
        for code, where in merged.items()
    ]
    return _as_codes(ranked(findings))


def _overall_reason(tests: Sequence[Mapping[str, Any]]) -> str | None:
    """The most basic reason; that something is missing counts only where nothing else is wrong."""
    found = {test["extra_data"]["reason"] for test in tests} - {None}
    return next((reason for reason in REASONS if reason in found), "shape_mismatch" if found else None)


def _deciding(tests: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The test whose figures stand for all."""
    with_figures = [test for test in tests if test["extra_data"]["numerics"] is not None]
    if not with_figures:
        return None
    failed = [test for test in with_figures if test["status"] == "failed"]
    if failed:
        return min(failed, key=lambda test: REASONS.index(test["extra_data"]["reason"]))
    return max(with_figures, key=lambda test: float(test["extra_data"]["severity"]))
