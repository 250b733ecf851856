"""What training costs, and how a measure can make smooth progress look sudden."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, grids, lineplot, parts
from concepts.figures.controls import Menu, Number
from concepts.figures.explorable import Explorable, Values
from concepts.figures.lineplot import Axis, Series
from concepts.figures.numbers import show, show_power
from concepts.figures.plotted import Plot
from kernels.sizing.gpus import gpus
from kernels.sizing.training import gpu_hours, training_flops

SCALES = np.linspace(-4.0, 4.0, 81)  # powers of ten around the size at which half of the tokens are right
STEEP = 0.9  # of the curve of single tokens, per power of ten
MIDDLE = 40  # index of that size


class Training(Explorable):
    name = "training"
    title = gettext_lazy("The figure: what one training run takes")
    parts = frozenset({""})
    controls = (
        Number("n", gettext_lazy("Parameters, N"), 175, 0.1, 2000, 0.1, unit="10⁹", is_log=True),
        Number("d", gettext_lazy("Tokens, D"), 300, 1, 50_000, 1, unit="10⁹", is_log=True),
        Menu(
            "gpu",
            gettext_lazy("GPU"),
            "a100-80-sxm",
            tuple((slug, one.title) for slug, one in gpus().items()),
        ),
        Number("share", gettext_lazy("Of its peak"), 40, 1, 100, 1, unit="%"),
        Number("count", gettext_lazy("How many of them"), 1024, 1, 100_000, is_log=True),
        Number("price", gettext_lazy("A GPU-hour costs"), 2, 0.1, 20, 0.1, unit="$", is_log=True),
    )

    def flops(self, values: Values) -> float:
        return float(training_flops(round(values["n"] * 1e9), round(values["d"] * 1e9)))

    def hours(self, values: Values) -> float:
        """Of one GPU."""
        gpu = gpus()[values["gpu"]]
        return gpu_hours(self.flops(values), gpu, utilisation=values["share"] / 100)

    def days(self, values: Values) -> float:
        return float(self.hours(values) / values["count"] / 24)

    def dollars(self, values: Values) -> float:
        return float(self.hours(values) * values["price"])

    def view(self, values: Values, links: Links) -> SafeString:
        rows: Sequence[tuple[str, str]] = (
            (_("operations, 6·N·D"), show_power(self.flops(values))),
            (_("hours of one GPU"), f"{self.hours(values):,.0f}"),
            (_("days, with all of them"), show(self.days(values), 1)),
            (_("what they cost, million $"), f"{self.dollars(values) / 1e6:,.2f}"),
        )
        caption = _("One run that succeeds, and nothing else")
        return grids.framed(parts.listing(caption, ("", ""), rows), caption)

    def sentence(self, values: Values) -> str:
        return _(
            "%(flops)s operations take %(hours)s hours of one %(gpu)s: %(days)s days on %(count)s, for"
            " %(cost)s million $."
        ) % {
            "flops": show_power(self.flops(values)),
            "hours": f"{self.hours(values):,.0f}",
            "gpu": gpus()[values["gpu"]].title,
            "days": show(self.days(values), 1),
            "count": f"{values['count']:,}",
            "cost": f"{self.dollars(values) / 1e6:,.2f}",
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        return {
            "flops": self.flops(values),
            "gpu_hours": self.hours(values),
            "days": self.days(values),
            "dollars": self.dollars(values),
        }

    def picture(self, values: Values) -> str:
        lines = self.sentence(values).split(": ")
        drawn = [
            format_html('<text x="10" y="{}" fill="#1e1a24">{}</text>', 26 + 22 * number, line)
            for number, line in enumerate(lines)
        ]
        return parts.drawing(640, 20 + 26 * len(lines), self.sentence(values), parts.join(drawn))


def single(scales: np.ndarray) -> np.ndarray:
    """Of models of these sizes, the share of single tokens that are right: a smooth curve."""
    return np.asarray(1 / (1 + np.exp(-STEEP * scales)))


class Emergence(Explorable):
    name = "emergence"
    title = gettext_lazy("The figure: one curve, measured in two ways")
    controls = (Number("k", gettext_lazy("Tokens of an answer, k"), 20, 1, 100),)

    def curves(self, values: Values) -> tuple[np.ndarray, np.ndarray]:
        """Of single tokens, and of whole answers: all k tokens right."""
        right = single(SCALES)
        return right, right ** values["k"]

    def plot(self, values: Values) -> Plot:
        tokens, answers = self.curves(values)
        series = [
            Series(name, list(zip(SCALES.tolist(), curve.tolist(), strict=True)), has_marks=False)
            for name, curve in ((_("a token is right"), tokens), (_("the whole answer is right"), answers))
        ]
        x = Axis(_("size of the model, powers of ten"), lambda value: show(value, 0))
        return series, x, Axis(_("share"), lambda value: show(value, 1), from_zero=True)

    def view(self, values: Values, links: Links) -> SafeString:
        plot = self.plot(values)
        return format_html("{}{}", lineplot.svg(*plot, self.sentence(values)), lineplot.legend(plot[0]))

    def sentence(self, values: Values) -> str:
        tokens, answers = self.curves(values)
        return _(
            "Where %(half)s of the tokens are right, %(few)s of whole answers are (k = %(k)d); two powers of"
            " ten further, %(more)s of the tokens and %(many)s of the answers."
        ) % {
            "half": percent(tokens[MIDDLE]),
            "few": percent(answers[MIDDLE]),
            "k": values["k"],
            "more": percent(tokens[MIDDLE + 20]),
            "many": percent(answers[MIDDLE + 20]),
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        tokens, answers = self.curves(values)
        return {"size": SCALES.tolist(), "token": tokens.tolist(), "answer": answers.tolist()}

    def picture(self, values: Values) -> str:
        return lineplot.document(*self.plot(values), self.sentence(values))

    def lab(self, values: Values) -> list[tuple[str, str]]:
        """Eight heads of random numbers, whose weights show patterns all the same."""
        pairs = {"source": "seed", "seed": 3, "q_len": 24, "head_dim": 8, "heads": 8, "causal": "on"}
        return [(name, str(value)) for name, value in (*pairs.items(), ("distribution", "peaked"))]


def percent(share: float) -> str:
    """With one digit below one per cent; less than a thousandth of one as such."""
    if 0 < share < 0.00005:
        return _("less than 0.01 %")
    return f"{100 * share:.{0 if share >= 0.1 else 2}f}\u00a0%"


FIGURES = (Training(), Emergence())
