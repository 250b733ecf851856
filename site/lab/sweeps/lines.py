"""What is plotted of a sweep against what: the choice in an address, and the points as lines.

One field is x; each combination of the others is a line of its own.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import QueryDict
from django.utils.translation import gettext as _

from concepts.figures.lineplot import SHAPES, Axis
from lab.sweeps.points import Point, telling_fields
from lab.sweeps.words import name_of, said, value_text
from workers.models import Sweep

MOST_LINES = len(SHAPES)  # that can be told apart
LOG, LINEAR = "log", "linear"
FIELDS = ("x", "y", "line")  # of the query string
WIDE = 4  # between the smallest and the largest of x, from which on its axis is logarithmic
CLOSE = 0.09  # of the axis: ticks that are nearer to one another would touch


@dataclass(frozen=True)
class Line:
    """The points of one combination, in the order of x. `number`: its colour and shape; None: it is not
    drawn."""

    name: str
    places: Sequence[float]  # x of each point
    points: Sequence[Point]
    number: int | None


@dataclass(frozen=True)
class Choice:
    """What an address asks for, of what there is."""

    x: str
    fields: Sequence[str]  # that may be x
    scale: str  # of y
    lines: Sequence[Line]
    axis: Axis
    is_number: bool  # whether x is one, so that growth can be fitted

    @property
    def drawn(self) -> list[Line]:
        return [line for line in self.lines if line.number is not None]


def choose(sweep: Sweep, points: Sequence[Point], query: QueryDict) -> Choice:
    """What is not there is as if it were not asked for."""
    fields = telling_fields(sweep.vary)
    x = query.get("x", "")
    if x not in fields:
        x = next((field for field in fields if is_numeric(sweep.vary[field])), fields[0])
    numeric = is_numeric(sweep.vary[x])
    values = sorted(sweep.vary[x], key=number_of) if numeric else list(sweep.vary[x])
    places = [number_of(value) for value in values] if numeric else list(range(len(values)))
    place_of = {json.dumps(value): float(place) for value, place in zip(values, places, strict=True)}
    names = [field for field in fields if field != x]
    groups: dict[str, list[Point]] = {}
    for point in in_order(points, sweep, names):
        groups.setdefault(", ".join(said(field, point.values[field]) for field in names), []).append(point)
    asked = [name for name in query.getlist("line") if name in groups]
    drawn = (asked or list(groups))[:MOST_LINES]
    lines = []
    for name, members in groups.items():
        at = [place_of[json.dumps(point.values[x])] for point in members]
        ordered = sorted(zip(at, members, strict=True), key=lambda pair: pair[0])
        number = drawn.index(name) if name in drawn else None
        lines.append(Line(name, [a for a, _p in ordered], [p for _a, p in ordered], number))
    scale = query.get("y", LOG)
    return Choice(
        x,
        fields,
        scale if scale in (LOG, LINEAR) else LOG,
        lines,
        axis_of(x, values, [float(place) for place in places], numeric),
        numeric,
    )


def in_order(points: Sequence[Point], sweep: Sweep, names: Sequence[str]) -> list[Point]:
    """As the values of the named fields were asked for."""
    places = {name: [json.dumps(value) for value in sweep.vary[name]] for name in names}
    return sorted(points, key=lambda p: [places[name].index(json.dumps(p.values[name])) for name in names])


def kept(query: QueryDict, **changes: Any) -> str:
    """The query string of a choice, the key of the link carried along."""
    pairs = {name: query.getlist(name) for name in ("key", *FIELDS) if name in query}
    pairs |= changes
    return urlencode(pairs, doseq=True)


# --- The axis -------------------------------------------------------------------------------------


def is_numeric(values: Sequence[Any]) -> bool:
    return all(math.isfinite(number_of(value)) for value in values)


def number_of(value: Any) -> float:
    """Where a value stands on an axis: itself; of a window how many keys a query sees; NaN where nowhere."""
    if isinstance(value, bool):
        return math.nan
    if isinstance(value, int | float):
        return float(value)
    is_window = isinstance(value, list) and len(value) == 2 and all(type(side) is int for side in value)
    return float(sum(value) + 1) if is_window else math.nan


def axis_of(x: str, values: Sequence[Any], places: Sequence[float], numeric: bool) -> Axis:
    """Of numbers: logarithmic where they are far apart; of anything else: one place after the other."""
    name = name_of(x)
    if not numeric:
        texts = dict(zip(places, (value_text(x, value) for value in values), strict=True))
        return Axis(name, lambda place: texts.get(place, ""), at=places)
    if any(isinstance(value, list) for value in values):
        name = _("keys that a query sees")
    is_log = places[0] > 0 and places[-1] >= WIDE * places[0]
    at = spread(places, is_log) if len(places) > 1 else tuple(places)
    return Axis(name, lambda place: f"{place:,g}".replace("-", "−"), is_log, base=2, at=at)


def spread(places: Sequence[float], is_log: bool) -> tuple[float, ...]:
    """Those of some places, in order, that do not touch on an axis."""
    on = [math.log(place) for place in places] if is_log else list(places)
    near = CLOSE * (on[-1] - on[0])
    found = [0]
    for index in range(1, len(on)):
        if on[index] - on[found[-1]] >= near:
            found.append(index)
    return tuple(places[index] for index in found)
