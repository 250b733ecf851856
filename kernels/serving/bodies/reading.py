"""What the bodies of all simulators share: lists within limits, pairs, names, and a log that is full."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from kernels.limits import MAX_SEED
from kernels.serving.events import EventLog, TooManyEvents
from kernels.spec.problems import MALFORMED, TOO_LARGE, FieldProblem, Problems, SpecError, join, show
from kernels.spec.reader import ObjectReader, is_integer

# So that a name is the same in a URL, in a file and in a spreadsheet, where "=1" would be a formula.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")

Answer = dict[str, Any]


def read_body(body: object, allowed: tuple[str, ...]) -> ObjectReader:
    """The fields of a body. Raises :class:`SpecError` if it is no object."""
    problems = Problems()
    reader = ObjectReader(body, "", problems, allowed)
    if not isinstance(body, dict):
        problems.raise_if_any()
    return reader


def read_list(reader: ObjectReader, name: str, limit: int, holds: str) -> list[Any]:
    """A list of 1 to ``limit`` items; empty when there is a problem."""
    value = reader.fields.get(name)
    if not isinstance(value, list):
        reader.wrong_type(name, f"a list of {holds}") if name in reader.fields else required(
            reader, name, holds
        )
    elif not value:
        reader.problems.add(reader.at(name), "empty", f"{name} is empty; send at least one of its {holds}")
    elif len(value) > limit:
        detail = f"{name} has {len(value):,} {holds}; at most {limit:,} are accepted: send fewer"
        reader.problems.add(reader.at(name), "too-large", detail, TOO_LARGE)
    else:
        return value
    return []


def required(reader: ObjectReader, name: str, holds: str) -> None:
    """Note a field that is missing."""
    reader.problems.add(reader.at(name), "required", f"{name} is required: {holds}", MALFORMED)


def read_name(reader: ObjectReader, name: str, default: str | None = None) -> str:
    """A short name of letters, digits and ``_ . -``; "" when there is a problem."""
    value = reader.fields.get(name, default)
    if value is None:
        required(reader, name, "a name")
    elif not isinstance(value, str):
        reader.wrong_type(name, "a name (a string)")
    elif not NAME.fullmatch(value):
        detail = f"{name} must be 1 to 32 letters, digits, dots, dashes or underscores, not {show(value)}"
        reader.problems.add(reader.at(name), "not-a-name", detail)
    else:
        return value
    return ""


def read_range(
    reader: ObjectReader, name: str, default: tuple[int, int], low: int, high: int
) -> tuple[int, int]:
    """``[least, most]`` of lengths that are drawn, or one number that all have."""
    value = reader.fields.get(name, list(default))
    ends = [value, value] if is_integer(value) else value
    if not isinstance(ends, list) or len(ends) != 2 or not all(is_integer(end) for end in ends):
        reader.wrong_type(name, "an integer or two, [least, most]")
    elif not low <= ends[0] <= ends[1] <= high:
        detail = f"{name} must be [least, most] with {low} ≤ least ≤ most ≤ {high:,}, not "
        detail += show(value) if is_integer(value) else f"[{show(ends[0])}, {show(ends[1])}]"
        reader.problems.add(reader.at(name), "out-of-range", detail)
    else:
        return ends[0], ends[1]
    return default


def read_seed(reader: ObjectReader) -> int:
    """The seed of what is drawn; 0 unless given."""
    return reader.integer("seed", 0, 0, MAX_SEED)


def one_source(reader: ObjectReader, names: tuple[str, str]) -> str:
    """Which of two fields says what is to be simulated: exactly one must; "" when there is a problem."""
    given = [name for name in names if reader.has(name)]
    if len(given) == 1:
        return given[0]
    wrong = "both are there" if given else "neither is there"
    detail = f"send {names[0]} (your own) or {names[1]} (drawn from a seed), one of the two; {wrong}"
    reader.problems.add(reader.at(names[0]), "required", detail, MALFORMED)
    return ""


def logged(simulate: Callable[[EventLog], Answer], remedy: str) -> Answer:
    """The answer of a simulation with its events. Raises :class:`SpecError` when there are too many."""
    log = EventLog()
    try:
        answer = simulate(log)
    except TooManyEvents as error:
        detail = f"the simulation has more than {error.limit:,} events, which is the limit; {remedy}"
        raise SpecError([FieldProblem("", "too-many-events", detail)]) from None
    return {**answer, "events": log.as_json()}


def item_pointer(reader: ObjectReader, name: str, index: int) -> str:
    """Pointer of an item of a list."""
    return join(reader.at(name), index)
