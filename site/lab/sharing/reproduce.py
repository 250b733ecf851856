"""What a page says of doing a run again: commands for REST, and a program that needs none of us."""

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from kernels.registry import ENGINES
from kernels.spec import RunSpec
from kernels.spec.run import LENGTHS
from lab.form import fork
from lab.sharing import files, snippets
from lab.sharing.program import Facts, Unsayable
from lab.sharing.program import program as torch_text
from lab.sharing.program.facts import MOST_TYPED
from workers import artifacts
from workers.models import Run, Status

REQUESTS = gettext_lazy("Python, requests")


@dataclass(frozen=True)
class Snippet:
    """A text to be copied, or why there is none."""

    name: str
    title: Any
    text: str = ""
    why_not: str = ""


def snippets_of(run: Run, spec: RunSpec, request: HttpRequest) -> list[Snippet]:
    body = fork.body_of(run, snippets.MOST_TYPED)
    inputs_file = request.build_absolute_uri(files.address(run, "inputs.npz", request))
    if snippets.uploads(body) and not run.array_info:
        why_not = _("Its inputs are too many for a command, and the run has no files to take them from.")
        commands = [Snippet("curl", "curl", why_not=why_not), Snippet("requests", REQUESTS, why_not=why_not)]
    else:
        why_not = _("Its lists of positions or ids are too long for a command.")
        curl = snippets.curl(body, request, inputs_file) or ""
        program = snippets.requests(body, request, inputs_file) or ""
        commands = [Snippet("curl", "curl", curl, why_not), Snippet("requests", REQUESTS, program, why_not)]
    text, why_not = torch_program(run, spec, request)
    return [*commands, Snippet("torch", "PyTorch", text, why_not)]


def torch_program(run: Run, spec: RunSpec, request: HttpRequest) -> tuple[str, str]:
    """(program, ""), or ("", why there is none)."""
    try:
        return torch_text(facts(run, spec, request)), ""
    except Unsayable as reason:
        return "", str(reason)


def facts(run: Run, spec: RunSpec, request: HttpRequest) -> Facts:
    sent = artifacts.load_submitted(run)
    given = [array for name, array in sent.items() if name not in LENGTHS]
    is_short = sum(array.size for array in given) <= MOST_TYPED
    engine = ENGINES[run.engine].title if run.engine in ENGINES else run.engine
    return Facts(
        spec=spec,
        sent={name: array for name, array in sent.items() if is_short or name == "block_table"},
        lengths={name: sent[name] for name in LENGTHS if name in sent},
        title=_("Attention as {engine} computed it, again in plain PyTorch and float64.").format(
            engine=engine
        ),
        address=request.build_absolute_uri(
            files.keyed(reverse("lab:run", kwargs={"run_id": run.id}), request)
        ),
        file=f"{run.id}.npz",
        file_address=request.build_absolute_uri(files.own_address(run, "npz", request)),
        numerics=(run.result or {}).get("numerics") or {} if run.status == Status.SUCCEEDED else {},
    )


def context(run: Run, spec: RunSpec, request: HttpRequest) -> dict[str, Any]:
    return {"snippets": snippets_of(run, spec, request)}
