"""What was measured of a run, as cards: each term with its value and a line that says what it means."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from kernels.registry import ENGINES
from kernels.spec import RunSpec
from kernels.traffic import modelled_traffic
from lab import units
from workers.models import Run


@dataclass(frozen=True)
class Row:
    """A term, its value, and what it means."""

    label: str
    value: str
    meaning: str = ""


@dataclass(frozen=True)
class Card:
    title: str
    rows: list[Row] = field(default_factory=list)
    headline: str = ""
    verdict: str = ""  # a sentence
    help: str = ""
    columns: tuple[str, ...] = ()  # of a table below the rows
    table: list[tuple[str, list[str]]] = field(default_factory=list)


def section(run: Run, spec: RunSpec) -> dict[str, Any]:
    found, environment = run.result or {}, run.environment or {}
    engine = ENGINES.get(run.engine)
    numerics = accuracy(found.get("numerics") or {}, is_double=engine is not None and engine.is_double)
    cards = [
        error_card(numerics) if numerics and not numerics["is_yardstick"] else None,
        comparison_card(found.get("comparison") or {}),
        time_card(found.get("timing") or {}, environment),
        memory_card(found.get("memory") or {}),
        traffic_card(found.get("traffic") or {}, found.get("cost") or {}, spec),
        work_card(found.get("cost") or {}),
    ]
    return {"accuracy": numerics, "cards": [card for card in cards if card is not None]}


# --- Errors ---------------------------------------------------------------------------------------


def accuracy(numerics: Mapping[str, Any], *, is_double: bool) -> dict[str, Any] | None:
    """Errors and their bounds. What is computed in float64 is a yardstick, and has no error by it."""
    if not numerics:
        return None
    return {
        "is_yardstick": is_double and numerics.get("max_abs_err") == 0,
        "within": numerics.get("within_bound"),
        "max_abs_err": units.error(numerics.get("max_abs_err")),
        "bound": units.error(numerics.get("bound")),
        "nan_count": numerics.get("nan_count") or 0,
        "given": numerics,
    }


def error_card(found: Mapping[str, Any]) -> Card:
    numerics = found["given"]
    described = {
        "max_abs_err": (_("largest error"), _("of all numbers of the output: |engine − float64|")),
        "bound": (_("bound"), _("how far rounding alone may take a correct kernel on these inputs")),
        "max_rel_err": (
            _("largest relative error"),
            _("by the largest number of the output"),
        ),
        "rmse": (_("root mean square error"), _("√ of the mean of all squared errors: a typical one")),
    }
    rows = [
        Row(label, units.error(numerics[key]), meaning)
        for key, (label, meaning) in described.items()
        if numerics.get(key) is not None
    ]
    rows += [
        Row(_("largest error of {name}").format(name=name), units.error(errors.get("max_abs_err")))
        for name, errors in (numerics.get("arrays") or {}).items()
    ]
    within, nans = found["within"], found["nan_count"]
    verdict = _("Within the bound.") if within else _("Beyond the bound: this is worth a closer look.")
    if nans:
        verdict += " " + ngettext("{n} number is NaN.", "{n} numbers are NaN.", nans).format(n=nans)
    return Card(
        _("Error against float64"),
        rows,
        verdict=verdict,
        help=_(
            "The reference computes the same equations in double precision, from the inputs as rounded to "
            "the number format. The bound follows from the format, the lengths, the scale, and the sizes of "
            "queries, keys and values."
        ),
    )


def comparison_card(found: Mapping[str, Any]) -> Card | None:
    """How far what is not softmax attention, or leaves pairs out, is from softmax over all pairs."""
    names = {
        "rel_err": (
            _("relative error of the whole output"),
            _("of the difference, by that of the output"),
        ),
        "max_abs_err": (_("largest error"), ""),
        "max_rel_err": (_("largest relative error"), ""),
        "rmse": (_("root mean square error"), ""),
    }
    rows = [
        Row(label, units.error(found[key]), meaning)
        for key, (label, meaning) in names.items()
        if found.get(key) is not None
    ]
    if not rows:
        return None
    sparse = _(
        "A pattern or a window leaves pairs of queries and keys out. Here the output is compared with the "
        "same attention without them, in double precision."
    )
    other = _(
        "This engine computes something other than softmax attention. Here its output is compared with "
        "softmax attention in double precision on the same queries, keys and values, with the same scale "
        "and causality."
    )
    return Card(_("Against exact attention"), rows, help=sparse if found.get("with") != "softmax" else other)


# --- Time -----------------------------------------------------------------------------------------


def time_card(found: Mapping[str, Any], environment: Mapping[str, Any]) -> Card | None:
    """A time only where it says something: the interpreter's never does."""
    if not found:
        return None
    if found.get("method") == "interpreter" or not found.get("representative", False):
        return Card(
            _("Time"),
            verdict=_("Interpreter: not a speed"),
            help=_(
                "The kernel ran in Triton’s interpreter on a CPU, which follows every instruction one by "
                "one. Its numbers agree with a GPU’s up to rounding, because sums may be taken in another "
                "order and bfloat16 is computed in float32 here. Its time says nothing about a GPU, so none "
                "is shown."
            ),
        )
    samples = found.get("samples_ns") or []
    methods = {
        "cuda_event": _("between two events on the GPU, its cache emptied before each run"),
        "wall": _("the clock of the process, around each run"),
    }
    n, method = len(samples), str(found.get("method"))
    rows = [
        Row(
            _("median of"),
            ngettext("{n} run", "{n} runs", n).format(n=n),
            _("half of the runs were faster, half slower"),
        )
    ]
    if samples:
        fastest = units.nanoseconds(min(samples))
        rows.append(Row(_("fastest"), fastest, _("with the least disturbance by other work")))
    if found.get("p10_ns") is not None:
        spread = f"{units.nanoseconds(found['p10_ns'])} – {units.nanoseconds(found['p90_ns'])}"
        rows.append(Row(_("10 % to 90 %"), spread, _("eight runs of ten lie in between")))
    rows += [
        Row(_("warm-up runs"), str(found.get("warmup")), _("before, not counted: the first run is slow")),
        Row(_("device"), str(environment.get("gpu_name") or environment.get("device") or "")),
        Row(_("method"), method, methods.get(method, "")),
    ]
    median = found.get("median_ns")
    return Card(_("Time"), rows, headline="" if median is None else units.nanoseconds(median))


