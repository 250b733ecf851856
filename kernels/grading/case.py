"""One case of a problem: read from JSON, its shapes and values checked as those of the run it stands for."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernels.arrays import DISTRIBUTIONS, Array, generate, round_to_dtype
from kernels.grading import traces
from kernels.grading.model import Case, Part
from kernels.layout import PACKED, to_canonical
from kernels.limits import MAX_SEED
from kernels.operands import gather_pages
from kernels.spec import InputSpec, RunSpec, SpecError, parse_run
from kernels.spec.array_input import LoadUpload
from kernels.spec.attention import ATTENTION_FIELDS, MAX_HEADS
from kernels.spec.problems import MALFORMED, TOO_LARGE, show
from kernels.spec.reader import ObjectReader
from kernels.spec.results import GRADIENTS, MATRICES
from kernels.spec.values import INTEGERS, ROUNDED

ANSWERS = ("out", "lse", *MATRICES, "mask", *GRADIENTS)
VISIBILITIES = ("visible", "hidden", "after_due_date", "after_published")
SEED_SCOPES = ("student", "submission", "fixed")  # the default first
MASKS = ("boolean", "float")

MAX_PAIRS = 2**20  # of a case: batch · heads · q_len · kv_len
MAX_NUMBERS = 2**20  # of an array, and of all answers together
MAX_POINTS = 1000.0
MAX_NAME = 64

SHAPE = {
    "batch": 4096, "num_heads": MAX_HEADS, "num_kv_heads": MAX_HEADS, "q_len": MAX_PAIRS, "kv_len": MAX_PAIRS,
    "head_dim": MAX_PAIRS, "v_head_dim": MAX_PAIRS,
}  # fmt: skip
CASE_FIELDS = ("name", "points", "visibility", "seed_scope", "seed", "shape")
ATTENTION_CASE_FIELDS = (*CASE_FIELDS, "distribution", "inputs", "attention", "mask")
GIVEN = ("q", "k", "v", "attn_mask", "past_key", "past_value", "q_lens", "kv_lens", "block_table", "dout")
NAME = re.compile(r"[^\s/\\](?:[^/\\]*[^\s/\\])?")


@dataclass(frozen=True)
class Common:
    """What all cases have from their problem."""

    kind: str
    dtype: str
    spec: Mapping[str, Any]
    answers: tuple[Part, ...]
    load_upload: LoadUpload | None = None
    is_question: bool = False  # asked in one call: without a shape from which to draw


def points(reader: ObjectReader) -> float:
    """The ``points`` of a case or of an answer."""
    return reader.number("points", 1.0, 0.0, MAX_POINTS)


@dataclass(frozen=True)
class _Head:
    """What every case has, of whatever kind."""

    name: str
    points: float
    visibility: str
    seed_scope: str
    seed: int | None


def _head(reader: ObjectReader) -> _Head:
    value, name = reader.fields.get("name"), ""
    if not isinstance(value, str):
        detail = f"name is required, a string; here is {show(value)}"
        reader.problems.add(
            reader.at("name"), "required" if value is None else "wrong-type", detail, MALFORMED
        )
    elif not NAME.fullmatch(value) or not value.isprintable() or len(value) > MAX_NAME:
        detail = f"name must be 1 to {MAX_NAME} printable characters without slashes, not {show(value)}"
        reader.problems.add(reader.at("name"), "not-a-name", detail)
    else:
        name = value
    scope = reader.choice("seed_scope", SEED_SCOPES[0], SEED_SCOPES)
    seed = reader.integer_or_null("seed", 0, MAX_SEED)
    if seed is not None and scope != "fixed":
        detail = f"seed is for seed_scope fixed; with {scope} it is drawn: leave it out"
        reader.problems.add(reader.at("seed"), "unsupported", detail)
    visibility = reader.choice("visibility", VISIBILITIES[0], VISIBILITIES)
    return _Head(name, points(reader), visibility, scope, seed)


def trace_case(reader: ObjectReader, common: Common) -> Case | None:
    head = _head(reader)
    trace = traces.read_trace(common.kind, reader)
    if trace is None:
        return None
    body = {**reader.fields, **head.__dict__}
    return Case(
        head.name,
        head.points,
        head.visibility,
        head.seed_scope,
        head.seed,
        "uniform",
        None,
        body,
        trace=trace,
    )


def attention_case(reader: ObjectReader, common: Common) -> Case | None:
    """Every axis checked, explicit inputs read."""
    problems = reader.problems
    before = len(problems.found) + problems.dropped
    head = _head(reader)
    distribution = reader.choice("distribution", "peaked", DISTRIBUTIONS)
    mask = reader.choice_or_null("mask", MASKS)
    given = reader.fields.get("inputs") or {}
    inputs = ObjectReader(given, reader.at("inputs"), problems, GIVEN)
    own = ObjectReader(
        reader.fields.get("attention") or {}, reader.at("attention"), problems, ATTENTION_FIELDS
    )
    if mask is not None and inputs.has("attn_mask"):
        problems.add(reader.at("mask"), "unsupported", "attn_mask is given in inputs; leave mask out")
    attention = {**common.spec["attention"], **own.fields}
    packed = attention.get("num_heads") is not None
    drawn = _drawn(reader, inputs, common, mask, packed=packed) if isinstance(given, dict) else {}
    if len(problems.found) + problems.dropped > before:
        return None
    body = {
        "engine": "reference",
        "dtype": common.dtype,
        "attention": attention,
        "inputs": {
            name: {"seed": 0, "shape": shape, "distribution": distribution} for name, shape in drawn.items()
        } | {name: value for name, value in given.items() if value is not None},
    }  # fmt: skip
    try:
        parsed = parse_run(body, load_upload=common.load_upload, max_elements=MAX_NUMBERS)
    except SpecError as error:
        _redirect(error, reader, own, inputs)
        return None
    if not _size_is_right(parsed.spec, common, reader):
        return None
    run = _explicit(parsed.spec, given)
    arrays = _rounded(run, parsed.arrays | _seeded(parsed.spec, given))
    spec, canonical = canonical_case(run, arrays)
    sent = {
        **head.__dict__,
        "distribution": distribution,
        "mask": mask,
        **{name: reader.fields[name] for name in ("shape", "attention") if reader.has(name)},
    }
    explicit = {name: value for name, value in given.items() if value is not None}
    if explicit:
        sent["inputs"] = {name: _kept(value, arrays.get(name)) for name, value in explicit.items()}
    return Case(
        head.name, head.points, head.visibility, head.seed_scope, head.seed, distribution, mask, sent,
        run=run, spec=spec, given=arrays, canonical=canonical,
    )  # fmt: skip


def _drawn(
    reader: ObjectReader, inputs: ObjectReader, common: Common, mask: str | None, *, packed: bool
) -> dict[str, list[int]]:
    """The shapes of the inputs that are drawn, with heads side by side where they are ``packed``."""
    if not reader.has("shape"):
        missing = [name for name in ("q", "k", "v") if not inputs.has(name)]
        if missing and common.is_question:
            detail = f"{missing[0]} is required: nested lists, base64, a seed with a shape, or an upload"
            reader.problems.add(inputs.at(missing[0]), "required", detail, MALFORMED)
        elif missing or mask:
            detail = (
                "shape is required: {batch, num_heads, num_kv_heads, q_len, kv_len, head_dim, v_head_dim}"
            )
            reader.problems.add(reader.at("shape"), "required", detail, MALFORMED)
        elif _wants_gradients(common) and not inputs.has("dout"):
            detail = "gradients need dout, the gradient of a loss by out, beside these inputs"
            reader.problems.add(inputs.at("dout"), "required", detail, MALFORMED)
        return {}
    shape = ObjectReader(reader.fields["shape"], reader.at("shape"), reader.problems, tuple(SHAPE))
    if not isinstance(reader.fields["shape"], dict):
        return {}
    for name in ("q_len", "head_dim"):
        if name not in shape.fields:
            reader.problems.add(shape.at(name), "required", f"{name} is required, an integer", MALFORMED)
    size = {name: shape.integer(name, 1, 0, most) for name, most in SHAPE.items()}
    for name, other in (("num_kv_heads", "num_heads"), ("kv_len", "q_len"), ("v_head_dim", "head_dim")):
        if name not in shape.fields:
            size[name] = size[other]
    batch, heads, n, m = (size[name] for name in ("batch", "num_heads", "q_len", "kv_len"))
    drawn = {
        "q": [batch, heads, n, size["head_dim"]],
        "k": [batch, size["num_kv_heads"], m, size["head_dim"]],
        "v": [batch, size["num_kv_heads"], m, size["v_head_dim"]],
    }
    if mask:
        drawn["attn_mask"] = [batch, 1, n, m]
    if _wants_gradients(common):
        drawn["dout"] = [batch, heads, n, size["v_head_dim"]]
    if packed:
        drawn |= {name: [b, length, h * d] for name, (b, h, length, d) in drawn.items() if name in PACKED}
    return {name: axes for name, axes in drawn.items() if not inputs.has(name)}


def _wants_gradients(common: Common) -> bool:
    return any(part.name in GRADIENTS for part in common.answers)


def _redirect(error: SpecError, reader: ObjectReader, own: ObjectReader, inputs: ObjectReader) -> None:
    """Point from the run that a case stands for to the field of the problem that says so."""
    known = {(problem.pointer, problem.detail) for problem in reader.problems.found}
    for problem in error.problems:
        area, _, rest = problem.pointer.lstrip("/").partition("/")
        name = rest.split("/")[0]
        if area == "attention":
            pointer = f"{own.pointer}/{rest}" if name in own.fields else f"/spec/attention/{rest}"
        elif area == "inputs":
            pointer = f"{inputs.pointer}/{rest}" if inputs.has(name) else reader.at("shape")
        else:
            pointer = "/spec/dtype" if area == "dtype" else reader.pointer
        if (pointer, problem.detail) not in known:
            known.add((pointer, problem.detail))
            reader.problems.add(pointer, problem.code, problem.detail, problem.status)


def _size_is_right(spec: RunSpec, common: Common, reader: ObjectReader) -> bool:
    pairs = spec.batch * spec.num_heads * spec.q_len * spec.kv_len
    pointer = reader.at("shape" if reader.has("shape") else "inputs")
    if pairs > MAX_PAIRS:
        detail = (
            f"batch · heads · q_len · kv_len is {pairs:,}; a case has at most {MAX_PAIRS:,} pairs: shorten it"
        )
        reader.problems.add(pointer, "too-large", detail, TOO_LARGE)
        return False
    if spec.is_paged and _wants_gradients(common):
        detail = "gradients of pages are not graded; send k and v in a row, without block_table"
        reader.problems.add(reader.at("inputs"), "unsupported", detail)
        return False
    empty = [part.name for part in common.answers if not math.prod(answer_shape(spec, part.name))]
    if empty:
        detail = f"{empty[0]} would have no numbers, so that every answer were right; make no axis 0"
        reader.problems.add(pointer, "empty", detail)
        return False
    return True


def _seeded(spec: RunSpec, given: Mapping[str, Any]) -> dict[str, Array]:
    """The explicit inputs that the author wrote as a seed: the same for everybody."""
    return {
        name: generate(name, each.seed, each.shape, each.distribution or "normal", each.dtype)
        for name, each in spec.inputs.items()
        if each.seed is not None and given.get(name) is not None
    }


def _explicit(spec: RunSpec, given: Mapping[str, Any]) -> RunSpec:
    """With no seeds but those of inputs that are drawn."""
    inputs = {
        name: InputSpec(each.shape, each.dtype, "inline") if given.get(name) is not None else each
        for name, each in spec.inputs.items()
    }
    return replace(spec, inputs=inputs)


def _rounded(spec: RunSpec, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Explicit inputs as everybody computes with them (``kernels.execute.materialise`` without torch)."""
    rounded: dict[str, Array] = {}
    for name, array in arrays.items():
        if name in INTEGERS:
            rounded[name] = array.astype(np.int64)
        elif array.dtype == np.bool_:
            rounded[name] = array
        else:
            rounded[name] = round_to_dtype(array, spec.dtype if name in ROUNDED else "float32")
    return rounded


