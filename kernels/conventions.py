"""Which convention did somebody else's code use? An output computed elsewhere, held against a spec, against
the spec with one convention flipped (``kernels.flips``), and against popular mistakes (``kernels.grading``).

Everything is computed in float64. A candidate *fits* where every number is as near as rounding in the dtype
of the answer explains (``grading.tolerance``), and as near as its printed digits tell. Rows in which a
candidate sees no key are left out: programs write there whatever they like. Two candidates that give the same
numbers on these inputs cannot be told apart by them, and both are named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from kernels import flips
from kernels.arrays import Array
from kernels.flips import Flip
from kernels.grading.case import canonical_case
from kernels.grading.hypotheses import readings
from kernels.grading.pipeline import Setting, allowed, as_answers, attend, resolve
from kernels.grading.readings import evaluate
from kernels.grading.tolerance import allowed_errors
from kernels.registry import ENGINES, SOFTMAX
from kernels.spec.families import PLAIN
from kernels.spec.model import RunSpec

MOST = 1 << 23  # multiply-adds of one candidate, of some seventy
FURTHER = 1 << 26  # multiply-adds spent on other reaches, and on two flips, when no single one fits
SAME = 1e-11  # numbers that differ by no more, beside the largest, are the same
NEAREST = 5  # candidates that are named where none fits

# Flips that somebody's code will not have happened to make: their numbers are ours.
OURS = frozenset(
    {
        "softcap.on", "sink.on", "alibi.on", "alibi.steeper", "padding.mask", "pattern.window",
        "pattern.bigbird",
    }
)  # fmt: skip
# The same thing among the mistakes, which is not named twice.
MISTAKES = {
    "causal_alignment.top_left": "causal_top_left",
    "causal_alignment.bottom_right": "causal_bottom_right",
    "causal.off": "no_mask",
    "pattern.full": "no_mask",
    "padding.seen": "no_mask",
    "rope_pairing.half": "rope_other_pairing",
    "rope_pairing.interleaved": "rope_other_pairing",
    "rope.off": "rope_missing",
    "scale.none": "no_scale",
    "softcap.off": "softcap_missing",
    "sink.off": "sink_missing",
    "alibi.off": "alibi_missing",
    "alibi.sign": "alibi_sign",
    "window.left_more": "window_off_by_one",
    "window.left_less": "window_off_by_one",
    "window.right_more": "window_off_by_one",
    "window.right_less": "window_off_by_one",
    "heads.interleaved": "heads_tiled",
}


@dataclass(frozen=True)
class Candidate:
    """One way in which the output may have been computed: flips of the spec (none: the spec itself), or a
    mistake, which says what was done."""

    flips: tuple[Flip, ...]
    mistake: str
    says: str
    out: Array  # [b, h, n, e] float64
    allowed: Array  # likewise: how far an answer may be off
    blind: Array  # [b, h, n]: rows that see no key
    error: float = 0.0  # the largest distance of the answer, rows that are blind left out
    excess: float = 0.0  # the largest error over what is allowed there; up to 1 it fits

    @property
    def fits(self) -> bool:
        return self.excess <= 1.0

    @property
    def name(self) -> str:
        return self.mistake or "+".join(flip.name for flip in self.flips)


@dataclass(frozen=True)
class Answer:
    """What is said of an output from elsewhere."""

    base: Candidate  # the spec itself
    found: list[Candidate]  # what fits, the nearest first; without the spec itself
    nearest: list[Candidate]  # where nothing fits
    not_told_apart: list[Flip] = field(default_factory=list)  # flips that give what the spec gives, here
    ruled_out: list[Candidate] = field(default_factory=list)  # where the spec fits: flips that do not
    tried: int = 0

    @property
    def is_equal(self) -> bool:
        return self.base.fits

    @property
    def groups(self) -> list[list[Candidate]]:
        """What was found, those together that give the same numbers on these inputs."""
        groups: list[list[Candidate]] = []
        for candidate in self.found:
            group = next((one for one in groups if alike(one[0], candidate)), None)
            if group is None:
                groups.append([candidate])
            else:
                group.append(candidate)
        return groups


def can_judge(spec: RunSpec) -> bool:
    """Whether an output of this spec can be read by the conventions it may have: softmax attention of q, k
    and v, with no quantised cache."""
    engine = ENGINES.get(spec.engine)
    is_softmax = engine is not None and engine.computes == SOFTMAX
    return is_softmax and spec.family is PLAIN and spec.options.kv_dtype is None and work(spec) > 0


def work(spec: RunSpec) -> int:
    """Multiply-adds of one candidate."""
    pairs = spec.batch * spec.num_heads * spec.q_len * spec.kv_len
    return pairs * (spec.head_dim + spec.v_head_dim)


def judge(
    spec: RunSpec, inputs: Mapping[str, Array], answer: Array, dtype: str, resolution: Array | float = 0.0
) -> Answer:
    """``inputs`` as sent, rounded; ``answer`` [b, h, n, e], in ``dtype``, known to ±``resolution``."""
    base = _of_spec(spec, inputs, (), dtype)
    setting = _setting(spec, inputs)
    single = [
        _of_spec(flip.spec, {**inputs, **flip.replaced(inputs)}, (flip,), dtype) for flip in _flips(spec)
    ]
    mistakes = list(_mistakes(setting, base, single))
    tried = [_held(one, answer, resolution) for one in (base, *single, *mistakes)]
    base, others = tried[0], tried[1:]
    flipped = [one for one in others if one.flips]
    same = [one.flips[0] for one in flipped if alike(one, base) or (base.fits and one.fits)]
    ruled_out = [one for one in flipped if base.fits and one.flips[0] not in same]
    idle = [flip for flip in flips.flips(spec) if flip.idle and not flip.is_numeric]
    found = [] if base.fits else [one for one in others if one.fits]
    if not (base.fits or found):
        further = [_held(one, answer, resolution) for one in _further(spec, inputs, dtype)]
        tried += further
        found = [one for one in further if one.fits]
    found.sort(key=lambda one: (len(one.flips) > 1, one.excess))
    nearest = [] if base.fits or found else sorted(tried[1:], key=lambda one: one.error)[:NEAREST]
    return Answer(base, found, nearest, [*same, *idle], ruled_out, len(tried))


def alike(one: Candidate, other: Candidate) -> bool:
    """Whether both give the same numbers, wherever both see a key."""
    seen = ~(one.blind | other.blind)
    scale = float(np.abs(one.out).max(initial=0.0))
    apart = np.abs(one.out - other.out)[seen]
    return bool(np.all(apart <= SAME * scale)) and bool(np.all(one.blind == other.blind))


# -- candidates ----------------------------------------------------------------------------------------------


def _flips(spec: RunSpec) -> list[Flip]:
    return [flip for flip in flips.conventions(spec) if flip.name not in OURS]


def _further(spec: RunSpec, inputs: Mapping[str, Array], dtype: str) -> Iterator[Candidate]:
    """Other stretches of keys, and two flips of different kinds, as many of each as there is time for."""
    left = FURTHER // max(work(spec), 1)
    for flip in islice(flips.reaches(spec), left):
        yield _of_spec(flip.spec, inputs, (flip,), dtype)
    for first in _flips(spec):
        given = {**inputs, **first.replaced(inputs)}
        for second in _flips(first.spec):
            if second.kind <= first.kind:
                continue
            if left <= 0:
                return
            left -= 1
            yield _of_spec(second.spec, {**given, **second.replaced(given)}, (first, second), dtype)


def _of_spec(spec: RunSpec, inputs: Mapping[str, Array], by: tuple[Flip, ...], dtype: str) -> Candidate:
    setting = _setting(spec, inputs)
    results = attend(setting)
    limits = allowed_errors(setting, results, dtype, ("out",))["out"]
    out = as_answers(setting, results)["out"][0]
    return Candidate(by, "", "", out, np.broadcast_to(limits, (1, *out.shape))[0], _blind(setting, out))


def _setting(spec: RunSpec, inputs: Mapping[str, Array]) -> Setting:
    kept = {name: array for name, array in inputs.items() if name in spec.inputs}
    canonical, arrays = canonical_case(spec, kept)
    return resolve(canonical, {name: array[None] for name, array in arrays.items()})


def _blind(setting: Setting, out: Array) -> Array:
    seen = allowed(setting)
    if seen is None:
        return np.zeros(out.shape[:3], np.bool_)
    return np.asarray(~np.broadcast_to(seen.any(-1), (1, *out.shape[:3]))[0])


def _mistakes(setting: Setting, base: Candidate, single: Sequence[Candidate]) -> Iterator[Candidate]:
    known = [(MISTAKES.get(one.flips[0].name), one) for one in single]
    right = attend(setting)
    for reading in readings(setting):
        given = evaluate(reading, setting, right).get("out")
        if given is None or given[0].shape != base.out.shape or not np.isfinite(given).all():
            continue
        candidate = Candidate((), reading.name, reading.says, given[0], base.allowed, base.blind)
        if not any(code == reading.code and alike(candidate, one) for code, one in known):
            yield candidate


def _held(candidate: Candidate, answer: Array, resolution: Array | float) -> Candidate:
    """With its distance from the answer."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.where(answer == candidate.out, 0.0, np.abs(answer - candidate.out))
    apart = np.where(np.isnan(apart), np.inf, apart)[~candidate.blind]
    limits = (candidate.allowed + resolution)[~candidate.blind]
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = np.where(apart == 0.0, 0.0, apart / limits)
    return Candidate(
        candidate.flips,
        candidate.mistake,
        candidate.says,
        candidate.out,
        candidate.allowed,
        candidate.blind,
        float(np.max(apart, initial=0.0)),
        float(np.max(excess, initial=0.0)),
    )