# --- Memory and traffic ---------------------------------------------------------------------------


def memory_card(found: Mapping[str, Any]) -> Card | None:
    if not found:
        return None
    peak, predicted = found.get("peak_bytes"), found.get("predicted_bytes")
    rows = [
        Row(
            _("predicted"),
            size(predicted),
            _("inputs, results and what the engine holds in between, from the shapes alone"),
        ),
        Row(_("measured peak"), size(peak), str(found.get("method") or "")),
    ]
    if peak and predicted:
        rows.append(
            Row(
                _("measured by predicted"),
                f"{units.significant(peak / predicted)} ×",
                _("near 1: the prediction holds. Memory that was free already is not in the peak."),
            )
        )
    return Card(_("Memory"), rows)


def traffic_card(found: Mapping[str, Any], cost: Mapping[str, Any], spec: RunSpec) -> Card | None:
    """What was counted beside what the model of a GPU says, and beside the least that is possible."""
    if found.get("bytes_read") is None:
        return None
    columns = []
    if found.get("method") == "model":
        columns.append((_("model"), found))
    else:
        columns += [(_("counted"), found), (_("model of a GPU"), modelled_traffic(spec))]
    least = cost.get("bytes_min")
    totals = [both(given) for _name, given in columns]
    names = (_("read"), _("written"))
    keys = ("bytes_read", "bytes_written")
    table = [
        (name, [units.size(given.get(key) or 0) for _name, given in columns])
        for name, key in zip(names, keys, strict=True)
    ]
    table.append((_("together"), [units.size(total) for total in totals]))
    if least:
        table.append((_("by the least possible"), [f"{units.significant(t / least)} ×" for t in totals]))
    return Card(
        _("Memory traffic"),
        [Row(_("least possible"), units.size(least), _("each input read once, each result written once"))]
        if least
        else [],
        columns=tuple(name for name, _given in columns),
        table=table,
        help=_(
            "Counted: every load and store of the kernel in the interpreter, whose tiles are as large as "
            "Triton allows. Model: what the kernel moves on a GPU in the tiles that suit an A100. Smaller "
            "tiles read keys and values more often."
        )
        if len(columns) > 1
        else _("Nothing counts the bytes of this engine where it ran: the model says what it moves."),
    )


def both(given: Mapping[str, Any]) -> float:
    return float((given.get("bytes_read") or 0) + (given.get("bytes_written") or 0))


def work_card(found: Mapping[str, Any]) -> Card | None:
    if found.get("flops") is None:
        return None
    intensity = found.get("arithmetic_intensity")
    return Card(
        _("Work"),
        [
            Row(
                _("arithmetic"),
                f"{units.count(found['flops'])} FLOP",
                _("multiplications and additions of one call; masked pairs take none"),
            ),
            Row(
                _("FLOP per byte at best"),
                units.significant(intensity) if isinstance(intensity, int | float) else "–",
                _("arithmetic for each byte that must be moved: few, and memory is the bound"),
            ),
        ],
    )


def size(count: float | None) -> str:
    return "–" if count is None else units.size(count)