def canonical_case(spec: RunSpec, arrays: Mapping[str, Array]) -> tuple[RunSpec, dict[str, Array]]:
    """The same computation with every axis [batch, heads, len, dim] and without pages."""
    made = {name: to_canonical(spec, name, array) for name, array in arrays.items()}
    if spec.is_paged:
        table = made.pop("block_table")
        made |= {name: gather_pages(made[name], table) for name in ("k", "v")}
    inputs = {}
    for name, given in spec.inputs.items():
        if name == "block_table":
            continue
        shape = given.shape
        if name in made:
            shape = made[name].shape
        elif name not in ("attn_mask", "q_lens", "kv_lens"):
            shape = spec.canonical_shape(name)
        inputs[name] = InputSpec(tuple(shape), given.dtype, given.source, given.seed, given.distribution)
    attention = replace(spec.attention, num_heads=None, num_kv_heads=None)
    return replace(spec, inputs=inputs, attention=attention), made


def _kept(value: Any, array: Array | None) -> Any:
    """An explicit input as it is stored: an upload expires, so that its numbers are written instead."""
    if not isinstance(value, dict) or "upload" not in value or array is None:
        return value
    return encoded(array)


def encoded(array: Array) -> dict[str, Any]:
    """An array as the base64 form of the contract."""
    dtype = str(array.dtype)
    if dtype not in ("float16", "float32", "float64", "int32", "int64", "bool"):
        array, dtype = array.astype(np.float64), "float64"
    data = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    return {"b64": base64.b64encode(data.tobytes()).decode(), "dtype": dtype, "shape": list(array.shape)}


def answer_shape(spec: RunSpec, name: str) -> tuple[int, ...]:
    """The shape of an answer to a case whose spec is canonical."""
    rows = (spec.batch, spec.num_heads, spec.q_len)
    if name == "lse":
        return rows
    if name in GRADIENTS:
        return spec.canonical_shape(GRADIENTS[name])
    return (*rows, spec.v_head_dim if name == "out" else spec.kv_len)
