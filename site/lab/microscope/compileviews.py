"""The compiled view: a form, what a kernel compiled to, its code, and the difference of two."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from api import preferences
from api.callers import caller_of
from api.computing import computing
from api.runs.downloads import download
from kernels.registry import ENGINES
from kernels.spec import SpecError
from kernels.targets import TARGETS
from lab.bodies import bounded
from lab.microscope import code, compiled, compileform, compiles, differ
from lab.microscope.compileform import CompileForm
from lab.opening import View, explained
from workers import limits, quotas, runs
from workers.models import Run, Status

WAIT_SECONDS = 10
ASKED = ("a", "b")  # the two compilations of a difference


@bounded
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def home(request: HttpRequest) -> HttpResponseBase:
    """The form; POST compiles what it says. With two compilations in its address their difference."""
    if request.method == "POST":
        return submitted(request)
    if all(request.GET.get(name) for name in ASKED):
        return explained(difference)(request)
    return form_page(request, CompileForm(request.GET))


def form_page(
    request: HttpRequest, form: CompileForm, status: int = 200, retry_after: int = 0
) -> HttpResponse:
    context = {"form": form, "presets": compileform.presets(), "tab": "compiled", "link": form.address()}
    response = render(request, "lab/microscope/compile.html", context, status=status)
    if retry_after:
        response["Retry-After"] = str(retry_after)
    return response


def submitted(request: HttpRequest) -> HttpResponse:
    """Compile one configuration, or two; each that was compiled before is there at once."""
    form = CompileForm(request.POST)
    bodies = form.bodies()
    if form.errors:
        return form_page(request, form, 422)
    try:
        found = [compiles.compile_once(body, caller_of(request)) for body in bodies]
    except (SpecError, limits.Refused) as error:
        form.place(error.problems)
        return form_page(request, form, 422)
    except quotas.QuotaExceeded as error:
        form.add_error(None, error.detail)
        return form_page(request, form, 429, error.retry_after)
    except runs.QueueFull as error:
        form.add_error(None, str(error))
        return form_page(request, form, 503, error.retry_after)
    if len(found) == 1:
        return redirect("lab:compilation", run_id=found[0].id)
    return redirect(f"{reverse('lab:compiled')}?{urlencode({'a': found[0].id, 'b': found[1].id})}")


def of_compilation(view: View) -> View:
    """Give the view a compilation instead of its id, waiting a little for one that htmx asks for."""

    @never_cache
    @explained
    def with_compilation(request: HttpRequest, run_id: str, **kwargs: Any) -> HttpResponseBase:
        run = compiles.find(run_id, request.GET.get("key", ""))
        wait(request, run)
        return view(request, run, **kwargs)

    return with_compilation


def wait(request: HttpRequest, *found: Run) -> None:
    """For the first that is not done, where a page asks for its own next state."""
    waiting = [run for run in found if not run.is_terminal]
    if request.headers.get("HX-Request") and waiting:
        preferences.wait_for(waiting[0], WAIT_SECONDS, for_any_change=True)


@require_safe
@of_compilation
def one(request: HttpRequest, run: Run) -> HttpResponse:
    """What a kernel compiled to, for one GPU."""
    context = about(request, run)
    context["side"] = dict(context)
    if run.status == Status.SUCCEEDED and run.result:
        figures = compiles.one_kernel(run, request.GET.get("target", ""), request.GET.get("kernel", ""))
        context |= {
            "section": compiled.section(figures),
            "pickers": pickers(run, figures, context["key"]),
            "stages": code.STAGES,
            "code_query": code_query(figures, context["key"]),
            "texts": texts(run, figures),
            "is_fresh": compiles.is_fresh(run),
        }
    return render(request, "lab/microscope/compilation.html", context)


def about(request: HttpRequest, run: Run) -> dict[str, Any]:
    """What every page of a compilation says of it."""
    return {
        "run": run,
        "key": request.GET.get("key", ""),
        "tab": "compiled",
        "config": configuration(run),
        "again": compileform.address_of(compileform.state_of(run.spec, run.targets)),
        "elapsed": elapsed(run),
        "ahead": runs.ahead(run),
        "no_runs": True,
    }


def elapsed(run: Run) -> int:
    return max(0, int((timezone.now() - (run.started_at or run.created_at)).total_seconds()))


def configuration(run: Run) -> str:
    """In a line: engine, format, shape, mask, what was asked for."""
    state = compileform.state_of(run.spec, run.targets)
    title = ENGINES[run.engine].title if run.engine in ENGINES else run.engine
    keys = state["kv_len"] or state["q_len"]
    asked = [f"{name} = {state[name]}" for name in compileform.OPTIONS if state[name]]
    gpus = ", ".join(f"{name} ({TARGETS[name].title})" if name in TARGETS else name for name in run.targets)
    shape = _("{heads} heads, {q_len} × {keys}, dimension {dim}").format(
        heads=state["heads"], q_len=state["q_len"], keys=keys, dim=state["head_dim"]
    )
    mask = str(compileform.MASKS[state["mask"]][0])
    return "; ".join([title, state["dtype"], shape, mask, *asked, gpus])


def pickers(run: Run, figures: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Which GPU and which kernel, where there are several."""
    share = {"key": key} if key else {}
    found = []
    for name, label, names, chosen in (
        ("target", _("GPU"), list(run.result["targets"]) if run.result else [], figures["target"]),
        ("kernel", _("Kernel"), kernel_names(run, figures["target"]), figures["kernel"]),
    ):
        if len(names) > 1:
            kept = share | ({"target": figures["target"]} if name == "kernel" else {})
            options = [
                {"label": one, "href": "?" + urlencode(kept | {name: one}), "current": one == chosen}
                for one in names
            ]
            found.append({"name": name, "label": label, "options": options})
    return found


