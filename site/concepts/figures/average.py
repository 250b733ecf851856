"""Attention as a weighted average that can be seen: one query slides along a line of keys, and its output is
a point between their values.

A key is scored by how near it is: s(q, k) = β (q·k − k²/2), which differs from −β (q − k)²/2 only by what
does not depend on the key, so the weights are the same. As a product of vectors it is (q, 1)·(k, −k²/2),
times β, which is how the lab runs it. With these scores attention is the kernel regression of Nadaraya and
Watson (1964).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, lineplot, parts
from concepts.figures.controls import Number
from concepts.figures.explorable import Explorable, Values
from concepts.figures.lineplot import Axis, Series
from concepts.figures.numbers import plain, show, to_json

KEYS = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
VALUES = np.array([1.0, 3.0, 2.0, 5.0, 4.0])
LEFT, RIGHT = -3.0, 3.0
CURVE = np.linspace(LEFT, RIGHT, 121)


@dataclass(frozen=True)
class Averages:
    weights: np.ndarray  # (queries, 5)
    out: np.ndarray  # (queries,)


def averages(queries: np.ndarray, sharpness: float) -> Averages:
    """The weights and outputs of some queries, float64."""
    scores = sharpness * (queries[:, None] * KEYS - KEYS**2 / 2)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights = powers / powers.sum(axis=1, keepdims=True)
    return Averages(weights, weights @ VALUES)


class Average(Explorable):
    name = "average"
    title = gettext_lazy("The figure: a query among five keys")
    controls = (
        Number("query", gettext_lazy("Query"), 0.5, LEFT, RIGHT, 0.05),
        Number("sharpness", gettext_lazy("Sharpness β"), 2.0, 0, 50, 0.1),
    )

    def found(self, values: Values) -> tuple[np.ndarray, float]:
        """Weights (5,) and output."""
        found = averages(np.array([values["query"]]), values["sharpness"])
        return found.weights[0], float(found.out[0])

    def view(self, values: Values, links: Links) -> SafeString:
        return format_html('<div class="split">{}{}</div>', self.plot(values), self.table(values))

    def plot(self, values: Values) -> SafeString:
        series, x, y = self.curve(values)
        drawn = lineplot.svg(series, x, y, self.sentence(values))
        return format_html("<div>{}{}</div>", drawn, lineplot.legend(series))

    def curve(self, values: Values) -> tuple[list[Series], Axis, Axis]:
        """What is plotted, and on which axes."""
        _weights, out = self.found(values)
        curve = averages(CURVE, values["sharpness"]).out
        keys = [*zip(KEYS.tolist(), VALUES.tolist(), strict=True)]
        outputs = [*zip(CURVE.tolist(), curve.tolist(), strict=True)]
        series = [
            Series(_("value of each key"), keys, is_joined=False),
            Series(_("output of every query"), outputs, has_marks=False),
            Series(_("this query and its output"), [(values["query"], 0.0), (values["query"], out)]),
        ]
        x = Axis(_("key, and query"), lambda value: show(value, 2))
        y = Axis(_("value, and output"), lambda value: show(value, 2), from_zero=True)
        return series, x, y

    def table(self, values: Values) -> SafeString:
        weights, out = self.found(values)
        rows = [
            (show(key, 1), parts.bar(weight), show(weight, 3), show(value, 1), show(weight * value, 3))
            for key, value, weight in zip(KEYS.tolist(), VALUES.tolist(), weights.tolist(), strict=True)
        ]
        return parts.listing(
            _("The average, term by term"),
            (_("key"), "", _("weight"), _("value"), _("weight × value")),
            rows,
            (_("sum"), "", show(round(float(weights.sum()), 12), 3), "", show(out, 3)),
        )

    def sentence(self, values: Values) -> str:
        weights, out = self.found(values)
        first = int(weights.argmax())
        return _(
            "The query at %(query)s gives most weight, %(weight)s, to the key at %(key)s; its output"
            " is %(out)s."
        ) % {
            "query": show(values["query"], 2),
            "weight": show(float(weights[first]), 3),
            "key": show(float(KEYS[first]), 1),
            "out": show(out, 3),
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        weights, out = self.found(values)
        return {"keys": KEYS.tolist(), "weights": weights.tolist(), "out": out}

    def picture(self, values: Values) -> str:
        return lineplot.document(*self.curve(values), self.sentence(values))

    def lab(self, values: Values) -> list[tuple[str, str]]:
        query, sharpness = values["query"], values["sharpness"]
        keys = np.stack([KEYS, -(KEYS**2) / 2], axis=1)
        return [
            ("engine", "flash"),
            ("q", to_json([[query * sharpness, sharpness]])),
            ("k", to_json(keys.tolist())),
            ("v", to_json(VALUES[:, None].tolist())),
            ("scale", plain(1.0)),
        ]


FIGURE = Average()
