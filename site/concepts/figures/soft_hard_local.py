"""Attention that draws one key, and attention that looks at a window: what each does to output and gradient.
`kernels.scoring.hard` and `kernels.scoring.local` compute.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, lineplot, parts
from concepts.figures.controls import Choice, Number
from concepts.figures.explorable import Explorable, Values
from concepts.figures.lineplot import Axis, Series
from concepts.figures.numbers import show, show_power, to_json
from kernels.arrays import Array, generate
from kernels.scoring.attention import softmax
from kernels.scoring.hard import (
    BASELINES,
    Reinforced,
    drawn_keys,
    reinforce,
    shares,
    uniform_numbers,
)
from kernels.scoring.local import Local, centre_gradient, local_attention

# -- one key, drawn ------------------------------------------------------------------------------------------

SCORES = np.array([1.0, 0.0, 2.0, 0.5, -1.0])
VALUES = np.array([1.0, 3.0, 2.0, 5.0, 4.0])
WEIGHTS: Array = softmax(SCORES)
SOFT = float(WEIGHTS @ VALUES)
MOST_DRAWS = 2000
MOST_POINTS = 120  # of the curve
BASELINE_NAMES = {
    "none": gettext_lazy("none"),
    "expected": gettext_lazy("expected reward"),
    "optimal": gettext_lazy("least variance"),
    "moving": gettext_lazy("moving average"),
}


@dataclass(frozen=True)
class Drawn:
    """What some draws came to. The reward of a key is its value and a constant."""

    keys: Array  # (draws,)
    counts: Array  # (5,), their shares
    by_baseline: dict[str, Reinforced]

    @property
    def means(self) -> Array:
        """The mean output after each draw."""
        return np.asarray(np.cumsum(VALUES[self.keys]) / np.arange(1, len(self.keys) + 1))


def drawn(draws: int, seed: int, constant: float) -> Drawn:
    chosen = drawn_keys(WEIGHTS[None], uniform_numbers(draws, (1,), seed))
    rewards = (VALUES + constant)[None]
    found = {name: reinforce(WEIGHTS[None], rewards, chosen, name) for name in BASELINES}
    return Drawn(chosen[:, 0], shares(chosen, len(VALUES))[0], found)


class Hard(Explorable):
    name = "hard"
    title = gettext_lazy("The figure: an average, and keys that are drawn")
    controls = (
        Number("draws", gettext_lazy("Draws"), 50, 1, MOST_DRAWS, is_log=True),
        Number("seed", gettext_lazy("Seed of the draws"), 1, 0, 99),
        Number("constant", gettext_lazy("Constant added to every reward"), 10, -50, 50, 0.5),
        Choice("baseline", gettext_lazy("Baseline"), "expected", tuple(BASELINE_NAMES.items())),
    )

    def found(self, values: Values) -> Drawn:
        return drawn(values["draws"], values["seed"], values["constant"])

    def view(self, values: Values, links: Links) -> SafeString:
        found = self.found(values)
        series, x, y = self.plot(found)
        return format_html(
            '<div class="split"><div>{}{}</div><div>{}{}</div></div>',
            lineplot.svg(series, x, y, self.sentence(values)),
            lineplot.legend(series),
            self.gradients(found, values),
            self.variances(found),
        )

    def plot(self, found: Drawn) -> tuple[list[Series], Axis, Axis]:
        draws = len(found.keys)
        at = np.unique(np.geomspace(1, draws, min(draws, MOST_POINTS)).round().astype(int))
        means = found.means
        series = [
            Series(
                _("mean of the drawn values"), [(float(n), float(means[n - 1])) for n in at], has_marks=False
            ),
            Series(_("soft attention"), [(1.0, SOFT), (float(max(draws, 2)), SOFT)], has_marks=False),
        ]
        x = Axis(_("draws"), partial(show, digits=0), is_log=True)
        return series, x, Axis(_("output"), partial(show, digits=2))

    def gradients(self, found: Drawn, values: Values) -> SafeString:
        """By the scores, exact and as it is estimated."""
        one = found.by_baseline[values["baseline"]]
        errors = np.sqrt(one.variance[0] / values["draws"])
        rows = [
            (
                parts.head("k", j + 1, _("key")),
                show(float(WEIGHTS[j]), 3),
                show(float(found.counts[j]), 3),
                show(float(one.exact[0, j]), 3),
                f"{show(float(one.estimate[0, j]), 2)} ± {show(float(errors[j]), 2)}",
            )
            for j in range(len(VALUES))
        ]
        heads = (_("key"), _("weight"), _("drawn"), _("gradient"), _("estimate ± its deviation"))
        return parts.listing(_("The gradient of the mean reward by each score"), heads, rows)

    def variances(self, found: Drawn) -> SafeString:
        """What each baseline leaves of the variance of one draw."""
        totals = {name: float(one.variance.sum()) for name, one in found.by_baseline.items()}
        most = max(totals.values()) or 1.0
        rows = [
            (str(BASELINE_NAMES[name]), parts.bar(total / most), show_power(total, 3))
            for name, total in totals.items()
        ]
        caption = _("Variance of the gradient of one draw, all keys together")
        return parts.listing(caption, (_("baseline"), "", _("variance")), rows)

    def sentence(self, values: Values) -> str:
        found = self.found(values)
        one = found.by_baseline[values["baseline"]]
        return _(
            "Soft attention answers %(soft)s each time; %(draws)s draws answer %(hard)s on average. Without"
            " a baseline the gradient of one draw has a variance of %(none)s, with the chosen one %(chosen)s."
        ) % {
            "soft": show(SOFT, 3),
            "draws": f"{values['draws']:,}",
            "hard": show(float(found.means[-1]), 3),
            "none": show_power(float(found.by_baseline["none"].variance.sum()), 3),
            "chosen": show_power(float(one.variance.sum()), 3),
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        found = self.found(values)
        one = found.by_baseline[values["baseline"]]
        return {
            "weights": WEIGHTS.tolist(),
            "soft_output": SOFT,
            "mean_output": float(found.means[-1]),
            "shares": found.counts.tolist(),
            "gradient": one.exact[0].tolist(),
            "estimate": one.estimate[0].tolist(),
            "variance": {name: float(each.variance.sum()) for name, each in found.by_baseline.items()},
        }

    def picture(self, values: Values) -> str:
        return lineplot.document(*self.plot(self.found(values)), self.sentence(values))

    def lab(self, values: Values) -> list[tuple[str, str]]:
        return [
            ("engine", "hard"),
            ("q", "[[1]]"),
            ("k", to_json(SCORES[:, None].tolist())),
            ("v", to_json(VALUES[:, None].tolist())),
            ("scale", "1"),
            ("option_draws", str(values["draws"])),
            ("option_draws_seed", str(values["seed"])),
        ]


# -- a window ------------------------------------------------------------------------------------------------

LENGTH = 32
# Rounded, so that the lab can be given the same numbers.
SOURCE_SCORES = generate("window/scores", 5, (LENGTH,), "normal", "float64").round(2)
SOURCE_VALUES = generate("window/values", 5, (LENGTH,), "normal", "float64").round(2)


@dataclass(frozen=True)
class Views:
    """One query on the same source: everywhere, through a window, through a window that fades."""

    everywhere: Array  # (32,)
    plain: Local
    faded: Local
    slope: float  # of the faded one's output by its centre


def views(centre: float, half_width: float) -> Views:
    scores, v = SOURCE_SCORES[None, None, None], SOURCE_VALUES[None, None, :, None]
    at = np.array([[[centre]]])
    plain, faded = (local_attention(scores, v, at, half_width, gaussian=fades) for fades in (False, True))
    slope = centre_gradient(faded, v, np.ones((1, 1, 1, 1)), half_width)
    return Views(softmax(SOURCE_SCORES), plain, faded, float(slope[0, 0, 0]))


class Window(Explorable):
    name = "window"
    title = gettext_lazy("The figure: a window on a long source")
    controls = (
        Number("centre", gettext_lazy("Centre p"), 21.0, 0, LENGTH - 1, 0.1),
        Number("reach", gettext_lazy("Half width D"), 4.0, 0.5, LENGTH, 0.5),
    )

    def found(self, values: Values) -> Views:
        return views(values["centre"], values["reach"])

    def view(self, values: Values, links: Links) -> SafeString:
        series, x, y = self.plot(values)
        return format_html(
            '<div class="split"><div>{}{}</div>{}</div>',
            lineplot.svg(series, x, y, self.sentence(values)),
            lineplot.legend(series),
            self.table(values),
        )

    def plot(self, values: Values) -> tuple[list[Series], Axis, Axis]:
        found = self.found(values)
        series = [
            Series(name, [*enumerate(weights.tolist())])
            for name, weights in (
                (_("global"), found.everywhere),
                (_("window alone"), found.plain.weights[0, 0, 0]),
                (_("window with a Gaussian"), found.faded.weights[0, 0, 0]),
            )
        ]
        x = Axis(_("position in the source, from 0"), partial(show, digits=0))
        return series, x, Axis(_("weight"), partial(show, digits=2), from_zero=True)

    def table(self, values: Values) -> SafeString:
        found = self.found(values)
        rows = [
            (_("global"), LENGTH, 1.0, float(found.everywhere @ SOURCE_VALUES), _("none")),
            (
                _("window alone"),
                found.plain.pairs,
                float(found.plain.weights.sum()),
                out_of(found.plain),
                "0",
            ),
            (
                _("with a Gaussian"),
                found.faded.pairs,
                float(found.faded.weights.sum()),
                out_of(found.faded),
                show(found.slope, 3),
            ),
        ]
        heads = (_("attention"), _("keys scored"), _("sum of weights"), _("output"), _("slope by p"))
        shown = [
            (name, str(keys), show(round(total, 9), 3), show(out, 3), slope)
            for name, keys, total, out, slope in rows
        ]
        return parts.listing(_("One query, 32 keys"), heads, shown)

    def sentence(self, values: Values) -> str:
        found = self.found(values)
        return _(
            "The window around %(centre)s has %(keys)d of 32 keys and %(share)s of the global weight."
        ) % {
            "centre": show(values["centre"], 1),
            "keys": found.plain.pairs,
            "share": show(float(found.plain.inside[0, 0, 0]), 3),
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        found = self.found(values)
        return {
            "global": found.everywhere.tolist(),
            "window": found.plain.weights[0, 0, 0].tolist(),
            "gaussian": found.faded.weights[0, 0, 0].tolist(),
            "keys_scored": found.plain.pairs,
            "global_weight_inside": float(found.plain.inside[0, 0, 0]),
            "outputs": [float(found.everywhere @ SOURCE_VALUES), out_of(found.plain), out_of(found.faded)],
            "slope_by_centre": found.slope,
        }

    def picture(self, values: Values) -> str:
        return lineplot.document(*self.plot(values), self.sentence(values))

    def lab(self, values: Values) -> list[tuple[str, str]]:
        return [
            ("engine", "scoring"),
            ("option_score", "dot"),
            ("option_span", "monotonic"),
            ("option_half_width", f"{values['reach']:g}"),
            ("q", to_json([[1.0]] * LENGTH)),
            ("k", to_json(SOURCE_SCORES[:, None].tolist())),
            ("v", to_json(SOURCE_VALUES[:, None].tolist())),
        ]


def out_of(found: Local) -> float:
    return float(found.out[0, 0, 0, 0])


FIGURES = (Hard(), Window())