def kernel_names(run: Run, target: str) -> list[str]:
    return [one["kernel"] for one in compiles.kernels(run) if one["target"] == target]


def code_query(figures: dict[str, Any], key: str) -> str:
    place = {"key": key, "target": figures["target"], "kernel": figures["kernel"]}
    return urlencode({name: value for name, value in place.items() if value})


def texts(run: Run, figures: dict[str, Any]) -> list[tuple[str, str]]:
    """The stages as files."""
    return [(stage, compiles.text_name(run, figures, stage)) for stage in code.STAGES]


@require_safe
@of_compilation
def code_of(request: HttpRequest, run: Run) -> HttpResponse:
    """A stage of the code, beside the source that it came of."""
    if run.status != Status.SUCCEEDED or not run.result:
        return redirect(f"{reverse('lab:compilation', kwargs={'run_id': run.id})}?{request.GET.urlencode()}")
    choice = code.Choice.read(request.GET)
    figures = compiles.one_kernel(run, choice.target, choice.kernel)
    section = code.section(run, figures, choice, request.GET.get("key", ""))
    if section is None:
        raise Http404
    context = about(request, run) | {"code": section, "choice": choice, "figures": figures}
    return render(request, "lab/microscope/code.html", context)


@require_safe
@of_compilation
def file(request: HttpRequest, run: Run, name: str) -> HttpResponseBase:
    """One stage as a file."""
    try:
        return download(request, run, name, caller_of(request))
    except KeyError:
        raise Http404 from None


def difference(request: HttpRequest) -> HttpResponse:
    """Two compilations side by side."""
    found = [compiles.find(request.GET[name], request.GET.get(f"key_{name}", "")) for name in ASKED]
    wait(request, *found)
    context: dict[str, Any] = {
        "sides": [about(request, run) for run in found],
        "tab": "compiled",
        "is_done": all(run.is_terminal for run in found),
        "waiting": next((about(request, run) for run in found if not run.is_terminal), None),
        "failed": [
            about(request, run) for run in found if run.is_terminal and run.status != Status.SUCCEEDED
        ],
        "here": request.get_full_path(),
    }
    if all(run.status == Status.SUCCEEDED and run.result for run in found):
        one_, other = (compiles.one_kernel(run, "", request.GET.get("kernel", "")) for run in found)
        context |= {
            "one": one_,
            "other": other,
            "resources": differ.resources(one_, other),
            "instructions": differ.instructions(one_, other),
            "swap": "?" + urlencode({"a": found[1].id, "b": found[0].id}),
            "ptx": None,
        }
        if request.GET.get("ptx"):
            context["ptx"] = ptx_of(request, list(zip(found, (one_, other), strict=True)))
    return render(request, "lab/microscope/difference.html", context)


def ptx_of(request: HttpRequest, sides: list[tuple[Run, dict[str, Any]]]) -> dict[str, Any]:
    """The difference of their PTX: dear, so charged."""

    def each() -> Iterator[str]:
        for run, figures in sides:
            text = compiles.text(run, figures, "ptx")
            if text is None:
                raise Http404
            yield text

    one_, other = each()
    names = [
        f"{name}: {figures['kernel']}, {figures['target']}"
        for name, (_run, figures) in zip("AB", sides, strict=True)
    ]
    with computing(caller_of(request)):
        return differ.ptx(one_, other, (names[0], names[1]))
