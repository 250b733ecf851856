"""From a run and a flip to a new run on the same inputs."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from django.utils.translation import gettext as _

from api.callers import Caller
from kernels.arrays import generate, to_jsonable
from kernels.flips import Flip
from kernels.spec import ParsedRun, RunSpec, parse_run
from kernels.spec.values import INTEGERS
from lab.form import fork
from workers import artifacts, runs
from workers.models import Run

HERE = "the run before"  # in the place of an upload's id: its arrays are those of a run


class InputsGone(Exception):
    """The arrays that came with the run are no longer kept."""

    def __str__(self) -> str:
        return _(
            "The inputs of this run are gone, so it cannot be repeated with one thing changed. Upload them "
            "again in the lab, run that, and change it from there."
        )


def submit(run: Run, flip: Flip, caller: Caller) -> Run:
    """The run that differs by `flip`, for whoever asks.

    Raises InputsGone, kernels.spec.SpecError, workers.limits.Refused, workers.quotas.QuotaExceeded or
    workers.runs.QueueFull.
    """
    spec = RunSpec.from_dict(run.spec)
    sent = artifacts.load_submitted(run)
    if any(given.source != "seed" and name not in sent for name, given in spec.inputs.items()):
        raise InputsGone
    body, arrays = body_of(spec, flip, sent)

    def load(_upload: str, name: str) -> np.ndarray:
        return arrays[name]

    parsed = parse_run(body, load_upload=load)
    # They came with a request once, and whether typed or uploaded is what its page says of them.
    inputs = {
        name: replace(given, source=flip.spec.inputs[name].source)
        for name, given in parsed.spec.inputs.items()
    }
    same = ParsedRun(replace(parsed.spec, inputs=inputs), parsed.arrays)
    return runs.submit(same, owner=caller.owner, caller=caller.address, budget_seconds=caller.budget_seconds)


def body_of(
    spec: RunSpec, flip: Flip, sent: Mapping[str, np.ndarray]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The body of the flipped run, and the arrays that it names like uploads: nothing is written as text that
    would only be read again."""
    replaced = flip.replaced(complete(spec, sent))
    arrays = {**sent, **replaced}
    inputs: dict[str, Any] = {}
    for name, given in flip.spec.to_dict()["inputs"].items():
        if name in INTEGERS:
            inputs[name] = to_jsonable(arrays[name])
        elif given["source"] == "seed" and name not in replaced:
            inputs[name] = {key: given[key] for key in ("seed", "shape", "distribution")}
        else:
            inputs[name] = {"upload": HERE, "name": name}
    body = fork.beyond_the_defaults(flip.spec)
    return {"engine": flip.spec.engine, **body, "inputs": inputs}, arrays


def complete(spec: RunSpec, sent: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every input with its numbers, as the engine's dtype has them where they are drawn."""
    drawn = {
        name: generate(name, given.seed, given.shape, given.distribution or "normal", spec.dtype)
        for name, given in spec.inputs.items()
        if given.seed is not None
    }
    return {**sent, **drawn}
