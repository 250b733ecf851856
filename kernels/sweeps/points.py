"""From the body of a sweep to the bodies of its runs, and from what is wrong with these back to the sweep.

A sweep is the body of a run and ``vary``: lists of values by field, of which every combination is a point.
What can vary is a field of the run (``engine``, ``attention/softcap``, ``options/block_m``), the ``seed`` or
the ``distribution`` of all seeded inputs, and the length of an axis, which all seeded inputs that have it
follow. ``len`` is q_len and kv_len together. num_kv_heads follows num_heads, and v_head_dim head_dim, where
the body has them equal and they do not vary themselves.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernels.spec.families import PLAIN, Family, family_of
from kernels.spec.problems import (
    MALFORMED,
    MAX_REPORTED,
    TOO_LARGE,
    FieldProblem,
    Problems,
    SpecError,
    join,
    one_of,
    show,
)
from kernels.spec.reader import ObjectReader, is_integer

MAX_POINTS = 64
MAX_VARIED = 16  # fields
MAX_SENT = 2**22  # numbers that are sent, each counted once for every point
MAX_LENGTH = 2**31 - 1

OWN_FIELDS = ("vary", "skip_refused")
FIELDS = ("engine", "device", "dtype")
SEEDED_FIELDS = ("seed", "distribution")
OBJECTS = ("attention", "options", "timing")  # whose fields vary by path: attention/softcap
# What varies → the axes of inputs that it sets.
AXES = {
    "len": ("q_len", "kv_len", "len"),
    "num_heads": ("heads",),
    "num_kv_heads": ("kv_heads",),
    **{
        axis: (axis,)
        for axis in (
            "batch", "q_len", "kv_len", "past_len", "head_dim", "v_head_dim", "hidden",
            "d_nope", "d_rope", "d_c", "d_v", "groups", "channels", "states",
        )
    },
}  # fmt: skip
FOLLOWS = {"kv_heads": "heads", "v_head_dim": "head_dim"}
OTHER_AXES = {
    "dout": ("batch", "heads", "q_len", "v_head_dim"),
    "past_key": ("batch", "kv_heads", "past_len", "head_dim"),
    "past_value": ("batch", "kv_heads", "past_len", "v_head_dim"),
}
PACKED_AXES = {name: ("batch", "kv_len" if name in "kv" else "q_len", "heads·dim") for name in "qkv"}
PAGE_AXES = ("num_blocks", "page_size", "kv_heads", "head_dim")


@dataclass(frozen=True)
class Point:
    """One combination: the value of each varied field, its place in the list of that field, and the body of
    the run that it makes."""

    values: Mapping[str, Any]
    places: Mapping[str, int]
    body: Mapping[str, Any]


@dataclass(frozen=True)
class SweepRequest:
    """What a body of a sweep asks for; ``targets``: where each varied field goes in the body of a run."""

    body: Mapping[str, Any]
    vary: Mapping[str, Sequence[Any]]
    skip_refused: bool
    targets: Mapping[str, tuple[str, ...]]
    points: tuple[Point, ...]


def parse_sweep(body: object) -> SweepRequest:
    """Read what a sweep has beside the body of a run, and combine. Raises :class:`kernels.spec.SpecError`
    with pointers into the body of the sweep; the bodies of the points are still to be parsed."""
    problems = Problems()
    if not isinstance(body, dict):
        detail = f"the request body must be an object, not {show(body)}"
        raise SpecError([FieldProblem("", "wrong-type", detail, MALFORMED)])
    own = {name: body[name] for name in OWN_FIELDS if name in body}
    reader = ObjectReader(own, "", problems, OWN_FIELDS)
    skip_refused = reader.boolean("skip_refused", False)
    run = {name: value for name, value in body.items() if name not in OWN_FIELDS}
    vary = _vary(reader)
    problems.raise_if_any()
    inputs = _Inputs(run)
    targets = {name: _targets(name, inputs, problems) for name in vary}
    problems.raise_if_any()
    _check_size(body, math.prod(map(len, vary.values())), problems)
    problems.raise_if_any()
    combinations = itertools.product(*(enumerate(values) for values in vary.values()))
    points = tuple(_point(run, inputs, dict(zip(vary, chosen, strict=True))) for chosen in combinations)
    return SweepRequest(run, vary, skip_refused, targets, points)


def is_axis(name: str) -> bool:
    """Whether what varies is a length, against which figures grow."""
    return name in AXES


# -- reading -----------------------------------------------------------------------------------------------


def _vary(body: ObjectReader) -> dict[str, list[Any]]:
    """Every varied field with its values, each checked as far as it is the sweep's own."""
    problems = body.problems
    if not body.fields.get("vary"):
        detail = 'vary is required: lists of values by field, e.g. {"len": [64, 128, 256]}'
        problems.add("/vary", "required", detail, MALFORMED)
        return {}
    if isinstance(body.fields["vary"], dict) and len(body.fields["vary"]) > MAX_VARIED:
        detail = f"{len(body.fields['vary']):,} fields vary; at most {MAX_VARIED} may"
        problems.add("/vary", "too-many", detail)
        return {}
    reader = ObjectReader(body.fields["vary"], "/vary", problems, _names(body.fields["vary"]))
    for name, values in reader.fields.items():
        if not isinstance(values, list) or not values:
            reader.wrong_type(name, "a list of the values that it takes")
        else:
            _check_values(name, values, reader)
    _check_company(list(reader.fields), reader)
    problems.raise_if_any()
    sizes = [len(values) for values in reader.fields.values()]
    if math.prod(sizes) > MAX_POINTS:
        product = " × ".join(map(str, sizes[:8]))
        detail = f"{product} values are {math.prod(sizes):,} points; a sweep has at most {MAX_POINTS}"
        problems.add("/vary", "too-many", detail)
    return dict(reader.fields)


