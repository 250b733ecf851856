"""Estimates as JSON: bytes as integers, and beside them the same for people."""

from dataclasses import asdict, replace
from functools import cache
from typing import Any

from kernels.sizing.fields import Assumption
from kernels.sizing.gpus import Gpu
from kernels.sizing.hf_config import ReadConfig
from kernels.sizing.inverse import longest, most_sequences, which_fit
from kernels.sizing.kv_cache import kv_cache
from kernels.sizing.layers import Model
from kernels.sizing.memory import Workload, memory, per_gpu_bytes
from kernels.sizing.models import NamedModel, read_model
from kernels.sizing.models import models as known_models
from kernels.sizing.questions import Question
from kernels.sizing.roofline import Bound, bound, decode, prefill
from kernels.sizing.storage import cache_format, readable
from kernels.sizing.weights import weigh

Json = dict[str, Any]

AS_LONG = "as many tokens as the decoder has, since the request does not say"


def kv_cache_answer(asked: Question) -> Json:
    """What the cache holds, layer by layer."""
    load = asked.load
    cached = kv_cache(asked.read.model, load.cache, load.length, load.batch, load.encoded)
    sizes = {
        "bytes": cached.bytes,
        "bytes_unwindowed": cached.bytes_unwindowed,
        "bytes_per_token": cached.bytes_per_token,
        "bytes_per_next_token": cached.bytes_per_next_token,
        "state_bytes": cached.state_bytes,
    }
    layers = [
        {
            "layer": layer.layer,
            "kind": layer.kind,
            "kv_heads": layer.kv_heads,
            "head_dim": layer.head_dim,
            "v_head_dim": layer.v_head_dim,
            "window": layer.window,
            "tokens": layer.tokens,
            "bytes": layer.bytes,
            "state_bytes": layer.state_bytes,
        }
        for layer in cached.layers
    ]
    return {**sizes, **_readable(sizes), "layers": layers, **_asked(asked), **_account(asked)}


def memory_answer(asked: Question) -> Json:
    """Everything that is in memory at once, and whether it fits where it should."""
    model, load = asked.read.model, asked.load
    needed, weights = memory(model, load), weigh(model, load.weights)
    sizes = {"bytes": needed.total, "per_gpu_bytes": needed.per_gpu}
    parts = {
        "weights": needed.weights,
        "cache": needed.cache,
        "states": needed.states,
        "activations": needed.activations,
        "logits": needed.logits,
        "scores": needed.scores,
        "overhead": needed.overhead,
    }
    free = None if asked.gpu is None else asked.gpu.memory_bytes - needed.per_gpu
    return {
        **sizes,
        "parts": parts,
        "readable": {**_readable(sizes)["readable"], **_readable(parts)["readable"]},
        "params": weights.params,
        "active_params": weights.active_params,
        "weights_by_part": weights.parts,
        "gpu": gpu_row(asked.gpu) if asked.gpu else None,
        "gpus": load.gpus,
        "fits": None if free is None else free >= 0,
        "free_bytes": free,
        **_asked(asked),
        **_account(asked),
    }


def roofline_answer(asked: Question) -> Json:
    """The least time of a prompt and of a token."""
    gpu, model = asked.gpu, asked.read.model
    assert gpu is not None  # noqa: S101 (a roofline without one is refused)
    steps = {"prefill": bound(model, prefill(asked.load), gpu, asked.compute_bits)}
    if asked.load.q_len is not None and asked.load.length:
        steps["decode"] = bound(model, decode(asked.load), gpu, asked.compute_bits)
    return {
        "method": "roofline",
        "measured": False,
        "prefill": _bound(steps["prefill"]),
        "decode": _bound(steps["decode"]) if "decode" in steps else None,
        "gpu": gpu_row(gpu),
        "gpus": asked.load.gpus,
        "compute_bits": asked.compute_bits,
        **_asked(asked),
        **_account(asked),
    }


def fit_answer(asked: Question) -> Json:
    """The largest that fits, or the GPUs that do."""
    answer = {"gpu": _fitting, "len": _longest, "batch": _most}[asked.find](asked)
    return {"find": asked.find, **answer, **_asked(asked), **_account(asked)}


@cache
def model_rows() -> list[Json]:
    """The table of models, each with what follows from its fields."""
    return [_model_row(model) for model in known_models().values()]


def gpu_row(gpu: Gpu) -> Json:
    """A GPU with what follows from its figures."""
    return {**asdict(gpu), "memory_bytes": gpu.memory_bytes, "ridge_flop_per_byte": round(gpu.ridge, 1)}


# --- Parts -----------------------------------------------------------------------------------


