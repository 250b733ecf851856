"""A norm before the sublayer or after the addition: how large the stream grows with depth, and how large the
gradients are that the layers get, by `kernels.depth`."""

from functools import lru_cache
from typing import Any

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, grids, lineplot, parts
from concepts.figures.controls import Number
from concepts.figures.explorable import Explorable, Values
from concepts.figures.lineplot import Axis, Series
from concepts.figures.numbers import show
from concepts.figures.plotted import Plot
from kernels.depth import HEADS, TOKENS, WIDTH, Depth, through

DEEPEST = 36


@lru_cache(maxsize=64)
def both(layers: int, draw: int) -> tuple[Depth, Depth]:
    """Of the same matrices in both orders: post-LN and pre-LN."""
    post, pre = (through(layers, draw, norm_first=norm_first) for norm_first in (False, True))
    return post, pre


class DepthFigure(Explorable):
    name = "depth"
    title = gettext_lazy("The figure: what the place of the norm does to a deep stack")
    controls = (
        Number("layers", gettext_lazy("Layers"), 24, 2, DEEPEST),
        Number("draw", gettext_lazy("Random draw"), 1, 1, 99),
    )

    def found(self, values: Values) -> tuple[Depth, Depth]:
        return both(values["layers"], values["draw"])

    def sizes(self, values: Values) -> Plot:
        post, pre = self.found(values)
        series = [
            Series(name, [*enumerate(one.sizes.tolist())], has_marks=False)
            for name, one in ((_("post-LN"), post), (_("pre-LN"), pre))
        ]
        x = Axis(_("layers passed"), lambda value: show(value, 0))
        return series, x, Axis(_("size of the stream"), lambda value: show(value, 1), from_zero=True)

    def gradients(self, values: Values) -> Plot:
        post, pre = self.found(values)
        series = [
            Series(name, [*enumerate(one.gradients.tolist(), 1)], has_marks=False)
            for name, one in ((_("post-LN"), post), (_("pre-LN"), pre))
        ]
        x = Axis(_("layer"), lambda value: show(value, 0))
        return series, x, Axis(_("gradient of its W₂"), lambda value: show(value, 1), from_zero=True)

    def view(self, values: Values, links: Links) -> SafeString:
        drawn = [
            format_html("<div>{}{}</div>", lineplot.svg(*plot, label), lineplot.legend(plot[0]))
            for plot, label in (
                (self.sizes(values), _("Size of the stream after each layer, in both orders")),
                (self.gradients(values), _("Gradient of each layer, in both orders")),
            )
        ]
        return format_html('<div class="split">{}</div>{}', parts.join(drawn), self.table(values))

    def table(self, values: Values) -> SafeString:
        post, pre = self.found(values)
        count = values["layers"]
        rows = [
            (
                _("layer %(number)d") % {"number": layer},
                *(show(float(one.sizes[layer]), 2) for one in (post, pre)),
                *(show(float(one.gradients[layer - 1]), 2) for one in (post, pre)),
            )
            for layer in sorted({1, 2, (count + 1) // 2, count})
        ]
        caption = _("Before training: %(tokens)d tokens, %(width)d numbers each, %(heads)d heads") % {
            "tokens": TOKENS,
            "width": WIDTH,
            "heads": HEADS,
        }
        heads = (
            "",
            _("size after it, post"),
            _("pre"),
            _("its gradient, post"),
            _("pre"),
        )
        return format_html(
            '<div class="outputs">{}</div>', grids.framed(parts.listing(caption, heads, rows), caption)
        )

    def sentence(self, values: Values) -> str:
        post, pre = self.found(values)
        return _(
            "After %(layers)d layers the stream has size %(post)s with post-LN and %(pre)s with pre-LN; the"
            " gradient of the last layer is %(steep)s and %(flat)s."
        ) % {
            "layers": values["layers"],
            "post": show(float(post.sizes[-1]), 2),
            "pre": show(float(pre.sizes[-1]), 2),
            "steep": show(float(post.gradients[-1]), 2),
            "flat": show(float(pre.gradients[-1]), 2),
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        return {
            name: {"sizes": one.sizes.tolist(), "gradients": one.gradients.tolist()}
            for name, one in zip(("post", "pre"), self.found(values), strict=True)
        }

    def picture(self, values: Values) -> str:
        return lineplot.document(*self.sizes(values), self.sentence(values))


def mean_of_draws(layers: int, *, norm_first: bool, draws: int = 8) -> tuple[float, float]:
    """Over several draws: the size after the last layer, and the gradient of that layer."""
    found = [both(layers, draw)[norm_first] for draw in range(1, draws + 1)]
    return (
        float(np.mean([one.sizes[-1] for one in found])),
        float(np.mean([one.gradients[-1] for one in found])),
    )


FIGURE = DepthFigure()
