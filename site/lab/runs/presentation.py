"""What the page of a run shows, as plain data for its templates."""

import json
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from kernels.estimate import Estimate
from kernels.registry import ENGINES
from kernels.spec import RunSpec
from lab import units
from lab.compare import change
from lab.form import fork
from lab.runs import closeups, look, results, roofline
from lab.runs.choice import FIELDS
from lab.runs.heads import Head
from lab.sharing import reproduce, share
from lab.sources import numbers
from workers import runs
from workers.models import Run, Status

STATUS_NAMES = {
    Status.QUEUED: gettext_lazy("queued"),
    Status.RUNNING: gettext_lazy("running"),
    Status.SUCCEEDED: gettext_lazy("succeeded"),
    Status.FAILED: gettext_lazy("failed"),
    Status.TIMED_OUT: gettext_lazy("timed out"),
    Status.CANCELED: gettext_lazy("canceled"),
}

# --- The whole page -------------------------------------------------------------------------------


def about(run: Run, request: HttpRequest) -> dict[str, Any]:
    """What every page of a run says of it."""
    spec = RunSpec.from_dict(run.spec)
    return {
        "run": run,
        "spec": spec,
        "engine_title": ENGINES[run.engine].title if run.engine in ENGINES else run.engine,
        "shape": shape_sentence(spec),
        "settings": settings_of(spec),
        "links": links(run, request),
    }


def page(run: Run, request: HttpRequest) -> dict[str, Any]:
    """The context of lab/runs/page.html and of the part of it that htmx replaces."""
    context = about(run, request) | {
        "status_name": STATUS_NAMES[Status(run.status)],
        "announcement": announcement(run),
    }
    spec: RunSpec = context["spec"]
    if not run.is_terminal:
        return context | {"progress": progress(run)}
    what = f"{context['engine_title']}: {context['shape']}"
    context |= reproduce.context(run, spec, request) | share.context(run, spec, what, request)
    if run.status == Status.SUCCEEDED:
        waits = "wait" in request.GET
        return context | {
            "result": results.result(run, spec, request),
            "look": look.section(run, spec, request, waits=waits),
            "change": change.section(run, spec, request),
            "kernel": numbers.section(run, spec),
            "can_look": closeups.can_look(Head(run, spec, 0, 0)),
        }
    return context | {"failure": failure(run)}


def links(run: Run, request: HttpRequest) -> dict[str, str]:
    """Every address that belongs to the run; a share key is carried along."""
    key = request.GET.get("key", "")
    keyed = {"key": key} if key else {}
    asked = (*FIELDS, roofline.FIELD)
    chosen = {name: request.GET.getlist(name) for name in asked if name in request.GET}

    def to(name: str, **query: Any) -> str:
        query |= keyed
        address = reverse(f"lab:{name}", kwargs={"run_id": run.id})
        return f"{address}?{urlencode(query, doseq=True)}" if query else address

    return {
        "page": to("run"),
        "permalink": request.build_absolute_uri(to("run")),
        "live": to("live", seen=run.status, **chosen),
        "cancel": to("cancel"),
        "steps": to("steps", **{name: chosen[name] for name in ("batch", "head", "row") if name in chosen}),
        "tiles": to("run-tiles", **{name: chosen[name] for name in ("batch", "head") if name in chosen}),
        "look": to("look", **chosen),
        "look_at": reverse("lab:look", kwargs={"run_id": run.id}),
        "wait": "?" + urlencode({**chosen, **keyed, "wait": "1"}, doseq=True),
        "json": to("json"),
        "edit": f"{reverse('lab:home')}?{urlencode({'from': run.id, **keyed})}",
    }


def shape_sentence(spec: RunSpec) -> str:
    """1 × 8 heads (2 for keys and values), 512 queries, 512 keys, dimension 64"""
    parts = []
    if spec.batch != 1:
        parts.append(_("batch {count}").format(count=spec.batch))
    heads = ngettext("{count} head", "{count} heads", spec.num_heads).format(count=spec.num_heads)
    if spec.num_kv_heads != spec.num_heads:
        heads += " " + _("({count} for keys and values)").format(count=spec.num_kv_heads)
    parts.append(heads)
    parts.append(ngettext("{count:,} query", "{count:,} queries", spec.q_len).format(count=spec.q_len))
    parts.append(ngettext("{count:,} key", "{count:,} keys", spec.kv_len).format(count=spec.kv_len))
    parts.append(_("dimension {count}").format(count=spec.head_dim))
    if spec.v_head_dim != spec.head_dim:
        parts.append(_("value dimension {count}").format(count=spec.v_head_dim))
    return ", ".join(parts)


def settings_of(spec: RunSpec) -> list[tuple[str, str]]:
    """What was chosen beyond the defaults, in the names of the REST contract."""
    body = fork.beyond_the_defaults(spec)
    return [
        (name, json.dumps(value, ensure_ascii=False))
        for part in ("attention", "options", "timing")
        for name, value in body.get(part, {}).items()
    ]


def estimate(cost: Estimate, budget_seconds: int) -> dict[str, Any]:
    """What a configuration would cost, before it is submitted."""
    return {
        "seconds": units.seconds(cost.predicted_seconds),
        "budget": budget_seconds,
        "flops": units.count(cost.flops),
        "memory": units.size(cost.predicted_bytes),
        "output": units.count(cost.output_elements),
        "intensity": units.significant(cost.arithmetic_intensity),
    }


# --- While it is not done -------------------------------------------------------------------------


def progress(run: Run) -> dict[str, Any]:
    since = run.started_at if run.status == Status.RUNNING and run.started_at else run.created_at
    return {
        "ahead": runs.ahead(run),
        "elapsed": max(0, int((timezone.now() - since).total_seconds())),
        "budget": run.budget_seconds,
        "attempt": run.attempt,
    }


def announcement(run: Run) -> str:
    """The sentence for the live region."""
    return {
        Status.QUEUED: _("The run is waiting for a worker."),
        Status.RUNNING: _("A worker is computing the run."),
        Status.SUCCEEDED: _("The run has succeeded. Its results are below."),
        Status.FAILED: _("The run has failed. The reason is below."),
        Status.TIMED_OUT: _("The run ran out of time. What to do is below."),
        Status.CANCELED: _("The run was canceled."),
    }[Status(run.status)]


def failure(run: Run) -> dict[str, str]:
    """What happened, whose fault it was, and what to do."""
    error = run.error or {}
    if run.status == Status.CANCELED:
        return {
            "title": _("Canceled"),
            "detail": _("Somebody with this page canceled the run before it had a result."),
            "fault": "",
            "advice": _("Edit it and run it again, whenever you like."),
        }
    if error.get("fault") == "platform":
        fault = _("This was our fault, not the request's.")
        advice = _("Run it again as it is: that often succeeds.")
    else:
        fault = _("This came of the request.")
        advice = _("Change it and run it again.")
    title = error.get("title") or str(STATUS_NAMES[Status(run.status)])
    return {"title": title, "detail": error.get("detail", ""), "fault": fault, "advice": advice}