def _longest(asked: Question) -> Json:
    model, budget = asked.read.model, _budget(asked)
    found = longest(model, asked.load, budget)
    context = model.context
    return {
        "len": found,
        "context": context,
        "within_context": None if context is None else found <= context,
        **_around(model, asked, replace(asked.load, length=found), replace(asked.load, length=found + 1)),
    }


def _most(asked: Question) -> Json:
    found = most_sequences(asked.read.model, asked.load, _budget(asked))
    return {
        "batch": found,
        **_around(
            asked.read.model, asked, replace(asked.load, batch=found), replace(asked.load, batch=found + 1)
        ),
    }


def _around(model: Model, asked: Question, this: Workload, one_more: Workload) -> Json:
    sizes = {
        "per_gpu_bytes": per_gpu_bytes(model, this),
        "one_more_bytes": per_gpu_bytes(model, one_more),
        "budget_bytes": _budget(asked),
    }
    gpu = gpu_row(asked.gpu) if asked.gpu else None
    return {**sizes, **_readable(sizes), "gpu": gpu, "gpus": asked.load.gpus}


def _fitting(asked: Question) -> Json:
    rows = [
        {
            "gpu": fit.gpu.slug,
            "title": fit.gpu.title,
            "fits": fit.count is not None,
            "gpus": fit.count,
            "per_gpu_bytes": fit.per_gpu,
            "memory_bytes": fit.gpu.memory_bytes,
            "readable": readable(fit.per_gpu),
        }
        for fit in which_fit(asked.read.model, asked.load)
    ]
    return {"fitting": rows}


def _budget(asked: Question) -> int:
    assert asked.gpu is not None  # noqa: S101 (what looks for a size is refused without one)
    return asked.gpu.memory_bytes


def _bound(step: Bound) -> Json:
    return {
        "tokens": step.tokens,
        "flops": step.flops,
        "bytes": round(step.bytes),
        "traffic": {name: round(size) for name, size in step.traffic.items()},
        "arithmetic_intensity": step.flops / step.bytes if step.bytes else None,
        "compute_seconds": step.compute_seconds,
        "memory_seconds": step.memory_seconds,
        "seconds": step.seconds,
        "bound": step.bound,
        "tokens_per_second": step.tokens / step.seconds if step.seconds else None,
    }


def _readable(sizes: dict[str, int]) -> Json:
    return {"readable": {name: readable(size) for name, size in sizes.items()}}


def _asked(asked: Question) -> Json:
    """The question, its defaults filled in; what was looked for is not part of it."""
    load = asked.load
    said: Json = {"dtype": load.cache.name, "kv_scale_bytes": load.cache.scale_bytes}
    if asked.find != "len":
        said["len"] = load.length
    if asked.find != "batch":
        said["batch"] = load.batch
    if asked.read.model.encoder:
        said["encoder_len"] = load.encoder_len if asked.find == "len" else load.encoded
    if asked.weights_dtype:
        said["weights_dtype"] = asked.weights_dtype
    return said


def _account(asked: Question) -> Json:
    """How the model was read."""
    read = asked.read
    return {
        "model": asked.named.slug if asked.named else None,
        "model_type": read.model_type or None,
        "understood": list(read.understood),
        "ignored": list(read.ignored),
        "unknown": list(read.unknown),
        "assumed": [asdict(entry) for entry in _assumed(asked)],
        "notes": _notes(asked),
    }


def _assumed(asked: Question) -> list[Assumption]:
    entries = list(asked.read.assumed)
    if asked.read.model.encoder and asked.load.encoder_len is None:
        entries.append(Assumption("encoder_len", asked.load.encoded, AS_LONG))
    return entries


def _notes(asked: Question) -> list[str]:
    notes = list(asked.read.notes)
    context, length = asked.read.model.context, asked.load.length
    if asked.named and asked.named.note:
        notes.append(asked.named.note)
    if context is not None and length > context:
        notes.append(f"{length:,} tokens are beyond the {context:,} that the model was made for.")
    if asked.gpu is not None and asked.gpu.note:
        notes.append(f"{asked.gpu.title}: {asked.gpu.note}.")
    return notes


def _model_row(model: NamedModel) -> Json:
    read: ReadConfig = read_model(model.slug)
    weights = weigh(read.model)
    cached = kv_cache(read.model, cache_format("float16"), 1)
    return {
        "slug": model.slug,
        "title": model.title,
        "aliases": list(model.aliases),
        "params": weights.params,
        "active_params": weights.active_params,
        "published_params": model.published_params,
        "layers": len(read.model.layers),
        "context": read.model.context,
        "kv_bytes_per_token": cached.bytes_per_token,
        "state_bytes": cached.state_bytes,
        "config": model.config,
        "source": model.source,
        "note": model.note,
    }
