"""A line plot as a pure function of numbers: linear or logarithmic axes, and a table behind it.

`svg` draws with the classes of the design system, so that it follows the page's theme; series are told apart
by the shape of their marks as well as by colour. `legend` names them, and `rows` gives the same numbers as a
table. `document` is the plot with its legend as a file of its own, which no stylesheet reaches.
"""

import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from concepts.figures import parts

Point = tuple[float, float]

WIDTH, HEIGHT = 480, 320  # narrow, so that its text can still be read on a phone
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 28, 46
SHAPES = (  # around (0, 0), about as large as one another; as many as static/css has colours for series
    "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z",
    "M-4 -4h8v8h-8z",
    "M0 -5.4l5 9h-10z",
    "M0 -5.6l5.2 5.6l-5.2 5.6l-5.2 -5.6z",
    "M0 5.4l5 -9h-10z",
    "M-1.6 -5h3.2v3.4h3.4v3.2h-3.4v3.4h-3.2v-3.4h-3.4v-3.2h3.4z",
)
CROSS = "M-4 -4L4 4M4 -4L-4 4"
MOST_TICKS = 7
# What static/css/components.css says of the classes, on a light page: for files, which no stylesheet reaches.
COLORS = ("#5f2d94", "#b4560f", "#0a7a5c", "#1459a8", "#a02c6b", "#5d5a12")
PAINT = {
    "grid": 'stroke="#dcd7dc" fill="none"',
    "tick": 'fill="#57515f"',
    "axis": 'fill="#57515f"',
    "line": 'fill="none" stroke="{color}" stroke-width="2" stroke-linejoin="round"',
    "mark": 'fill="{color}" stroke="#ffffff" stroke-width="1.2"',
    "hollow": 'fill="#ffffff" stroke="{color}" stroke-width="1.2"',
    "span": 'fill="none" stroke="{color}" stroke-width="1.2"',
    "absent": 'fill="none" stroke="#b3251e" stroke-width="2"',
    "dashed": 'stroke-dasharray="5 4"',
}
BARE_DASHES = ("", "9 3", "2 3", "9 3 2 3", "14 4", "5 5")
SMALLEST = sys.float_info.min * 4  # on a logarithm: below it there is no room to leave
CAP = 4  # of a bar, to either side
LINE = 20  # height of a line of the legend, in pixels


@dataclass(frozen=True)
class Axis:
    """`name` with its unit; `write` makes the text of a tick. `base` is that of a logarithm's ticks; `at`:
    where ticks are to be, if not at round numbers."""

    name: str
    write: Callable[[float], str]
    is_log: bool = False
    base: int = 10
    from_zero: bool = False
    at: Sequence[float] = ()

    def can_show(self, value: float) -> bool:
        return math.isfinite(value) and (not self.is_log or value >= SMALLEST)


@dataclass(frozen=True)
class Series:
    """Points in the order in which a line joins them; of a bare curve the points have no marks, and what is
    dashed has hollow ones.

    `titles` and `links` (each for every point, or none) are what a mark says and where it leads. `number` is
    that of the colour and the shape, for series that belong together; None: their place in the plot. Only one
    of them needs a name, for the legend. `spans` (for every point, or none) are from where to where what was
    measured there lies: a bar through the point."""

    name: str
    points: Sequence[Point]
    is_joined: bool = True
    is_dashed: bool = False
    has_marks: bool = True
    titles: Sequence[str] = ()
    links: Sequence[str] = ()
    number: int | None = None
    spans: Sequence[tuple[float, float] | None] = ()


@dataclass(frozen=True)
class Absent:
    """A place on the x axis where there should have been a number; `title` says why there is none."""

    x: float
    title: str
    link: str = ""


