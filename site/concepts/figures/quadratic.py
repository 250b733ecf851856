"""What a layer costs as the text grows: operations of its parts, and the bytes of scores that are kept; by
`kernels.sizing.lengths`."""

from functools import partial
from typing import Any

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import parts
from concepts.figures.controls import Number, Switch
from concepts.figures.explorable import Values
from concepts.figures.lineplot import Axis, Series
from concepts.figures.numbers import show, show_power
from concepts.figures.plotted import Plot, Plotted
from kernels.sizing.lengths import LayerCost, crossing, score_bytes, textbook_cost

SHORTEST, LONGEST = 128, 1_048_576
LENGTHS = np.unique(np.geomspace(SHORTEST, LONGEST, 40).astype(int)).tolist()
RUN_LENGTH = 1024  # tokens at most, of those that the lab is given
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def in_bytes(count: float, digits: int = 1) -> str:
    """In the largest unit of which there is one or more."""
    power = min(int(np.log2(max(count, 1)) // 10), len(UNITS) - 1)
    return f"{show(count / 1024**power, digits)} {UNITS[power]}"


class Meter(Plotted):
    name = "meter"
    title = gettext_lazy("The figure: what a layer costs as the text grows")
    controls = (
        Number("n", gettext_lazy("Tokens, n"), 4096, SHORTEST, LONGEST, is_log=True),
        Number("d", gettext_lazy("Width of the model, d"), 4096, 64, 32_768, is_log=True),
        Number("heads", gettext_lazy("Heads"), 32, 1, 256, is_log=True),
        Switch("causal", gettext_lazy("Leave out masked pairs"), False),
    )

    def cost(self, values: Values, n: int) -> LayerCost:
        return textbook_cost(n, values["d"], is_causal=values["causal"])

    def crossing(self, values: Values) -> float:
        return crossing(textbook_cost(1, values["d"]), is_causal=values["causal"])

    def plot(self, values: Values) -> Plot:
        costs = [(n, self.cost(values, n)) for n in LENGTHS]
        here = self.cost(values, values["n"])
        series = [
            Series(_("scores and averages, n²"), [(n, one.pairs) for n, one in costs], has_marks=False),
            Series(_("projections and MLP, n"), [(n, one.linear) for n, one in costs], has_marks=False),
            Series(
                _("this length"),
                [(values["n"], here.linear), (values["n"], here.pairs)],
                is_joined=False,
            ),
        ]
        x = Axis(_("tokens (1K is 1,024)"), tokens, is_log=True, base=2)
        y = Axis(_("operations of a layer"), partial(show_power, digits=1), is_log=True)
        return series, x, y

    def table(self, values: Values) -> SafeString:
        n = values["n"]
        one, two = self.cost(values, n), self.cost(values, 2 * n)
        rows = [
            (name, show_power(mine), percent(mine / one.total), times(theirs / mine))
            for name, mine, theirs in (
                (_("scores and averages"), one.pairs, two.pairs),
                (_("projections"), one.projections, two.projections),
                (_("MLP"), one.mlp, two.mlp),
            )
        ]
        kept = score_bytes(n, values["heads"])
        memory = [
            (_("one head"), in_bytes(score_bytes(n)), times(4)),
            (_("all heads"), in_bytes(kept), times(4)),
        ]
        kept_heads = (_("of one layer"), _("bytes"), _("at 2n"))
        heads = (_("of one layer"), _("operations"), _("share"), _("at 2n"))
        total = (_("sum"), show_power(one.total), percent(1), times(two.total / one.total))
        return format_html(
            "<div>{}{}</div>",
            parts.listing(_("Operations, two to a multiply-add"), heads, rows, total),
            parts.listing(_("Memory, if all scores are kept in 16 bits"), kept_heads, memory),
        )

    def sentence(self, values: Values) -> str:
        n = values["n"]
        one, two = self.cost(values, n), self.cost(values, 2 * n)
        return _(
            "At %(n)s tokens the n² part is %(share)s of the operations of a layer; twice the tokens cost"
            " %(factor)s times as much. It is half of them at %(crossing)s tokens."
        ) % {
            "n": f"{n:,}",
            "share": percent(one.share),
            "factor": show(two.total / one.total, 2),
            "crossing": f"{round(self.crossing(values)):,}",
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        one = self.cost(values, values["n"])
        return {
            "operations": {"pairs": one.pairs, "projections": one.projections, "mlp": one.mlp},
            "share_of_pairs": one.share,
            "crossing": self.crossing(values),
            "score_bytes": score_bytes(values["n"], values["heads"]),
        }

    def lab(self, values: Values) -> list[tuple[str, str]]:
        """One head of 64 numbers, for an engine that keeps its scores."""
        length = min(values["n"], RUN_LENGTH)
        shape = {"batch": 1, "heads": 1, "q_len": length, "head_dim": 64, "seed": 1}
        pairs = [
            ("engine", "eager"),
            ("source", "seed"),
            *((name, str(size)) for name, size in shape.items()),
        ]
        return [*pairs, ("causal", "on")] if values["causal"] else pairs


def tokens(value: float) -> str:
    """In thousands of 1,024, as lengths are called."""
    if value < 1024:
        return show(value, 0)
    return f"{value / 1024**2:.3g}M" if value >= 1024**2 else f"{value / 1024:.3g}K"


def percent(share: float) -> str:
    return _("%(share)s\u202f%%") % {"share": show(round(100 * share, 6), 1)}


def times(factor: float) -> str:
    return _("×\u202f%(factor)s") % {"factor": show(factor, 2)}


FIGURE = Meter()