def _names(vary: object) -> tuple[str, ...]:
    """What may vary, those that are given as a path included."""
    given = tuple(vary) if isinstance(vary, dict) else ()
    paths = tuple(name for name in given if name.partition("/")[0] in OBJECTS and all(name.split("/")[1:2]))
    return (*FIELDS, *SEEDED_FIELDS, *AXES, *(f"{name}/…" for name in OBJECTS), *paths)


def _check_values(name: str, values: list[Any], reader: ObjectReader) -> None:
    for index, value in enumerate(values[: MAX_POINTS + 1]):
        pointer = join(reader.at(name), index)
        if is_axis(name) and not is_integer(value):
            detail = f"{name} is a length: an integer, not {show(value)}"
            reader.problems.add(pointer, "wrong-type", detail, MALFORMED)
        elif is_axis(name) and not 0 <= value <= MAX_LENGTH:
            detail = f"{name} must be between 0 and {MAX_LENGTH}, not {show(value)}"
            reader.problems.add(pointer, "out-of-range", detail)
        elif any(type(value) is type(other) and value == other for other in values[:index]):
            reader.problems.add(pointer, "repeated", f"{name} has {show(value)} already: leave one out")


def _check_size(body: Mapping[str, Any], points: int, problems: Problems) -> None:
    """Every point has the numbers that are sent with it: checked, and kept, as often as there are points."""
    most = MAX_SENT // points
    left: list[Any] = [body]
    count = 0
    while left and count <= most:
        value = left.pop()
        if isinstance(value, dict | list):
            left.extend(value.values() if isinstance(value, dict) else value)
        count += 1 + len(value) // 4 if isinstance(value, str) else 1
    if count > most:
        problems.add("", "too-large", too_much(points), TOO_LARGE)


def too_much(points: int) -> str:
    """What is said of a sweep that has more numbers than are kept for each of its points."""
    return (
        f"each of {points} points would have a copy of the numbers that are sent, of which there are more "
        f"than {MAX_SENT // points:,}: send inputs by seed, or vary less"
    )