@dataclass(frozen=True)
class Scale:
    """From values to pixels."""

    axis: Axis
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        low, high, value = (self._place(x) for x in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def _place(self, value: float) -> float:
        return math.log(value) if self.axis.is_log else value

    @property
    def ticks(self) -> Sequence[float]:
        if self.axis.at:
            return self.axis.at
        found = log_ticks(self.low, self.high, self.axis.base) if self.axis.is_log else None
        return found or linear_ticks(self.low, self.high)


def svg(series: Sequence[Series], x: Axis, y: Axis, label: str, absent: Sequence[Absent] = ()) -> SafeString:
    """The plot; `label` says in words what it shows. What an axis cannot show (0 on a logarithm) is left
    out. A plot with links is a group of them and no picture, of whose parts nobody would be told."""
    shown = [
        [at for at, (a, b) in enumerate(one.points) if x.can_show(a) and y.can_show(b)] for one in series
    ]
    points = [one.points[at] for one, kept in zip(series, shown, strict=True) for at in kept]
    missing = [one for one in absent if x.can_show(one.x)]
    places = [*(a for a, _b in points), *(one.x for one in missing), *x.at]
    across = scale(x, places, LEFT, WIDTH - RIGHT)
    ends = [end for one, kept in zip(series, shown, strict=True) for at in kept for end in span(one, at, y)]
    up = scale(y, [*(b for _a, b in points), *ends], HEIGHT - BOTTOM, TOP)
    lines = [
        draw(colour_of(number, one), one, kept, across, up)
        for number, (one, kept) in enumerate(zip(series, shown, strict=True))
    ]
    crosses = (linked(one.link, cross(one, across), one.title) for one in missing)
    has_links = any(one.links for one in series) or any(one.link for one in missing)
    head = '<svg class="lineplot" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="{2}" aria-label="{3}">'
    return format_html(
        head + "{4}{5}</svg>",
        WIDTH,
        HEIGHT,
        "group" if has_links else "img",
        label,
        frame(across, up),
        join([*lines, *crosses]),
    )


def document(
    series: Sequence[Series], x: Axis, y: Axis, label: str, absent: Sequence[Absent] = ()
) -> SafeString:
    """The plot and below it the names of its series, as an SVG with colours of its own and without links."""
    named = [(colour_of(number, one), one) for number, one in enumerate(series) if one.name]
    height = HEIGHT + LINE * len(named) + 6
    names = format_html_join(
        "",
        '<g transform="translate({0} {1})">{2}<text class="tick" x="16" y="4.5">{3}</text></g>',
        (
            (LEFT + 9, HEIGHT + LINE * row + 8, key_paths(number, one), one.name)
            for row, (number, one) in enumerate(named)
        ),
    )
    plain = [replace(one, links=()) for one in series]
    drawn = svg(plain, x, y, label, [replace(one, link="") for one in absent])
    inner = str(drawn).partition(">")[2].removesuffix("</svg>")
    whole = parts.drawing(WIDTH, height, label, SafeString(inner) + names)
    return SafeString(re.sub(r'class="([^"]*)"', painted, whole))


def painted(match: re.Match[str]) -> str:
    """What a stylesheet would say of some classes, as attributes."""
    classes = match[1].split()
    if {"mark", "dashed"} <= set(classes):
        classes = ["hollow", *(name for name in classes if name not in ("mark", "dashed"))]
    number = next((int(name[7:]) for name in classes if name.startswith("series-")), 1) - 1
    found = [PAINT[name].format(color=COLORS[number]) for name in classes if name in PAINT]
    if "bare" in classes and BARE_DASHES[number] and "dashed" not in classes:
        found.append(f'stroke-dasharray="{BARE_DASHES[number]}"')
    return " ".join(found)


def draw(number: int, one: Series, kept: Sequence[int], across: Scale, up: Scale) -> SafeString:
    """One series: its line below its marks, each mark with its numbers as a title. `kept`: which points are
    shown."""
    at = [(across(one.points[place][0]), up(one.points[place][1])) for place in kept]
    path: str = ""
    if one.is_joined and len(at) > 1:
        route = "L".join(f"{a:.1f} {b:.1f}" for a, b in at)
        path = format_html('<path class="line {}" d="M{}"/>', classes(number, one), route)
    bars = [bar(number, one, place, across, up) for place in kept]
    if not one.has_marks:
        return join([path, *bars])
    marks = []
    for place, (a, b) in zip(kept, at, strict=True):
        x, y = one.points[place]
        title = one.titles[place] if one.titles else f"{one.name}: {across.axis.write(x)}, {up.axis.write(y)}"
        mark = format_html(
            '<path class="mark {}" transform="translate({} {})" d="{}"><title>{}</title></path>',
            classes(number, one),
            f"{a:.1f}",
            f"{b:.1f}",
            SHAPES[number % len(SHAPES)],
            title,
        )
        marks.append(linked(one.links[place] if one.links else "", mark, title))
    return join([path, *bars, *marks])


def span(one: Series, place: int, y: Axis) -> tuple[float, ...]:
    """Both ends of the bar through a point; none where there is no bar, or no room for it on the axis."""
    ends = one.spans[place] if one.spans else None
    return ends if ends is not None and all(map(y.can_show, ends)) else ()


def bar(number: int, one: Series, place: int, across: Scale, up: Scale) -> str:
    ends = span(one, place, up.axis)
    if not ends:
        return ""
    x, (low, high) = across(one.points[place][0]), map(up, ends)
    caps = "".join(f"M{x - CAP:.1f} {end:.1f}h{2 * CAP}" for end in (low, high))
    route = f"M{x:.1f} {low:.1f}V{high:.1f}{caps}"
    return format_html('<path class="span {}" d="{}"/>', classes(number, one), route)


def linked(address: str, mark: SafeString, title: str) -> SafeString:
    """A mark that leads somewhere. No stop for the Tab key: the table behind the plot has the same links."""
    if not address:
        return mark
    return format_html('<a href="{}" aria-label="{}" tabindex="-1">{}</a>', address, title, mark)


def cross(one: Absent, across: Scale) -> SafeString:
    return format_html(
        '<path class="absent" transform="translate({} {})" d="{}"><title>{}</title></path>',
        f"{across(one.x):.1f}",
        HEIGHT - BOTTOM,
        CROSS,
        one.title,
    )


def colour_of(number: int, one: Series) -> int:
    return number if one.number is None else one.number


def frame(across: Scale, up: Scale) -> SafeString:
    """Grid lines, ticks and the names of the axes."""
    columns = format_html_join(
        "",
        '<path class="grid" d="M{} {}V{}"/><text class="tick" text-anchor="middle" x="{}" y="{}">{}</text>',
        (
            (f"{at:.1f}", TOP, HEIGHT - BOTTOM, f"{at:.1f}", HEIGHT - BOTTOM + 18, across.axis.write(tick))
            for tick, at in ((tick, across(tick)) for tick in across.ticks)
        ),
    )
    lines = format_html_join(
        "",
        '<path class="grid" d="M{} {}H{}"/><text class="tick" text-anchor="end" x="{}" y="{}">{}</text>',
        (
            (LEFT, f"{at:.1f}", WIDTH - RIGHT, LEFT - 7, f"{at + 4.5:.1f}", up.axis.write(tick))
            for tick, at in ((tick, up(tick)) for tick in up.ticks)
        ),
    )
    names = format_html(
        '<text class="axis" x="{}" y="{}" text-anchor="middle">{}</text>'
        '<text class="axis" x="4" y="14">{}</text>',
        (LEFT + WIDTH - RIGHT) / 2,
        HEIGHT - 8,
        across.axis.name,
        up.axis.name,
    )
    return join([columns, lines, names])


def legend(series: Sequence[Series]) -> SafeString:
    """Which line or mark is whose."""
    items = ((key(colour_of(n, one), one), one.name) for n, one in enumerate(series) if one.name)
    return format_html('<ul class="lineplot-legend">{}</ul>', format_html_join("", "<li>{} {}</li>", items))


def key(number: int, one: Series) -> SafeString:
    """A piece of the line and a mark, as they are in the plot."""
    head = '<svg class="lineplot-key" viewBox="-9 -7 18 14" width="18" height="14" aria-hidden="true">'
    return format_html(head + "{}</svg>", key_paths(number, one))


def key_paths(number: int, one: Series) -> SafeString:
    shape = SHAPES[number % len(SHAPES)]
    line = format_html('<path class="line {}" d="M-9 0H9"/>', classes(number, one)) if one.is_joined else ""
    mark = format_html('<path class="mark {}" d="{}"/>', classes(number, one), shape) if one.has_marks else ""
    return join([line, mark])


def classes(number: int, one: Series) -> str:
    """Of a series: its colour, and what its line is like."""
    kind = f"series-{number % len(SHAPES) + 1}"
    return " ".join([kind, *["dashed"] * one.is_dashed, *["bare"] * (not one.has_marks)])


def rows(series: Sequence[Series], x: Axis, y: Axis) -> list[tuple[str, list[str]]]:
    """The table behind the plot: for each value of x, in order, what every series has there."""
    values: dict[float, dict[int, float]] = {}
    for number, one in enumerate(series):
        for a, b in one.points:
            values.setdefault(a, {})[number] = b
    return [
        (x.write(a), [y.write(found[number]) if number in found else "–" for number in range(len(series))])
        for a, found in sorted(values.items())
    ]


def join(parts: Sequence[str]) -> SafeString:
    return SafeString("".join(parts))


# --- Axes -----------------------------------------------------------------------------------------


def scale(axis: Axis, values: Sequence[float], start: float, end: float) -> Scale:
    """The scale that holds all values, with a little room, and something even where there are none."""
    if not values:
        values = [1, 10] if axis.is_log else [0, 1]
    low, high = min(values), max(values)
    if axis.is_log:
        room = (high / low) ** 0.04 if high > low else 2.0
        return Scale(axis, low / room, min(high * room, sys.float_info.max), start, end)
    if axis.from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    room = 0.04 * (high - low) or abs(high) * 0.5 or 1.0
    held = axis.from_zero and low == 0
    return Scale(axis, low if held else low - room, high + room, start, end)


def linear_ticks(low: float, high: float) -> list[float]:
    """At most MOST_TICKS round numbers: 1, 2 or 5 times a power of ten apart."""
    rough = (high - low) / (MOST_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def log_ticks(low: float, high: float, base: int) -> list[float]:
    """Powers of the base, so few that they do not touch; none where there is less than two of them."""
    first, last = (math.log(value, base) for value in (low, high))
    exponents = range(math.ceil(first - 1e-9), math.floor(last + 1e-9) + 1)
    every = max(1, math.ceil(len(exponents) / MOST_TICKS))
    kept = [exponent for exponent in exponents if exponent % every == 0]
    return [float(base) ** exponent for exponent in kept] if len(kept) > 1 else []
