"""What was done wrong: the readings of every mistake, compared with answers that are not right.

An answer is first compared on a few queries, where that says enough; readings that are near it there are then
computed in full. What fits, and which of several wins, ``kernels.grading.fits`` says. Where none fits, pairs
are tried: each edit with each main reading, the simplest first, at most ``PAIRS``. Where nothing explains a
case, pairs are not tried on the attempt's others, and after ``IN_VAIN`` cases nothing is. What an answer gets
depends on its own attempt alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernels.arrays import Array, largest
from kernels.grading.fits import (
    FLOOR,
    MOST,
    Finding,
    blind_rows,
    distances,
    fit,
    in_range,
    is_exact,
    ranked,
    residual_of,
    within_share,
)
from kernels.grading.hypotheses import LOW_PRECISION, rank, readings
from kernels.grading.pipeline import Results, Setting, allowed, as_answers, attend
from kernels.grading.readings import Reading, compose, evaluate
from kernels.grading.tolerance import allowed_errors
from kernels.spec.results import GRADIENTS

NEAR = {"float64": 1e-2, "float32": 2e-2, "float16": 1.5e-1, "bfloat16": 4e-1}  # on a few queries
QUERIES, QUERIES_OF_PAIRS = 6, 2
CANDIDATES = 12  # readings that are computed in full, of each answer
PAIRS, IN_VAIN = 400, 3
FORBIDDEN = 1e-12  # a weight that is none
NEARLY = 0.3  # how far off, on average, what is right but for its precision may be

# Mistakes that let forbidden keys be seen.
LEAKING = frozenset(
    {
        "no_mask", "mask_added_as_01", "mask_inverted", "causal_top_left", "causal_bottom_right",
        "strict_causal", "window_off_by_one", "softcap_after_mask",
    }
)  # fmt: skip


@dataclass
class Suspect:
    """One attempt whose answers to a case are wrong: those that are, canonical float64 (mask: bool)."""

    attempt: int
    student: int  # its place among the students of the setting
    answers: dict[str, Array]
    dtypes: dict[str, str]
    is_wrong: bool = False  # or else only doubtful: right as far as its precision tells


class Diagnosis:
    """One case of some students, and the suspects among them."""

    def __init__(
        self,
        setting: Setting,
        right: Results,
        asked: Collection[str],
        checkpoint: Callable[[], None] = lambda: None,
    ) -> None:
        self.setting, self.right, self.asked, self.checkpoint = setting, right, asked, checkpoint
        self.gradients = bool(GRADIENTS.keys() & set(asked))
        self.answers = as_answers(setting, right)
        self._readings: list[Reading] | None = None

    @property
    def readings(self) -> list[Reading]:
        """Of this setting, made when first needed."""
        if self._readings is None:
            self._readings = readings(self.setting)
        return self._readings

    def find(
        self,
        suspects: Sequence[Suspect],
        before: Mapping[int, Sequence[str]],
        in_vain: Mapping[int, int],
    ) -> dict[int, list[Finding]]:
        """Of each attempt what fits, best first. ``before``: the names of readings that fitted the attempt's
        answers to other cases, which are tried first. ``in_vain``: how many cases of it nothing fitted: after
        one no pairs are tried, and after ``IN_VAIN`` nothing."""
        found: dict[int, list[Finding]] = {}
        by_name = {reading.name: reading for reading in self.readings}
        known = self._tried(
            [(s, [by_name[n] for n in before.get(s.attempt, ()) if n in by_name]) for s in suspects]
        )
        left = [
            s
            for s in suspects
            if in_vain[s.attempt] < IN_VAIN and not _explains_all(known.get(s.attempt, ()), s)
        ]
        fresh = self._tried(self._near(left, self.readings, QUERIES))
        for suspect in suspects:
            found[suspect.attempt] = _merged(known.get(suspect.attempt, []), fresh.get(suspect.attempt, []))
        left = [s for s in left if s.is_wrong and not found[s.attempt]]
        for suspect, finding in zip(left, self._low_precision(left), strict=True):
            found[suspect.attempt] += finding
        left = [s for s in left if not found[s.attempt] and not in_vain[s.attempt]]
        if left:
            pairs = list(self._pairs())
            again = self._tried(_named(left, before, {reading.name: reading for reading in pairs}))
            rest = [s for s in left if not again.get(s.attempt)]
            again |= self._tried(self._near(rest, pairs, QUERIES_OF_PAIRS))
            for suspect in left:
                found[suspect.attempt] = again.get(suspect.attempt, [])
        return {attempt: ranked(each) for attempt, each in found.items()}

    # -- a few queries -------------------------------------------------------------------------------------

    def _near(
        self, suspects: Sequence[Suspect], tried: Sequence[Reading], count: int
    ) -> list[tuple[Suspect, list[Reading]]]:
        """The readings that are near the answer of each suspect: to one wrong result, on a few queries where
        that can be computed alone."""
        near: list[tuple[Suspect, list[Reading]]] = []
        for part in self.asked:
            group = [s for s in suspects if next(iter(s.answers)) == part]
            if group:
                near += self._near_part(group, part, tried, count)
        return near

    def _near_part(
        self, suspects: Sequence[Suspect], part: str, tried: Sequence[Reading], count: int
    ) -> list[tuple[Suspect, list[Reading]]]:
        students = np.array([s.student for s in suspects])
        whole = self._of(students)
        some = whole
        rows: tuple[int, ...] | None = None
        if part not in ("dk", "dv"):
            rows = _spread_rows(self.setting.spec.q_len, count)
            some = whole.at(rows)
        answers = np.stack([s.answers[part] for s in suspects])
        cut = answers if rows is None else _rows_of(answers, part, rows)
        base, base_whole = attend(some, gradients=self.gradients), None
        base_lse = base["lse"]
        limits = np.array([NEAR[s.dtypes[part]] for s in suspects])
        share = np.array([MOST[s.dtypes[part]] for s in suspects])
        floor = np.array([FLOOR[s.dtypes[part]] for s in suspects])
        ranges = np.array([largest(s.dtypes[part]) for s in suspects])
        scores: list[tuple[Array, Reading]] = []
        for reading in tried:
            if part in reading.silent:
                continue
            self.checkpoint()
            if rows is not None and reading.by_rows:
                given = evaluate(reading, some, base, gradients=self.gradients)
                target = cut
            else:
                if base_whole is None:
                    base_whole = {name: _taken(x, students) for name, x in self.right.items()}
                given = evaluate(reading, whole, base_whole, gradients=self.gradients)
                target = answers
            if part not in given or given[part].shape[1:] != target.shape[1:]:
                continue
            blind = blind_rows(given, base_lse if target is cut else base_whole, part)
            apart = distances(target, in_range(given[part], part, ranges), part, floor, blind)
            scores.append((within_share(apart, np.where(share < 1.0, 0.6, 1.0)), reading))
        near = []
        for place, suspect in enumerate(suspects):
            close = [
                (float(score[place]), reading) for score, reading in scores if score[place] <= limits[place]
            ]
            close.sort(key=lambda pair: pair[0])
            near.append((suspect, [reading for _, reading in close[:CANDIDATES]]))
        return near

    def _of(self, students: Array) -> Setting:
        if self.setting.students == len(students) and bool((students == np.arange(len(students))).all()):
            return self.setting
        return self.setting.of(students)

    # -- in full ---------------------------------------------------------------------------------------------

    def _tried(self, tries: Sequence[tuple[Suspect, Sequence[Reading]]]) -> dict[int, list[Finding]]:
        """The readings of each suspect that fit in full."""
        groups: dict[str, tuple[Reading, list[Suspect]]] = {}
        for suspect, chosen in tries:
            for reading in chosen:
                groups.setdefault(reading.name, (reading, []))[1].append(suspect)
        found: dict[int, list[Finding]] = {}
        for reading, suspects in groups.values():
            self.checkpoint()
            for suspect, finding in self._fitting(reading, suspects):
                found.setdefault(suspect.attempt, []).append(finding)
        return found

    def _fitting(self, reading: Reading, suspects: Sequence[Suspect]) -> Iterator[tuple[Suspect, Finding]]:
        students = np.array([s.student for s in suspects])
        setting = self._of(students)
        right = {name: _taken(x, students) for name, x in self.right.items()}
        given = evaluate(reading, setting, right, gradients=self.gradients)
        leaks = self._leaks(reading, given, setting)
        for place, suspect in enumerate(suspects):
            parts, residuals, exact = [], [], []
            for part, answer in suspect.answers.items():
                if part not in given or given[part].shape[1:] != answer.shape:
                    continue
                blind = blind_rows(_one(given, place), right["lse"][_at(right["lse"], place)], part)
                ours = given[part][_at(given[part], place)]
                theirs = self.answers[part][_at(self.answers[part], suspect.student)]
                residual = fit(answer, ours, theirs, part=part, dtype=suspect.dtypes[part], blind=blind)
                if residual is not None:
                    parts.append(part)
                    residuals.append(residual)
                    if is_exact(answer, ours, theirs, part, suspect.dtypes[part]):
                        exact.append(part)
            if parts:
                residual, leak = max(residuals), bool(leaks[_at(leaks, place)])
                finding = Finding(
                    reading.code, reading.name, reading.says, residual, tuple(parts), leak, tuple(exact)
                )
                yield suspect, finding

    def _leaks(self, reading: Reading, given: Results, setting: Setting) -> Array:
        """[students]: whether the reading gives weight to a key that is forbidden."""
        seen = allowed(setting)
        if seen is None or "weights" not in given or LEAKING.isdisjoint(reading.code.split("+")):
            return np.zeros(setting.students, dtype=np.bool_)
        shown = np.where(seen, 0.0, np.abs(given["weights"])) > FORBIDDEN
        found = shown.reshape(len(shown), -1).any(1)
        return np.asarray(np.broadcast_to(found, (setting.students,)))

    # -- precision, and pairs --------------------------------------------------------------------------------

    def _low_precision(self, suspects: Sequence[Suspect]) -> list[list[Finding]]:
        """Whether answers are as near as a right computation in float16, or else in bfloat16, would be."""
        found: list[list[Finding]] = [[] for _ in suspects]
        near = [place for place, suspect in enumerate(suspects) if self._is_near(suspect)]
        for place, finding in zip(near, self._precisions([suspects[place] for place in near]), strict=True):
            found[place] = finding
        return found

    def _is_near(self, suspect: Suspect) -> bool:
        """Whether low precision could explain wrong answers at all: they are nearly right."""
        for part, answer in suspect.answers.items():
            if part == "mask" or not bool(np.isfinite(answer).any()):
                return False
            expected = self.answers[part][_at(self.answers[part], suspect.student)]
            both = np.isfinite(answer) & np.isfinite(expected)
            with np.errstate(over="ignore", invalid="ignore"):
                error = float(np.abs(answer - expected)[both].mean()) if both.any() else np.inf
                size = float(np.abs(expected)[both].mean()) if both.any() else 0.0
            if not error <= NEARLY * size:
                return False
        return True

    def _precisions(self, suspects: Sequence[Suspect]) -> list[list[Finding]]:
        found: list[list[Finding]] = [[] for _ in suspects]
        if not suspects:
            return found
        students = np.array([s.student for s in suspects])
        setting = self._of(students)
        right = {name: _taken(x, students) for name, x in self.right.items()}
        names = [name for name in self.asked if name != "mask"]
        for dtype in ("float32", "float16", "bfloat16"):
            bounds = allowed_errors(setting, right, dtype, names)
            for place, suspect in enumerate(suspects):
                if found[place]:
                    continue
                fits = {}
                for part, answer in suspect.answers.items():
                    if part == "mask":
                        break
                    expected = self.answers[part][_at(self.answers[part], suspect.student)]
                    bound = bounds[part][_at(bounds[part], place)]
                    with np.errstate(invalid="ignore"):
                        error = np.where(answer == expected, 0.0, np.abs(answer - expected))
                    if np.isnan(error).any() or not bool((error <= bound).all()):
                        break
                    fits[part] = residual_of(error, expected)
                else:
                    says = f"it is right, but only to the precision of {dtype}"
                    finding = Finding(
                        LOW_PRECISION, LOW_PRECISION, says, max(fits.values(), default=0.0), tuple(fits)
                    )
                    found[place].append(finding)
        return found

    def _pairs(self) -> Iterator[Reading]:
        """Two main readings together, of different codes, the first of which is an edit."""
        main = [reading for reading in self.readings if reading.is_main]
        edits = [reading for reading in main if reading.finish is None]
        pairs = [
            (one, other)
            for one in edits
            for other in main
            if other.by_rows
            and other.code != one.code
            and (other.finish is not None or rank(one.code) < rank(other.code))
        ]
        pairs.sort(key=lambda pair: sum(rank(each.code)[1] for each in pair))
        for one, other in pairs[:PAIRS]:
            yield compose(one, other)


# -- some students, some queries -----------------------------------------------------------------------------


def _spread_rows(n: int, count: int) -> tuple[int, ...]:
    """Queries from first to last; the last ones see most under a causal mask."""
    if n <= count:
        return tuple(range(n))
    return tuple(sorted({round(i * (n - 1) / (count - 1)) for i in range(count)}))


def _rows_of(array: Array, part: str, rows: tuple[int, ...]) -> Array:
    return array[..., list(rows)] if part == "lse" else array[..., list(rows), :]


def _taken(array: Array, students: Array) -> Array:
    return array if len(array) == 1 and len(students) != 1 else array[students if len(array) > 1 else [0]]


def _at(array: Array, place: int) -> int:
    """The place of a student in an array that may be the same for all."""
    return place if len(array) > 1 else 0


def _one(given: Mapping[str, Array], place: int) -> Results:
    return {name: array[_at(array, place)] for name, array in given.items()}


def _named(
    suspects: Sequence[Suspect], names: Mapping[int, Sequence[str]], known: Mapping[str, Reading]
) -> list[tuple[Suspect, list[Reading]]]:
    """The readings that each suspect's attempt has fitted before."""
    return [
        (suspect, [known[name] for name in names.get(suspect.attempt, ()) if name in known])
        for suspect in suspects
    ]


def _explains_all(found: Sequence[Finding], suspect: Suspect) -> bool:
    return any(len(finding.parts) == len(suspect.answers) for finding in found)


def _merged(first: Sequence[Finding], second: Sequence[Finding]) -> list[Finding]:
    return list({finding.name: finding for finding in [*second, *first]}.values())
