"""Where a run lies under the roofs of GPUs: the least that arithmetic and memory traffic leave possible.

A roof is what a data sheet promises (`kernels.sizing.gpus`): min(peak, bandwidth · FLOP per byte). A run has
two places on it, by the bytes that it moved as counted, and by the fewest that it could have moved.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import QueryDict
from django.utils.translation import gettext as _

from concepts.figures import lineplot
from concepts.figures.lineplot import Axis, Series
from kernels.sizing.gpus import Gpu, gpus
from lab import units

FIELD = "gpu"  # of a query string, once for each
USUAL = ("a100-80-sxm", "h100-sxm", "b200")
REACH = 8.0  # how far the plot goes beyond what it has to show, to both sides


@dataclass(frozen=True)
class Place:
    """FLOP per byte, and which bytes they are."""

    name: str
    intensity: float


def section(
    found: Mapping[str, Any], query: QueryDict, kept: Sequence[tuple[str, str]]
) -> dict[str, Any] | None:
    """What the page shows; None where a run has neither arithmetic nor traffic. `kept`: what else is in the
    query string and stays."""
    places = places_of(found)
    if not places:
        return None
    table = gpus()
    chosen = [table[slug] for slug in query.getlist(FIELD) if slug in table]
    chosen = list(dict.fromkeys(chosen)) or [table[slug] for slug in USUAL]
    series = [*roofs(chosen, places), *marks(chosen, places)]
    x, y = axes()
    return {
        "svg": lineplot.svg(series, x, y, _("FLOP per second that is possible, against FLOP per byte")),
        "legend": lineplot.legend(series),
        "places": [(place.name, units.significant(place.intensity)) for place in places],
        "sentences": [sentence(gpu, places[0]) for gpu in chosen],
        "rows": [row(gpu, places) for gpu in chosen],
        "choices": [(gpu.slug, gpu.title, gpu in chosen) for gpu in table.values()],
        "kept": kept,
    }


def places_of(found: Mapping[str, Any]) -> list[Place]:
    """As counted first; where both are the same, or one is not known, the other alone."""
    flops = (found.get("cost") or {}).get("flops")
    traffic = found.get("traffic") or {}
    moved = (traffic.get("bytes_read") or 0) + (traffic.get("bytes_written") or 0)
    least = (found.get("cost") or {}).get("bytes_min")
    names = ((_("this run, as counted"), moved), (_("this run, at best"), least))
    return [Place(name, flops / count) for name, count in names if flops and count]


def axes() -> tuple[Axis, Axis]:
    return (
        Axis(_("FLOP per byte"), units.tick, is_log=True),
        Axis(_("FLOP per second"), units.tick, is_log=True),
    )


def attainable(gpu: Gpu, intensity: float) -> float:
    """FLOP per second in 16 bits."""
    return min(gpu.tflops_16bit * 1e12, gpu.bandwidth * intensity)


def roofs(chosen: Sequence[Gpu], places: Sequence[Place]) -> list[Series]:
    intensities = [place.intensity for place in places] + [gpu.ridge for gpu in chosen]
    low, high = min(intensities) / REACH, max(intensities) * REACH
    return [
        Series(
            gpu.title,
            [(at, attainable(gpu, at)) for at in (low, gpu.ridge, high)],
            has_marks=False,
        )
        for gpu in chosen
    ]


def marks(chosen: Sequence[Gpu], places: Sequence[Place]) -> list[Series]:
    return [
        Series(
            place.name,
            [(place.intensity, attainable(gpu, place.intensity)) for gpu in chosen],
            is_joined=False,
        )
        for place in places
    ]


def sentence(gpu: Gpu, place: Place) -> str:
    """Which of the two is the bound, and what it leaves of the peak."""
    possible, peak = attainable(gpu, place.intensity), gpu.tflops_16bit * 1e12
    words = {
        "gpu": gpu.title,
        "possible": units.rate(possible),
        "peak": units.rate(peak),
        "share": units.percent(round(possible / peak, 4)),
        "ridge": units.significant(gpu.ridge),
    }
    if place.intensity < gpu.ridge:
        return _(
            "{gpu}: bound by memory. At most {possible}, {share} of its {peak}; its arithmetic is the "
            "bound from {ridge} FLOP per byte."
        ).format(**words)
    return _("{gpu}: bound by arithmetic, at most {peak}.").format(**words)


def row(gpu: Gpu, places: Sequence[Place]) -> list[str]:
    return [
        gpu.title,
        units.significant(gpu.ridge),
        *(units.rate(attainable(gpu, place.intensity)) for place in places),
    ]
