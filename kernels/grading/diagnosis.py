"""What was done wrong: the readings of every mistake, compared with answers that are not right.

An answer is first compared on a few queries, where that says enough; readings that are near it there are then
computed in full. A reading *fits* where it gives the answer within ``FIT``, relative to the largest number of
each row, and is at least ``BETTER`` times nearer than the right computation is, the rounding of the answer
itself left aside. Answers in float16 and bfloat16 are noise in rows whose weights hang in the balance: of
those, ``MOST`` of the numbers have to fit; and what is beyond their range is infinite in them.

Where a reading sees no key at all a program may have written anything (NaN, 0, a mean), so such rows are left
out. Of several readings that fit, the nearest wins; those that are as near, within ``ALIKE``, in the order of
the table. Where none fits, pairs are tried: each edit with each main reading, the simplest first, at most
``PAIRS``. What an answer gets depends on nothing but itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernels.arrays import Array, largest
from kernels.bounds import UNIT_ROUNDOFF
from kernels.grading.hypotheses import LOW_PRECISION, rank, readings
from kernels.grading.pipeline import Results, Setting, allowed, as_answers, attend
from kernels.grading.readings import Reading, compose, evaluate
from kernels.grading.tolerance import allowed_errors
from kernels.spec.results import GRADIENTS

FIT = {"float64": 2e-4, "float32": 2e-3, "float16": 5e-2, "bfloat16": 2e-1}
NEAR = {"float64": 1e-2, "float32": 2e-2, "float16": 1.5e-1, "bfloat16": 4e-1}  # on a few queries
MOST = {"float64": 1.0, "float32": 1.0, "float16": 0.9, "bfloat16": 0.8}
BETTER, ALIKE = 4.0, 8.0
SAME = 1e-6  # a residual below which none is nearer than another
FLOOR = {"float64": 1e-9, "float32": 1e-9, "float16": 1e-3, "bfloat16": 1e-3}  # of a row beside the largest
DISTINCT, EVIDENCE = 4.0, 4  # roundings that are no accident, and rows that show them
QUERIES, QUERIES_OF_PAIRS = 6, 2
CANDIDATES = 12  # readings that are computed in full, of each answer
PAIRS, IN_VAIN = 400, 2
MAX_FOUND = 3
FORBIDDEN = 1e-12  # a weight that is none
LOST = 2.0**-25  # half the smallest float16
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


@dataclass(frozen=True)
class Finding:
    """A reading that fits, ``parts`` of an attempt's wrong answers, with its largest residual: the largest
    difference over the largest number."""

    code: str
    name: str
    says: str
    residual: float
    parts: tuple[str, ...]
    leaks: bool = False
    exact: tuple[str, ...] = ()  # answers that are this to the last bit, in rows enough to be no accident


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
            blind = _blind(given, base_lse if target is cut else base_whole, part)
            apart = _apart(target, _in_range(given[part], part, ranges), part, floor, blind)
            scores.append((_quantile(apart, np.where(share < 1.0, 0.6, 1.0)), reading))
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
                blind = _blind(_one(given, place), right["lse"][_at(right["lse"], place)], part)
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
                    fits[part] = _residual(error, expected)
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


# -- how near ------------------------------------------------------------------------------------------------


def fit(
    answer: Array, given: Array, right: Array, *, part: str, dtype: str, blind: Array | None
) -> float | None:
    """The residual of a reading of one answer, or None where it does not fit; ``blind``: rows left out."""
    if part == "mask":
        return 0.0 if bool((answer == given).all()) else None
    given = _in_range(given[None], part, np.array([largest(dtype)]))[0]
    floor = np.array([FLOOR[dtype]])
    apart = _apart(answer[None], given[None], part, floor, None if blind is None else blind[None])[0]
    kept = ~np.isnan(apart)
    if not kept.any() or float(np.mean(apart[kept] <= FIT[dtype])) < MOST[dtype]:
        return None
    ours, theirs = (_beyond_rounding(answer, x, dtype)[kept] for x in (given, right))
    near, far = (ours.max(), theirs.max()) if MOST[dtype] == 1.0 else (ours.mean(), theirs.mean())
    if not far > 0.0 or near * BETTER > far:
        return None
    with np.errstate(invalid="ignore"):
        error = np.where(answer == given, 0.0, np.abs(answer - given))
    return _residual(error[kept], given[kept])


def is_exact(answer: Array, given: Array, right: Array, part: str, dtype: str) -> bool:
    """Whether an answer is a reading, rounded to its dtype, and in some rows surely not what is right. An LSE
    is one number to a row, which a few roundings take anywhere: of those nothing is said."""
    if part in ("lse", "mask"):
        return False
    if float(_beyond_rounding(answer, given, dtype).max(initial=0.0)) > 0.0:
        return False
    with np.errstate(invalid="ignore"):
        apart = np.abs(answer - right) > DISTINCT * UNIT_ROUNDOFF[dtype] * np.abs(right)
    return bool(np.count_nonzero(apart.any(-1)) >= EVIDENCE)


def _beyond_rounding(answer: Array, given: Array, dtype: str) -> Array:
    """|answer − given|, less what rounding to the dtype makes of it; 1e300 where one is infinite."""
    with np.errstate(invalid="ignore"):
        error = np.where(answer == given, 0.0, np.abs(answer - given))
    own = 1.01 * UNIT_ROUNDOFF[dtype] * np.where(np.isfinite(given), np.abs(given), 0.0) + LOST
    return np.where(np.isfinite(error), np.maximum(error - own, 0.0), 1e300)


def _in_range(given: Array, part: str, ranges: Array) -> Array:
    """What is beyond the largest number [students] of a dtype as an infinity."""
    if part == "mask":
        return given
    most = ranges.reshape(-1, *(1,) * (given.ndim - 1))
    if float(np.max(np.where(np.isfinite(given), np.abs(given), 0.0), initial=0.0)) <= float(most.min()):
        return given
    return np.where(np.abs(given) > most, np.copysign(np.inf, given), given)


def _residual(errors: Array, given: Array) -> float:
    """The largest error over the largest number."""
    size = float(np.abs(given[np.isfinite(given)]).max(initial=0.0))
    error = float(errors[np.isfinite(errors)].max(initial=0.0))
    return error / size if size else error


def _apart(answers: Array, given: Array, part: str, floor: Array, blind: Array | None) -> Array:
    """|answer − given| of each number relative to the largest of its row, [students, …], or to ``floor``
    [students] times the largest of all; NaN where it does not count. Of an LSE relative to itself, or to 1
    where it is less; of a mask 0 or inf."""
    if part == "mask":
        return np.where(answers == given, 0.0, np.inf)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = np.where(answers == given, 0.0, np.abs(answers - given))
        sizes = np.where(np.isfinite(given), np.abs(given), 0.0)
        if part == "lse":
            scale = np.maximum(sizes, 1.0)
        else:
            scale = sizes.max(-1, keepdims=True)
            overall = sizes.reshape(len(sizes), -1).max(1).reshape(-1, *(1,) * (sizes.ndim - 1))
            floors = floor.reshape(-1, *(1,) * (sizes.ndim - 1))
            scale = np.maximum(scale, np.maximum(floors * overall, 1e-12))
        apart = np.where(error == 0.0, 0.0, error / scale)
    apart = np.where(np.isnan(apart), np.inf, apart)
    if blind is not None:
        apart = np.where(blind if part == "lse" else blind[..., None], np.nan, apart)
    return np.asarray(apart)


def _quantile(apart: Array, shares: Array) -> Array:
    """[students]: what so large a share of the numbers is not beyond; inf where none counts."""
    flat = apart.reshape(len(apart), -1)
    nan = np.isnan(flat)
    most = np.where(nan, -1.0, flat).max(1, initial=-1.0)
    most = np.where(most < 0.0, np.inf, most)
    if bool((shares == 1.0).all()):
        return most
    flat = np.sort(flat, axis=1)  # NaN last
    count = (~nan).sum(1)
    place = np.clip(np.ceil(shares * count).astype(int) - 1, 0, flat.shape[1] - 1)
    return np.where(np.isinf(most) | (shares == 1.0), most, flat[np.arange(len(flat)), place])


def _blind(given: Mapping[str, Array], right: Array | Results | None, part: str) -> Array | None:
    """Rows in which a reading sees no key where the right computation sees one: [students, b, h, n] bool."""
    lse = right["lse"] if isinstance(right, dict) else right
    if "lse" not in given or lse is None or part in ("dk", "dv", "mask"):
        return None
    blind = np.isneginf(given["lse"]) & ~np.isneginf(lse)
    return blind if bool(blind.any()) else None


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


# -- which first ---------------------------------------------------------------------------------------------


def ranked(found: Sequence[Finding]) -> list[Finding]:
    """The best of each code: what explains most, then the nearest, then the simplest."""
    if not found:
        return []
    best: dict[str, Finding] = {}
    for finding in sorted(found, key=lambda each: (-len(each.parts), each.residual)):
        best.setdefault(finding.code, finding)
    most = max(len(finding.parts) for finding in best.values())
    nearest = min(finding.residual for finding in best.values() if len(finding.parts) == most)
    limit = max(ALIKE * nearest, SAME)
    ties = [f for f in best.values() if len(f.parts) == most and f.residual <= limit]
    rest = [f for f in best.values() if f not in ties]
    ties.sort(key=lambda each: rank(each.code))
    rest.sort(key=lambda each: (-len(each.parts), each.residual, rank(each.code)))
    return (ties + rest)[:MAX_FOUND]


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
