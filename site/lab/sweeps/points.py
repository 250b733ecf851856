"""The points of a sweep as its page needs them: what varied, what became of each, and its figures."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from api.runs.sharing import page_url
from api.sweeps.representation import figures
from lab.runs.presentation import STATUS_NAMES
from lab.sweeps.words import said
from workers import sweeps
from workers.models import Run, Status, Sweep

GONE = "gone"  # its run is past its keeping time
GONE_NAME = gettext_lazy("deleted")


@dataclass(frozen=True)
class Point:
    """`run` None: it is gone. `figures`: empty unless it succeeded."""

    values: Mapping[str, Any]
    name: str
    run: Run | None
    link: str
    figures: Mapping[str, Any]

    @property
    def status(self) -> str:
        return self.run.status if self.run else GONE

    @property
    def status_name(self) -> str:
        return str(STATUS_NAMES[Status(self.run.status)] if self.run else GONE_NAME)

    @property
    def has_ended(self) -> bool:
        return self.run is None or self.run.is_terminal

    @property
    def has_failed(self) -> bool:
        """Whether it has ended without figures."""
        return self.has_ended and self.status != Status.SUCCEEDED

    @property
    def reason(self) -> str:
        """Why it has no figures; "" where it may still get some, or has."""
        if not self.has_failed:
            return ""
        if self.run is None:
            return _("Its run is past its keeping time.")
        if self.run.status == Status.CANCELED:
            return _("Canceled before it had a result.")
        return str((self.run.error or {}).get("detail") or (self.run.error or {}).get("title") or "")

    @property
    def timing(self) -> tuple[int, int]:
        """How many times were taken, after how many to warm up."""
        found = ((self.run.result if self.run else None) or {}).get("timing") or {}
        return len(found.get("samples_ns") or ()), found.get("warmup") or 0

    @property
    def spread(self) -> tuple[float, float] | None:
        """Nanoseconds that a tenth of the times is below, and a tenth above; None where that is not known."""
        found = ((self.run.result if self.run else None) or {}).get("timing") or {}
        low, high = found.get("p10_ns"), found.get("p90_ns")
        return None if low is None or high is None else (float(low), float(high))

    def number(self, figure: str) -> float | None:
        """A figure, where it is one: an error may be NaN, which no plot can show."""
        value = self.figures.get(figure)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def of(sweep: Sweep, request: HttpRequest) -> list[Point]:
    """All of them in their order, by one query."""
    runs = {run.position: run for run in sweeps.points(sweep)}
    telling = telling_fields(sweep.vary)
    return [
        Point(
            values,
            name_of_values(values, telling),
            run := runs.get(position),
            page_url(run, request) if run else "",
            figures(run) if run and run.status == Status.SUCCEEDED else {},
        )
        for position, values in enumerate(sweep.values)
    ]


def name_of_values(values: Mapping[str, Any], telling: Iterable[str]) -> str:
    """length 64, flash"""
    return ", ".join(said(field, values[field]) for field in telling)


def telling_fields(vary: Mapping[str, Sequence[Any]]) -> list[str]:
    """What varied, of which more than one value was asked for; where nothing has, all."""
    return [field for field, values in vary.items() if len(values) > 1] or list(vary)
