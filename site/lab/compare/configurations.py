"""Runs side by side: which fields differ, whether their inputs are the same, and what each measured."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from kernels.registry import ENGINES
from kernels.spec import RunSpec
from lab import units
from lab.compare import words
from lab.runs import measured
from lab.runs.presentation import STATUS_NAMES, shape_sentence
from workers import artifacts
from workers.models import Run, Status

LETTERS = "ABCD"
NAMES: dict[str, Promise] = {
    "engine": gettext_lazy("engine"),
    "device": gettext_lazy("device"),
    "dtype": gettext_lazy("number format"),
    "return": gettext_lazy("results asked for"),
    "scale": gettext_lazy("scale on q·k (not set: 1/√d)"),
    "is_causal": gettext_lazy("causal mask"),
    "causal_alignment": gettext_lazy("causal alignment"),
    "q_positions": gettext_lazy("positions of queries"),
    "kv_positions": gettext_lazy("positions of keys"),
    "window": gettext_lazy("window [left, right]"),
    "softcap": gettext_lazy("softcap (0: none)"),
    "alibi_slopes": gettext_lazy("ALiBi slopes"),
    "rope": gettext_lazy("RoPE"),
    "style": gettext_lazy("RoPE: which dimensions make a pair"),
    "theta": gettext_lazy("RoPE: theta"),
    "sinks": gettext_lazy("sinks"),
    "pattern": gettext_lazy("pattern"),
    "num_heads": gettext_lazy("packed heads"),
    "num_kv_heads": gettext_lazy("packed key heads"),
    "warmup": gettext_lazy("warm-up runs"),
    "iters": gettext_lazy("timed runs"),
    "shape": gettext_lazy("shape"),
}


def header(runs: tuple[Run, ...]) -> list[dict[str, Any]]:
    """What stands over the column of each run."""
    found = []
    for letter, run in zip(LETTERS, runs, strict=False):
        spec = RunSpec.from_dict(run.spec)
        found.append(
            {
                "letter": letter,
                "run": run,
                "title": ENGINES[run.engine].title if run.engine in ENGINES else run.engine,
                "shape": shape_sentence(spec),
                "status": STATUS_NAMES[Status(run.status)],
            }
        )
    return found


# --- What differs ---------------------------------------------------------------------------------


def fields(runs: tuple[Run, ...]) -> list[dict[str, Any]]:
    """The fields that are not the same in all: a name in words, the name in a request, a value for each."""
    flat = [dict(flattened(spoken(run))) for run in runs]
    names = dict.fromkeys(name for each in flat for name in each)
    rows = []
    for name in names:
        values = [each.get(name) for each in flat]
        if all(value == values[0] for value in values):
            continue
        last = name.rpartition(".")[2]
        rows.append(
            {
                "name": str(NAMES.get(last, last.replace("_", " "))),
                "field": name,
                "values": [{"text": words.shown(value), "differs": value != values[0]} for value in values],
            }
        )
    return rows


def spoken(run: Run) -> dict[str, Any]:
    """What the run was asked for, with inputs by shape alone: their numbers are another question."""
    spec = RunSpec.from_dict(run.spec).to_dict()
    shapes = {name: {"shape": times(given["shape"])} for name, given in spec["inputs"].items()}
    return {**spec, "inputs": shapes}


def flattened(value: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """`attention.rope.style`, …: a pattern stays whole."""
    for name, item in value.items():
        here = f"{before}{name}"
        if isinstance(item, dict) and name not in ("pattern", "scaling"):
            yield from flattened(item, f"{here}.")
        elif isinstance(item, dict):
            yield here, json.dumps(item, ensure_ascii=False)
        else:
            yield here, item


def times(shape: list[int]) -> str:
    return " × ".join(map(str, shape))


# --- Inputs ---------------------------------------------------------------------------------------


def inputs(runs: tuple[Run, ...]) -> list[dict[str, Any]]:
    """Each input of any of them: beside the first run's, is it the same?"""
    if any(not run.input_info for run in runs):
        return []
    names = dict.fromkeys(name for run in runs for name in run.input_info)
    return [
        {"name": name, "said": [_said(runs[0], run, name) for run in runs], "digests": _digests(runs, name)}
        for name in names
    ]


