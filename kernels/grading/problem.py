"""``parse_problem``: from JSON to a :class:`Problem`, every mistake named by its pointer.

The shapes and values of each case are checked by asking for the run that it stands for
(``kernels.spec.parse_run``); what is wrong with it points into the case, or into ``/spec`` where all cases
have it from there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kernels.grading import traces
from kernels.grading.case import (
    ANSWERS,
    ATTENTION_CASE_FIELDS,
    CASE_FIELDS,
    MAX_NAME,
    MAX_NUMBERS,
    Common,
    answer_shape,
    attention_case,
    points,
    trace_case,
)
from kernels.grading.model import PRECISION, Case, Part, Problem, Tolerance, coarser
from kernels.spec import Attention
from kernels.spec.array_input import LoadUpload
from kernels.spec.attention import parse_attention
from kernels.spec.problems import MALFORMED, TOO_LARGE, Problems, join, nearest, one_of, printable, show
from kernels.spec.reader import ObjectReader
from kernels.spec.run import DTYPES

KINDS = ("attention", *traces.KINDS)
POLICIES = ("error_bound", "allclose")
PROPERTIES = {
    "rows_sum_to_one": "the weights of a query that sees a key sum to 1",
    "value_of_ones": "where every value is 1, so is every output",
    "future_keys_do_not_matter": "a key that a query may not see can change without changing its output",
}

MAX_CASES = 20
MAX_MISMATCH = 0.5
MAX_TITLE, MAX_TEXT, MAX_HINTS = 200, 65_536, 20
QUESTION = "case"  # the name of the only case of a problem that is asked in one call

FIELDS = (
    "slug", "title", "statement", "hints", "solution", "kind", "spec", "answer", "cases", "tolerance",
    "properties",
)  # fmt: skip
TRACE_CASE_FIELDS = {"paging": (*CASE_FIELDS, "operations"), "speculative": CASE_FIELDS}
QUESTION_FIELDS = ("spec", "inputs", "answer", "tolerance")
SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")


def parse_problem(body: object) -> Problem:
    """Validate the body of ``POST /api/v1/problems``. Raises :class:`SpecError` with every problem found."""
    problems = Problems()
    reader = ObjectReader(body, "", problems, FIELDS)
    if not isinstance(body, dict):
        problems.raise_if_any()
    kind = reader.choice("kind", KINDS[0], KINDS)
    dtype, attention, spec_body = _spec(reader, kind)
    slug, title = _slug(reader), _text(reader, "title", MAX_TITLE, required=True)
    statement, solution = _text(reader, "statement", MAX_TEXT), _text(reader, "solution", MAX_TEXT)
    hints = _hints(reader)
    answers = _answers(reader, kind)
    properties = _properties(reader, kind, answers, attention)
    tolerance = read_tolerance(reader, dtype)
    cases = _cases(reader, Common(kind, dtype, spec_body, answers))
    problems.raise_if_any()
    made = [case for name in properties for case in _made(name, cases, problems)]
    problems.raise_if_any()
    return Problem(
        slug, title, statement, hints, solution, kind, dtype, attention, answers, (*cases, *made), tolerance,
        properties, spec_body,
    )  # fmt: skip


def parse_question(body: object, *, load_upload: LoadUpload | None = None) -> Problem:
    """A problem asked in one call: ``spec``, ``inputs`` and the names of the ``answers``, whose points are 1
    each. Its only case is called ``case``. Raises :class:`SpecError`; pointers are into ``body``."""
    problems = Problems()
    reader = ObjectReader(body, "", problems, (*QUESTION_FIELDS, "answers"))
    if not isinstance(body, dict):
        problems.raise_if_any()
    dtype, attention, spec_body = _spec(reader, "attention")
    answers = _asked(reader)
    tolerance = read_tolerance(reader, dtype)
    if not reader.has("inputs"):
        problems.add("/inputs", "required", "inputs is required: an object with q, k and v", MALFORMED)
    problems.raise_if_any()
    common = Common("attention", dtype, spec_body, answers, load_upload, is_question=True)
    case_body = {"name": QUESTION, "inputs": reader.fields["inputs"], "seed_scope": "fixed", "seed": 0}
    case = attention_case(ObjectReader(case_body, "", problems, ATTENTION_CASE_FIELDS), common)
    problems.raise_if_any()
    cases = (case,) if case is not None else ()
    return Problem(
        "question", "A question", "", (), "", "attention", dtype, attention, answers, cases, tolerance, (),
        spec_body,
    )  # fmt: skip


# -- the problem ---------------------------------------------------------------------------------------------


def _spec(reader: ObjectReader, kind: str) -> tuple[str, Attention, dict[str, Any]]:
    """``dtype`` and ``attention``, parsed and as sent."""
    given = reader.fields.get("spec", {})
    if kind != "attention":
        if given not in ({}, None):
            detail = f"a problem of kind {kind} has no spec; its cases say everything"
            reader.problems.add("/spec", "unsupported", detail)
        return "float32", Attention(), {}
    inner = ObjectReader(given, "/spec", reader.problems, ("dtype", "attention"))
    dtype = inner.choice("dtype", "float32", DTYPES)
    sent = inner.fields.get("attention", {})
    found = Problems()
    attention = parse_attention(sent, found)
    for problem in found.found:
        reader.problems.add("/spec" + problem.pointer, problem.code, problem.detail, problem.status)
    return dtype, attention, {"dtype": dtype, "attention": sent if isinstance(sent, dict) else {}}


def _slug(reader: ObjectReader) -> str:
    value = reader.fields.get("slug")
    if "slug" not in reader.fields:
        detail = "slug is required: the problem's name in addresses, such as causal-attention"
        reader.problems.add("/slug", "required", detail, MALFORMED)
    elif not isinstance(value, str):
        reader.wrong_type("slug", "a string")
    elif not SLUG.fullmatch(value):
        detail = f"slug must be 1 to 64 of a-z, 0-9 and -, with no - at an end, not {show(value)}"
        reader.problems.add("/slug", "not-a-name", detail)
    else:
        return value
    return ""


def _text(reader: ObjectReader, name: str, limit: int, *, required: bool = False) -> str:
    if name not in reader.fields and not required:
        return ""
    value = reader.fields.get(name)
    if name not in reader.fields:
        reader.problems.add(reader.at(name), "required", f"{name} is required: a string", MALFORMED)
    elif not isinstance(value, str):
        reader.wrong_type(name, "a string")
    elif len(value) > limit:
        detail = f"{name} has {len(value):,} characters; at most {limit:,} are kept: shorten it"
        reader.problems.add(reader.at(name), "too-large", detail, TOO_LARGE)
    elif required and not value.strip():
        reader.problems.add(reader.at(name), "empty", f"{name} is empty; say in a line what is asked")
    else:
        return printable(value)
    return ""


def _hints(reader: ObjectReader) -> tuple[str, ...]:
    value = reader.fields.get("hints", [])
    if not isinstance(value, list):
        reader.wrong_type("hints", "a list of strings")
        return ()
    if len(value) > MAX_HINTS:
        detail = f"there are {len(value)} hints; at most {MAX_HINTS} are kept: join some"
        reader.problems.add("/hints", "too-large", detail, TOO_LARGE)
        return ()
    inner = ObjectReader(
        {str(i): each for i, each in enumerate(value)}, "/hints", reader.problems, list(map(str, range(20)))
    )
    return tuple(_text(inner, str(i), MAX_TEXT) for i in range(len(value)))


def _answers(reader: ObjectReader, kind: str) -> tuple[Part, ...]:
    """What is asked for: each name once, with its points."""
    known = ANSWERS if kind == "attention" else traces.ANSWERS[kind]
    value = reader.fields.get("answer")
    if not isinstance(value, list) or not value:
        detail = f"answer is required: a list of {{name, points}}; names are {one_of(known)}"
        reader.problems.add("/answer", "required" if value is None else "wrong-type", detail, MALFORMED)
        return ()
    parts: list[Part] = []
    for index, sent in enumerate(value[: len(known) + 1]):
        each = {"name": sent} if isinstance(sent, str) else sent
        inner = ObjectReader(each, join("/answer", index), reader.problems, ("name", "points"))
        if not isinstance(each, dict):
            continue
        name = _known_name(inner, known)
        if name in {part.name for part in parts}:
            reader.problems.add(inner.at("name"), "repeated", f"{name} is asked for already; say it once")
        elif name:
            parts.append(Part(name, points(inner)))
    if len(value) > len(known):
        reader.problems.add("/answer", "repeated", f"there are only {len(known)} answers to ask for")
    if parts and not reader.problems.under("/answer") and not any(part.points for part in parts):
        detail = "every answer has 0 points; give one of them points, which share those of a case"
        reader.problems.add("/answer", "out-of-range", detail)
    return tuple(parts)


def _known_name(reader: ObjectReader, known: Sequence[str]) -> str:
    name = reader.fields.get("name")
    if not isinstance(name, str):
        detail = f"name must be {one_of(known)}, not {show(name)}"
        reader.problems.add(reader.at("name"), "wrong-type", detail, MALFORMED)
        return ""
    if name not in known:
        detail = f"there is no answer {show(name)}; {nearest(name, known)}"
        reader.problems.add(reader.at("name"), "not-a-choice", detail)
        return ""
    return name


def _asked(reader: ObjectReader) -> tuple[Part, ...]:
    """The answers of a question: those that it lists, or those that came."""
    if "answer" in reader.fields:
        return _answers(reader, "attention")
    given = reader.fields.get("answers")
    if not isinstance(given, dict) or not given:
        detail = f"answers is required: an object of arrays; names are {one_of(ANSWERS)}"
        status = {"status": MALFORMED}
        reader.problems.add("/answers", "required" if given is None else "wrong-type", detail, **status)
        return ()
    names = list(given)
    if set(names) == {QUESTION} and isinstance(given[QUESTION], dict):
        names = list(given[QUESTION])
    found = []
    for name in names[: 2 * len(ANSWERS)]:
        if name in ANSWERS:
            found.append(Part(name))
        else:
            detail = f"there is no answer {show(name)}; {nearest(str(name), ANSWERS)}"
            reader.problems.add(join("/answers", str(name)[:MAX_NAME]), "not-a-choice", detail)
    return tuple(found)


def _properties(
    reader: ObjectReader, kind: str, answers: tuple[Part, ...], attention: Attention
) -> tuple[str, ...]:
    value = reader.fields.get("properties", [])
    if not isinstance(value, list):
        reader.wrong_type("properties", f"a list of {one_of(PROPERTIES)}")
        return ()
    found: list[str] = []
    asked = {part.name for part in answers}
    for index, name in enumerate(value[: 2 * len(PROPERTIES)]):
        pointer, why = join("/properties", index), ""
        if not isinstance(name, str) or name not in PROPERTIES:
            hint = nearest(name, PROPERTIES) if isinstance(name, str) else f"use {one_of(PROPERTIES)}"
            why = f"there is no property {show(name)}; {hint}"
        elif kind != "attention":
            why = f"{name} is about attention, not about {kind}; leave it out"
        elif name == "rows_sum_to_one" and "weights" not in asked:
            why = "rows_sum_to_one is about weights; ask for them in answer"
        elif name != "rows_sum_to_one" and "out" not in asked:
            why = f"{name} is about out; ask for it in answer"
        elif name != "future_keys_do_not_matter" and attention.sinks is not None:
            why = f"with sinks, weights sum to less than 1; leave {name} out"
        elif name == "future_keys_do_not_matter" and not attention.is_causal:
            why = "future_keys_do_not_matter needs is_causal"
        if why:
            reader.problems.add(pointer, "unsupported", why)
        elif name not in found:
            found.append(str(name))
    return tuple(found)


def read_tolerance(reader: ObjectReader, dtype: str) -> Tolerance:
    """The ``tolerance`` of a problem whose spec has this dtype."""
    fields = ("policy", "per_dtype", "max_mismatch_ratio", "nan_policy", "least_dtype")
    given = reader.fields.get("tolerance", {})
    inner = ObjectReader(given, "/tolerance", reader.problems, fields)
    per_dtype: dict[str, tuple[float, float]] = {}
    sent = inner.fields.get("per_dtype", {})
    by_dtype = ObjectReader(sent if sent is not None else {}, inner.at("per_dtype"), reader.problems, DTYPES)
    for name in PRECISION:
        if name in by_dtype.fields:
            each = ObjectReader(by_dtype.fields[name], by_dtype.at(name), reader.problems, ("atol", "rtol"))
            per_dtype[name] = (each.number("atol", 0.0, 0.0, 1e300), each.number("rtol", 0.0, 0.0, 1.0))
    policy = inner.choice("policy", POLICIES[0], POLICIES)
    if policy == "allclose" and dtype not in per_dtype and not reader.problems.under("/tolerance"):
        detail = f"allclose needs per_dtype.{dtype} with atol and rtol, or let policy be error_bound"
        reader.problems.add(inner.at("per_dtype"), "needs", detail)
    least = inner.choice_or_null("least_dtype", DTYPES)
    if least is not None and coarser(least, dtype) != least:
        detail = (
            f"least_dtype {least} is more precise than the spec's {dtype}; lists of numbers have that one"
        )
        reader.problems.add(inner.at("least_dtype"), "out-of-range", detail)
    return Tolerance(
        policy,
        per_dtype,
        inner.number("max_mismatch_ratio", 0.0, 0.0, MAX_MISMATCH),
        inner.choice("nan_policy", "reject", ("reject",)),
        least,
    )


# -- cases ---------------------------------------------------------------------------------------------------


def _cases(reader: ObjectReader, common: Common) -> list[Case]:
    value = reader.fields.get("cases")
    if not isinstance(value, list) or not value:
        detail = "cases is required: a list of {name, points, visibility, seed_scope, distribution, shape}"
        reader.problems.add("/cases", "required" if value is None else "wrong-type", detail, MALFORMED)
        return []
    if len(value) > MAX_CASES:
        detail = f"there are {len(value)} cases; at most {MAX_CASES} are graded: join or drop some"
        reader.problems.add("/cases", "too-large", detail, TOO_LARGE)
        return []
    cases: list[Case] = []
    for index, each in enumerate(value):
        fields = TRACE_CASE_FIELDS.get(common.kind, ATTENTION_CASE_FIELDS)
        inner = ObjectReader(each, join("/cases", index), reader.problems, fields)
        if not isinstance(each, dict):
            continue
        made = attention_case(inner, common) if common.kind == "attention" else trace_case(inner, common)
        if made is None:
            continue
        if made.name in {case.name for case in cases}:
            detail = f"there is a case {show(made.name)} already; give each a name of its own"
            reader.problems.add(inner.at("name"), "repeated", detail)
        cases.append(made)
    _check_totals(cases, common, reader.problems)
    return cases


def _check_totals(cases: list[Case], common: Common, problems: Problems) -> None:
    if problems.found:
        return
    if not any(case.points for case in cases):
        problems.add("/cases", "out-of-range", "every case has 0 points; give one of them points")
    numbers = sum(
        math.prod(answer_shape(case.spec, part.name))
        for case in cases
        for part in common.answers
        if case.spec is not None
    )
    if numbers > MAX_NUMBERS:
        detail = f"the answers of all cases are {numbers:,} numbers; at most {MAX_NUMBERS:,}: shorten a case"
        problems.add("/cases", "too-large", detail, TOO_LARGE)


# -- cases that properties make ------------------------------------------------------------------------------


def _made(name: str, cases: Sequence[Case], problems: Problems) -> list[Case]:
    """The cases of a property: the first that it can be asked of, with V = 1 or with other future keys."""
    if name == "rows_sum_to_one":
        return []
    for case in cases:
        if _is_fit(name, case):
            made = f"{case.name}.{name}"
            if made in {each.name for each in cases}:
                break
            return [replace(case, name=made, points=0.0, base=case.name, made_by=name)]
    index = "/properties"
    detail = (
        f"no case can ask for {name}: it needs one whose q, k and v are drawn, without q_lens and kv_lens"
    )
    if name == "future_keys_do_not_matter":
        detail += ", and in which some query may not see the last key"
    problems.add(index, "unsupported", detail)
    return []


def _is_fit(name: str, case: Case) -> bool:
    """Whether its q, k and v are drawn, all of them are read, and its attention has the property."""
    spec = case.spec
    if spec is None or {"q_lens", "kv_lens"} & spec.inputs.keys():
        return False
    if any(spec.inputs[each].source != "seed" for each in ("q", "k", "v")):
        return False
    if name == "value_of_ones":
        return spec.attention.sinks is None
    return spec.attention.is_causal and spec.q_len > 1
