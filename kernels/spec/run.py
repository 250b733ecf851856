"""``parse_run``: from the JSON body of a request to a :class:`RunSpec` and the arrays that came with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from kernels import refusals, registry
from kernels.arrays import Array
from kernels.spec.array_input import ArrayParser, LoadUpload
from kernels.spec.attention import parse_attention, parse_options, parse_timing
from kernels.spec.declared import with_defaults
from kernels.spec.families import (
    BESIDE,
    FULL,
    PLAIN_INPUTS,
    REPLACING,
    Family,
    check_company,
    family_of,
)
from kernels.spec.model import InputSpec, ParsedRun, RunSpec
from kernels.spec.patterns import pattern_problems
from kernels.spec.problems import MALFORMED, TOO_LARGE, Problems, join, nearest, one_of, show
from kernels.spec.reader import ObjectReader, is_integer
from kernels.spec.results import RESULTS
from kernels.spec.rope import rope_problems
from kernels.spec.shapes import check_shapes
from kernels.spec.values import check_values

MAX_ELEMENTS = 2**24  # of one array, and of all inputs together

BODY_FIELDS = ("engine", "device", "dtype", "inputs", "attention", "return", "options", "timing")
DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("float32", "float16", "bfloat16", "float64")
LENGTHS = ("q_lens", "kv_lens")
INPUTS = (
    *PLAIN_INPUTS, "attn_mask", "past_key", "past_value", *LENGTHS, "block_table", "dout",
    *dict.fromkeys((*BESIDE, *(name for family in REPLACING for name in family.axes))),
)  # fmt: skip


def parse_run(
    body: object, *, load_upload: LoadUpload | None = None, max_elements: int = MAX_ELEMENTS
) -> ParsedRun:
    """Validate the body of ``POST /api/v1/runs``.

    ``load_upload(upload_id, name)`` gives the array of an uploaded member, or raises KeyError(detail). No
    array may have more than ``max_elements`` elements. Raises :class:`SpecError` with every problem found:
    in the JSON itself, then in the shapes and values, then in what the chosen engine supports. Nothing of
    the size an array claims is allocated before its size has been accepted.
    """
    problems = Problems()
    if not isinstance(body, dict):
        problems.add("", "wrong-type", f"the request body must be an object, not {show(body)}", MALFORMED)
        problems.raise_if_any()
    reader = ObjectReader(body, "", problems, BODY_FIELDS)
    engine = _engine(reader)
    device = reader.choice("device", "auto", DEVICES)
    dtype = reader.choice("dtype", "float32", DTYPES)
    inputs, arrays = _inputs(reader, engine, dtype, load_upload, max_elements)
    attention = parse_attention(reader.fields.get("attention", {}), problems)
    returns = _returns(reader)
    options = parse_options(reader.fields.get("options", {}), engine, registry.declared(), problems)
    timing = parse_timing(reader.fields.get("timing", {}), problems)
    spec = RunSpec(engine, inputs, device, dtype, attention, returns, options, timing)
    if set(_family(engine, inputs).required) <= inputs.keys() and not problems.under("/inputs"):
        check_shapes(spec, problems, max_elements)
        if not problems.found:
            check_values(spec, arrays, problems)
            for problem in (*rope_problems(spec), *pattern_problems(spec)):
                problems.add(problem.pointer, problem.code, problem.detail, problem.status)
    problems.raise_if_any()
    for problem in refusals.refused(spec):
        problems.add(problem.pointer, problem.code, problem.detail, problem.status)
    problems.raise_if_any()
    options = with_defaults(spec.options, registry.ENGINES[engine].options)
    return ParsedRun(replace(spec, options=options), arrays)


def _engine(reader: ObjectReader) -> str:
    engine = reader.fields.get("engine")
    if engine is None:
        detail = f"engine is required: {one_of(registry.ENGINES)}"
        reader.problems.add("/engine", "required", detail, MALFORMED)
    elif not isinstance(engine, str):
        reader.wrong_type("engine", f"the name of an engine: {one_of(registry.ENGINES)}")
    elif engine not in registry.ENGINES:
        detail = f"there is no engine {show(engine)}; {nearest(engine, registry.ENGINES)}"
        reader.problems.add("/engine", "unknown-engine", detail)
    return engine if isinstance(engine, str) else ""


def _returns(reader: ObjectReader) -> tuple[str, ...]:
    """The results asked for, each once, in the order asked for."""
    value = reader.fields.get("return", ["out"])
    if not isinstance(value, list) or not value:
        reader.wrong_type("return", f"a list with some of {', '.join(RESULTS)}")
        return ("out",)
    for index, name in enumerate(value):
        if not isinstance(name, str):
            detail = f"the name of a result is a string, not {show(name)}"
            reader.problems.add(join("/return", index), "wrong-type", detail, MALFORMED)
        elif name not in RESULTS:
            detail = f"there is no result {show(name)}; {nearest(name, RESULTS)}"
            reader.problems.add(join("/return", index), "not-a-choice", detail)
    return tuple(dict.fromkeys(name for name in value if isinstance(name, str) and name in RESULTS))


def _inputs(
    body: ObjectReader, engine: str, dtype: str, load_upload: LoadUpload | None, max_elements: int
) -> tuple[dict[str, InputSpec], dict[str, Array]]:
    """Every input described, and the data of those that came with the request."""
    problems = body.problems
    if "inputs" not in body.fields:
        problems.add("/inputs", "required", "inputs is required: an object with q, k and v", MALFORMED)
        return {}, {}
    reader = ObjectReader(body.fields["inputs"], "/inputs", problems, INPUTS)
    parser = ArrayParser(problems, load_upload, max_elements)
    described: dict[str, InputSpec] = {}
    arrays: dict[str, Array] = {}
    given = [name for name in INPUTS if reader.has(name)]
    family = _family(engine, given)
    for name in family.required if isinstance(body.fields["inputs"], dict) else ():
        if name not in given:
            detail = f"{name} is required: nested lists, base64, a seed with a shape, or an upload"
            problems.add(reader.at(name), "required", detail, MALFORMED)
    takes_no_other = engine in registry.ENGINES and registry.ENGINES[engine].takes == family.required
    check_company(family, engine if takes_no_other else None, given, problems)
    total = 0
    for name in given:
        parsed: tuple[InputSpec, Array | None] | None
        if name in LENGTHS:
            parsed = _lengths(reader, name)
        else:
            made_as = "float32" if name == "attn_mask" or name in FULL else dtype
            parsed = parser.parse(reader.fields[name], reader.at(name), made_as)
        if parsed is None:
            continue
        described[name], data = parsed
        if name == "block_table" and data is None:
            detail = "a block_table says where tokens are: send its integers, not a seed"
            problems.add(reader.at(name), "wrong-type", detail)
        total += described[name].elements
        if data is not None:
            arrays[name] = data
    if total > max_elements:
        detail = f"the inputs have {total:,} elements together; at most {max_elements:,} are accepted"
        problems.add("/inputs", "too-large", detail, TOO_LARGE)
    return described, arrays


def _family(engine: str, given: Iterable[str] = ()) -> Family:
    """That of the inputs given, where an engine takes several."""
    known = registry.ENGINES.get(engine)
    return family_of(given, known.takes if known else PLAIN_INPUTS)


def _lengths(reader: ObjectReader, name: str) -> tuple[InputSpec, Array] | None:
    """``q_lens`` and ``kv_lens``: one length per batch row."""
    value = reader.fields[name]
    if not isinstance(value, list):
        reader.wrong_type(name, "a list with one length per batch row")
        return None
    for index, length in enumerate(value):
        if not is_integer(length):
            detail = f"a length in {name} must be an integer, not {show(length)}"
            reader.problems.add(join(reader.at(name), index), "wrong-type", detail, MALFORMED)
            return None
        if not 0 <= length < 2**31:
            detail = f"a length in {name} must be between 0 and the length of the array, not {show(length)}"
            reader.problems.add(join(reader.at(name), index), "out-of-range", detail)
            return None
    return InputSpec((len(value),), "int64", "inline"), np.array(value, dtype=np.int64)