def _check_company(names: list[str], reader: ObjectReader) -> None:
    """What is varied is varied once."""
    for name in names:
        part = next((other for other in names if other.startswith(f"{name}/")), None)
        if part:
            reader.problems.add(reader.at(part), "conflict", f"{name} varies as a whole: leave one out")
        if name in ("q_len", "kv_len") and "len" in names:
            detail = f"len is q_len and kv_len together: leave len or {name} out"
            reader.problems.add(reader.at(name), "conflict", detail)


class _Inputs:
    """The inputs of the body of a run, as far as a sweep looks at them."""

    def __init__(self, run: Mapping[str, Any]) -> None:
        given = run.get("inputs")
        self.given: Mapping[str, Any] = given if isinstance(given, dict) else {}
        attention = run.get("attention")
        self.is_packed = isinstance(attention, dict) and attention.get("num_heads") is not None
        self.family: Family = family_of(self.given)
        self.seeded = {
            name for name, value in self.given.items() if isinstance(value, dict) and "seed" in value
        }
        self.shapes = {
            name: self.given[name]["shape"]
            for name in self.seeded
            if isinstance(self.given[name].get("shape"), list)
        }
        self.lengths: dict[str, int] = {}
        for name, shape in self.shapes.items():
            for axis, length in zip(self.axes(name), shape, strict=False):
                self.lengths.setdefault(axis, length)

    def axes(self, name: str) -> tuple[str, ...]:
        """The axes of an input; none where nothing is known of it."""
        if self.is_packed and self.family is PLAIN and name in ("q", "k", "v", "dout"):
            return PACKED_AXES["q" if name == "dout" else name]
        if "block_table" in self.given and name in ("k", "v"):
            return PAGE_AXES
        first = self.shapes.get(self.family.first)
        rank = 4 if self.is_packed or first is None else len(first)
        if name in OTHER_AXES:
            return OTHER_AXES[name][-rank:] if rank in (2, 3, 4) else ()
        return self.family.axes_of(name, rank) if name in self.family.axes else ()

    def having(self, axes: Iterable[str]) -> list[str]:
        """The names of the inputs that have one of some axes."""
        return [name for name in self.given if not set(axes).isdisjoint(self.axes(name))]


def _targets(name: str, inputs: _Inputs, problems: Problems) -> tuple[str, ...]:
    """Pointers to what a varied field changes in the body of a run; what stands in its way is noted."""
    if not is_axis(name) and name not in SEEDED_FIELDS:
        return (join("", *name.split("/")),)
    pointer = join("/vary", name)
    if name in SEEDED_FIELDS:
        if not inputs.seeded:
            detail = f'no input is made from a seed, so no {name} varies: send {{"seed": 1, "shape": […]}}'
            problems.add(pointer, "needs-seed", detail)
        return tuple(join("/inputs", given) for given in inputs.seeded)
    owners = inputs.having(AXES[name])
    if not owners and inputs.given:
        there = list(dict.fromkeys(axis for given in inputs.given for axis in inputs.axes(given)))
        detail = f"no input has an axis {name}; with these inputs there are {one_of(there)}"
        if inputs.is_packed:
            detail += ". Heads and dims vary where they have axes of their own: [batch, heads, len, dim]"
        problems.add(pointer, "no-such-axis", detail)
    for owner in owners:
        if owner not in inputs.seeded:
            detail = (
                f"{owner} is sent as numbers, so its {name} cannot vary: send "
                f'{{"seed": 1, "shape": […]}}, or leave {name} out of vary'
            )
            problems.add(join("/inputs", owner), "needs-seed", detail)
    return tuple(join("/inputs", owner) for owner in owners)


# -- combining ---------------------------------------------------------------------------------------------


