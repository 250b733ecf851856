"""What a problem is: plain frozen data. ``kernels.grading.problem`` reads it from JSON.

A problem is one computation (``spec``), the results that are asked for (``answer``), and the cases in which
they are: shapes whose inputs are drawn for everybody, for each student or for each submission, or explicit
inputs. Of kind ``attention`` the computation is a spec as runs have it; ``paging`` and ``speculative`` are
about traces of serving (``kernels.grading.traces``).

The points of a case are shared by its answers in proportion to theirs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kernels.arrays import Array
from kernels.bounds import UNIT_ROUNDOFF
from kernels.grading.traces import Trace
from kernels.spec.model import Attention, RunSpec

# From the most precise on.
PRECISION = tuple(sorted(UNIT_ROUNDOFF, key=lambda dtype: UNIT_ROUNDOFF[dtype]))


def coarser(one: str, other: str) -> str:
    """The less precise of two dtypes."""
    return max(one, other, key=PRECISION.index)


@dataclass(frozen=True)
class Part:
    """One result that is asked for, and its share of the points of every case."""

    name: str
    points: float = 1.0


@dataclass(frozen=True)
class Tolerance:
    """How far an answer may be off. ``error_bound``: as far as rounding takes a right computation
    (``kernels.grading.tolerance``); ``allclose``: atol + rtol·|expected|. A ``per_dtype`` beside
    ``error_bound`` is allowed as well, where it is more."""

    policy: str = "error_bound"
    per_dtype: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # (atol, rtol)
    max_mismatch_ratio: float = 0.0
    nan_policy: str = "reject"
    least_dtype: str | None = None  # answers less precise than this are held to it

    def of(self, dtype: str, own: str) -> tuple[float, float]:
        """(atol, rtol) of answers in a dtype; those of the problem's ``own`` where the author names none."""
        return self.per_dtype.get(dtype) or self.per_dtype[own]

    def to_dict(self) -> dict[str, Any]:
        """As the contract has it."""
        per_dtype = {name: {"atol": atol, "rtol": rtol} for name, (atol, rtol) in self.per_dtype.items()}
        return {
            "policy": self.policy,
            "per_dtype": per_dtype,
            "max_mismatch_ratio": self.max_mismatch_ratio,
            "nan_policy": self.nan_policy,
            "least_dtype": self.least_dtype,
        }


@dataclass(frozen=True)
class Case:
    """One set of inputs. ``body`` is the case as JSON; ``run`` (of kind attention) the computation with the
    shapes as the student gets them, ``spec`` the same with every axis ``[batch, heads, len, dim]``, pages in
    a row; ``trace`` what the other kinds have instead."""

    name: str
    points: float
    visibility: str
    seed_scope: str
    seed: int | None
    distribution: str
    mask: str | None
    body: Mapping[str, Any]
    run: RunSpec | None = None
    spec: RunSpec | None = None
    trace: Trace | None = None
    given: Mapping[str, Array] = field(default_factory=dict, compare=False, repr=False)  # as sent
    canonical: Mapping[str, Array] = field(default_factory=dict, compare=False, repr=False)
    base: str | None = None  # the case from which a property made this one
    made_by: str | None = None  # that property

    @property
    def seed_name(self) -> str:
        """The case whose seed its inputs are drawn from."""
        return self.base or self.name

    @property
    def is_drawn(self) -> bool:
        """Whether anything of its inputs depends on a seed."""
        if self.run is None:
            return self.trace is not None and self.trace.is_drawn
        return any(given.source == "seed" for given in self.run.inputs.values())


@dataclass(frozen=True)
class Problem:
    """A problem, complete; ``cases`` end with those that its properties make."""

    slug: str
    title: str
    statement: str
    hints: tuple[str, ...]
    solution: str
    kind: str
    dtype: str
    attention: Attention
    answers: tuple[Part, ...]
    cases: tuple[Case, ...]
    tolerance: Tolerance
    properties: tuple[str, ...]
    spec_body: Mapping[str, Any]

    def case(self, name: str) -> Case:
        """KeyError where there is none."""
        return {case.name: case for case in self.cases}[name]

    @property
    def max_score(self) -> float:
        """The points of all cases."""
        return math.fsum(case.points for case in self.cases)

    def share(self, part: Part) -> float:
        """The share of a case's points that one answer has."""
        return part.points / math.fsum(each.points for each in self.answers)

    def to_dict(self) -> dict[str, Any]:
        """The normalised body; ``from_dict`` takes it back."""
        return {
            "slug": self.slug,
            "title": self.title,
            "statement": self.statement,
            "hints": list(self.hints),
            "solution": self.solution,
            "kind": self.kind,
            "spec": dict(self.spec_body),
            "answer": [{"name": part.name, "points": part.points} for part in self.answers],
            "cases": [dict(case.body) for case in self.cases if case.made_by is None],
            "tolerance": self.tolerance.to_dict(),
            "properties": list(self.properties),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Problem:
        """Inverse of :meth:`to_dict`."""
        from kernels.grading.problem import parse_problem

        return parse_problem(dict(data))


def held_to_least(problem: Problem, least: str) -> Problem:
    """The problem whose answers are held to the dtype ``least`` where they are less precise."""
    return replace(problem, tolerance=replace(problem.tolerance, least_dtype=least))
