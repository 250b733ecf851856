"""Why scores are divided by √d: how far dot products spread, what a softmax leaves of its slope, how large a
lead is large, and the same rule in a stack of layers; by `kernels.scoring.softness`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, lineplot, parts
from concepts.figures.controls import Cell, Matrix, Number, Switch
from concepts.figures.explorable import Explorable, Values
from concepts.figures.lineplot import Axis, Series
from concepts.figures.numbers import Rows, plain, show, show_power, to_json
from concepts.figures.plotted import Plot, Plotted
from concepts.figures.scales import score_class
from kernels.arrays import generate
from kernels.scoring.attention import softmax
from kernels.scoring.softness import (
    gap_needed,
    jacobian,
    leading_weight,
    score_deviation,
    through_layers,
)

# -- how far dot products spread -----------------------------------------------------------------------------

TOKENS = 64  # queries, and keys
BINS = 32  # of a histogram, over four standard deviations on either side
SURE = 0.99
DIVISORS = ("1", "√d", "d")


@dataclass(frozen=True)
class Spread:
    """What one divisor makes of the products of 64 queries with 64 keys."""

    divisor: float
    expected: float  # the standard deviation that theory says
    scores: np.ndarray  # (64, 64)

    @property
    def weights(self) -> np.ndarray:
        return softmax(self.scores)

    @property
    def largest(self) -> np.ndarray:
        """The largest weight of each query."""
        return np.asarray(self.weights.max(axis=1))

    @property
    def slope(self) -> float:
        """Σ p (1 − p), the diagonal of the Jacobian, in the mean of the rows."""
        return float(np.trace(jacobian(self.weights), axis1=1, axis2=2).mean())


@lru_cache(maxsize=64)
def spreads(d: int, draw: int) -> tuple[Spread, Spread, Spread]:
    """Undivided, divided by √d and by d: numbers of mean 0 and variance 1, as the lab draws them."""
    q, k = (generate(name, draw, (1, 1, TOKENS, d), "normal", "float64")[0, 0] for name in "qk")
    products = q @ k.T
    divisors = (1.0, math.sqrt(d), float(d))
    one, two, three = (Spread(by, score_deviation(d, 1 / by), products / by) for by in divisors)
    return one, two, three


def outline(scores: np.ndarray, deviation: float) -> list[tuple[float, float]]:
    """A histogram as the line along its tops, of area 1 with what lies beyond its ends."""
    counts, edges = np.histogram(scores, bins=BINS, range=(-4 * deviation, 4 * deviation))
    heights = counts / scores.size / (edges[1] - edges[0])
    return [*zip(np.repeat(edges, 2).tolist(), [0.0, *np.repeat(heights, 2).tolist(), 0.0], strict=True)]


def bell(deviation: float) -> list[tuple[float, float]]:
    """The normal density."""
    x = np.linspace(-4 * deviation, 4 * deviation, 81)
    y = np.exp(-((x / deviation) ** 2) / 2) / (deviation * math.sqrt(2 * math.pi))
    return [*zip(x.tolist(), y.tolist(), strict=True)]


class SpreadFigure(Plotted):
    name = "spread"
    title = gettext_lazy("The figure: how far dot products spread")
    controls = (
        Number("d", gettext_lazy("Numbers in a query, d"), 64, 1, 256, is_log=True),
        Number("draw", gettext_lazy("Random draw"), 7, 1, 99),
    )

    def plot(self, values: Values) -> Plot:
        plainly, divided, _by_d = spreads(values["d"], values["draw"])
        series = [
            Series(_("q·k, measured"), outline(plainly.scores, plainly.expected), has_marks=False),
            Series(_("q·k / √d, measured"), outline(divided.scores, divided.expected), has_marks=False),
            Series(_("normal, variance d"), bell(plainly.expected), has_marks=False),
            Series(_("normal, variance 1"), bell(divided.expected), has_marks=False),
        ]
        x = Axis(_("score"), lambda value: show(value, 1))
        y = Axis(_("density"), lambda value: show(value, 2), from_zero=True)
        return series, x, y

    def table(self, values: Values) -> SafeString:
        found = spreads(values["d"], values["draw"])
        rows = [
            (_("σ of the scores, by theory"), *(show(one.expected, 3) for one in found)),
            (_("σ, measured"), *(show(float(one.scores.std()), 3) for one in found)),
            (_("largest weight, mean"), *(show(float(one.largest.mean()), 3) for one in found)),
            (_("rows with one above .99"), *(percent(float((one.largest > SURE).mean())) for one in found)),
            (_("slope Σ α(1 − α), mean"), *(show(one.slope, 3) for one in found)),
        ]
        heads = (_("divided by"), *DIVISORS)
        return parts.listing(_("64 queries with 64 keys: scores, and the softmax of each row"), heads, rows)

    def sentence(self, values: Values) -> str:
        plainly, divided, _by_d = spreads(values["d"], values["draw"])
        return _(
            "At d = %(d)d the scores spread by %(raw)s, and the best of 64 keys gets %(largest)s on average."
            " Divided by √d they spread by %(scaled)s, and it gets %(softer)s."
        ) % {
            "d": values["d"],
            "raw": show(float(plainly.scores.std()), 2),
            "largest": show(float(plainly.largest.mean()), 3),
            "scaled": show(float(divided.scores.std()), 2),
            "softer": show(float(divided.largest.mean()), 3),
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        return {
            "divided_by": {
                name: {
                    "expected_deviation": one.expected,
                    "measured_deviation": float(one.scores.std()),
                    "mean_largest_weight": float(one.largest.mean()),
                    "share_above_.99": float((one.largest > SURE).mean()),
                    "mean_slope": one.slope,
                }
                for name, one in zip(DIVISORS, spreads(values["d"], values["draw"]), strict=True)
            }
        }

    def lab(self, values: Values) -> list[tuple[str, str]]:
        shape = {"batch": 1, "heads": 1, "q_len": TOKENS, "head_dim": values["d"], "seed": values["draw"]}
        return [
            ("engine", "flash"),
            ("source", "seed"),
            *((name, str(size)) for name, size in shape.items()),
            ("scale", "1"),
        ]


def percent(share: float) -> str:
    return _("%(share)s %%") % {"share": show(round(100 * share, 6), 1)}


# -- what is left of the slope -------------------------------------------------------------------------------

KEYS = 5
ONE_ROW: Rows = [[12.0], [9.0], [3.0], [-2.0], [-10.0]]
LARGEST = 0.25  # of p (1 − p)


def softened(scores: Rows, divisor: float) -> tuple[np.ndarray, np.ndarray]:
    """Weights (5,) of the divided scores, and their Jacobian (5, 5)."""
    weights = softmax(np.array(scores)[:, 0] / divisor)
    return weights, jacobian(weights)


class Saturation(Explorable):
    name = "saturation"
    title = gettext_lazy("The figure: what moves when one score moves")
    has_cells = True
    controls = (
        Matrix(
            "s",
            gettext_lazy("Scores q·k of one query"),
            ONE_ROW,
            row_head=lambda i: parts.head("s", i, _("score")),
        ),
        Number("divisor", gettext_lazy("Divide by"), 8, 0.25, 256, 0.25, is_log=True),
        Cell("cell", gettext_lazy("Cell"), (1, 2), KEYS, KEYS),
    )

    def view(self, values: Values, links: Links) -> SafeString:
        panels = [
            self.panel(values, links, title, divisor)
            for title, divisor in (
                (_("As they are"), 1.0),
                (_("Divided by %(by)s") % {"by": show(values["divisor"], 2)}, values["divisor"]),
            )
        ]
        return format_html('<div class="split">{}{}</div>', *panels)

    def panel(self, values: Values, links: Links, title: str, divisor: float) -> SafeString:
        weights, slopes = softened(values["s"], divisor)
        chosen = values["cell"]
        return format_html(
            '<section class="panel slopes"><h3>{}</h3>{}{}<div class="lines">{}</div></section>',
            title,
            self.weights(weights),
            self.heat(values, links, slopes, title),
            parts.join(
                [
                    spoken(i, j, weights, float(slopes[i - 1, j - 1]), is_shown=(i, j) == chosen)
                    for i in range(1, KEYS + 1)
                    for j in range(1, KEYS + 1)
                ]
            ),
        )

    def weights(self, weights: np.ndarray) -> SafeString:
        rows = [
            (parts.head("α", i, _("weight")), parts.bar(weight), show(weight, 4))
            for i, weight in enumerate(weights.tolist(), 1)
        ]
        return parts.listing(_("Weights"), ("", "", ""), rows)

    def heat(self, values: Values, links: Links, slopes: np.ndarray, title: str) -> SafeString:
        rows = [
            [
                parts.cell(
                    f"{slope + 0.0:.3f}".replace("-0.000", "0.000").replace("-", "−"),
                    i=i,
                    j=j,
                    heat=score_class(slope, LARGEST),
                    lit=(i, j) == values["cell"],
                    href=self.address(links, values, cell=(i, j)),
                    label=_("weight %(i)d by score %(j)d: %(slope)s")
                    % {"i": i, "j": j, "slope": show(slope, 4)},
                )
                for j, slope in enumerate(row, 1)
            ]
            for i, row in enumerate(slopes.tolist(), 1)
        ]
        caption = _("%(title)s: slope of each weight (row) by each score (column)") % {"title": title}
        heads = range(1, KEYS + 1)
        return parts.table(
            caption,
            rows,
            [parts.head("α", i, _("weight")) for i in heads],
            [parts.head("s", j, _("score")) for j in heads],
        )

    def sentence(self, values: Values) -> str:
        plainly, slopes = softened(values["s"], 1.0)
        softer, softer_slopes = softened(values["s"], values["divisor"])
        return _(
            "As they are, the best key gets %(hard)s and no slope exceeds %(steep)s; divided by %(by)s it"
            " gets %(soft)s, and the steepest slope is %(softer)s."
        ) % {
            "hard": show(float(plainly.max()), 4),
            "steep": show(float(slopes.max()), 3),
            "by": show(values["divisor"], 2),
            "soft": show(float(softer.max()), 4),
            "softer": show(float(softer_slopes.max()), 3),
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        found = {}
        for name, divisor in (("undivided", 1.0), ("divided", values["divisor"])):
            weights, slopes = softened(values["s"], divisor)
            found[name] = {"weights": weights.tolist(), "jacobian": slopes.tolist()}
        return found

    def picture(self, values: Values) -> str:
        series = [
            Series(title, [*enumerate(softened(values["s"], divisor)[0].tolist(), 1)])
            for title, divisor in (
                (_("As they are"), 1.0),
                (_("Divided by %(by)s") % {"by": show(values["divisor"], 2)}, values["divisor"]),
            )
        ]
        x, y = (
            Axis(_("key"), partial(show, digits=0)),
            Axis(_("weight"), partial(show, digits=2), from_zero=True),
        )
        return lineplot.document(series, x, y, self.sentence(values))

    def lab(self, values: Values) -> list[tuple[str, str]]:
        return [
            ("engine", "flash"),
            ("q", "[[1]]"),
            ("k", to_json(values["s"])),
            ("v", to_json([[float(i == j) for j in range(KEYS)] for i in range(KEYS)])),
            ("scale", plain(1 / values["divisor"])),
        ]


def spoken(i: int, j: int, weights: np.ndarray, slope: float, *, is_shown: bool) -> SafeString:
    """The arithmetic of one cell, which is shown where the cell is."""
    of, by = (show(float(weights[n - 1]), 4) for n in (i, j))
    if i == j:
        sum_ = format_html("{} (1 − {}) = {}", of, of, show(slope, 4))
        words = _("Raise score %(j)d a little: weight %(i)d rises by %(size)s times as much.")
    else:
        sum_ = format_html("−{} × {} = {}", of, by, show(slope, 4))
        words = _("Raise score %(j)d a little: weight %(i)d falls by %(size)s times as much.")
    return format_html(
        '<p data-for="{},{}"{}>{} = {}. {}</p>',
        i,
        j,
        "" if is_shown else SafeString(" hidden"),
        parts.symbol("J", i, j),
        sum_,
        words % {"i": i, "j": j, "size": show(abs(slope), 4)},
    )


# -- how large a gap is large --------------------------------------------------------------------------------

WIDEST = 25.0
GAPS = np.linspace(0.0, WIDEST, 101).tolist()
COUNTS = (2, 64, 4096)
WANTED = (0.5, 0.9, 0.99)


class Softness(Plotted):
    name = "softness"
    title = gettext_lazy("The figure: how much a lead is worth")
    controls = (
        Number("gap", gettext_lazy("Lead of one score over all others"), 10, 0, WIDEST, 0.1),
        Number("keys", gettext_lazy("Keys, n"), 131_072, 2, 1_048_576, is_log=True),
    )

    def plot(self, values: Values) -> Plot:
        keys = values["keys"]

        def curve(n: int) -> Series:
            points = [(gap, leading_weight(gap, n)) for gap in GAPS]
            return Series(_("n = %(n)s") % {"n": f"{n:,}"}, points, has_marks=False)

        here = Series(_("this lead"), [(values["gap"], leading_weight(values["gap"], keys))], is_joined=False)
        series = [*map(curve, COUNTS), *([] if keys in COUNTS else [curve(keys)]), here]
        x = Axis(_("lead"), partial(show, digits=1))
        y = Axis(_("weight of the key that leads"), partial(show, digits=2), from_zero=True)
        return series, x, y

    def table(self, values: Values) -> SafeString:
        counts: Sequence[int] = sorted({*COUNTS, values["keys"]})
        rows = [
            (
                f"{n:,}",
                show(leading_weight(values["gap"], n), 4),
                *(show(gap_needed(p, n), 2) for p in WANTED),
            )
            for n in counts
        ]
        heads = (
            _("keys"),
            _("weight at a lead of %(gap)s") % {"gap": show(values["gap"], 1)},
            *(_("lead for %(p)s") % {"p": show(p, 2).rstrip("0")} for p in WANTED),
        )
        return parts.listing(_("What a lead is worth, and what lead is needed"), heads, rows)

    def sentence(self, values: Values) -> str:
        return _(
            "A lead of %(gap)s over %(others)s other keys is worth a weight of %(weight)s; a weight of .99"
            " needs a lead of %(needed)s."
        ) % {
            "gap": show(values["gap"], 1),
            "others": f"{values['keys'] - 1:,}",
            "weight": show(leading_weight(values["gap"], values["keys"]), 4),
            "needed": show(gap_needed(0.99, values["keys"]), 2),
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        return {
            "weight": leading_weight(values["gap"], values["keys"]),
            "lead_needed": {str(p): gap_needed(p, values["keys"]) for p in WANTED},
        }


# -- the same rule in a stack of layers ----------------------------------------------------------------------

LAYERS = 12


@lru_cache(maxsize=64)
def stacks(width: int, is_normalised: bool) -> dict[str, list[float]]:
    """By what the products are divided by, the deviation of a signal after each layer."""
    divisors = zip(DIVISORS, (1.0, math.sqrt(width), float(width)), strict=True)
    return {
        name: through_layers(width, LAYERS, scale=1 / by, normalised=is_normalised, seed=1).tolist()
        for name, by in divisors
    }


class Stack(Plotted):
    name = "stack"
    title = gettext_lazy("The figure: a signal on its way through layers")
    controls = (
        Number("width", gettext_lazy("Numbers in a signal, d"), 64, 2, 128, is_log=True),
        Switch("norm", gettext_lazy("LayerNorm after every layer"), False),
    )

    def plot(self, values: Values) -> Plot:
        series = [
            Series(_("divided by %(by)s") % {"by": name}, [*enumerate(found)])
            for name, found in stacks(values["width"], values["norm"]).items()
        ]
        x = Axis(_("layers passed"), partial(show, digits=0))
        return (
            series,
            x,
            Axis(_("standard deviation of the signal"), partial(show_power, digits=1), is_log=True),
        )

    def table(self, values: Values) -> SafeString:
        found = stacks(values["width"], values["norm"])
        rows = [(name, *(show_power(found[name][layers]) for layers in (0, 1, 6, 12))) for name in DIVISORS]
        heads = (_("divided by"), _("before"), _("1 layer"), _("6 layers"), _("12 layers"))
        return parts.listing(_("Standard deviation of the signal"), heads, rows)

    def sentence(self, values: Values) -> str:
        found = stacks(values["width"], values["norm"])
        return _(
            "After 12 layers the signal is %(plain)s times as large with plain products, %(scaled)s times"
            " with products divided by √d, and %(by_d)s times with products divided by d."
        ) % {
            name: show_power(found[by][-1] / found[by][0])
            for name, by in zip(("plain", "scaled", "by_d"), DIVISORS, strict=True)
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        return {"deviations": stacks(values["width"], values["norm"])}


FIGURES = (SpreadFigure(), Saturation(), Softness(), Stack())
