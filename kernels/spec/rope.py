"""What a request may say of rotary position embedding, and what it means by leaving a field out.

Field names are those of Hugging Face's configs. The formulas are in ``kernels/rope.py``; what is refused here
are the values for which they have no answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernels.limits import MAX_EXACT
from kernels.spec.kinds import BOOLEAN, INTEGER, LIST, NUMBER, Field, finite, limit, range_problems
from kernels.spec.model import Rope, RunSpec
from kernels.spec.problems import FieldProblem, join, show

Scaling = Mapping[str, Any]

ORIGINAL, EXTENDED = "original_max_position_embeddings", "max_position_embeddings"
BETA_FAST, BETA_SLOW = 32.0, 1.0  # turns within the original length; the YaRN paper, for Llama models
MIN_FACTOR, MAX_FACTOR = 1e-6, 1e12  # far beyond any use, and no product of them leaves float64
POINTER = "/attention/rope/scaling"

_ANY, _WEIGHT = (MIN_FACTOR, MAX_FACTOR), (0.0, MAX_FACTOR)


def _optional(wanted: str, meaning: str, limits: tuple[float, float] | None = None) -> Field:
    return Field(wanted, meaning, limits, is_required=False)


_FACTOR = Field(NUMBER, "it is the new length over the original one", _ANY)
_STRETCH = _FACTOR._replace(limits=(1.0, MAX_FACTOR))
_ATTENTION_FACTOR = _optional(
    NUMBER, "it multiplies cos and sin; leave it out to have the method's own", _ANY
)
_MSCALE = _optional(NUMBER, "it weighs the logarithm in the attention factor; leave it out for 1", _WEIGHT)
_LENGTHS = {
    ORIGINAL: _optional(INTEGER, "it is the length, in tokens, of the training", (1, MAX_EXACT)),
    EXTENDED: _optional(INTEGER, "it is a length in tokens", (1, MAX_EXACT)),
}
_TURNS = "it counts turns within the original length; leave it out for"
_BY_PAIR = "it lists what divides the frequency of each pair"
ROPE_SCALINGS: dict[str, dict[str, Field]] = {
    "linear": {"factor": _FACTOR},
    "ntk": {"factor": _FACTOR},
    "dynamic": {"factor": _STRETCH, **_LENGTHS},
    "yarn": {
        "factor": _STRETCH,
        **_LENGTHS,
        "attention_factor": _ATTENTION_FACTOR,
        "beta_fast": _optional(NUMBER, f"{_TURNS} {BETA_FAST:g}", _ANY),
        "beta_slow": _optional(NUMBER, f"{_TURNS} {BETA_SLOW:g}", _ANY),
        "mscale": _MSCALE,
        "mscale_all_dim": _MSCALE,
        "truncate": _optional(
            BOOLEAN, "whether the ramp begins and ends at whole pairs; leave it out for true"
        ),
    },
    "llama3": {
        "factor": _STRETCH,
        "low_freq_factor": Field(NUMBER, "Llama 3.1 has 1", _ANY),
        "high_freq_factor": Field(NUMBER, "Llama 3.1 has 4", _ANY),
        ORIGINAL: _LENGTHS[ORIGINAL]._replace(is_required=True),
    },
    "longrope": {
        "short_factor": Field(LIST, _BY_PAIR),
        "long_factor": Field(LIST, _BY_PAIR),
        "factor": _FACTOR._replace(is_required=False),
        "attention_factor": _ATTENTION_FACTOR,
        # ln 1 = 0 would divide.
        **{name: length._replace(limits=(2, MAX_EXACT)) for name, length in _LENGTHS.items()},
    },
}


def rotated_dim(rope: Rope, head_dim: int) -> int:
    """How many dimensions turn: ``dim``, else all from ``dim_offset`` on."""
    return rope.dim if rope.dim is not None else head_dim - rope.dim_offset


def field(scaling: Scaling, name: str, default: Any) -> Any:
    """A field of ``rope.scaling``; null is as good as absent."""
    value = scaling.get(name)
    return default if value is None else value


def rope_problems(spec: RunSpec) -> list[FieldProblem]:
    """What is wrong with the values of ``rope.scaling``; types, theta and dims are checked elsewhere.

    A field of the wrong type is passed over here.
    """
    rope = spec.attention.rope
    if rope is None or rope.scaling is None or rope.scaling.get("type") not in ROPE_SCALINGS:
        return []
    scaling, kind = rope.scaling, str(rope.scaling["type"])
    found = range_problems(scaling, ROPE_SCALINGS, POINTER)
    found += [] if found else _order_problems(scaling, kind)
    found += _missing_problems(scaling, kind)
    if kind == "yarn" and rope.theta <= 1:
        detail = f"yarn divides by ln theta: theta must be above 1, not {show(rope.theta)}; 10000 is usual"
        found.append(FieldProblem("/attention/rope/theta", "out-of-range", detail))
    if kind == "longrope":
        pairs = rotated_dim(rope, spec.rope_head_dim) // 2
        for name in ("short_factor", "long_factor"):
            found += _list_problems(scaling.get(name), name, pairs)
    return found


def _order_problems(scaling: Scaling, kind: str) -> list[FieldProblem]:
    """Both ramps go from slow pairs to fast ones."""
    if kind == "yarn":
        slow, fast = (
            finite(field(scaling, name, default))
            for name, default in (("beta_slow", BETA_SLOW), ("beta_fast", BETA_FAST))
        )
        if slow is not None and fast is not None and fast < slow:
            name = "beta_fast" if scaling.get("beta_fast") is not None else "beta_slow"
            detail = f"beta_fast ({fast:g}) must be at least beta_slow ({slow:g}); 32 and 1 are usual"
            return [FieldProblem(join(POINTER, name), "out-of-range", detail)]
    if kind == "llama3":
        low, high = finite(scaling.get("low_freq_factor")), finite(scaling.get("high_freq_factor"))
        if low is not None and high is not None and high <= low:
            detail = f"high_freq_factor ({high:g}) must be above low_freq_factor ({low:g}); 4 and 1 are usual"
            return [FieldProblem(join(POINTER, "high_freq_factor"), "out-of-range", detail)]
    return []


def _missing_problems(scaling: Scaling, kind: str) -> list[FieldProblem]:
    """A length from which to extend, and by how much: either may be said in two ways."""

    def absent(*names: str) -> bool:
        return all(scaling.get(name) is None for name in names)

    if kind in ("dynamic", "yarn", "longrope") and absent(ORIGINAL, EXTENDED):
        detail = f"{kind} needs {ORIGINAL}, the length in tokens of the training; give it, or {EXTENDED}"
        return [FieldProblem(join(POINTER, ORIGINAL), "needs", detail)]
    if kind == "longrope" and absent("factor", EXTENDED, "attention_factor"):
        detail = f"longrope needs factor for its attention factor; give it, {EXTENDED} or attention_factor"
        return [FieldProblem(join(POINTER, "factor"), "needs", detail)]
    return []


def _list_problems(given: object, name: str, pairs: int) -> list[FieldProblem]:
    """One factor for each pair; the first wrong one is named."""
    if not isinstance(given, list | tuple):
        return []
    pointer = join(POINTER, name)
    if len(given) != pairs:
        detail = f"{name} has {len(given)} factors for {pairs} pairs; give one for each pair, dim/2 in all"
        return [FieldProblem(pointer, "shape-mismatch", detail)]
    for index, item in enumerate(given):
        value = finite(item)
        if value is None or not MIN_FACTOR <= value <= MAX_FACTOR:
            limits = f"a number between {limit(MIN_FACTOR)} and {limit(MAX_FACTOR)}"
            detail = f"{name} divides frequencies: each factor is {limits}, not {show(item)}"
            return [FieldProblem(join(pointer, index), "out-of-range", detail)]
    return []
