"""Options that single engines declare, each by a JSON Schema: enum, or type with minimum and maximum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kernels.spec.model import Options
from kernels.spec.problems import MALFORMED, NOT_COMPUTABLE, Problems, join, one_of, show
from kernels.spec.reader import is_integer, is_number, to_float

Schema = Mapping[str, Any]
Declared = Mapping[str, Mapping[str, Schema]]  # option → engine → its schema

SHARED = tuple(name for name in Options.__dataclass_fields__ if name != "more")
KINDS = {
    "integer": (is_integer, "an integer"),
    "number": (is_number, "a number"),
    "boolean": (lambda value: isinstance(value, bool), "true or false"),
    "string": (lambda value: isinstance(value, str), "a string"),
    "null": (lambda value: value is None, "null"),
}


def read_declared(
    given: Mapping[str, Any], engine: str, declared: Declared, problems: Problems
) -> dict[str, Any]:
    """The options of ``given`` that ``declared`` names, as sent. One that is not of ``engine`` must be right
    for one that has it; null is as good as absent there."""
    found = {}
    for name in given.keys() & declared.keys():
        value, schemas = given[name], declared[name]
        own = [schemas[engine]] if engine in schemas else list(schemas.values())
        if engine not in schemas and value is None:
            continue
        if any(accepts(schema, value) for schema in own):
            found[name] = value
        else:
            code, status = _kind_of_problem(own[0], value)
            detail = f"{name} must be {_said(own[0])}, not {show(value)}"
            problems.add(join("/options", name), code, detail, status)
    return found


def with_defaults(options: Options, schemas: Mapping[str, Schema]) -> Options:
    """``options`` with all that an engine declares, and no other."""
    own = {name: schema for name, schema in schemas.items() if name not in SHARED}
    return replace(
        options, more={name: options.more.get(name, schema["default"]) for name, schema in own.items()}
    )


def accepts(schema: Schema, value: Any) -> bool:
    """Whether a value is what a schema says; true is no number."""
    if "enum" in schema:
        return any(type(value) is type(choice) and value == choice for choice in schema["enum"])
    if not _has_type(schema, value):
        return False
    low, high = schema.get("minimum"), schema.get("maximum")
    if not is_number(value):
        return True
    exact = value if is_integer(value) else to_float(value)  # of large integers a float is the nearest only
    return (low is None or low <= exact) and (high is None or exact <= high)


def _types(schema: Schema) -> list[str]:
    if "enum" in schema:
        kinds = [kind for kind, (fits, _) in KINDS.items() if any(map(fits, schema["enum"]))]
        return [kind for kind in kinds if not (kind == "number" and "integer" in kinds)]
    given = schema["type"]
    return [given] if isinstance(given, str) else list(given)


def _has_type(schema: Schema, value: Any) -> bool:
    return any(KINDS[kind][0](value) for kind in _types(schema))


def _kind_of_problem(schema: Schema, value: Any) -> tuple[str, int]:
    """(code, status)."""
    if not _has_type(schema, value):
        return "wrong-type", MALFORMED
    return ("not-a-choice" if "enum" in schema else "out-of-range"), NOT_COMPUTABLE


def _said(schema: Schema) -> str:
    """What would do, in words."""
    if "enum" in schema:
        return one_of("null" if choice is None else str(choice) for choice in schema["enum"])
    low, high = schema.get("minimum"), schema.get("maximum")
    span = f" between {low:,} and {high:,}" if low is not None and high is not None else ""
    words = [KINDS[kind][1] + (span if kind in {"integer", "number"} else "") for kind in _types(schema)]
    return one_of(words)
