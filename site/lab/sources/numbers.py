"""Which kernel computed a run, and the numbers that it was compiled with there."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.translation import gettext as _

from kernels.decode.splits import is_decoding
from kernels.flash.tiles import padded_dim
from kernels.integers import ceil_div
from kernels.mla.forms import chosen_form
from kernels.registry import ENGINES
from kernels.spec import RunSpec
from kernels.targets import TARGETS
from kernels.tiles import tilings
from lab.sources.kernels import KERNELS
from lab.sources.model import Kernel
from workers.models import Run

MOST = 2**31  # that a number in an address may say
# The kernel of each engine that has one alone; the others depend on what is computed.
ALONE = {"flash": "flash", "linear": "linear", "performer": "linear", "scan": "scan", "scoring": "scoring"}


@dataclass(frozen=True)
class Number:
    name: str
    value: int
    meaning: str


def numbers_of(kernel: Kernel, query: Mapping[str, str]) -> list[Number]:
    """Those of a query string that the kernel has a name for."""
    return [
        Number(name, int(query[name]), str(meaning))
        for name, meaning in kernel.constants.items()
        if query.get(name, "").isascii() and query.get(name, "").isdigit() and len(query[name]) < 11
    ]


def kernel_of(spec: RunSpec) -> str | None:
    """The slug of its page; None for engines that are no kernels of ours."""
    engine = spec.engine
    if engine == "mla":
        return "flash" if chosen_form(spec) == "expanded" else "mla"
    if engine in ("decode", "paged"):
        return "decode" if is_decoding(spec, engine) else "flash"
    return ALONE.get(engine)


def section(run: Run, spec: RunSpec) -> dict[str, Any] | None:
    """What the page of a run says of the kernel behind it."""
    slug = kernel_of(spec) if run.engine in ENGINES else None
    if slug is None:
        return None
    numbers = dict(launched(run, spec))
    address = reverse("lab:kernel", kwargs={"slug": slug})
    others = ["paged"] if spec.is_paged or spec.options.page_size else []
    kernel = KERNELS[slug]
    return {
        "title": kernel.title,
        "address": f"{address}?{urlencode(numbers)}" if numbers else address,
        "numbers": [
            Number(name, numbers[name], str(meaning))
            for name, meaning in kernel.constants.items()
            if name in numbers
        ],
        "others": [(KERNELS[name].title, reverse("lab:kernel", kwargs={"slug": name})) for name in others],
        "where": _("in the interpreter") if target_of(run) is None else str(target_of(run)),
    }


def launched(run: Run, spec: RunSpec) -> Iterator[tuple[str, int]]:
    """The tiles of its main kernel, as far as they are chosen by what is known here."""
    target = target_of(run)
    if target == "":
        return
    found = next(iter(tilings(spec, target).values()), None)
    if found is None:
        return
    yield "BLOCK_M", found.block_m
    yield "BLOCK_N", found.block_n
    if spec.engine == "mla":
        return
    yield "D", spec.head_dim
    yield "DV", spec.v_head_dim
    yield "BLOCK_D", padded_dim(spec.head_dim)
    yield "BLOCK_DV", padded_dim(spec.v_head_dim)
    if kernel_of(spec) == "flash":
        yield "PROGRAMS", spec.batch * spec.num_heads * ceil_div(spec.q_len, found.block_m)
        yield "STEPS", ceil_div(spec.kv_len, found.block_n)


def target_of(run: Run) -> str | None:
    """A key of TARGETS; None in the interpreter, "" on a GPU whose tiles are not known here."""
    environment = run.environment or {}
    if environment.get("device") != "cuda":
        return None
    name = str(environment.get("gpu_name") or "")
    named = ((key, title) for key, one in TARGETS.items() for title in one.title.split(", "))
    return next((key for key, title in named if title in name), "")
