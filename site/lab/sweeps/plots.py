"""The plots of a sweep: each quantity against what is x, measured beside predicted, and how it grows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.functional import cached_property
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from concepts.figures import lineplot
from concepts.figures.lineplot import Absent, Axis, Series
from kernels.sweeps.exponents import PowerLaw, fit_power
from lab import units
from lab.heatmap import number
from lab.sweeps.lines import LOG, Choice, Line
from lab.sweeps.points import Point
from lab.sweeps.words import said
from workers.models import Status

BYTES = ((1.0, "bytes"), (1024.0, "KiB"), (1024.0**2, "MiB"), (1024.0**3, "GiB"))
FLOPS = ((1.0, "FLOP"), (1e3, "kFLOP"), (1e6, "MFLOP"), (1e9, "GFLOP"), (1e12, "TFLOP"), (1e15, "PFLOP"))
SECONDS = ((1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s"))
BARE = ((1.0, ""),)
FEW = 5e-3  # a standard error below which it is only said to be small


def flops(value: float) -> str:
    return f"{units.count(value)} FLOP"


@dataclass(frozen=True)
class Quantity:
    """`figure` of a point, beside `twin` (dashed). `steps`: the units to choose from; `base`: of the ticks of
    a logarithm; `write`: a value in a table."""

    name: str  # in addresses
    title: Any
    figure: str
    write: Callable[[float], str]
    steps: Sequence[tuple[float, str]]
    base: int = 10
    twin: str = ""
    twin_title: Any = ""

    @property
    def is_time(self) -> bool:
        """Whether it was measured several times."""
        return self.figure == "median_ns"

    @property
    def beside(self) -> list[Any]:
        """What stands beside it in a table."""
        if self.is_time:
            return [_("10 % to 90 %"), _("timed runs")]
        return [self.twin_title] if self.twin else []

    def value(self, point: Point) -> float | None:
        """Of a time only what is representative: that of an interpreter is no speed."""
        if self.is_time and not point.figures.get("representative"):
            return None
        return point.number(self.figure)

    def spread(self, point: Point) -> tuple[float, float] | None:
        """Of times that are shown, between what eight of ten lie."""
        return point.spread if self.is_time and self.value(point) is not None else None

    def write_spread(self, point: Point) -> str:
        spread = self.spread(point)
        return "–" if spread is None else " – ".join(map(self.write, spread))


QUANTITIES = (
    Quantity(
        "memory", gettext_lazy("Peak memory"), "peak_bytes", units.size, BYTES, 2, "predicted_bytes",
        gettext_lazy("predicted"),
    ),
    Quantity("time", gettext_lazy("Time"), "median_ns", units.nanoseconds, SECONDS),
    Quantity(
        "traffic", gettext_lazy("Memory traffic"), "traffic_bytes", units.size, BYTES, 2, "bytes_min",
        gettext_lazy("least possible"),
    ),
    Quantity("flops", gettext_lazy("Arithmetic"), "flops", flops, FLOPS),
    Quantity(
        "error", gettext_lazy("Largest error"), "max_abs_err", units.significant, BARE, 10, "bound",
        gettext_lazy("bound"),
    ),
)  # fmt: skip
BY_NAME = {quantity.name: quantity for quantity in QUANTITIES}


@dataclass(frozen=True)
class Cell:
    """Of the table behind a plot: a number, or what stands for it, and the page of its run."""

    text: str
    link: str = ""
    is_missing: bool = False


@dataclass(frozen=True)
class Growth:
    """How the line of that name grows."""

    name: str
    law: PowerLaw
    over: str

    @property
    def sentence(self) -> str:
        """grows as the power 1.02 ± 0.01 of length (5 points)"""
        words = {
            "power": number(self.law.exponent, 2),
            "sure": self.sure,
            "over": self.over,
            "count": self.law.points,
        }
        return ngettext(
            "grows as the power {power}{sure} of {over} ({count} point)",
            "grows as the power {power}{sure} of {over} ({count} points)",
            self.law.points,
        ).format(**words)

    @property
    def sure(self) -> str:
        error = self.law.standard_error
        if error is None:
            return ""
        return " " + (_("± less than 0.01") if error < FEW else f"± {number(error, 2)}")

    @property
    def is_certain(self) -> bool:
        return self.law.standard_error is not None


@dataclass(frozen=True)
class Plot:
    """One quantity against x. `file`: where the plot is as a file."""

    quantity: Quantity
    choice: Choice
    file: str = ""

    @cached_property
    def series(self) -> list[Series]:
        """Each line, and its dashed twin right after it."""
        found = []
        for line in self.choice.drawn:
            found += [self.measured(line), *([self.twin(line)] if self.quantity.twin else [])]
        return found

    def measured(self, line: Line) -> Series:
        read = self.quantity.value
        at = [(x, point, read(point)) for x, point in zip(line.places, line.points, strict=True)]
        known = [(x, point, value) for x, point, value in at if value is not None]
        return Series(
            line.name or str(self.quantity.title),
            [(x, value / self.factor) for x, _point, value in known],
            is_joined=self.choice.is_number,
            titles=[self.title(point, value) for _x, point, value in known],
            links=[point.link for _x, point, _value in known],
            number=line.number,
            spans=[self.span(point) for _x, point, _value in known],
        )

    def span(self, point: Point) -> tuple[float, float] | None:
        """In the unit of the plot."""
        spread = self.quantity.spread(point)
        return spread and (spread[0] / self.factor, spread[1] / self.factor)

    def twin(self, line: Line) -> Series:
        at = [
            (x, point.number(self.quantity.twin)) for x, point in zip(line.places, line.points, strict=True)
        ]
        return Series(
            "",
            [(x, value / self.factor) for x, value in at if value is not None],
            is_joined=self.choice.is_number,
            is_dashed=True,
            has_marks=not self.choice.is_number,
            titles=[str(self.quantity.twin_title)] * len(at),
            number=line.number,
        )

    def title(self, point: Point, value: float) -> str:
        where = point.name or said(self.choice.x, point.values[self.choice.x])
        shown = f"{where}: {self.quantity.write(value)}"
        if self.quantity.spread(point) is None:
            return shown
        return f"{shown} ({self.quantity.write_spread(point)})"

    @cached_property
    def values(self) -> list[float]:
        """All that are drawn, twins included."""
        points = [point for line in self.choice.drawn for point in line.points]
        measured = [self.quantity.value(point) for point in points]
        twins = [point.number(self.quantity.twin) for point in points] if self.quantity.twin else []
        return [value for value in (*measured, *twins) if value is not None]

    @property
    def is_empty(self) -> bool:
        """Whether nothing was measured that may be shown."""
        points = (point for line in self.choice.lines for point in line.points)
        return all(self.quantity.value(point) is None for point in points)

    @cached_property
    def unit(self) -> tuple[float, str]:
        """The largest in which the largest value is at least one."""
        largest = max(self.values, default=1.0)
        fitting = [step for step in self.quantity.steps if step[0] <= largest]
        return fitting[-1] if fitting else self.quantity.steps[0]

    @property
    def factor(self) -> float:
        return self.unit[0]

    @property
    def y(self) -> Axis:
        name = ", ".join(filter(None, (str(self.quantity.title), self.unit[1])))
        is_log = self.choice.scale == LOG
        return Axis(name, tick, is_log, base=self.quantity.base, from_zero=not is_log)

    @property
    def label(self) -> str:
        return _("{quantity} against {x}").format(quantity=self.quantity.title, x=self.choice.axis.name)

    @property
    def absent(self) -> list[Absent]:
        """Where a point has failed."""
        return [
            Absent(x, f"{point.name}: {point.status_name}", point.link)
            for line in self.choice.drawn
            for x, point in zip(line.places, line.points, strict=True)
            if point.has_failed
        ]

    @cached_property
    def svg(self) -> SafeString:
        return lineplot.svg(self.series, self.choice.axis, self.y, self.label, self.absent)

    @property
    def document(self) -> SafeString:
        """As a file of its own; its legend says what is dashed."""
        series = list(self.series)
        if self.quantity.twin and series:
            dashed = _("dashed: {what}").format(what=self.quantity.twin_title)
            series.append(Series(dashed, (), is_dashed=True, has_marks=False, number=0))
        return lineplot.document(series, self.choice.axis, self.y, self.label, self.absent)

    @property
    def legend(self) -> SafeString | str:
        """Which line is whose; of one line alone there is nothing to tell."""
        return lineplot.legend(self.series) if len(self.choice.drawn) > 1 else ""

    @property
    def hidden(self) -> int:
        """Values that a logarithm has no place for."""
        return sum(value <= 0 for value in self.values) if self.choice.scale == LOG else 0

    @property
    def growth(self) -> list[Growth]:
        """Of each line that is drawn, where x is a number."""
        if not self.choice.is_number:
            return []
        found = []
        for line in self.choice.drawn:
            pairs = list(zip(line.places, map(self.quantity.value, line.points), strict=True))
            law = fit_power([(x, value) for x, value in pairs if value is not None])
            if law:
                found.append(Growth(line.name, law, self.choice.axis.name))
        return found

    # --- The table ------------------------------------------------------------------------------------

    @property
    def columns(self) -> list[str]:
        names = []
        for line in self.choice.lines:
            measured = line.name or str(self.quantity.title)
            names.append(measured)
            names += [f"{line.name}, {what}".removeprefix(", ") for what in self.quantity.beside]
        return names

    @property
    def rows(self) -> list[tuple[str, list[Cell]]]:
        """For each x, in order, what every line has there, those that are not drawn included."""
        width = 1 + len(self.quantity.beside)
        empty = [Cell("–")] * (width * len(self.choice.lines))
        table: dict[float, list[Cell]] = {}
        for column, line in enumerate(self.choice.lines):
            for x, point in zip(line.places, line.points, strict=True):
                row = table.setdefault(x, list(empty))
                row[width * column : width * (column + 1)] = self.cells(point)
        return [(self.choice.axis.write(x), row) for x, row in sorted(table.items())]

    @property
    def measuring(self) -> str:
        """How times were taken; of what is counted nothing is said."""
        if not self.quantity.is_time:
            return ""
        points = [point for line in self.choice.lines for point in line.points]
        taken = sorted({point.timing for point in points if self.quantity.value(point) is not None})
        said = [
            _("Median of {iters} timed runs after {warmup} to warm up.").format(iters=iters, warmup=warmup)
            for iters, warmup in taken
        ]
        if any(self.quantity.spread(point) for point in points):
            said.append(
                _("Bars reach from the time that a tenth of them beat to the one that nine tenths beat.")
            )
        return " ".join(said)

    def odd(self, point: Point) -> str:
        """A figure that is no number; a dash where there is none that may be shown."""
        value = point.figures.get(self.quantity.figure)
        return number(float(value)) if isinstance(value, str) else "–"

    def cells(self, point: Point) -> list[Cell]:
        value = self.quantity.value(point)
        if value is not None:
            cells = [Cell(self.quantity.write(value), point.link)]
        else:
            text = self.odd(point) if point.status == Status.SUCCEEDED else point.status_name
            cells = [Cell(text, point.link, is_missing=point.has_failed)]
        if self.quantity.is_time:
            count = str(point.timing[0]) if value is not None else "–"
            return [*cells, Cell(self.quantity.write_spread(point)), Cell(count)]
        if self.quantity.twin:
            twin = point.number(self.quantity.twin)
            cells.append(Cell("–" if twin is None else self.quantity.write(twin)))
        return cells


def tick(value: float) -> str:
    """0.25; 1,024; 1e−7"""
    mantissa, is_power, power = f"{value:,g}".partition("e")
    return (f"{mantissa}e{int(power)}" if is_power else mantissa).replace("-", "−")


def of(choice: Choice, address: Callable[[str], str]) -> list[Plot]:
    """Of all that was measured; `address` of a quantity's file."""
    every = (Plot(quantity, choice, address(quantity.name)) for quantity in QUANTITIES)
    return [plot for plot in every if not plot.is_empty]
