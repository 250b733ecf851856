"""The tile schedule: of a run, and of whatever its address describes."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from api.callers import caller_of
from api.computing import Busy, computing
from kernels.counts import ITEM_BYTES
from kernels.flash.schedule import DECIDING, deciding
from kernels.flash.tiles import choose_tiles
from kernels.flash.walk import walk
from kernels.layout import to_canonical
from kernels.limits import MAX_BLOCK, MIN_BLOCK
from kernels.registry import ENGINES, SOFTMAX
from kernels.spec import RunSpec
from kernels.spec.families import PLAIN
from lab.microscope import compileform, tiles
from lab.microscope.tileform import TilesForm, presets
from lab.opening import run_view
from lab.runs import presentation
from lab.runs.choice import Choice, head_pickers
from workers import artifacts
from workers.models import Run

BLOCKS = [1 << power for power in range(MIN_BLOCK.bit_length() - 1, MAX_BLOCK.bit_length())]
FREE = 1 << 20  # numbers that are looked at for no more than the rest of a page
SHORT = 512  # queries and keys up to which tiles of 16 are few enough to be seen one by one


@require_safe
def free(request: HttpRequest) -> HttpResponse:
    """A pure function of the address."""
    form = TilesForm(request.GET)
    spec = form.spec()
    context: dict[str, Any] = {"form": form, "presets": presets(), "tab": "tiles"}
    if spec is not None:
        blocks = spec.options.block_m or MIN_BLOCK, spec.options.block_n or MIN_BLOCK
        sizes = tiles.Sizes(2 * form.dim, ITEM_BYTES[spec.dtype], form.head_count)
        return answer(request, "lab/microscope/tiles.html", context, Asked(spec, form.used, blocks, sizes))
    return render(request, "lab/microscope/tiles.html", context, status=422)


@require_safe
@run_view
def of_run(request: HttpRequest, run: Run) -> HttpResponse:
    """The tiles of one head of a run, in whatever size is asked for."""
    context = presentation.about(run, request) | {"tab": "tiles", "key": request.GET.get("key", "")}
    context["compiled_query"] = compileform.query_of_run(run)
    spec: RunSpec = context["spec"]
    template = "lab/microscope/run_tiles.html"
    engine = ENGINES.get(run.engine)
    has_tiles = (
        engine is not None and engine.computes == SOFTMAX and spec.family is PLAIN and not spec.is_paged
    )
    if not has_tiles or not (spec.batch * spec.num_heads * spec.q_len * spec.kv_len):
        return render(request, template, context | {"why_not": True})
    stored = artifacts.load_inputs(run) if set(DECIDING) & set(spec.inputs) else {}
    given = {name: to_canonical(spec, name, array) for name, array in stored.items() if name in DECIDING}
    if not set(DECIDING) & set(spec.inputs) <= set(given):
        return render(request, template, context | {"is_gone": True})
    blocks = blocks_of(request, spec)
    choice = Choice.read(request.GET, spec)
    context |= {
        "blocks": blocks,
        "sizes": BLOCKS,
        "choice": choice,
        "pickers": head_pickers(choice, spec, request.GET),
        "own": choose_tiles(spec, interpreted=True) if run.engine == "flash" else None,
    }
    asked = Asked(spec, given, blocks, tiles.Sizes.of(spec), choice.batch, choice.head)
    return answer(request, template, context, asked)


def blocks_of(request: HttpRequest, spec: RunSpec) -> tuple[int, int]:
    """As asked for; else small where the run is short, or as on a GPU."""
    usual = (MIN_BLOCK, MIN_BLOCK)
    if max(spec.q_len, spec.kv_len) > SHORT:
        usual = choose_tiles(spec, interpreted=False)
    asked = (request.GET.get("block_m", ""), request.GET.get("block_n", ""))
    known = {str(size): size for size in BLOCKS}
    return known.get(asked[0], usual[0]), known.get(asked[1], usual[1])


@dataclass(frozen=True)
class Asked:
    """What is to be counted: a head of a spec, whose DECIDING inputs are `given`, in tiles of `blocks`."""

    spec: RunSpec
    given: Mapping[str, np.ndarray]
    blocks: tuple[int, int]
    sizes: tiles.Sizes
    batch: int = 0
    head: int = 0


def answer(request: HttpRequest, template: str, context: dict[str, Any], asked: Asked) -> HttpResponse:
    """The page with its tiles, or why they are not counted."""
    if problem := tiles.too_large(asked.spec, *asked.blocks):
        return render(request, template, context | {"problem": problem}, status=422)
    try:
        with charged(request, tiles.weight(asked.spec, *asked.blocks)):
            found = walk(deciding(asked.spec, asked.given), asked.blocks, asked.batch, asked.head)
            section = tiles.section(found, asked.sizes, request.GET)
    except Busy as busy:
        response = render(request, template, context | {"problem": busy.detail}, status=503)
        response["Retry-After"] = str(busy.retry_after)
        return response
    return render(request, template, context | {"section": section | {"here_address": request.path}})


def charged(request: HttpRequest, weight: int) -> AbstractContextManager[None]:
    """What is dear is charged to the caller, and done by few at once."""
    return computing(caller_of(request)) if weight > FREE else nullcontext()