def are_same(rows: list[dict[str, Any]]) -> bool:
    """Whether all runs had the same numbers, as they were sent."""
    return all(not said["differs"] for row in rows for said in row["said"])


def _digests(runs: tuple[Run, ...], name: str) -> list[str]:
    return [run.input_info.get(name, {}).get("sha256", "")[:12] for run in runs]


def _said(first: Run, run: Run, name: str) -> dict[str, Any]:
    """In words; `differs` where what was sent is not the same."""
    one, other = first.input_info.get(name), run.input_info.get(name)
    if run is first:
        shape = times(one["shape"]) if one else _("none")
        return {"text": f"{shape}, {one['dtype']}" if one else shape, "differs": False}
    if one is None or other is None:
        return {"text": _("none") if other is None else _("only here"), "differs": True}
    if one["sha256"] == other["sha256"] and one["shape"] == other["shape"]:
        return {"text": _("the same"), "differs": False}
    if one["shape"] != other["shape"]:
        return {"text": _("another shape: {shape}").format(shape=times(other["shape"])), "differs": True}
    if one["dtype"] != other["dtype"] and _sent_alike(first, run, name):
        return {
            "text": _("the same as sent, rounded to {dtype}").format(dtype=other["dtype"]),
            "differs": False,
        }
    return {"text": _("other numbers"), "differs": True}


def _sent_alike(first: Run, run: Run, name: str) -> bool:
    one, other = (each.spec["inputs"][name] for each in (first, run))
    if one["source"] == "seed" or other["source"] == "seed":
        drawn = ("seed", "distribution", "shape")
        return all(one.get(key) == other.get(key) for key in drawn)
    arrays = [artifacts.load_submitted(each).get(name) for each in (first, run)]
    return all(array is not None for array in arrays) and np.array_equal(*arrays)  # type: ignore[arg-type]


# --- Figures --------------------------------------------------------------------------------------


def figures(runs: tuple[Run, ...]) -> list[dict[str, Any]]:
    """What was measured, a row for each figure that one of them has. A time only where it is a speed."""
    found = [_figures(run) for run in runs]
    names = dict.fromkeys(name for each in found for name in each)
    return [{"name": name, "values": [each.get(name, "–") for each in found]} for name in names]


def _figures(run: Run) -> dict[str, str]:
    found = run.result or {}
    engine = ENGINES.get(run.engine)
    shown: dict[str, str] = {}
    accuracy = measured.accuracy(
        found.get("numerics") or {}, is_double=engine is not None and engine.is_double
    )
    if accuracy:
        shown[_("largest error against float64")] = (
            _("none: it is float64") if accuracy["is_yardstick"] else accuracy["max_abs_err"]
        )
        shown[_("bound of rounding")] = accuracy["bound"]
        shown[_("within the bound")] = words.shown(bool(accuracy["within"]))
    against = found.get("comparison") or {}
    if against.get("rel_err") is not None:
        shown[_("relative error of the output against {what}").format(what=against.get("with"))] = (
            units.error(against["rel_err"])
        )
    memory = found.get("memory") or {}
    for key, name in (
        ("peak_bytes", _("peak memory, measured")),
        ("predicted_bytes", _("peak memory, predicted")),
    ):
        if memory.get(key) is not None:
            shown[name] = units.size(memory[key])
    traffic = found.get("traffic") or {}
    for key, name in (("bytes_read", _("bytes read")), ("bytes_written", _("bytes written"))):
        if traffic.get(key) is not None:
            shown[name] = f"{units.size(traffic[key])} ({traffic.get('method')})"
    cost = found.get("cost") or {}
    if cost.get("flops") is not None:
        shown[_("arithmetic")] = f"{units.count(cost['flops'])} FLOP"
    if timing := found.get("timing") or {}:
        shown[_("time, median")] = _time(timing, run.environment or {})
    return shown


def _time(timing: dict[str, Any], environment: dict[str, Any]) -> str:
    """A time only where it is a speed."""
    if timing.get("method") == "interpreter" or not timing.get("representative"):
        return _("interpreter: not a speed")
    device = environment.get("gpu_name") or environment.get("device") or ""
    return f"{units.nanoseconds(timing['median_ns'])} ({device})"
