"""Objects whose ``type`` decides their other fields: what each of these may hold, and what it means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from kernels.spec.problems import MALFORMED, FieldProblem, join, nearest, one_of, show
from kernels.spec.reader import ObjectReader, is_integer, is_number, to_float

NUMBER, INTEGER, BOOLEAN, LIST = "a number", "an integer", "true or false", "a list of numbers"


class Field(NamedTuple):
    """A field that objects of some type have."""

    wanted: str  # one of the above
    meaning: str  # as it reads after a colon
    limits: tuple[float, float] | None = None
    is_required: bool = True


Kinds = Mapping[str, Mapping[str, Field]]  # type -> name -> field


def read_kind(outer: ObjectReader, name: str, kinds: Kinds) -> dict[str, Any] | None:
    """The object ``name`` with the fields of its type; None where it has no type that is known."""
    value, pointer = outer.fields[name], outer.at(name)
    if not isinstance(value, dict):
        outer.wrong_type(name, "null or an object with a type")
        return None
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in kinds:
        hint = f"; {nearest(kind, kinds)}" if isinstance(kind, str) else ""
        detail = f"type must be {one_of(kinds)}, not {show(kind)}{hint}"
        status = {"status": MALFORMED} if not isinstance(kind, str) else {}
        outer.problems.add(join(pointer, "type"), "not-a-choice", detail, **status)
        return None
    known = kinds[kind]
    reader = ObjectReader(value, pointer, outer.problems, ("type", *known))
    for given, field in known.items():
        if reader.fields.get(given) is None:
            if field.is_required:
                detail = f"{kind} needs {given}, {field.wanted}"
                outer.problems.add(reader.at(given), "required", detail, MALFORMED)
        elif not _fits(reader.fields[given], field.wanted):
            reader.wrong_type(given, field.wanted)
        elif field.wanted in (NUMBER, INTEGER) and not math.isfinite(to_float(reader.fields[given])):
            detail = f"{given} must be finite, not {show(reader.fields[given])}"
            outer.problems.add(reader.at(given), "not-finite", detail)
    return {given: item for given, item in value.items() if given in ("type", *known)}


def range_problems(value: Mapping[str, Any], kinds: Kinds, pointer: str) -> list[FieldProblem]:
    """Which fields of ``value``, of a known type, are beyond their limits; those of a wrong type are passed
    over."""
    kind, found = str(value["type"]), []
    for name, field in kinds[kind].items():
        given = finite(value.get(name)) if _fits(value.get(name), field.wanted) else None
        if given is None or field.limits is None:
            continue
        low, high = field.limits
        if not low <= given <= high:
            limits = f"{limit(low)} and {limit(high)}"
            detail = f"{name} of {kind} must be between {limits}, not {show(given)}: {field.meaning}"
            found.append(FieldProblem(join(pointer, name), "out-of-range", detail))
    return found


def finite(value: Any) -> float | None:
    """A finite number as it is, else None; an integer is not converted, since it may be beyond float64."""
    if not is_number(value):
        return None
    return value if isinstance(value, int) or math.isfinite(value) else None


def limit(value: float) -> str:
    """A limit as a message has it."""
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _fits(value: object, wanted: str) -> bool:
    if wanted == LIST:
        return isinstance(value, list) and all(_fits(item, NUMBER) or _fits(item, LIST) for item in value)
    if wanted == BOOLEAN:
        return isinstance(value, bool)
    return is_integer(value) if wanted == INTEGER else is_number(value)
