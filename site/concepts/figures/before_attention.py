"""What attention was invented against: a state that everything must pass through, step by step; and the
alignments that it was first seen to make.
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, lineplot, parts
from concepts.figures.controls import Cell, Choice, Number, Switch
from concepts.figures.explorable import Explorable, Values
from concepts.figures.lineplot import Axis, Series
from concepts.figures.numbers import plain, show, show_power, to_json
from concepts.figures.scales import weight_class
from kernels.arrays import Array, generate
from kernels.scoring.attention import softmax

# -- far back through a recurrence ---------------------------------------------------------------------------

STATE = 16  # numbers in the state
LONGEST = 200
SMALLEST = 1e-12  # a slope that is still drawn


@lru_cache(maxsize=64)
def slopes(tokens: int, gain: float) -> tuple[float, ...]:
    """How much the last state of h_t = tanh(g·U h_{t−1} + x_t) moves with each state before it, the nearest
    first: the root mean square of how directions are stretched. U is a random rotation."""
    turn, _rest = np.linalg.qr(generate("before/turn", 1, (STATE, STATE), "normal", "float64"))
    inputs = 0.5 * generate("before/inputs", 1, (LONGEST, STATE), "normal", "float64")[:tokens]
    state, jacobians = np.zeros(STATE), []
    for token in inputs:
        state = np.tanh(gain * (turn @ state) + token)
        jacobians.append((1 - state**2)[:, None] * (gain * turn))
    found, product = [1.0], np.eye(STATE)
    for jacobian in reversed(jacobians[1:]):
        product = product @ jacobian
        found.append(float(np.sqrt(np.mean(product**2) * STATE)))
    return tuple(found)


class Paths(Explorable):
    name = "paths"
    title = gettext_lazy("The figure: how far a token is from the last")
    controls = (
        Number("tokens", gettext_lazy("Tokens, n"), 50, 2, LONGEST, is_log=True),
        Number("gain", gettext_lazy("Gain g of the recurrence"), 1, 0.1, 3, 0.05),
        Switch("causal", gettext_lazy("Causal: nothing sees what comes later"), False),
    )

    def view(self, values: Values, links: Links) -> SafeString:
        series, x, y = self.plot(values)
        return format_html(
            '<div class="split"><div>{}{}</div>{}</div>',
            lineplot.svg(series, x, y, self.sentence(values)),
            lineplot.legend(series),
            self.table(values),
        )

    def plot(self, values: Values) -> tuple[list[Series], Axis, Axis]:
        tokens = values["tokens"]
        found = enumerate(slopes(tokens, values["gain"]))
        back = [(float(n), one) for n, one in found if one > SMALLEST]
        series = [
            Series(_("through the recurrence"), back, has_marks=False),
            Series(
                _("one attention, equal weights"),
                [(0.0, 1 / tokens), (tokens - 1.0, 1 / tokens)],
                has_marks=False,
            ),
        ]
        x = Axis(_("tokens back from the last"), partial(show, digits=0))
        return series, x, Axis(_("slope that is left"), partial(show_power, digits=1), is_log=True)

    def table(self, values: Values) -> SafeString:
        n = values["tokens"]
        pairs = n * (n + 1) // 2 if values["causal"] else n * n
        back = _("1") if not values["causal"] else _("no path")
        rows = [
            (_("steps from the first token to the last"), str(n - 1), "1"),
            (_("steps from the last to the first"), _("no path"), back),
            (_("steps that must wait for one another"), str(n), "1"),
            (_("numbers kept for the next token, d each"), "1 · d", f"{n:,} · 2d"),
            (_("pairs that meet directly"), str(n - 1), f"{pairs:,}"),
        ]
        heads = (_("tokens: %(n)d") % {"n": n}, _("recurrence"), _("attention"))
        return parts.listing(_("One layer of each"), heads, rows)

    def sentence(self, values: Values) -> str:
        n = values["tokens"]
        return _(
            "From the first of %(n)d tokens to the last it is %(steps)d steps through the recurrence, and the"
            " slope is %(left)s; through attention it is 1 step, and with equal weights the slope is"
            " %(share)s."
        ) % {
            "n": n,
            "steps": n - 1,
            "left": show_power(slopes(n, values["gain"])[-1], 2),
            "share": show_power(1 / n, 2),
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        return {"slopes": list(slopes(values["tokens"], values["gain"])), "attention": 1 / values["tokens"]}

    def picture(self, values: Values) -> str:
        return lineplot.document(*self.plot(values), self.sentence(values))

    def lab(self, values: Values) -> list[tuple[str, str]]:
        shape = {"batch": 1, "heads": 1, "q_len": values["tokens"], "head_dim": STATE}
        causal = [("causal", "on")] if values["causal"] else []
        return [
            ("engine", "flash"),
            ("source", "seed"),
            *((k, str(size)) for k, size in shape.items()),
            *causal,
        ]


# -- who is translated from whom -----------------------------------------------------------------------------

SOURCE = ("the", "European", "Economic", "Area", "was", "agreed")
TARGET = ("la", "zone", "économique", "européenne", "fut", "convenue")
# Made up for the figure: how well each source word answers each target word, from 0 to 1.
MATCH = np.array(
    [
        [0.7, 0.0, 0.0, 0.5, 0.0, 0.0],  # la: the gender comes from Area
        [0.1, 0.2, 0.3, 1.0, 0.0, 0.0],
        [0.0, 0.3, 1.0, 0.3, 0.0, 0.0],
        [0.0, 1.0, 0.3, 0.2, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.9, 0.4],
        [0.0, 0.0, 0.0, 0.2, 0.4, 1.0],
    ]
)


@dataclass(frozen=True)
class Alignment:
    weights: Array  # (6 target, 6 source): rows sum to 1
    shown: Array  # as it was asked for: by rows, or each column over its sum

    @property
    def collected(self) -> Array:
        return np.asarray(self.weights.sum(axis=0))


def alignment(sharpness: float, by: str) -> Alignment:
    weights = softmax(sharpness * MATCH)
    return Alignment(weights, weights / weights.sum(axis=0) if by == "columns" else weights)


class AlignmentFigure(Explorable):
    name = "translation"
    title = gettext_lazy("The figure: which source words each translated word looks at")
    has_cells = True
    controls = (
        Number("sharpness", gettext_lazy("Sharpness"), 4, 0, 20, 0.5),
        Choice(
            "by",
            gettext_lazy("Sums to 1"),
            "rows",
            (("rows", gettext_lazy("each row")), ("columns", gettext_lazy("each column"))),
        ),
        Cell("cell", gettext_lazy("Cell"), (2, 4), len(TARGET), len(SOURCE)),
    )

    def found(self, values: Values) -> Alignment:
        return alignment(values["sharpness"], values["by"])

    def view(self, values: Values, links: Links) -> SafeString:
        found = self.found(values)
        cells = [(i, j) for i in range(1, len(TARGET) + 1) for j in range(1, len(SOURCE) + 1)]
        lines = parts.join([told(i, j, found, is_shown=(i, j) == values["cell"]) for i, j in cells])
        return format_html(
            '<div class="tight">{}</div><div class="lines">{}</div>', self.heat(values, links), lines
        )

    def heat(self, values: Values, links: Links) -> SafeString:
        found = self.found(values)
        rows = [
            [
                parts.cell(
                    f"{weight:.2f}",
                    i=i,
                    j=j,
                    heat=weight_class(weight),
                    lit=(i, j) == values["cell"],
                    href=self.address(links, values, cell=(i, j)),
                    label=f"{TARGET[i - 1]}, {SOURCE[j - 1]}: {weight:.2f}",
                )
                for j, weight in enumerate(row, 1)
            ]
            for i, row in enumerate(found.shown.tolist(), 1)
        ]
        sums = [
            parts.cell(f"{total:.2f}", j=j, extra="sum")
            for j, total in enumerate(found.shown.sum(axis=0).tolist(), 1)
        ]
        caption = _("Weights of source words (columns) for each target word (rows); below, the column sums")
        foot = [format_html('<th scope="row">{}</th>', _("sum")), *sums]
        return parts.table(caption, rows, words(TARGET, "fr"), words(SOURCE, "en"), foot=foot)

    def sentence(self, values: Values) -> str:
        found = self.found(values)
        most = int(found.collected.argmax())
        return _(
            "“zone” gives “Area” %(weight)s of its attention. Of all six words “%(word)s” collects most,"
            " %(sum)s."
        ) % {
            "weight": show(float(found.weights[1, 3]), 3),
            "word": SOURCE[most],
            "sum": show(float(found.collected[most]), 3),
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        found = self.found(values)
        return {"weights": found.weights.tolist(), "shown": found.shown.tolist()}

    def picture(self, values: Values) -> str:
        found = self.found(values)
        series = [
            Series(word, [*enumerate(row, 1)]) for word, row in zip(TARGET, found.shown.tolist(), strict=True)
        ]
        x = Axis(_("source word"), partial(show, digits=0))
        return lineplot.document(
            series, x, Axis(_("weight"), partial(show, digits=2), from_zero=True), self.sentence(values)
        )

    def lab(self, values: Values) -> list[tuple[str, str]]:
        return [
            ("engine", "flash"),
            ("q", to_json(MATCH.tolist())),
            ("k", to_json(np.eye(len(SOURCE)).tolist())),
            ("v", to_json(np.eye(len(SOURCE)).tolist())),
            ("scale", plain(values["sharpness"])),
        ]


def words(given: tuple[str, ...], language: str) -> list[SafeString]:
    """Heads of rows or columns, in their language."""
    return [format_html('<span lang="{}">{}</span>', language, word) for word in given]


def told(i: int, j: int, found: Alignment, *, is_shown: bool) -> SafeString:
    """One cell in words, both ways."""
    weight = float(found.weights[i - 1, j - 1])
    said = _(
        "“%(target)s” gives “%(source)s” %(weight)s of its attention. That is %(share)s of all that"
        " “%(source)s” gets."
    ) % {
        "target": TARGET[i - 1],
        "source": SOURCE[j - 1],
        "weight": show(weight, 3),
        "share": show(weight / float(found.collected[j - 1]), 3),
    }
    hidden = "" if is_shown else SafeString(" hidden")
    return format_html('<p data-for="{},{}"{}>{}</p>', i, j, hidden, said)


FIGURES = (Paths(), AlignmentFigure())
