"""The problems of the course, straight from their files: for everybody, without an account or a row."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import yaml
from django.conf import settings

from kernels.grading.cases import make_inputs, seeds_of_number
from kernels.grading.model import Case, Problem
from kernels.grading.problem import parse_problem
from kernels.grading.shapes import sent_shape
from workers.management.commands.load_problems import read

MOST_CELLS = 48  # that somebody would fill in
COURSE: Path = settings.COURSE_DIR


@cache
def slugs() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in COURSE.glob("*.md")))


@dataclass(frozen=True)
class Part:
    """Of the course."""

    title: str
    summary: str
    slugs: tuple[str, ...]


@cache
def parts() -> tuple[Part, ...]:
    """The course in reading order."""
    found = yaml.safe_load((COURSE / "contents.yaml").read_text())
    return tuple(Part(part["title"], part["summary"], tuple(part["problems"])) for part in found)


def place(slug: str) -> int:
    """Where it comes in reading order; last, what the course once had."""
    order = [each for part in parts() for each in part.slugs]
    return order.index(slug) if slug in order else len(order)


@cache
def problem(slug: str) -> Problem:
    """KeyError: there is none of that name."""
    if slug not in slugs():
        raise KeyError(slug)
    return parse_problem(read(COURSE / f"{slug}.md"))


@dataclass(frozen=True)
class Exercise:
    """One case of a problem, to be filled in: numbers in cells."""

    slug: str
    problem: Problem  # with that case alone
    case: Case
    shapes: Mapping[str, tuple[int, int]]  # of each answer: rows, columns

    @property
    def seeds(self) -> dict[str, int]:
        return seeds_of_number(self.problem, 0)

    def inputs(self) -> dict[str, np.ndarray]:
        return make_inputs(self.problem, self.case, self.seeds[self.case.name])


def can_be_filled_in(slug: str, case_name: str) -> bool:
    try:
        exercise(slug, case_name)
    except (KeyError, ValueError):
        return False
    return True


@cache
def exercise(slug: str, case_name: str = "") -> Exercise:
    """A case of a problem of the course (without a name, the first that is shown), as far as its answers are
    few numbers of one head. KeyError, or ValueError: there is no such case, or it is too large to fill in."""
    whole = problem(slug)
    shown = [case for case in whole.cases if case.visibility == "visible" and case.made_by is None]
    case = next((case for case in shown if case.name == (case_name or shown[0].name)), None)
    if case is None:
        raise KeyError(case_name)
    if case.run is None or case.spec is None:
        raise ValueError(f"{slug} asks for no arrays of numbers")
    shapes = {}
    for part in whole.answers:
        *front, columns = sent_shape(part.name, case.run, case.spec)
        rows = front.pop() if front and part.name != "lse" else 1
        if math.prod(front) != 1:
            raise ValueError(f"{slug} has several heads")
        shapes[part.name] = (rows, columns)
    cells = sum(rows * columns for rows, columns in shapes.values())
    if cells > MOST_CELLS:
        raise ValueError(f"{slug} asks for {cells} numbers, which nobody would fill in")
    return Exercise(slug, replace(whole, cases=(case,), properties=()), case, shapes)
