"""The backward pass of one query from what the forward pass kept, with mistakes to be switched on; by
`kernels.flash.rebuild`."""

from typing import Any

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, grids, parts
from concepts.figures.controls import Choice, Matrix, Number
from concepts.figures.explorable import Explorable, Values
from concepts.figures.numbers import Rows, show, to_json
from concepts.figures.online_softmax import drawn
from kernels.flash.rebuild import MISTAKES, Rebuilt, nudged, rebuild

ROWS: Rows = [[2, 1], [0, 4], [1, 2]]  # score and value of each key
RIGHT = "right"
WORDS = {
    "sum": gettext_lazy("m is kept, and not L"),
    "delta": gettext_lazy("D is left out"),
}
NEAR = 1e-5  # how far a slope may be from that which is tried out, relative to the largest


class Backward(Explorable):
    name = "backward"
    title = gettext_lazy("The figure: the backward pass of one query")
    controls = (
        Matrix(
            "r",
            gettext_lazy("Keys of one query"),
            ROWS,
            row_head=lambda i: parts.head("k", i, _("key")),
            columns=(gettext_lazy("score"), gettext_lazy("value")),
        ),
        Number("up", gettext_lazy("Slope of the loss by the output, dO"), 1, -10, 10, step=0.1),
        Choice(
            "lost",
            gettext_lazy("What is done wrong"),
            RIGHT,
            [(RIGHT, gettext_lazy("nothing")), *((name, WORDS[name]) for name in MISTAKES)],
        ),
    )

    def given(self, values: Values) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Scores [3], values [3, 1] and dO [1]."""
        table = np.array(values["r"], dtype=np.float64)
        return table[:, 0], table[:, 1:], np.array([float(values["up"])])

    def rebuilt(self, values: Values) -> Rebuilt:
        mistake = None if values["lost"] == RIGHT else values["lost"]
        with np.errstate(over="ignore", invalid="ignore"):
            return rebuild(*self.given(values), mistake)

    def tried(self, values: Values) -> np.ndarray:
        return nudged(*self.given(values))

    def is_right(self, values: Values) -> np.ndarray:
        """Of the slope of each score."""
        found, tried = self.rebuilt(values).ds, self.tried(values)
        allowed = NEAR * max(1.0, float(np.abs(self.given(values)[1]).max()))
        return np.asarray(np.abs(found - tried) <= allowed)

    def view(self, values: Values, links: Links) -> SafeString:
        scores = self.given(values)[0]
        found, tried, fits = self.rebuilt(values), self.tried(values), self.is_right(values)
        rows = [
            [
                parts.cell(show(float(scores[j]), 4)),
                parts.cell(show(float(found.p[j]), 4), heat=grids.heat_of(float(found.p[j]))),
                parts.cell(show(float(found.dp[j]), 4)),
                parts.cell(show(float(found.ds[j]), 4), extra="" if fits[j] else "painted"),
                parts.cell(f"{show(float(tried[j]), 4)} {'✓' if fits[j] else '✗'}"),
                parts.cell(show(float(found.dv[j, 0]), 4)),
            ]
            for j in range(len(scores))
        ]
        caption = _("From the scores, L, dO and D to the slopes")
        names = ("S", "P", "dP", "dS", _("dS, tried out"), "dV")
        table = parts.table(
            caption,
            rows,
            [parts.head("k", j, _("key")) for j in range(1, len(scores) + 1)],
            [format_html("{}", name) for name in names],
        )
        letter = "m" if values["lost"] == "sum" else "L"
        kept = _("Kept by the forward pass: %(letter)s = %(kept)s and O = %(out)s. D = %(delta)s.") % {
            "letter": letter,
            "kept": show(found.kept, 4),
            "out": show(float(found.out[0]), 4),
            "delta": show(found.delta, 4),
        }
        return format_html('<p class="lines">{}</p>{}', kept, grids.framed(table, caption))

    def sentence(self, values: Values) -> str:
        found = self.rebuilt(values)
        words = {
            "sum": show(round(float(found.p.sum()), 9), 4),
            "slopes": ", ".join(show(float(x), 4) for x in found.ds),
        }
        if self.is_right(values).all():
            return (
                _(
                    "Rebuilt weights add up to %(sum)s; the slopes of the scores, %(slopes)s, are as tried"
                    " out."
                )
                % words
            )
        return (
            _("Rebuilt weights add up to %(sum)s; the slopes of the scores, %(slopes)s, are wrong.") % words
        )

    def numbers(self, values: Values) -> dict[str, Any]:
        found = self.rebuilt(values)
        return {
            "kept": found.kept,
            "out": float(found.out[0]),
            "p": found.p.tolist(),
            "dp": found.dp.tolist(),
            "delta": found.delta,
            "ds": found.ds.tolist(),
            "dv": found.dv[:, 0].tolist(),
            "is_right": bool(self.is_right(values).all()),
        }

    def picture(self, values: Values) -> str:
        found = self.rebuilt(values)
        lines = [
            [show(float(x), 4) for x in (s, p, dp, ds)]
            for s, p, dp, ds in zip(self.given(values)[0], found.p, found.dp, found.ds, strict=True)
        ]
        return drawn(self.sentence(values), _("Of each key"), [["S", "P", "dP", "dS"], *lines])

    def lab(self, values: Values) -> list[tuple[str, str]]:
        """One query of 1, whose scores are the keys."""
        scores, v, dout = self.given(values)
        return [
            ("engine", "flash"),
            ("q", "[[1]]"),
            ("k", to_json(scores[:, None].tolist())),
            ("v", to_json(v.tolist())),
            ("scale", "1"),
            ("how_dout", "text"),
            ("in_dout", to_json(dout[:, None].tolist())),
            *(("returns", name) for name in ("out", "lse", "dq", "dk", "dv")),
        ]


FIGURE = Backward()
