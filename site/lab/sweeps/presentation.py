"""What the page of a sweep shows, as plain data for its templates."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from api.sweeps import sharing
from lab import units
from lab.sweeps import lines, plots, points, repeat, snippets
from lab.sweeps.lines import Choice
from lab.sweeps.opening import may_cancel
from lab.sweeps.points import Point
from lab.sweeps.words import engine_title, name_of, value_text
from workers import sweeps
from workers.models import Status, Sweep

STATUS_NAMES = {
    Sweep.RUNNING: gettext_lazy("running"),
    Sweep.FINISHED: gettext_lazy("finished"),
    Sweep.CANCELED: gettext_lazy("canceled"),
}
PILLS = {Sweep.RUNNING: "running", Sweep.FINISHED: "succeeded", Sweep.CANCELED: "canceled"}
MACHINE = ("device", "gpu_name", "machine", "threads", "torch", "triton", "numpy")
MOST_RUNNING = 4  # that are named


def page(sweep: Sweep, found: Sequence[Point], request: HttpRequest) -> dict[str, Any]:
    """The context of lab/sweeps/sweep.html and of the part of it that htmx replaces."""
    choice = lines.choose(sweep, found, request.GET)
    status = status_of(sweep, found)
    drawn = plots.of(choice, lambda quantity: file_of(sweep, quantity, request))
    return {
        "sweep": sweep,
        "title": title(sweep),
        "fixed": fixed(sweep),
        "status": status,
        "status_name": STATUS_NAMES[status],
        "pill": PILLS[status],
        "is_active": any(not point.has_ended for point in found),
        "points": found,
        "progress": progress(sweep, found),
        "seen": seen(found),
        "announcement": announcement(sweep, found),
        "choice": choice,
        "choices": choices(sweep, choice, request),
        "plots": drawn,
        "rows": [{"point": point, "texts": [plot.cells(point)[0].text for plot in drawn]} for point in found],
        "time": time_sentence(found),
        "refused": refused(sweep),
        "may_cancel": may_cancel(sweep, request),
        "provenance": provenance(found),
        "links": links(sweep, found, request),
        **again(sweep, request),
    }


def title(sweep: Sweep) -> str:
    """Eager and Flash over length"""
    engines = sweep.vary.get("engine") or [sweep.body.get("engine", "")]
    over = [name_of(field) for field in points.telling_fields(sweep.vary) if field != "engine"]
    named = " · ".join(engine_title(str(engine)) for engine in engines)
    if not over:
        return named
    return _("{engines} over {fields}").format(engines=named, fields=_(" and ").join(over))


def fixed(sweep: Sweep) -> list[tuple[str, str]]:
    """What does not vary."""
    found = {name: sweep.body[name] for name in ("dtype", "device") if name in sweep.body}
    for part in ("attention", "options"):
        given = sweep.body.get(part)
        found |= {f"{part}/{name}": value for name, value in given.items()} if isinstance(given, dict) else {}
    found |= fixed_lengths(sweep) | {name: values[0] for name, values in sweep.vary.items()}
    varied = points.telling_fields(sweep.vary)
    return [(name_of(name), value_text(name, value)) for name, value in found.items() if name not in varied]


def fixed_lengths(sweep: Sweep) -> dict[str, Any]:
    """Of q, k and v that have four axes each: those that nothing changes, and that do not follow another."""
    inputs = sweep.body.get("inputs", {})
    given = [inputs[name] for name in "qkv" if isinstance(inputs.get(name), dict)]
    shapes = [one["shape"] for one in given if isinstance(one.get("shape"), list) and len(one["shape"]) == 4]
    if len(shapes) != 3:
        return {}
    q, k, v = shapes
    found = dict(zip(("batch", "num_heads", "q_len", "head_dim"), q, strict=True)) | {"kv_len": k[2]}
    found |= {"num_kv_heads": k[1]} if k[1] != q[1] else {}
    found |= {"v_head_dim": v[3]} if v[3] != q[3] else {}
    moved = {*sweep.vary, *(("q_len", "kv_len") if "len" in sweep.vary else ())}
    return {name: value for name, value in found.items() if name not in moved}


# --- How it gets on -------------------------------------------------------------------------------


def status_of(sweep: Sweep, found: Sequence[Point]) -> str:
    """As `Sweep.status`, of points that are there already."""
    if sweep.canceled_at:
        return Sweep.CANCELED
    return Sweep.FINISHED if all(point.has_ended for point in found) else Sweep.RUNNING


def progress(sweep: Sweep, found: Sequence[Point]) -> dict[str, Any]:
    active = [point for point in found if not point.has_ended]
    running = [point for point in active if point.status == Status.RUNNING]
    following = next((point for point in active if point.status == Status.QUEUED), None)
    counts = Counter(point.status for point in found)
    ended = [
        (status, ngettext_of(status, count))
        for status in (Status.SUCCEEDED, Status.FAILED, Status.TIMED_OUT, Status.CANCELED, points.GONE)
        if (count := counts[status])
    ]
    seconds = sum(point.run.predicted_seconds for point in active if point.run)
    return {
        "done": len(found) - len(active),
        "total": len(found),
        "ended": ended,
        "running": [point.name for point in running[:MOST_RUNNING]],
        "waiting": sum(point.status == Status.QUEUED for point in active),
        "following": following.name if following else "",
        # Behind whom it waits is of interest while nothing of it is computed.
        "ahead": sweeps.ahead(sweep, following.run) if following and following.run and not running else 0,
        "seconds": units.seconds(seconds) if active else "",
    }


def ngettext_of(status: str, count: int) -> str:
    return {
        Status.SUCCEEDED: ngettext("{count} succeeded", "{count} succeeded", count),
        Status.FAILED: ngettext("{count} failed", "{count} failed", count),
        Status.TIMED_OUT: ngettext("{count} ran out of time", "{count} ran out of time", count),
        Status.CANCELED: ngettext("{count} canceled", "{count} canceled", count),
        points.GONE: ngettext("{count} past its keeping time", "{count} past their keeping time", count),
    }[status].format(count=count)


def seen(found: Sequence[Point]) -> str:
    """What a page shows of how it gets on, in a word: another one means that there is news."""
    done = sum(point.has_ended for point in found)
    running = sum(point.status == Status.RUNNING for point in found)
    return f"{done}-{running}"


def announcement(sweep: Sweep, found: Sequence[Point]) -> str:
    """The sentence for the live region."""
    done, total = sum(point.has_ended for point in found), len(found)
    if done == total:
        canceled = _("The sweep was canceled.") if sweep.canceled_at else _("The sweep has ended.")
        return f"{canceled} {', '.join(text for _status, text in progress(sweep, found)['ended'])}."
    return _("{done} of {total} points have ended.").format(done=done, total=total)


# --- Plots ----------------------------------------------------------------------------------------


def choices(sweep: Sweep, choice: Choice, request: HttpRequest) -> dict[str, Any]:
    """The form that chooses what is plotted."""
    return {
        "x": [(field, name_of(field), field == choice.x) for field in choice.fields],
        "y": [
            (lines.LOG, _("logarithmic"), choice.scale == lines.LOG),
            (lines.LINEAR, _("linear, from zero"), choice.scale == lines.LINEAR),
        ],
        "lines": [(line.name, line.number is not None) for line in choice.lines],
        "most": lines.MOST_LINES,
        "hidden": len(choice.lines) - len(choice.drawn),
        "key": request.GET.get("key", ""),
    }


def time_sentence(found: Sequence[Point]) -> str:
    """Why a time is not drawn; "" where all are."""
    timed = [point for point in found if point.figures.get("median_ns") is not None]
    speeds = sum(bool(point.figures.get("representative")) for point in timed)
    if not timed or speeds == len(timed):
        return ""
    if not speeds:
        return _(
            "There is no plot of time: the points ran in Triton’s interpreter on a CPU, which follows every "
            "instruction one by one. How long that takes says nothing about a GPU."
        )
    return _(
        "Time is drawn where it is a speed. {count} of {total} points ran in Triton’s interpreter on a CPU, "
        "whose time says nothing about a GPU."
    ).format(count=len(timed) - speeds, total=len(timed))


def refused(sweep: Sweep) -> list[tuple[str, str]]:
    """The points that were left out from the beginning, and why."""
    telling = points.telling_fields(sweep.vary)
    return [
        (
            points.name_of_values(each["values"], telling),
            " ".join(error["detail"] for error in each["errors"]),
        )
        for each in sweep.refused
    ]


# --- Where it comes from, and where else it is ----------------------------------------------------


def provenance(found: Sequence[Point]) -> dict[str, Any]:
    """On what the points ran, and by which versions of which kernels."""
    machines: Counter[tuple[tuple[str, str], ...]] = Counter()
    kernels: dict[tuple[str, str], int] = Counter()
    for point in found:
        environment = point.run.environment if point.run else None
        if not isinstance(environment, Mapping):
            continue
        machines[tuple((n, str(environment[n])) for n in MACHINE if environment.get(n) is not None)] += 1
        if environment.get("kernel_version") is not None and point.run:
            kernels[engine_title(point.run.engine), str(environment["kernel_version"])] += 1
    return {
        "machines": [{"rows": rows, "count": count} for rows, count in machines.most_common()],
        "kernels": sorted(kernels),
        "versions_differ": len({engine for engine, _version in kernels}) < len(kernels),
    }


def links(sweep: Sweep, found: Sequence[Point], request: HttpRequest) -> dict[str, str]:
    """Every address that belongs to the sweep; a share key is carried along."""
    key = request.GET.get("key", "")
    keyed = f"?{urlencode({'key': key})}" if key else ""

    def to(name: str, query: str = keyed) -> str:
        return reverse(f"lab:{name}", kwargs={"sweep_id": sweep.id}) + query

    return {
        "permalink": sharing.page_url(sweep, request),
        "page": to("sweep"),
        "live": to("live_sweep", "?" + lines.kept(request.GET, seen=seen(found))),
        "cancel": to("cancel_sweep"),
        "json": to("sweep_json"),
        "csv": to("sweep_csv"),
    }


def file_of(sweep: Sweep, quantity: str, request: HttpRequest) -> str:
    """The address of a plot as a file, as the page shows it."""
    chosen = lines.kept(request.GET)
    address = reverse("lab:sweep_plot", kwargs={"sweep_id": sweep.id, "quantity": quantity})
    return f"{address}?{chosen}" if chosen else address


def again(sweep: Sweep, request: HttpRequest) -> dict[str, Any]:
    """How to do it once more: the form, and the command."""
    body = repeat.body_of(sweep)
    state = repeat.state_of(sweep)
    return {
        "curl": snippets.curl(body, request),
        "curl_needs_upload": repeat.PLACEHOLDER in str(body.get("inputs")),
        "edit": None if state is None else f"{reverse('lab:new_sweep')}?{state}",
    }
