"""A request body → what is asked: which model, how much of it, on what. Everything wrong is told at once."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.sizing.gpus import Gpu, find_gpu
from kernels.sizing.hf_config import ReadConfig, read_config
from kernels.sizing.inverse import MAX_BATCH, MAX_LEN, divides
from kernels.sizing.memory import Workload
from kernels.sizing.models import NamedModel, find_model, read_model
from kernels.sizing.storage import (
    CACHE_DTYPES,
    SIXTEEN,
    WEIGHT_DTYPES,
    WEIGHT_FORMATS,
    WeightFormat,
    cache_format,
    weight_format,
)
from kernels.spec.problems import MALFORMED, Problems, SpecError, show
from kernels.spec.reader import ObjectReader

MAX_GPUS = 1024
MAX_OVERHEAD = 2**50
KV_SCALES = ("per_token_head", "per_tensor")
LOGITS = ("last", "all")
ATTENTION = ("fused", "materialised")
FINDS = ("len", "batch", "gpu")
UNSAID = "?"
FIGURE_LIMITS = (1e-3, 1e9)
SOUGHT = {"len": ("len",), "batch": ("batch",), "gpu": ("gpu", "gpus")}
GPU_FIGURES = ("memory_gb", "bandwidth_gb_s", "tflops_16bit", "tflops_8bit")

MODEL = ("model", "config")
CACHE = (*MODEL, "len", "batch", "encoder_len", "dtype", "kv_scale")
WEIGHTS = ("weights_dtype", "group_size", "gpu", "gpus")
STEP = ("q_len", "logits", "attention", "overhead_bytes")
FIELDS = {
    "kv-cache": CACHE,
    "memory": (*CACHE, *WEIGHTS, *STEP),
    "roofline": (*CACHE, *WEIGHTS, "compute_bits"),
    "fit": (*CACHE, *WEIGHTS, *STEP, "find"),
}


@dataclass(frozen=True)
class Question:
    """What is asked, validated."""

    named: NamedModel | None  # None: the model came as a config
    read: ReadConfig
    load: Workload
    weights_dtype: str  # "config": as its quantization_config says; "" where it is not asked
    gpu: Gpu | None
    find: str = ""
    compute_bits: int = 16


def parse_question(body: object, kind: str) -> Question:
    """The question in the body of an estimate. Raises SpecError.

    ``kind`` is the estimate that is asked for, a key of FIELDS.
    """
    problems = Problems()
    reader = ObjectReader(body, "", problems, FIELDS[kind])
    if not isinstance(body, dict):
        problems.raise_if_any()
    find = _find(reader) if kind == "fit" else ""
    named, read = _model(reader)
    dtype, stored = _weights(reader, read) if kind != "kv-cache" else ("", SIXTEEN)
    gpu = _gpu(reader, needed=kind == "roofline" or find in ("len", "batch"))
    load = _load(reader, read, stored, find, needs_step=kind in ("memory", "fit"))
    bits = 8 if kind == "roofline" and _bits(reader, gpu) == "8" else 16
    if read is not None and kind != "kv-cache":
        for problem in read.missing:
            problems.add(problem.pointer, problem.code, problem.detail, problem.status)
    _check_sharing(reader, read, load.gpus)
    problems.raise_if_any()
    assert read is not None  # noqa: S101 (a problem was noted otherwise)
    return Question(named, read, load, dtype, gpu, find, bits)


def _model(reader: ObjectReader) -> tuple[NamedModel | None, ReadConfig | None]:
    has_model, has_config = reader.has("model"), reader.has("config")
    if has_model == has_config:
        if has_model:
            detail = "model and config both say which model is meant: leave one of them out"
        else:
            detail = "say which model: model, a name that GET /models lists, or config, a config.json"
        where = "config" if has_model else "model"
        reader.problems.add(reader.at(where), "contradiction" if has_model else "required", detail, MALFORMED)
        return None, None
    try:
        if has_config:
            return None, read_config(reader.fields["config"])
        name = reader.fields["model"]
        if not isinstance(name, str):
            reader.wrong_type("model", "the name of a model")
            return None, None
        named = find_model(name)
        return named, read_model(named.slug)
    except SpecError as error:
        for problem in error.problems:
            reader.problems.add(problem.pointer, problem.code, problem.detail, problem.status)
        return None, None


def _find(reader: ObjectReader) -> str:
    """What is looked for; UNSAID, noted, if that is not known."""
    if reader.has("find"):
        return reader.choice("find", UNSAID, FINDS)
    detail = "say what to find: len (the longest context), batch (the largest) or gpu (which ones fit)"
    reader.problems.add(reader.at("find"), "required", detail, MALFORMED)
    return UNSAID


def _load(
    reader: ObjectReader, read: ReadConfig | None, stored: WeightFormat, find: str, *, needs_step: bool
) -> Workload:
    length = 1 if find in ("len", UNSAID) else _length(reader)
    for sought in SOUGHT.get(find, ()):
        if reader.has(sought):
            detail = f"{sought} is what is looked for: leave it out, or find something else"
            reader.problems.add(reader.at(sought), "contradiction", detail)
    q_len: int | None = 1
    if needs_step:
        q_len = _q_len(reader, length if find != "len" else MAX_LEN)
    if read is not None and not read.model.encoder and _is_encoder(read):
        q_len = None
    if read is not None and reader.has("encoder_len") and not read.model.encoder:
        detail = "encoder_len is of models with an encoder beside a decoder, which this is not: leave it out"
        reader.problems.add(reader.at("encoder_len"), "contradiction", detail)
    dtype = reader.choice("dtype", "float16", CACHE_DTYPES)
    return Workload(
        length=length,
        batch=1 if find == "batch" else reader.integer("batch", 1, 1, MAX_BATCH),
        q_len=q_len,
        encoder_len=reader.integer_or_null("encoder_len", 0, MAX_LEN),
        cache=cache_format(dtype, reader.choice("kv_scale", "per_token_head", KV_SCALES)),
        weights=stored,
        gpus=reader.integer("gpus", 1, 1, MAX_GPUS),
        all_logits=reader.choice("logits", "last", LOGITS) == "all",
        has_scores=reader.choice("attention", "fused", ATTENTION) == "materialised",
        overhead_bytes=reader.integer("overhead_bytes", 0, 0, MAX_OVERHEAD),
    )


def _length(reader: ObjectReader) -> int:
    if reader.has("len"):
        return reader.integer("len", 0, 0, MAX_LEN)
    detail = f"say how many tokens a sequence has: len, from 0 to {MAX_LEN:,}"
    reader.problems.add(reader.at("len"), "required", detail, MALFORMED)
    return 0


def _q_len(reader: ObjectReader, most: int) -> int | None:
    """Tokens of each sequence in the step; "len" is a whole prompt at once."""
    if reader.fields.get("q_len") == "len":
        return None
    value = reader.integer("q_len", 1, 1, MAX_LEN)
    if value > max(1, most):
        detail = f'q_len is {value}, but a sequence has {most} tokens: lower it, or say "len" for all of them'
        reader.problems.add(reader.at("q_len"), "out-of-range", detail)
    return value


def _is_encoder(read: ReadConfig) -> bool:
    return all(
        mixer.kind == "bidirectional_attention" for layer in read.model.layers for mixer in layer.mixers
    )


def _weights(reader: ObjectReader, read: ReadConfig | None) -> tuple[str, WeightFormat]:
    group = reader.integer_or_null("group_size", 1, 2**20)
    if not reader.has("weights_dtype") and read is not None and read.stored is not None:
        stored, dtype = read.stored, "config"
    else:
        dtype = reader.choice("weights_dtype", "bfloat16", WEIGHT_DTYPES)
        stored = WEIGHT_FORMATS[dtype]
    if group is not None and (dtype == "config" or not stored.scale_bits):
        detail = (
            f"group_size is of quantised weights, and weights_dtype is {dtype}: leave it out, or quantise"
        )
        reader.problems.add(reader.at("group_size"), "contradiction", detail)
        return dtype, stored
    return dtype, stored if dtype == "config" else weight_format(dtype, group)


def _gpu(reader: ObjectReader, *, needed: bool) -> Gpu | None:
    value = reader.fields.get("gpu")
    if value is None:
        if needed:
            detail = "say on which GPU: gpu, a name that GET /gpus lists, or the figures of another"
            reader.problems.add(reader.at("gpu"), "required", detail, MALFORMED)
        return None
    if isinstance(value, dict):
        return _own_gpu(ObjectReader(value, reader.at("gpu"), reader.problems, GPU_FIGURES))
    if not isinstance(value, str):
        reader.wrong_type("gpu", "the name of a GPU, or an object with its figures")
        return None
    try:
        return find_gpu(value)
    except SpecError as error:
        reader.problems.add(error.problems[0].pointer, error.problems[0].code, error.problems[0].detail)
        return None


def _own_gpu(reader: ObjectReader) -> Gpu:
    for name in GPU_FIGURES[:3]:
        if not reader.has(name):
            detail = f"{name} is missing; a GPU is described by memory_gb, bandwidth_gb_s and tflops_16bit"
            reader.problems.add(reader.at(name), "required", detail, MALFORMED)
    return Gpu(
        slug="",
        title="your GPU",
        memory_gb=reader.number("memory_gb", 1.0, *FIGURE_LIMITS),
        bandwidth_gb_s=reader.number("bandwidth_gb_s", 1.0, *FIGURE_LIMITS),
        tflops_16bit=reader.number("tflops_16bit", 1.0, *FIGURE_LIMITS),
        tflops_8bit=reader.number_or_null("tflops_8bit", *FIGURE_LIMITS),
    )


def _bits(reader: ObjectReader, gpu: Gpu | None) -> str:
    """The width that is computed in, 16 unless 8 is asked for and there."""
    value = reader.fields.get("compute_bits", 16)
    if value not in (8, 16) or isinstance(value, bool):
        detail = f"compute_bits must be 16 or 8, not {show(value)}"
        reader.problems.add(reader.at("compute_bits"), "not-a-choice", detail)
    elif value == 8 and gpu is not None and gpu.tflops_8bit is None:
        detail = f"{gpu.title} has no figure for 8-bit arithmetic: compute_bits must be 16"
        reader.problems.add(reader.at("compute_bits"), "unsupported", detail)
    return str(value)


def _check_sharing(reader: ObjectReader, read: ReadConfig | None, count: int) -> None:
    if read is None or count == 1 or divides(read.model, count):
        return
    heads = read.model.attention_heads
    possible = [n for n in range(1, min(heads) + 1) if all(number % n == 0 for number in heads)]
    detail = (
        f"{count} GPUs cannot share {' and '.join(map(str, heads))} heads evenly; "
        f"possible are {', '.join(map(str, possible[:24]))}"
    )
    reader.problems.add(reader.at("gpus"), "not-divisible", detail)