def _point(run: Mapping[str, Any], inputs: _Inputs, chosen: Mapping[str, tuple[int, Any]]) -> Point:
    body = dict(run)
    axes: dict[str, int] = {}
    for name, (_place, value) in chosen.items():
        if is_axis(name):
            axes |= dict.fromkeys(AXES[name], value)
        elif name in SEEDED_FIELDS:
            body["inputs"] = {
                given: {**array, name: value} if given in inputs.seeded else array
                for given, array in body["inputs"].items()
            }
        else:
            _put(body, name.split("/"), value)
    if axes:
        body["inputs"] = _reshaped(body["inputs"], inputs, axes)
    return Point(
        {name: value for name, (_place, value) in chosen.items()},
        {name: place for name, (place, _value) in chosen.items()},
        body,
    )


def _put(body: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set a field by its path, without touching what the body shares with others. What is no object on the
    way is left for the parser, which names it."""
    *parents, last = path
    for name in parents:
        inner = body.get(name)
        if inner is not None and not isinstance(inner, dict):
            return
        body[name] = dict(inner or {})
        body = body[name]
    body[last] = value


def _reshaped(given: Mapping[str, Any], inputs: _Inputs, axes: Mapping[str, int]) -> dict[str, Any]:
    """The inputs with some axes as long as asked for, those that follow them included."""
    lengths = dict(axes)
    for follower, leader in FOLLOWS.items():
        equal = inputs.lengths.get(follower) == inputs.lengths.get(leader)
        if leader in axes and follower not in axes and equal:
            lengths[follower] = axes[leader]
    if "head_dim" in lengths:
        lengths["2·head_dim"] = 2 * lengths["head_dim"]
    made = dict(given)
    for name, shape in inputs.shapes.items():
        shared = inputs.family.shared.get(name, ())
        named = itertools.zip_longest(inputs.axes(name), shape)
        if len(inputs.axes(name)) == len(shape):
            new = [
                length if axis in shared and length == 1 else lengths.get(axis, length)
                for axis, length in named
            ]
            made[name] = {**made[name], "shape": new}
    return made


# -- telling -----------------------------------------------------------------------------------------------


def blame(request: SweepRequest, found: Mapping[int, Sequence[FieldProblem]]) -> list[FieldProblem]:
    """What is wrong with points (by number), told of the body of the sweep.

    A problem that all points of a value have is told once, of that value; one that nothing varied has a part
    in, of the body; any other of each point, naming its values.
    """
    kinds: dict[tuple[str, str], dict[int, FieldProblem]] = defaultdict(dict)
    for index, problems in found.items():
        for problem in problems:
            kinds[problem.pointer, problem.code].setdefault(index, problem)
    told = [each for having in kinds.values() for each in _told(request, having)]
    if len(told) > MAX_REPORTED:
        more = len(told) - MAX_REPORTED
        told[MAX_REPORTED:] = [FieldProblem("/vary", "more", f"{more} further problems are not listed")]
    return told


def _told(request: SweepRequest, having: Mapping[int, FieldProblem]) -> list[FieldProblem]:
    first = next(iter(having.values()))
    names = sorted(request.vary, key=lambda name: not _covers(request.targets[name], first.pointer))
    if len(having) == len(request.points) and not _covers(request.targets[names[0]], first.pointer):
        return [first]
    told, left = [], dict(having)
    for name in names:
        for place, value in enumerate(request.vary[name]):
            group = {i for i, point in enumerate(request.points) if point.places[name] == place}
            if group <= having.keys() and group & left.keys():
                told.append(_moved(left[min(group & left.keys())], name, place, {name: value}))
                left = {index: problem for index, problem in left.items() if index not in group}
    for index, problem in left.items():
        point = request.points[index]
        told.append(_moved(problem, names[0], point.places[names[0]], point.values))
    return told


def _covers(targets: Sequence[str], pointer: str) -> bool:
    return any(pointer == target or pointer.startswith(f"{target}/") for target in targets)


def _moved(problem: FieldProblem, name: str, place: int, values: Mapping[str, Any]) -> FieldProblem:
    said = ", ".join(f"{field} {show(value)}" for field, value in values.items())
    detail = f"{said}: {problem.detail}"
    return replace(problem, pointer=join("/vary", name, place), detail=detail)
